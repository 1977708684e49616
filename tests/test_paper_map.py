"""docs/paper_map.md and the code agree: tags, the functions that carry them, and defaults."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

import dept
from dept.core.bank import MemoryBank
from dept.methods.dept import DePT
from dept.methods.source_training import SourceTraining
from dept.runs.adapt import AdaptOptions

SRC = Path(dept.__file__).parent
TAG = re.compile(r"\[DePT [^\]]+\]")
SETTING = re.compile(r"`(\w+)` = ([\w.]+)")


def rows() -> dict[str, list[str]]:
    """Cells of the table by tag."""
    page = Path(__file__).parents[1].joinpath("docs", "paper_map.md").read_text(encoding="utf-8")
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row for row in split}


def matches(stated: str, value: Any) -> bool:
    return stated == value if isinstance(value, str) else float(stated) == value


def test_every_tag_of_the_code_is_in_the_map_and_has_one_home() -> None:
    found = [tag for file in SRC.rglob("*.py") for tag in TAG.findall(file.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(rows())


@pytest.mark.parametrize("tag", rows())
def test_the_named_function_carries_the_tag(tag: str) -> None:
    file, name = re.findall(r"`([^`]+)`", rows()[tag][2])
    module = importlib.import_module("dept." + file.removesuffix(".py").replace("/", "."))
    function = reduce(getattr, name.split("."), module)
    assert tag in inspect.getsource(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("tag", rows())
def test_defaults_are_those_of_the_code(tag: str) -> None:
    defaults = {field.name: field.default for kind in (AdaptOptions, DePT.Config) for field in fields(kind)}
    for name, value in SETTING.findall(rows()[tag][3]):
        assert matches(value, defaults[name]), f"{name}: the map says {value}, the code {defaults[name]}"
    _, _, paper = rows()[tag][4].partition("`paper`:")
    for name, value in SETTING.findall(paper):
        assert matches(value, DePT.presets["paper"][name]), f"{name}: the map says {value} for the preset `paper`"


def test_the_map_states_when_the_cap_of_neighbours_matters() -> None:
    """k is capped at a fifth of the entries: 10 neighbours need 50 of them."""
    stated = re.search(r"at most a fifth of the entries, which only matters below (\d+)", rows()["[DePT Eq. ŷ]"][4])
    assert stated is not None
    enough = int(stated[1])
    for size, k in ((enough, 10), (enough - 1, 9)):
        bank = MemoryBank(size, 2, size)
        bank.write(torch.randn(size, 2), torch.eye(size))  # every entry votes for itself
        assert int((bank.vote(torch.randn(1, 2), 10) > 0).sum()) == k


def test_the_map_states_all_that_source_training_does_otherwise_than_released() -> None:
    page = Path(__file__).parents[1].joinpath("docs", "paper_map.md").read_text(encoding="utf-8")
    stated = {match for line in page.splitlines() if line[:2] == "| " for match in re.findall(r", `(\w+)` \|", line)}
    assert stated == set(SourceTraining.presets["official"])


def test_the_map_states_all_that_the_paper_changes() -> None:
    stated = {name for row in rows().values() for name, _ in SETTING.findall(row[4])}
    assert stated == set(DePT.presets["paper"])
