from __future__ import annotations

from math import inf, isnan, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from dept import methods
from dept.core.clipping import clip_each, clip_rows
from dept.data.loader import Batch
from dept.errors import DeptError
from dept.methods.base import BaseConfig, Progress, part, prefixed
from dept.methods.tent import Tent
from support import moved, random_batch, state_of, tiny_config, tiny_model


def test_stages_are_clipped_as_if_each_were_a_tensor() -> None:
    gradient = (
        torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.1, 1.0])[:, None, None]
    )
    prompts = torch.zeros(3, 4, 5)
    prompts.grad = gradient.clone()
    alone = [torch.zeros(4, 5) for _ in range(3)]
    for tensor, own in zip(alone, gradient, strict=True):
        tensor.grad = own.clone()
    clip_each(alone, 1.0)
    clip_rows(prompts, 1.0)
    torch.testing.assert_close(prompts.grad, torch.stack([tensor.grad for tensor in alone if tensor.grad is not None]))
    assert torch.equal(prompts.grad[1], gradient[1])


def test_each_tensor_is_clipped_alone() -> None:
    large, small, unused = (torch.zeros(2, requires_grad=True) for _ in range(3))
    large.grad, small.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.18, 0.24])
    clip_each([large, small, unused], 1.0)
    assert torch.allclose(large.grad, torch.tensor([0.6, 0.8]), atol=1e-5)
    assert torch.equal(small.grad, torch.tensor([0.18, 0.24]))
    assert unused.grad is None


def test_prefixes_are_inverse() -> None:
    state = {"a": torch.zeros(1), "b.c": torch.ones(1)}
    assert part(prefixed("x", state) | {"xy.a": torch.ones(1)}, "x").keys() == state.keys()


def test_registry() -> None:
    assert {"dept", "source", "tent"} <= set(methods.available())
    assert methods.available() == sorted(methods.available())
    with pytest.raises(ValueError, match=r"There is no method 'depth'. Choose from .*dept"):
        methods.get("depth")


def test_registry_by_setting() -> None:
    assert methods.available("uda") == ["can", "cdan", "dann", "erm", "mcc", "swd"]
    assert methods.available("train") == ["multi-source-training", "source-training"]
    assert "cfa" not in methods.available("offline") and methods.get("cfa", "offline").title == "CFA"
    assert methods.get("mcc", "uda").settings == ("uda",)
    wrong = {
        ("mcc", "offline"): r"'mcc' needs labelled source images. Run it with `dept uda`",
        ("tent", "uda"): r"'tent' adapts without source images. Run it with `dept adapt`",
        ("sar", "train"): r"'sar' adapts without source images. Run it with `dept stream`",
        ("source-training", "online"): r"trains a source model. Run it with `dept train`",
    }
    for (name, setting), sentence in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            methods.get(name, setting)


def test_what_only_relabels_is_refused_offline() -> None:
    assert methods.get("lame", "online").relabels
    with pytest.raises(ValueError, match="tunes no tensors, so there is no adapter to write"):
        methods.get("lame", "offline")


@pytest.mark.parametrize("kind", [Tent.Config, methods.get("dann").Config])
@pytest.mark.parametrize(
    ("name", "value", "bound"), [
        ("lr", -1.0, "at least 0"), ("lr", nan, "at least 0"), ("lr", inf, "at least 0"), ("momentum", 7.0, "below 1"),
        ("momentum", 1.0, "below 1"), ("weight_decay", -1e-4, "at least 0"), ("batch", 0, "at least 1"),
    ]
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(kind: type[BaseConfig], name: str, value: float, bound: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be {bound}.*, found {value}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("method", "name", "value", "bound"), [
        ("dept", "ema", 2.0, "at most 1"), ("dept", "ema", -1.0, "at least 0"), ("dept", "neighbours", 0, "at least 1"),
        ("dept", "student_temperature", -1.0, "above 0"), ("dept", "projection_out", 0, "at least 1"),
        ("source-training", "label_smoothing", nan, "at least 0"),
        ("source-training", "label_smoothing", 2.0, "below 1"),
        ("source-training", "new_lr_scale", nan, "above 0"), ("source-training", "crop_scale", (0.0, 1.0), "above 0"),
        ("source-training", "warmup", -2, "at least -1"), ("cdan", "iters_per_epoch", 0, "at least 1"),
    ]
)  # fmt: skip
def test_settings_of_methods_that_make_no_sense_are_refused(method: str, name: str, value: float, bound: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be {bound}"):
        methods.get(method).Config(**{name: value})


class _Poisoned(Tent):
    """Tent whose loss is not finite while `poison` is set."""

    poison = True

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().loss(batch)
        return {"entropy": terms["entropy"] * torch.tensor(nan if self.poison else 1.0)}


def test_a_step_without_finite_gradients_is_skipped_and_counted() -> None:
    method = _Poisoned(tiny_model(), tiny_config(Tent, lr=0.1))
    before = state_of(method.model)
    terms = [method.step(random_batch("t")) for _ in range(2)]
    assert not moved(before, method.model) and isnan(terms[0]["loss"])
    assert (method.skipped_steps, method.skipped_in_a_row) == (2, 2)
    method.poison = False
    method.step(random_batch("t"))
    assert moved(before, method.model) and (method.skipped_steps, method.skipped_in_a_row) == (2, 0)


def test_parameters_that_overflow_end_the_run() -> None:
    method = Tent(tiny_model(), tiny_config(Tent))
    method.at(Progress(3, 9, 0))
    assert method.optimizer is not None
    method.optimizer.param_groups[0]["lr"] = inf
    with pytest.raises(DeptError, match=r"no longer finite after step 3 \(learning rate inf\)"):
        method.step(random_batch("t"))


def test_epochs_grow_as_images_shrink() -> None:
    config = Tent.Config(epochs=15)
    assert [Tent.scaled(config, ratio).epochs for ratio in (1.0, 0.5, 0.1, 0.01)] == [15, 30, 150, 1500]


def test_schedule_constant_by_default() -> None:
    method = Tent(tiny_model())
    assert [method.lr_scale(Progress(step, 10, 0)) for step in (0, 5, 9)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("settings", [{"weight_decay": 1e308}, {"lr": 1e20}, {"batch": 10**20}])
def test_settings_that_overflow_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(settings))} must be at most 2,147,483,648, found"):
        BaseConfig(**settings)


def test_a_method_of_ones_own_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_OWN", {})

    @methods.register
    class Mine(Tent):
        name, title, summary, settings = "mine", "Mine", "Tent by another name", ("offline",)

    assert methods.get("mine", "offline") is Mine and methods.card("mine").title == "Mine"
    assert "mine" in methods.available("offline") and "mine" not in methods.available("uda")
    with pytest.raises(ValueError, match="Run it with `dept adapt`"):
        methods.get("mine", "uda")
    with pytest.raises(ValueError, match="dept itself has a method 'tent'"):
        methods.register(Tent)
