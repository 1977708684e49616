from __future__ import annotations

from math import inf, nan

import pytest
import torch

from dept import methods
from dept.core.clipping import clip_each, clip_rows
from dept.methods.base import BaseConfig, Progress, part, prefixed
from dept.methods.tent import Tent
from support import tiny_model


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
        ("source-training", "online"): r"trains a source model; run it with `dept train`",
    }
    for (name, setting), sentence in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            methods.get(name, setting)


def test_what_only_relabels_is_refused_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "card", lambda name: methods.Card("LAME", "re-labels", ("online",), relabels=True))
    assert methods.get("source", "online")
    with pytest.raises(ValueError, match="tunes no tensors, so there is no adapter to write"):
        methods.get("source", "offline")


@pytest.mark.parametrize("kind", [Tent.Config, methods.get("dann").Config])
@pytest.mark.parametrize(
    ("name", "value"), [("lr", -1.0), ("lr", nan), ("lr", inf), ("momentum", 7.0), ("momentum", 1.0),
                        ("weight_decay", -1e-4)]
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(kind: type[BaseConfig], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 0 and .*, found {value}"):
        kind(**{name: value})


def test_epochs_grow_as_images_shrink() -> None:
    config = Tent.Config(epochs=15)
    assert [Tent.scaled(config, ratio).epochs for ratio in (1.0, 0.5, 0.1, 0.01)] == [15, 30, 150, 1500]


def test_schedule_constant_by_default() -> None:
    method = Tent(tiny_model())
    assert [method.lr_scale(Progress(step, 10, 0)) for step in (0, 5, 9)] == [1.0, 1.0, 1.0]
