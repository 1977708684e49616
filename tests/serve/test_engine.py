"""Mixed batches: every sample gets the logits of its own domain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from serve_support import write_adapter

from dept.models.files import load, read_model, save_model
from dept.serve.engine import Engine
from dept.serve.options import ServeOptions
from dept.serve.pool import Entry, Pool
from dept.serve.service import Service
from support import random_batch, same_bits, state_of, tiny_model, tiny_resnet


@pytest.fixture
def pool(model_file: Path, pool_folder: Path) -> Pool:
    model, sha = read_model(model_file)
    opened = Pool(model, sha, pool_folder)
    opened.adopt()
    return opened


def test_a_mixed_batch_gives_the_logits_of_separate_models(pool: Pool, model_file: Path, adapters: Path) -> None:
    images = random_batch("t", 6).views[0]
    owners = ["a", "b", "a", "source", "b", "a"]
    found = Engine(pool.model).logits(images, [pool.get(name) for name in owners])
    for row, name in enumerate(owners):
        alone = load(model_file, adapter=None if name == "source" else adapters / f"{name}.safetensors")
        expected = alone(images[row : row + 1]).detach()[0]
        assert torch.allclose(found[row], expected, atol=1e-5), name


def test_bf16_where_the_server_is_asked_for_it(model_file: Path, adapters: Path) -> None:
    images, found = random_batch("t", 6).views[0], {}
    for amp in (False, True):
        service = Service(model_file, adapters, ServeOptions(amp=amp, no_auth=True))
        found[amp] = service.engine.logits(images, [service.pool.get(name) for name in "ab" * 3])
    assert not torch.equal(found[True], found[False])
    assert torch.allclose(found[True].softmax(dim=1), found[False].softmax(dim=1), atol=0.1)


def test_lanes_keep_apart_what_cannot_share_a_batch(pool: Pool) -> None:
    assert pool.get("a").lane == pool.get("b").lane == pool.source.lane
    assert pool.get("norms").lane not in (pool.get("a").lane, pool.source.lane)


def test_an_adapter_of_the_backbone_is_served_and_leaves_the_model_as_it_is(
    pool: Pool, model_file: Path, adapters: Path
) -> None:
    engine, images = Engine(pool.model), random_batch("t", 3).views[0]
    before = state_of(pool.model)
    found = engine.logits(images, [pool.get("norms")] * 3)
    expected = load(model_file, adapter=adapters / "norms.safetensors")(images).detach()
    assert torch.allclose(found, expected, atol=1e-5)
    assert same_bits(before, state_of(pool.model))
    source = engine.logits(images, [pool.source] * 3)
    assert torch.allclose(source, pool.model(images).detach(), atol=1e-6)


def test_the_engine_shares_the_tensors_of_the_model(pool: Pool) -> None:
    engine = Engine(pool.model)
    pairs = zip(pool.model.parameters(), engine.model.parameters(), strict=True)
    assert all(ours is theirs for ours, theirs in pairs)


def test_prompts_for_a_model_without_any_have_their_own_lane(tmp_path: Path) -> None:
    file = save_model(tiny_model(stages=0, prompts=0), tmp_path / "plain.safetensors")
    with_prompts = save_model(tiny_model(), tmp_path / "prompted.safetensors")
    adapter = write_adapter(with_prompts, tmp_path / "a.safetensors", names=("prompts", "head.weight", "head.bias"))
    model, sha = read_model(file)
    pool = Pool(model, sha, tmp_path / "pool")
    pool.add("site", adapter, "alice")
    pool.activate("site", 1, "alice")
    images = random_batch("t", 2).views[0]
    found = Engine(model).logits(images, [pool.get("site")] * 2)
    assert torch.allclose(found, load(file, adapter=adapter)(images).detach(), atol=1e-5)
    assert pool.get("site").lane != pool.source.lane


def test_other_architectures_have_no_features_to_route_by() -> None:
    engine, entry = Engine(tiny_resnet().eval()), Entry("x", 0, ("plain",))
    assert not engine.has_features
    assert engine.logits(random_batch("t", 2).views[0], [entry] * 2).shape == (2, 3)
