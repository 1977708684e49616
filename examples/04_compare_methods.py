"""Run several methods on the same images under one protocol, and compare them.

python examples/04_compare_methods.py runs/demo/source-G/model.safetensors runs/demo/real      # after `dept demo`

The images are in a folder per class here, so that accuracies can be printed. No method sees the labels.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import dept

model_file, labelled = sys.argv[1:3]
STEPS = 6
METHODS = {
    "neo": {},
    "tent": {"max_iters": STEPS},
    "shot": {"preset": "im", "max_iters": STEPS},
    "dept": {"preset": "official", "max_iters": STEPS},
    "dept+": {"max_iters": STEPS},
}

print(f"{'method':10} {'before':>7} {'after':>7}  {'expected without labels':26} {'tuned':>9} {'seconds':>8}")
with TemporaryDirectory() as folder:
    for name, settings in METHODS.items():
        start = time.perf_counter()
        run = dept.adapt(model_file, labelled, out=Path(folder) / name, method=name, score_on=labelled, **settings)
        result = run.result
        expected = result["expected"]
        words = f"{expected['verdict']}, {100 * expected['low']:+.0f} to {100 * expected['high']:+.0f} points"
        print(
            f"{name:10} {100 * result['before']['top1']:6.1f}% {100 * result['after']['top1']:6.1f}%  {words:26} "
            f"{result['tunable_model']:9,} {time.perf_counter() - start:8.1f}"
        )
