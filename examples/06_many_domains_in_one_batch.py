"""One forward for images of several domains: every image has the adapter of its own domain.

python examples/06_many_domains_in_one_batch.py runs/demo/source-G/model.safetensors runs/demo/real  # after `dept demo`

Prompts and head are arguments of the forward, so that domains share one frozen backbone, and a batch need not be split.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import dept
from dept.data.images import find_images
from dept.data.loader import Runtime, TestPasses, Views
from dept.models.files import load_adapter

model_file, images = sys.argv[1:3]
model = dept.load(model_file)

with TemporaryDirectory() as folder:
    # Two domains, here of the same images: adapted for 2 and for 6 steps.
    runs = [
        dept.adapt(model_file, images, out=Path(folder) / str(steps), method="dept+", max_iters=steps, accept=True)
        for steps in (2, 6)
    ]
    domains = [load_adapter(run.adapter, model) for run in runs]

batch = next(iter(TestPasses(find_images(images), Views(model.card.preprocess), Runtime(eval_batch=16))())).views[0]
owners = torch.arange(len(batch)) % 2  # images of the two domains arrive mixed

with torch.no_grad():
    # Tensors of all domains with a leading axis, and for every image those of its owner.
    mixed = model(batch, adapter=dept.Adapter.stack(domains).gather(owners))
    alone = [model(batch, adapter=domain) for domain in domains]

expected = torch.stack(alone)[owners, torch.arange(len(batch))]
print(f"{len(batch)} images of {len(domains)} domains in one forward; logits {tuple(mixed.shape)}")
print(f"largest difference from one forward per domain: {float((mixed - expected).abs().max()):.1e}")
