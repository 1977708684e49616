"""Every method of the registry, tiny: made in the same way wherever it is run, and run for three steps."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from uda_support import make as make_uda
from uda_support import paired_batch

from dept import methods
from dept.core import collective
from dept.data.loader import LabelledBatch
from dept.methods.base import Method, Progress
from dept.methods.multi_source import MultiSourceTraining
from dept.methods.uda.base import PairedPasses
from dept.models.files import load_model
from dept.models.model import Model
from support import FixedPasses, random_batch, spread_predictions, state_of, teach, tiny_config, tiny_model, tiny_resnet

SIZES = {"vit": (6, 5, 1), "resnet": (6, 5, 3)}
"""images of three steps: shared out evenly, unevenly, and (batch norm needs more) too few for two processes"""


class Case(NamedTuple):
    """A method in a setting that it is made for."""

    method: str
    setting: str
    backbone: str

    @property
    def wanted(self) -> bool:
        """Batch norm takes time: one setting of the methods that use its batch statistics, each in its own way."""
        kind = methods.get(self.method)
        test_time = kind.batch_statistics and self.setting == kind.settings[0]
        return self.backbone == "vit" or test_time or self.method in ("can", "cdan", "swd", "source-training")


class Inputs(NamedTuple):
    """What the cases start from: a source model, and statistics of both backbones as torch saves them."""

    model: Path
    stats: Path


def cases() -> list[Case]:
    settings = [
        (name, setting) for setting in ("offline", "online", "uda", "train") for name in methods.available(setting)
    ]
    listed = [Case(*pair, backbone) for pair in settings for backbone in SIZES]
    return [case for case in listed if case.wanted]


def run_all(inputs: Inputs) -> dict[Case, dict[str, Tensor]]:
    return {case: run(case, inputs) for case in cases()}


def run(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Three steps of a fresh method; everything that it and the model have become."""
    method = {"uda": _uda, "train": _train}.get(case.setting, _test_time)(case, inputs)
    state = {f"method.{name}": tensor.detach().clone() for name, tensor in method.state_dict().items()}
    return state | {f"model.{name}": tensor for name, tensor in state_of(method.model).items()}


def made(case: Case, inputs: Inputs | None) -> Method:
    """A fresh test-time method; without inputs, on random weights and without source statistics."""
    kind, model = methods.get(case.method), _model(case, inputs)
    with collective.together(None):  # each process by itself: these are inputs
        spread_predictions(model)
    small = {"queue_size": 64} if "queue_size" in kind.Config.__dataclass_fields__ else {}
    stats = None if inputs is None else torch.load(inputs.stats)[case.backbone]
    return kind(model.eval(), tiny_config(kind, epochs=1, **small), stats=stats)


def _test_time(case: Case, inputs: Inputs) -> Method:
    method, passes = made(case, inputs), FixedPasses(count=11)
    if case.setting == "offline":
        method.begin(passes)
    for number, size in enumerate(SIZES[case.backbone]):
        batch = random_batch(method.views, size, seed=number)
        method.at(Progress(number, 4, number))
        if case.setting == "online":
            method.observe(batch.views[0], batch)
        elif method.groups:
            method.before_step(passes)
            method.step(batch)
            method.refresh(passes, number)
    return method


def _uda(case: Case, inputs: Inputs) -> Method:
    method = make_uda(case.method, _model(case, inputs))
    passes = PairedPasses(FixedPasses(seed=1), FixedPasses(), torch.arange(10) % 3)
    method.begin(passes)
    for number, size in enumerate((4, 5, 3)):
        method.at(Progress(number + 500, 506, number))  # late enough for reversed gradients to count
        method.step(paired_batch(size, number))
        method.refresh(passes, number)
    return method


def _train(case: Case, inputs: Inputs) -> Method:
    kind, model = methods.get(case.method), _model(case, inputs).train()
    config = tiny_config(kind, aux="rotation")
    several = {"names": ("one", "two"), "owners": [0, 1] * 3} if kind is MultiSourceTraining else {}
    method = kind(model, config, **several)
    for number, size in enumerate(SIZES[case.backbone]):
        batch = random_batch(method.views, size, seed=number)
        method.at(Progress(number, 4, number))
        method.step(LabelledBatch(batch.views, batch.index, torch.arange(size) % 3))
    return method


def _model(case: Case, inputs: Inputs | None) -> Model:
    return teach(deepcopy(_built(case.backbone, inputs and inputs.model)), methods.get(case.method).needs_task)


@lru_cache
def _built(backbone: str, file: Path | None) -> Model:
    """Building a model takes longer than three steps of it."""
    vit = tiny_model() if file is None else load_model(file)
    return vit if backbone == "vit" else tiny_resnet()
