"""Predict images one by one as they arrive. The model is updated after every 16 images.

find camera/ -name '*.jpg' | python examples/02_stream.py runs/source/model.safetensors
"""

import sys

from dept.runs.stream import open_stream

stream = open_stream(sys.argv[1], method="tent", batch=16)
for line in sys.stdin:
    reply = stream.feed([line.strip()])
    confidence, label = reply.probabilities.max(dim=-1)
    print(line.strip(), stream.method.model.classes[int(label)], f"{float(confidence):.2f}", flush=True)
