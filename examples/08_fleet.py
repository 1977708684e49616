"""One model, many sites: each gets an adapter and a verdict, in two processes that read the backbone once each.

python examples/08_fleet.py runs/demo/source-G/model.safetensors runs/demo/real     # after `dept demo`

The sites here are the same images under different light, and one folder without a good image. On a cluster, use
`dept.RunnerOptions("ray", address="HOST:PORT")`. On the command line: `dept fleet MODEL SITES --out RUNS`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageOps

import dept

LIGHT = {
    "as it is": lambda image: image,
    "inverted": ImageOps.invert,
    "dark": lambda image: image.point(lambda v: v // 3),
}


def write_sites(images: Path, sites: Path) -> None:
    """A sub-folder of 30 images per site."""
    for name, change in LIGHT.items():
        (sites / name).mkdir(parents=True)
        for number, path in enumerate(sorted(images.rglob("*.png"))[:30]):
            change(Image.open(path).convert("L")).save(sites / name / f"{number}.png")
    (sites / "broken").mkdir()
    (sites / "broken" / "camera.png").write_bytes(b"no image")


def main(model_file: str, images: str) -> None:
    with TemporaryDirectory() as folder:
        sites, runs = Path(folder) / "sites", Path(folder) / "runs"
        write_sites(Path(images), sites)
        settings = {"method": "dept+", "max_iters": 5, "device": "cpu"}
        for _ in range(2):  # the second time everything that is finished is skipped
            summary = dept.fleet(model_file, sites, out=runs, runner=dept.RunnerOptions(jobs=2), **settings)
        print(summary)
        for row in summary.rows:
            print(f"{row.site}: {row.words}")


if __name__ == "__main__":  # the processes import this file
    main(*sys.argv[1:3])
