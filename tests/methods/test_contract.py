"""What every registered method keeps. A new method is tested by being registered."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dept import methods
from dept.data.images import find_images, find_labelled
from dept.data.loader import Batch, Runtime, Views
from dept.io import read_tensors, write_tensors
from dept.methods.base import Method, Progress
from dept.models.files import load_model
from dept.models.model import Model, fingerprint
from dept.models.stats import compute_stats, load_stats
from dept.runs.loops import offline
from dept.runs.train import TrainRun
from support import (
    FixedPasses,
    moved,
    random_batch,
    same_bits,
    spread_predictions,
    state_of,
    teach,
    tiny_config,
    tiny_resnet,
)

pytestmark = pytest.mark.parametrize("name", sorted({*methods.available("offline"), *methods.available("online")}))


@pytest.fixture
def fresh(name: str, source_run: TrainRun, stats_file: Path) -> Any:
    """Makes the method on a fresh copy of the source model, with source statistics if it can use them."""
    kind = methods.get(name)

    def make(seed: int = 0, **changes: Any) -> Method:
        model = spread_predictions(load_model(source_run.file))
        teach(model, kind.needs_task)
        return kind(model, tiny_config(kind, **changes), seed=seed, stats=load_stats(stats_file, model))

    return make


@pytest.fixture(params=["transformer", "batch norm"])
def either(request: pytest.FixtureRequest, name: str, fresh: Any, source_images: Path) -> Any:
    """The same, and also on a ResNet, whose batch norm has statistics of its own."""
    if request.param == "transformer":
        return fresh
    kind = methods.get(name)
    plain = spread_predictions(tiny_resnet())
    teach(plain, kind.needs_task)
    stats = compute_stats(plain, find_labelled(source_images), Runtime())[0]

    def make(seed: int = 0) -> Method:
        model = spread_predictions(tiny_resnet()).eval()
        teach(model, kind.needs_task)
        return kind(model, tiny_config(kind), seed=seed, stats=stats)

    return make


def batch_for(method: Method, size: int = 4, seed: int = 0) -> Batch:
    return random_batch(method.views, size, seed)


def steps(method: Method, numbers: range, *, begin: bool = True, size: int = 4) -> list[dict[str, float]]:
    """Some steps of an imaginary run of 6, with a refresh after each third."""
    passes = FixedPasses()
    if begin:
        method.begin(passes)
    terms = []
    for number in numbers:
        method.at(Progress(number, 6, number // 3))
        terms.append(method.step(batch_for(method, size, seed=number)))
        if number % 3 == 2:
            method.refresh(passes, number // 3)
    return terms


def everything(method: Method) -> dict[str, Tensor]:
    """The whole state: the method's and the model's."""
    own = {f"method.{name}": tensor.clone() for name, tensor in method.state_dict().items()}
    return own | {f"model.{name}": tensor for name, tensor in state_of(method.model).items()}


def test_loss_is_finite_and_adds_up(fresh: Any) -> None:
    method = fresh()
    for terms in steps(method, range(3)):
        assert all(math.isfinite(value) for value in terms.values())
        if type(method).step is Method.step:  # others may report diagnostics beside the terms
            parts = [value for name, value in terms.items() if name != "loss"]
            assert terms["loss"] == pytest.approx(sum(parts), abs=1e-4)


def test_only_declared_tensors_move(fresh: Any) -> None:
    method = fresh()
    before, sha = state_of(method.model), fingerprint(method.model)
    steps(method, range(3))
    changed = moved(before, method.model)
    declared = set(method.trained_names) | set(method.adapter_names)
    assert changed <= declared, f"moved without being declared: {sorted(changed - declared)[:4]}"
    if method.groups:
        assert changed & set(method.adapter_names), "nothing of the adapter moved"
    tunes_backbone = any(tensor.startswith("backbone.") for tensor in declared)
    assert (fingerprint(method.model) == sha) or tunes_backbone


def test_adapter_holds_the_declared_tensors_and_is_a_copy(fresh: Any) -> None:
    method = fresh()
    steps(method, range(2))
    adapter, model = method.adapter(), method.model.state_dict()
    assert set(adapter.tensors) == set(method.adapter_names)
    assert not any(tensor.startswith("projections.") for tensor in adapter.tensors)
    for tensor_name, tensor in adapter.tensors.items():
        assert torch.equal(tensor, model[tensor_name]) and tensor.data_ptr() != model[tensor_name].data_ptr()


def test_counts(fresh: Any) -> None:
    method = fresh()
    counts, adapter = method.counts(), method.adapter()
    parameters = dict(method.model.named_parameters())
    assert counts["tunable_model"] == sum(t.numel() for n, t in adapter.tensors.items() if n in parameters)
    assert counts["tunable_total"] >= counts["tunable_model"]


def test_state_round_trip_gives_the_same_next_steps(either: Any) -> None:
    first = either()
    steps(first, range(2))
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = either(seed=99)
    second.load_state_dict(state)
    assert same_bits(first.state_dict(), second.state_dict())
    expected, terms = (steps(method, range(2, 5), begin=False) for method in (first, second))
    assert terms == expected
    assert same_bits(everything(first), everything(second))


def test_state_survives_a_file(fresh: Any, tmp_path: Path) -> None:
    method = fresh()
    steps(method, range(2))
    write_tensors(tmp_path / "state.safetensors", method.state_dict(), {"kind": "resume"})
    read, _ = read_tensors(tmp_path / "state.safetensors", "resume")
    assert same_bits(read, method.state_dict())


def test_loaded_state_is_copied_not_shared(fresh: Any) -> None:
    method = fresh()
    steps(method, range(2))
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in state.items()}
    method.load_state_dict(state)
    steps(method, range(2, 5), begin=False)
    assert same_bits(state, kept)


def test_reset_restores_exactly(either: Any) -> None:
    method = either()
    initial = everything(method)
    first = steps(method, range(4))
    end = everything(method)
    method.reset()
    assert same_bits(everything(method), initial)
    assert steps(method, range(4)) == first
    assert same_bits(everything(method), end)
    method.reset()
    assert same_bits(everything(method), initial)


def test_same_seed_same_numbers(fresh: Any) -> None:
    one, two = fresh(seed=3), fresh(seed=3)
    first = steps(one, range(4))
    torch.manual_seed(999)  # the global generator must not matter
    assert steps(two, range(4)) == first
    assert same_bits(everything(one), everything(two))


def test_batch_of_one(fresh: Any) -> None:
    method = fresh()
    for terms in steps(method, range(3), size=1):
        assert all(math.isfinite(value) for value in terms.values())
    assert all(tensor.isfinite().all() for tensor in method.adapter().tensors.values())
    assert method.predict(torch.randn(1, 3, 32, 32)).shape == (1, 3)


@pytest.mark.parametrize("stop", [1, 3, 4])  # within the first epoch, at its end, within the second
def test_resume_equals_uninterrupted(fresh: Any, stop: int, target_images: Path) -> None:
    images, runtime = find_images(target_images), Runtime(eval_batch=4)  # 10 images: 3 steps per epoch

    def run(method: Method, start: int, count: int) -> list[dict[str, float]]:
        views = Views(method.model.card.preprocess, seed=5)
        terms = []
        for event in offline(method, images, views, runtime, start=start):
            terms.append(event.terms)
            if len(terms) == count:
                break
        return terms

    whole, broken, resumed = fresh(), fresh(), fresh()
    expected = run(whole, 0, 6)
    first = run(broken, 0, stop)
    resumed.load_state_dict({name: tensor.clone() for name, tensor in broken.state_dict().items()})
    assert first + run(resumed, stop, 6) == expected
    assert len(expected) == 6
    assert same_bits(everything(resumed), everything(whole))


@pytest.mark.parametrize("predict", ["before", "after"])
def test_observe_predicts_and_learns(fresh: Any, predict: str) -> None:
    method = fresh(predict=predict)
    method.begin(FixedPasses())
    method.at(Progress(0, 4, 0))
    test = torch.randn(16, 3, 32, 32)
    batch = batch_for(method, 16)
    if method.views[0] == "t":
        batch = Batch((test, *batch.views[1:]), batch.index)
    untouched = method.predict(test)
    logits, terms = method.observe(test, batch)
    assert logits.shape == (16, 3) and logits.isfinite().all() and not logits.requires_grad
    assert all(math.isfinite(value) for value in terms.values())
    expected = untouched if predict == "before" else method.predict(test)
    assert torch.allclose(logits, method.corrected(expected), atol=1e-5)
    if method.groups and predict == "after":
        assert not torch.equal(logits, method.corrected(untouched))


def test_predict_and_readouts(fresh: Any) -> None:
    method = fresh()
    steps(method, range(2))
    before = everything(method)
    images = torch.randn(5, 3, 32, 32)
    logits, readouts = method.predict(images), method.readouts(images)
    assert logits.shape == (5, 3) and not logits.requires_grad
    assert torch.allclose(readouts["student"], logits.softmax(dim=-1), atol=1e-6)
    for probabilities in readouts.values():
        assert probabilities.shape == (5, 3)
        assert torch.allclose(probabilities.sum(dim=1), torch.ones(5), atol=1e-5)
    assert same_bits(everything(method), before), "predicting changed the state"


def test_learning_rate_follows_the_schedule(fresh: Any) -> None:
    method = fresh(schedule="cosine")
    if method.optimizer is None:
        return
    method.at(Progress(0, 10, 0))
    start = [group["lr"] for group in method.optimizer.param_groups]
    assert start == pytest.approx([group.lr for group in method.groups])
    method.at(Progress(9, 10, 0))
    assert all(group["lr"] <= 0.2 * first for group, first in zip(method.optimizer.param_groups, start, strict=True))


def test_views_and_card(name: str) -> None:
    kind = methods.get(name)
    assert kind.name == name
    assert kind.views and set(kind.views) <= set("wst")
    assert 10 < len(kind.summary) <= 120 and "\n" not in kind.summary
    card = inspect.getdoc(sys.modules[kind.__module__]) or ""
    assert "Cost:" in card and "Fails when:" in card, "the module docstring is the method's card"
    assert inspect.getdoc(kind)
    stated = methods.card(name)
    assert stated == (kind.title, kind.summary, kind.settings, kind.relabels), "the registry reads them by literal_eval"


def test_config_is_frozen_and_every_field_is_explained(name: str) -> None:
    kind = methods.get(name)
    config = kind.Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0  # type: ignore[misc]
    explained: set[str] = set()
    for cls in kind.Config.__mro__[:-1]:
        explained |= _explained_fields(cls)
    missing = {field.name for field in dataclasses.fields(config)} - explained
    assert not missing, f"fields without a docstring: {sorted(missing)}"


def test_presets_are_valid(name: str) -> None:
    kind = methods.get(name)
    for preset in kind.presets:
        assert isinstance(kind.preset(preset), kind.Config)
    with pytest.raises(ValueError, match="has no preset 'nonsense'"):
        kind.preset("nonsense")


def test_no_method_touches_what_is_not_its_own(name: str) -> None:
    """No printing, logging, saving, device picking or labels in a method's file."""
    tree = ast.parse(Path(inspect.getsourcefile(methods.get(name)) or "").read_text())
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"print", "open", "input"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"is_available", "save_file", "getLogger"}


def _explained_fields(cls: type) -> set[str]:
    """Annotated fields of a dataclass that a string follows."""
    lines, _ = inspect.getsourcelines(cls)
    tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)) if lines[0][0] == " " else "".join(lines))
    body = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)).body
    found = set()
    for field, after in zip(body, [*body[1:], None], strict=True):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found.add(field.target.id)
    return found


def test_model_is_usable_afterwards(fresh: Any) -> None:
    method = fresh()
    steps(method, range(2))
    model: Model = method.model
    with torch.no_grad():
        assert torch.allclose(model(torch.ones(1, 3, 32, 32)), method.predict(torch.ones(1, 3, 32, 32)), atol=1e-5)
