"""Train the source model that the package carries: `python benchmarks/train_digits_source.py`.

Looks at rendered digits only. About ten minutes on one core; the last digits depend on the number of threads
and on the versions of torch and matplotlib's fonts.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from dept.bench.suites.digits import EMBEDDED, STAGES
from dept.cli.show import ProgressBar
from dept.demo import train_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=STAGES, default="G")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/digits-source"))
    parser.add_argument("--embed", action="store_true", help=f"copy the model to {EMBEDDED}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = train_source(options.out, variant=options.variant, seed=options.seed, listener=ProgressBar())
    if options.embed:
        EMBEDDED.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, EMBEDDED)
    print(file)


if __name__ == "__main__":
    main()
