from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from dept.data.images import find_labelled
from dept.data.loader import Runtime
from dept.models.files import load_model
from dept.models.model import Model
from dept.models.stats import compute_stats, save_stats
from dept.runs.train import TrainRun, train
from support import PROJECTION, spread_predictions, teach, tiny_model, write_labelled, write_unlabelled

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1234)


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_works() -> None:
    """A shell that starts the tests in the background makes them ignore Ctrl-C, which some of them press."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def source_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled tree: bright discs, 8 per class."""
    return write_labelled(tmp_path_factory.mktemp("data") / "source", 8)


@pytest.fixture(scope="session")
def target_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unlabelled tree of 10 images at several depths: darker, noisier."""
    return write_unlabelled(tmp_path_factory.mktemp("data") / "target", 10, dim=0.6, noise=40)


@pytest.fixture(scope="session")
def target_labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled tree of the target domain, 4 per class."""
    return write_labelled(tmp_path_factory.mktemp("data") / "target_labelled", 4, seed=5, dim=0.6, noise=40)


@pytest.fixture
def model() -> Model:
    return tiny_model()


@pytest.fixture(scope="session")
def source_run(source_images: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRun:
    """A tiny source model, trained the ordinary way (with projection heads)."""
    out = tmp_path_factory.mktemp("runs") / "source"
    settings = {"epochs": 2, "batch": 8, "lr": 5e-3, **PROJECTION}
    return train(tiny_model().train(), source_images, out=out, device="cpu", **settings)


@pytest.fixture
def source_model(source_run: TrainRun) -> Model:
    """A fresh copy of the trained source model."""
    return load_model(source_run.file)


@pytest.fixture(scope="session")
def stats_file(source_run: TrainRun, source_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source statistics of the tiny source model with spread predictions, for the methods that compare with them."""
    images = find_labelled(source_images)
    model = teach(spread_predictions(load_model(source_run.file)), "contrastive")  # which adds to the statistics
    tensors, meta = compute_stats(model, images, Runtime())
    return save_stats(tensors, meta, tmp_path_factory.mktemp("stats") / "stats.safetensors")


PROCESSES = (
    *("serve", "cli/test_stream.py", "test_ray.py", "test_slurm.py", "test_runners.py"),
    *("test_fleet.py", "test_distributed.py", "test_docs.py", "test_doc_runs.py", "test_examples.py"),
)
"""tests that wait for other processes, by folder or file"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a busy machine another process may answer too late: such tests are tried again."""
    for item in items:
        if any(part in item.path.parts or item.path.match(part) for part in PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=2))
