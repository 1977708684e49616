"""Every command and every snippet of the README and of docs/ is run, on tiny models and images.

A page is run from its beginning to its end in a folder of its own. `doc_world.CHANGES` has what is run instead of parts
that take hours or need more than a CPU, `doc_world.NOT_RUN` the programs that are not run. A block of Python that needs
more than such a folder is marked `<!-- run by tests/… -->`.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dept.data.datasets.table import TABLE
from dept.data.images import find_labelled
from dept.data.loader import Runtime
from dept.errors import HARMFUL
from dept.models.files import load_model, save_model
from dept.models.stats import compute_stats, save_stats
from doc_pages import ALL, ROOT, commands, name_of
from doc_world import CHANGES, NOT_RUN, PROGRAMS, RUN_BY, World, applies, build, open_world
from support import teach

ELSEWHERE = {
    "docs/convert.md": "tests/share/test_pages.py",
    "docs/fleet.md": "tests/runs/test_ray.py",
    "docs/integrations.md": "tests/share/test_pages.py",
    "docs/share.md": "tests/share/test_pages.py",
}
"""pages that another test runs"""
WRITTEN = {
    "docs/index.md": ("predictions.csv", "runs/site/adapter.safetensors"),
    "docs/speed.md": ("benchmarks/results/cost/step.json", "docs/figures/growth.png"),
    "docs/scale_torchrun.md": ("runs/site/result.json", "runs/source/model.safetensors"),
    "docs/export.md": ("site.onnx", "all.onnx", "all-site.onnx_adapter", "models/site/1/model.onnx"),
}
"""what must be there when a page has been run"""
SHOWN = [block for block in ALL if block.kind in ("bash", "python")]
HERE = sorted({name_of(block.page) for block in SHOWN} - ELSEWHERE.keys())


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(folder)
    return folder


@pytest.fixture
def start(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], World]]:
    """Gives the folder of a page."""
    worlds: list[World] = []

    def begin(page: str) -> World:
        worlds.append(open_world(page, built, tmp_path, monkeypatch))
        return worlds[-1]

    yield begin
    for world in worlds:
        world.stop()


TASKS = {"docs/methods/hdmi.md": "hypothesis", "docs/methods/ttt_plus.md": "contrastive"}
"""pages that need a MODEL which has learned another second task"""


@pytest.mark.parametrize("page", HERE)
def test_the_page_runs(page: str, start: Callable[[str], World], monkeypatch: pytest.MonkeyPatch) -> None:
    world = start(page)
    if page == "docs/datasets.md":
        counted = [replace(one, images=36) for one in TABLE[0].domains]  # as many as were written
        monkeypatch.setattr("dept.data.datasets.TABLE", (replace(TABLE[0], domains=tuple(counted)), *TABLE[1:]))
    if page == "docs/reproduce.md":
        shutil.copytree(ROOT / "benchmarks/results/pacs-mini", "benchmarks/results/pacs-mini")
    if task := TASKS.get(page):
        model = teach(load_model("MODEL"), task)
        save_model(model, "MODEL")
        save_stats(*compute_stats(model, find_labelled("SOURCE"), Runtime()), "STATS")
    # Tiny models on noise: a method may well be judged harmful.
    world.run_page(page, codes=(0, HARMFUL) if page.startswith("docs/methods/") else (0,))
    for file in WRITTEN.get(page, ()):
        assert (world.folder / file).is_file(), f"{file} was not written"


def test_every_block_is_run_by_a_test() -> None:
    others = {block: block.mark.removeprefix("run by ") for block in ALL if block.mark}
    others |= {block: ELSEWHERE[name_of(block.page)] for block in SHOWN if name_of(block.page) in ELSEWHERE}
    for block, test in others.items():
        assert block.page.name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not run {block}"
    for command, test in RUN_BY.items():
        words = shlex.split(command)[1:]
        assert all(word in (ROOT / test).read_text(encoding="utf-8") for word in words), f"{test}: {command}"
    assert [str(block) for block in ALL if not block.kind] == [], "name the language"


def test_what_is_changed_or_not_run_is_there() -> None:
    """Entries that nothing needs any more, and programs that nobody runs."""
    lines = [(name_of(one.page), shlex.join(c.words)) for one in ALL if one.kind == "bash" for c in commands(one.text)]
    texts = [(name_of(one.page), one.text) for one in ALL if one.kind in ("csv", "python")]
    for change in CHANGES:
        assert any(applies(change, page, text) for page, text in lines + texts), f"{change} changes nothing"
    programs = {shlex.split(line)[0] for page, line in lines if page not in ELSEWHERE}
    assert programs - NOT_RUN.keys() <= PROGRAMS
    assert NOT_RUN.keys() <= programs and RUN_BY.keys() <= {line for _, line in lines}
