from __future__ import annotations

import pytest
import torch
from torch import nn

from dept.core.adapter import Adapter, pick


def test_ema_closed_form() -> None:
    """Constant student s: after n steps the teacher is s + 0.99^n (t0 - s)."""
    teacher = Adapter({"a": torch.tensor([2.0, -1.0]), "b": torch.tensor([[4.0]])})
    student = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[0.0]]), "other": torch.ones(1)}
    for _ in range(10):
        teacher.ema_(student, 0.99)
    assert torch.allclose(teacher.tensors["a"], torch.tensor([1 + 0.904382, 1 - 2 * 0.904382]), atol=1e-5)
    assert torch.allclose(teacher.tensors["b"], torch.tensor([[4 * 0.904382]]), atol=1e-5)
    assert torch.equal(student["a"], torch.ones(2))


def test_ema_of_a_grad_requiring_student_makes_no_graph() -> None:
    teacher = Adapter({"w": torch.zeros(2)})
    teacher.ema_({"w": torch.ones(2, requires_grad=True)}, 0.5)
    assert teacher.tensors["w"].tolist() == [0.5, 0.5] and not teacher.tensors["w"].requires_grad


def test_of_copies_and_copy_to_writes_in_place() -> None:
    layer = nn.Linear(2, 2)
    storage = layer.weight.data_ptr()
    taken = Adapter.of(layer, ["weight"])
    with torch.no_grad():
        layer.weight.zero_()
    assert not torch.equal(taken.tensors["weight"], layer.weight)
    taken.copy_to(layer)
    assert torch.equal(taken.tensors["weight"], layer.weight) and layer.weight.data_ptr() == storage
    assert layer.weight.requires_grad


def test_buffers_can_be_picked() -> None:
    norm = nn.BatchNorm1d(3)
    assert pick(norm, ["running_mean"])["running_mean"] is norm.running_mean


def test_clone_is_independent() -> None:
    first = Adapter({"w": torch.zeros(2)}, {"note": 1})
    second = first.clone()
    second.tensors["w"] += 1
    second.meta["note"] = 2
    assert first.tensors["w"].sum() == 0 and first.meta == {"note": 1}


def test_diff_and_size() -> None:
    first = Adapter({"w": torch.tensor([1.0, 2.0]), "b": torch.zeros(3)})
    second = Adapter({"w": torch.tensor([1.5, 0.0]), "b": torch.zeros(3)})
    assert first.diff(second) == {"w": 2.0, "b": 0.0}
    with pytest.raises(ValueError, match="only one of them"):
        first.diff(Adapter({"w": torch.zeros(2)}))


def test_unknown_names_and_other_shapes_are_refused() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no tensor named 'missing'"):
        Adapter({"missing": torch.zeros(1)}).copy_to(layer)
    with pytest.raises(ValueError, match=r"shape \(3, 2\), the model's is \(2, 2\)"):
        Adapter({"weight": torch.zeros(3, 2)}).copy_to(layer)


def test_stack_and_gather() -> None:
    many = Adapter.stack([Adapter({"head.bias": torch.full((2,), float(i))}) for i in range(3)])
    gathered = many.gather(torch.tensor([2, 0, 0, 1]))
    assert gathered.tensors["head.bias"][:, 0].tolist() == [2.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="changes the backbone"):
        Adapter.stack([Adapter({"backbone.norm.weight": torch.zeros(1)})])
