"""Run folders of others: a report is a page or a sentence, and brings no picture or text of ours into the page."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")

from html_checks import checked

from dept.cli.main import main
from dept.data.images import find_images, list_hash
from dept.errors import DeptError
from dept.report import run_page
from dept.report.measure import ReportOptions, measure
from dept.report.page import make_page, render, write_report
from dept.runs.adapt import AdaptRun, adapt
from dept.runs.inputs import Missing
from dept.runs.read import read_run
from dept.runs.seal import unsealed
from dept.runs.train import TrainRun
from support import write_unlabelled

PCA = ReportOptions(projection="pca", device="cpu")
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**400, "", "x" * 5000, "\ud800<b>\x1b[31m", "/dev/zero",
    [], [[]], {}, {"a": {"b": []}}, [1, "a"], -5, 0.5, "nan",
)  # fmt: skip


def copied(run: Path, to: Path) -> Path:
    """A copy without checksums, as an older version or a forger leaves it."""
    folder = Path(shutil.copytree(run, to))
    for file in (*folder.glob("*.json"), *folder.glob("events.jsonl")):
        texts = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        file.write_text("".join(json.dumps(unsealed(json.loads(text))) + "\n" for text in texts))
    return folder


def spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as (container, key)."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from spots(value[key])


def mutated(text: str, rng: random.Random) -> str:
    """One file of a run folder with a field changed, removed or added, or with bytes changed, cut or doubled."""
    way = rng.random()
    if way < 0.2:
        at = rng.randrange(len(text))
        return rng.choice((text[:at], text[:at] + chr(rng.randrange(1, 300)) + text[at + 1 :], text + text, ""))
    lines = text.splitlines() if text.count("\n{") else [text]
    which = rng.randrange(len(lines))
    value = json.loads(lines[which])
    container, key = rng.choice(list(spots(value)))
    if way < 0.4:
        del container[key]
    elif way < 0.5 and isinstance(container, dict):
        container[rng.choice(("held_out", "source_images", "before", "skipped", "domains", "inputs"))] = rng.choice(ODD)
    else:
        container[key] = rng.choice(ODD)
    lines[which] = json.dumps(value)
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def stream_folder(source_run: TrainRun, target_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "stream"
    command = ["stream", str(source_run.file), str(target_images), "--out", str(out), "--method", "tent"]
    assert main([*command, "--device", "cpu", "--batch", "4"]) == 0
    return out


@pytest.mark.parametrize("kind", ["scored", "blind", "train", "stream"])
def test_a_mutated_folder_is_a_page_or_a_sentence(
    kind: str, scored_run: AdaptRun, blind_run: AdaptRun, source_run: TrainRun, stream_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = {"scored": scored_run, "blind": blind_run, "train": source_run}.get(kind)
    whole = source.folder if source else stream_folder
    folder, rng = copied(whole, tmp_path / "run"), random.Random(kind)
    texts = {file.name: file.read_text() for file in folder.glob("*.json*")}
    seen = measure(read_run(whole), PCA)
    pages = 0
    for number in range(60):
        name = rng.choice(sorted(texts))
        (folder / name).write_text(mutated(texts[name], rng), errors="surrogateescape")

        def known(run: Any, options: ReportOptions, source: Any, number: int = number) -> Any:
            """Models and images are the same every time, so most pages need not measure again."""
            measured = measure(run, options) if number % 15 == 0 else seen
            if number % 2:
                raise Missing("Left out.")
            return measured

        monkeypatch.setattr(run_page, "measure", known)
        try:
            checked(render(make_page(folder, PCA)).encode(errors="replace").decode())
            pages += 1
        except DeptError as error:
            assert len(str(error)) < 1000
        (folder / name).write_text(texts[name])
    assert pages > 5


# ---- pictures and text of other places ----


def pictures(folder: Path, options: ReportOptions = PCA) -> int:
    return render(make_page(folder, options)).count("data:image")


def test_pictures_of_a_place_that_the_run_did_not_see_are_not_shown(
    blind_run: AdaptRun, target_images: Path, tmp_path: Path
) -> None:
    """A folder from elsewhere names a local folder: without the user's word none of its pictures is in the page."""
    private = write_unlabelled(tmp_path / "private", 5, seed=8)
    folder = copied(blind_run.folder, tmp_path / "run")
    assert pictures(folder) > 0
    events = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(events.replace(str(target_images), str(private)))
    assert pictures(folder) == 0
    assert "not the list of files that the run recorded" in make_page(folder, PCA).remarks[0]
    assert pictures(folder, replace(PCA, images=private)) > 0


@pytest.mark.parametrize("way", ["one image", "list", "link"])
def test_a_forged_list_does_not_reach_other_folders(
    way: str, blind_run: AdaptRun, target_images: Path, tmp_path: Path
) -> None:
    """The hash of a list is known to whoever writes the list."""
    private = write_unlabelled(tmp_path / "private", 1, seed=8) / "img000.png"
    folder, bait = copied(blind_run.folder, tmp_path / "run"), tmp_path / "bait"
    bait.mkdir()
    place = {"one image": private, "list": bait / "list.txt", "link": bait}[way]
    if way == "list":
        place.write_text(f"{private}\n")
    elif way == "link":
        (bait / "a.png").symlink_to(private)
    forged = list_hash(find_images(place))
    for name in ("events.jsonl", "config.json", "result.json"):
        text = (folder / name).read_text().replace(blind_run.result["protocol"]["list_sha256"], forged)
        (folder / name).write_text(text.replace(str(target_images), str(place)))
    assert pictures(folder) == 0 and make_page(folder, PCA).remarks


def test_the_first_line_of_a_local_file_is_not_quoted(scored_run: AdaptRun, tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", copied(scored_run.folder, tmp_path / "run")
    secret.write_text("password\n")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    events[0]["inputs"]["score"] = str(secret)
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    assert "password" not in render(make_page(folder, PCA))


def test_a_stream_shows_only_what_its_folder_holds(stream_folder: Path, target_images: Path, tmp_path: Path) -> None:
    folder = copied(stream_folder, tmp_path / "run")
    assert pictures(folder) > 0
    private = write_unlabelled(tmp_path / "private", 1, seed=8) / "img000.png"
    row = {"path": str(private), "label": "red", "confidence": 0.5, "update": 0}
    with (folder / "predictions.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    assert pictures(folder) == 0


def test_scored_images_beside_the_adapted_ones_are_the_runs_own(
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"method": "tent", "max_iters": 1, "batch": 4, "device": "cpu"}
    run = adapt(source_run.file, target_images, out=tmp_path / "run", score_on=target_labelled, **settings)
    assert "on 12 labelled images" in make_page(run.folder, PCA).verdict


def test_names_that_are_not_text(source_run: TrainRun, target_images: Path, tmp_path: Path, capfd: Any) -> None:
    """File and folder names may be any bytes; the page shows them escaped."""
    site = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(target_images, site)
    (site / "img000.png").rename(site / os.fsdecode(b"\xff\x1b[31m.png"))
    run = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xfe"))
    command = ["adapt", str(source_run.file), str(site), "--out", str(run), "--method", "tent", "--device", "cpu"]
    assert main([*command, "--max-iters", "1", "--batch", "4", "--lr", "0.5"]) == 0
    assert main(["report", str(run), "--projection", "pca", "--device", "cpu"]) == 0
    checked((run / "report.html").read_bytes().decode())
    assert "caf\\udce9" in (run / "report.html").read_text()
    said = capfd.readouterr()
    assert "\x1b" not in said.out + said.err and "Report:" in said.out


def test_the_page_is_written_whatever_its_words(scored_run: AdaptRun, tmp_path: Path) -> None:
    folder = copied(scored_run.folder, tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"notes": ["\ud800\x1b[31m"]}))
    file, _ = write_report(folder, options=PCA)
    assert "\\ud800" in file.read_text()
