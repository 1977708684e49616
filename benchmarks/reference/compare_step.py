"""Our offline DePT step against the straightforward one: same loss values, time and memory as ratios.

python benchmarks/reference/compare_step.py --iters 3 > benchmarks/results/cost/step.json
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from straightforward import StraightforwardDePT

from dept.bench.cost import interleaved, peak_bytes
from dept.core.bank import MemoryBank
from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.dept import DePT
from dept.models.model import create_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--bank", type=int, default=55_388)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--iters", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(compare(options), indent=2))


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Loss terms side by side, then times taken in turns, then peaks."""
    torch.manual_seed(0)
    make = lambda: create_model(options.arch, 12, stages=4, prompts=options.prompts).eval()  # noqa: E731
    size = make().card.preprocess.size
    views = tuple(torch.randn(options.batch, 3, size, size) for _ in range(3))
    width = make().head.in_features
    bank = torch.randn(options.bank, width), torch.rand(options.bank, 12).softmax(dim=1)
    exact, lean = (ours(make(), DePT.Config(batch=options.batch, lean=flag), bank) for flag in (False, True))
    reference = StraightforwardDePT(exact.model, exact.config, bank)
    batch = Batch(views, torch.arange(options.batch))
    mine, theirs = exact.step(batch), reference.step(*views)
    difference = max(abs(mine[name] - value) for name, value in theirs.items())
    runs = {
        "straightforward": lambda: reference.step(*views),
        "exact": lambda: exact.step(batch),
        "lean": lambda: lean.step(batch),
    }
    seconds = interleaved(runs, options.iters)
    peaks = {
        "straightforward": peak_bytes(runs["straightforward"], reference.student, reference.teacher),
        "exact": peak_bytes(runs["exact"], exact.model),
    }
    return {
        "protocol": vars(options) | {"threads": torch.get_num_threads()},
        "largest difference of a loss term": difference,
        "speed-up exact": round(seconds["straightforward"] / seconds["exact"], 3),
        "speed-up lean": round(seconds["straightforward"] / seconds["lean"], 3),
        "memory exact": round(peaks["exact"] / peaks["straightforward"], 3),
        "bank": bank_query(size=options.bank),
    }


def ours(model: object, config: DePT.Config, bank: tuple[torch.Tensor, torch.Tensor]) -> DePT:
    """Our method with a filled bank, ready for a step."""
    method = DePT(model, config)
    method.bank = MemoryBank(len(bank[0]), bank[0].shape[1], bank[1].shape[1])
    method.bank.write(*bank)
    method.at(Progress(0, 10**9, 0))
    return method


def bank_query(batch: int = 128, size: int = 55_388, width: int = 768) -> dict[str, float]:
    """One vote: ours against renormalising and sorting in chunks of 64 queries."""
    features, probabilities = torch.randn(size, width), torch.rand(size, 12)
    bank = MemoryBank(size, width, 12)
    bank.write(features, probabilities)
    queries = torch.randn(batch, width)
    slow = StraightforwardDePT.__new__(StraightforwardDePT)
    slow.features, slow.probabilities, slow.config = features, probabilities, DePT.Config()
    assert torch.allclose(slow.vote(queries), bank.vote(queries, 10), atol=1e-6)
    start = time.perf_counter()
    slow.vote(queries)
    middle = time.perf_counter()
    bank.vote(queries, 10)
    return {"speed-up": round((middle - start) / (time.perf_counter() - middle), 2)}


if __name__ == "__main__":
    main()
