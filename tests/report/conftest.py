from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dept.runs.adapt import AdaptRun, adapt
from dept.runs.train import TrainRun
from support import PROJECTION

SMALL: dict[str, Any] = {"method": "dept", "epochs": 2, "batch": 4, "lr": 0.2, "device": "cpu", **PROJECTION}


@pytest.fixture(scope="session")
def scored_run(source_run: TrainRun, target_labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptRun:
    """A tiny DePT run with labels to score on."""
    out = tmp_path_factory.mktemp("runs") / "scored"
    return adapt(source_run.file, target_labelled, out=out, score_on=target_labelled, eval_every=1, **SMALL)


@pytest.fixture(scope="session")
def blind_run(source_run: TrainRun, target_images: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptRun:
    """A tiny DePT run without any label."""
    return adapt(source_run.file, target_images, out=tmp_path_factory.mktemp("runs") / "blind", **SMALL)
