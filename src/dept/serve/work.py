"""An offline adaptation in a process of its own: `python -m dept.serve.work JOB`.

JOB/job.json says what to do. JOB/run is the run folder, whose events tell the progress; JOB/outcome.json is written at
the end, with the reason if there is no adapter.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from filelock import FileLock

from dept.data.images import ImageSet
from dept.data.loader import Runtime, TestPasses, Views, resolve_device
from dept.errors import DeptError, Interrupted
from dept.io import read_json, write_json
from dept.serve.routing import MOST, dump

CHECKED = 20
"""images to label, at most"""
RUN, JOB, OUTCOME, STAGE, FEATURES = "run", "job.json", "outcome.json", "stage.json", "features.npy"


def adapt_into(folder: Path) -> dict[str, Any]:
    """Adapt, draw images to label, and see what the images look like; returns the outcome."""
    from dept.runs.adapt import adapt
    from dept.runs.check import CheckOptions, check

    job, out = read_json(folder / JOB), folder / RUN
    (folder / STAGE).unlink(missing_ok=True)  # of a run that was killed, and begins anew
    begun = any((out / name).exists() for name in ("resume.safetensors", "plan.json"))
    done = adapt(
        job["model"],
        job["images"],
        out=out,
        method=job["method"],
        device=job["device"],
        resume=begun,
        overwrite=not begun,
        **job["settings"],
    )
    write_json(folder / STAGE, {"stage": "check"})
    options = CheckOptions(labels=CHECKED, device=job["device"], model=Path(job["model"]))
    try:
        check([out], options)
    except DeptError as error:  # an adapter without questions is an adapter
        write_json(folder / STAGE, {"stage": "check", "problem": str(error)})
    _look(_images(job["images"]), job, folder)
    return {"adapter": done.adapter.name, "expected": done.result["expected"], "images": done.result["images"]}


def _images(place: str) -> ImageSet:
    from dept.data.images import decodable, find_images
    from dept.data.subsets import sample

    return decodable(sample(find_images(place), MOST, seed=0))


def _look(images: ImageSet, job: dict[str, Any], folder: Path) -> None:
    """Write early features of some images, for routing and drift; nothing for a backbone without them."""
    import torch

    from dept.core.blocks import is_transformer
    from dept.core.domains import early_features
    from dept.io import write_atomic
    from dept.models.files import load_model

    device = resolve_device(job["device"])
    model = load_model(job["model"]).to(device)
    if is_transformer(model.backbone):
        passes = TestPasses(images, Views(model.card.preprocess), Runtime(device))
        rows = [early_features(model.backbone, batch.views[0]).cpu() for batch in passes()]
        write_atomic(folder / FEATURES, dump(torch.cat(rows)))


def main(folder: Path) -> int:
    """Run the job of a folder; what went wrong becomes a sentence in its outcome."""
    try:
        with FileLock(folder / ".work.lock"):  # the process of a server that was killed may need a while to end,
            if not (folder / OUTCOME).exists():  # or has come to its end unnoticed
                write_json(folder / OUTCOME, adapt_into(folder))
    except Interrupted as stop:
        return stop.exit_code
    except (DeptError, ValueError, OSError) as error:
        write_json(folder / OUTCOME, {"error": str(error)})
        return 1
    return 0


def stop_with_server() -> None:
    """Stop as if by the server when the other end of stdin is closed, because the server was killed."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=stop_with_server, daemon=True).start()
    raise SystemExit(main(Path(sys.argv[1])))
