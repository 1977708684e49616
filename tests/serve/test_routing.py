"""Routing and drift against slow formulas, and behind the API."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from serve_support import png, service
from torch import Tensor

from dept.serve.api import create_app
from dept.serve.routing import ENOUGH, ROWS, SHRINKAGE, Moving, Reference, Router, dump, load, whitening


def cloud(count: int, mean: float, seed: int, spread: float = 1.0, width: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=torch.Generator().manual_seed(99))
    return mean + spread * torch.randn(count, width, generator=generator) @ mixing


def test_the_whitening_is_that_of_the_shrunk_covariance() -> None:
    samples = [cloud(40, 0.0, 0), cloud(50, 3.0, 1)]
    centred = torch.cat([rows - rows.mean(dim=0) for rows in samples]).double()
    covariance = torch.zeros(6, 6, dtype=torch.float64)
    for row in centred:
        covariance += torch.outer(row, row) / (90 - 2)
    shrunk = covariance.clone()
    shrunk[~torch.eye(6, dtype=torch.bool)] *= 1 - SHRINKAGE
    white = whitening(samples).double()
    assert torch.allclose(white @ white.T, torch.linalg.inv(shrunk), rtol=1e-4, atol=1e-6)


def test_many_domains_share_the_images_of_the_covariance() -> None:
    many = [cloud(64, float(seed), seed) for seed in range(100)]
    assert torch.equal(whitening(many), whitening([rows[: ROWS // 100] for rows in many]))
    assert torch.allclose(whitening(many), whitening(many[:64]), atol=0.2)  # which are used as a whole


def test_images_go_to_their_own_domain_and_strangers_to_none() -> None:
    router = Router({"far": cloud(64, 8.0, 0), "near": cloud(64, 0.0, 1), "unknown": cloud(ENOUGH - 1, 4.0, 2)})
    assert router.names == ["far", "near"]
    own = router(cloud(200, 0.0, 3))
    assert sum(route.domain == "near" for route in own) > 170  # about 5 % lie outside by design
    assert {route.domain for route in router(cloud(20, 8.0, 4))} <= {"far", None}
    strange = router(cloud(20, -60.0, 5))
    assert {route.domain for route in strange} == {None} and all(route.distance > 1 for route in strange)
    assert Router({})(torch.zeros(2, 6))[0].domain is None


def test_signatures_survive_the_index() -> None:
    rows = cloud(100, 0.0, 0)
    assert torch.allclose(load(dump(rows)), rows[:64], atol=0.01)


def test_drift_is_near_zero_for_the_same_images_and_grows_with_a_shift() -> None:
    reference = Reference.of(cloud(64, 0.0, 0))
    values = {}
    for shift in (0.0, 1.0, 3.0):
        moving = Moving()
        rows = cloud(200, shift, 1)
        for row in rows[:15]:
            moving.add(row)
        assert moving.drift(reference) is None
        for row in rows[15:]:
            moving.add(row)
        values[shift] = moving.drift(reference)
    assert values[0.0] is not None and values[0.0] < 0.2
    expected = float((1.0 / reference.deviation).square().mean().sqrt())
    assert values[1.0] == pytest.approx(expected, abs=0.25)
    assert values[3.0] is not None and values[1.0] is not None and values[3.0] > 2 * values[1.0]


def test_the_moving_mean_is_exact_at_first() -> None:
    rows, moving = cloud(20, 0.0, 0), Moving()
    for row in rows:
        moving.add(row)
    assert torch.allclose(moving.mean, rows.mean(dim=0), atol=1e-5)


def test_an_image_without_a_domain_is_routed_or_new(model_file: Path, pool_folder: Path) -> None:
    opened = service(model_file, pool_folder)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:

        def features(**look: float) -> Tensor:
            given = [opened._decoded("", png(seed % 3, seed, **look)).pixels for seed in range(48)]
            return opened.engine.features(opened.engine.normalised([one for one in given if one is not None]))

        def route(seed: int, **look: float) -> dict[str, object]:
            body = png(seed % 3, seed, **look)
            answer = client.post("/v1/predict", content=body, headers={"content-type": "image/png"})
            return dict(answer.json()["predictions"][0])

        nothing = route(0)
        assert nothing["domain"] == "source" and nothing["new_domain"] and nothing["distance"] is None
        opened.pool.set_signature("a", features())
        opened.pool.set_signature("b", features(dim=0.3))
        bright = [route(seed)["domain"] for seed in range(100, 110)]
        dark = [route(seed, dim=0.3)["domain"] for seed in range(100, 110)]
        assert bright.count("a") >= 7 and dark.count("b") >= 7
        strange = route(0, noise=120.0)
        assert strange["domain"] == "source" and strange["new_domain"] and float(str(strange["distance"])) > 1
        named = client.post("/v1/predict?domain=source", content=png(), headers={"content-type": "image/png"})
        assert not named.json()["predictions"][0]["new_domain"]


def test_a_domain_whose_images_nobody_has_seen_is_learned_from_its_traffic(model_file: Path, pool_folder: Path) -> None:
    opened = service(model_file, pool_folder)
    watch = opened.watches.of("a")
    rows = torch.randn(64, 32)
    for row in rows[:63]:
        opened.watches._move("a", row, opened.pool)
    assert opened.watches.measured() == {}
    opened.watches._move("a", rows[63], opened.pool)
    (found,) = opened.watches.measured().values()
    assert torch.equal(found, rows) and opened.watches.measured() == {}
    opened.pool.set_signature("a", found)
    opened.watches._move("a", rows[0], opened.pool)
    assert watch.drift is not None and watch.drift < 0.5
