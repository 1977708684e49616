"""A small share of the attacks of benchmarks/attack, all of which dept must survive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

if sys.platform != "linux":
    pytest.skip("the attacks need fork and /proc", allow_module_level=True)

from attack import bad_images, mutated_files, stops, wrong_calls
from attack.stage import Row, Stage, build

Attack = Callable[[Stage, int, int], Iterator[Row]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return build(tmp_path_factory.mktemp("attack"))


@pytest.mark.parametrize(
    ("attack", "count"),
    [
        (mutated_files.attack, 200),
        (bad_images.attack, 20),
        (wrong_calls.attack, 20),
        (stops.kills, 1),
        (stops.crash_points, 1),
    ],
    ids=["files", "images", "calls", "kills", "crashes"],
)
def test_nothing_fails(attack: Attack, count: int, stage: Stage) -> None:
    rows = list(attack(stage, count, 1))
    assert sum(row.cases for row in rows) >= count
    assert [failure for row in rows for failure in row.failures] == []
