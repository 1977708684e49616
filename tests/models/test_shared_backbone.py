"""Many runs of one process over one backbone: nothing they do reaches it, and they end as single runs do."""

from __future__ import annotations

import gc
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dept import methods
from dept.io import read_tensors
from dept.models.files import ModelFile, apply_adapter, load_adapter, load_model, save_model
from dept.models.model import fingerprint
from dept.runs.adapt import adapt
from dept.runs.train import TrainRun
from support import PROJECTION, same_bits, spread_predictions, teach, tiny_resnet

OFFLINE = [name for name in methods.available("offline") if not methods.card(name).relabels]


def quick(name: str, stats: Path) -> dict[str, Any]:
    """Two small steps of a method, as far as it has such settings."""
    kind = methods.get(name)
    small = {"max_iters": 2, "batch": 4, **PROJECTION}
    known = {field.name for field in fields(kind.Config)}
    return {"method": name, "device": "cpu", "stats": str(stats)} | {k: v for k, v in small.items() if k in known}


def adapter_of(folder: Path) -> dict[str, Tensor]:
    (file,) = folder.glob("adapter*.safetensors")
    return read_tensors(file, "adapter")[0]


@pytest.fixture(scope="module")
def file(source_run: TrainRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that `stats_file` is of."""
    place = tmp_path_factory.mktemp("model") / "model.safetensors"
    return save_model(spread_predictions(load_model(source_run.file)), place)


@pytest.fixture(scope="module")
def shared(file: Path) -> ModelFile:
    """One for all tests of this file: what a method leaves behind would be seen by the next."""
    return ModelFile(file)


@pytest.mark.parametrize("name", OFFLINE)
def test_every_method_leaves_the_backbone_to_the_next_run(
    name: str, shared: ModelFile, file: Path, target_images: Path, stats_file: Path, tmp_path: Path
) -> None:
    settings = quick(name, stats_file)
    if task := methods.get(name).needs_task:
        file = save_model(teach(load_model(file), task), tmp_path / "taught.safetensors")
        shared = ModelFile(file)
    single = adapt(file, target_images, out=tmp_path / "single", **settings)
    again = adapt(shared, target_images, out=tmp_path / "shared", **settings)
    assert same_bits(adapter_of(single.folder), adapter_of(again.folder))
    assert torch.equal(single.after, again.after) and single.result["protocol"] == again.result["protocol"]
    assert fingerprint(shared.borrow()) == shared.backbone_sha256 == fingerprint(load_model(file))


def test_batch_norm_statistics_stay(target_images: Path, tmp_path: Path) -> None:
    file = save_model(tiny_resnet(), tmp_path / "resnet.safetensors")
    shared = ModelFile(file)
    before = fingerprint(shared.borrow())
    for number in range(2):
        adapt(shared, target_images, out=tmp_path / f"{number}", method="tent", max_iters=2, batch=4, device="cpu")
    assert same_bits(adapter_of(tmp_path / "0"), adapter_of(tmp_path / "1"))
    assert fingerprint(shared.borrow()) == before


def test_an_adapter_of_the_backbone_is_written_beside_it(
    shared: ModelFile, target_images: Path, tmp_path: Path
) -> None:
    run = adapt(shared, target_images, out=tmp_path / "run", method="full", max_iters=1, batch=4, device="cpu", lr=1.0)
    model = apply_adapter(shared.borrow(), load_adapter(run.adapter, shared.borrow()))
    assert fingerprint(model) != shared.backbone_sha256 == fingerprint(shared.borrow())


def test_borrowing_copies_no_backbone(shared: ModelFile) -> None:
    one, two = shared.borrow(), shared.borrow()
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert (a.data_ptr() == b.data_ptr()) is name.startswith("backbone."), name
        assert a is not b  # each has its own gradient


def test_runs_leave_no_tensors_behind(shared: ModelFile, target_images: Path, tmp_path: Path) -> None:
    """What a worker holds after any number of sites: the one model."""

    def held() -> int:
        gc.collect()
        tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
        return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())

    sizes = []
    for number in range(3):
        adapt(shared, target_images, out=tmp_path / f"{number}", method="dept+", max_iters=2, batch=4, device="cpu")
        sizes.append(held())
    assert sizes[-1] <= 1.01 * sizes[0]
