from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dept.cli import bench_datasets
from dept.data import datasets as benchmarks
from dept.data.datasets.table import PACS_CLASSES
from dept.errors import DataError, UsageError


def fill(folder: Path, classes: tuple[str, ...] = PACS_CLASSES) -> None:
    for name in classes:
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jpg").write_bytes(b"")


@pytest.fixture
def seven(monkeypatch: pytest.MonkeyPatch) -> None:
    """PACS with one image per class and domain; the other data sets as they are."""
    pacs = benchmarks.get("pacs")
    small = replace(pacs, domains=tuple(replace(d, images=7) for d in pacs.domains))
    rows = tuple(small if b.name == "pacs" else b for b in benchmarks.TABLE)
    monkeypatch.setattr(benchmarks, "TABLE", rows)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    bench_datasets.run(list(argv))
    return capsys.readouterr().out


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.split()[1:]


@pytest.mark.usefixtures("seven")
def test_complete_partial_and_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        fill(tmp_path / "pacs" / domain)
    fill(tmp_path / "office-home" / "Art", ("Alarm_Clock", "Bed"))
    text = printed(capsys, "--root", str(tmp_path))
    assert row(text, "pacs") == ["complete", "4/4", "28", "28"]
    assert row(text, "office-home") == ["partial", "0/4", "2", "15,588"]
    assert row(text, "visda") == ["missing", "0/2", "0", "207,785"]
    assert row(text, "imagenet-c") == ["missing", "0/75", "0", "3,750,000"]
    assert "Art: 2 of 2,427 images in" in text and "2 of 65 classes, without Backpack" in text
    assert "missing: Clipart, Product, Real World" in text
    assert "https://ai.bu.edu/visda-2017/" in text and "https://domaingeneralization.github.io/" not in text


@pytest.mark.usefixtures("seven")
def test_long_reports_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for severity in range(1, 6):
        for corruption in ("fog", "snow"):
            fill(tmp_path / "imagenet-c" / corruption / str(severity), ("n01440764",))
    text = printed(capsys, "--root", str(tmp_path))
    assert "and 4 more incomplete domains" in text and "(65 in all)" in text


@pytest.mark.usefixtures("seven")
def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "pacs" / "photo")
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--root", str(tmp_path), "--json"))}
    assert list(rows) == benchmarks.available()
    assert rows["pacs"]["state"] == "partial" and rows["visda"]["state"] == "missing"
    states = {domain["domain"]: domain["state"] for domain in rows["pacs"]["domains"]}
    assert states == {"photo": "complete", "art_painting": "missing", "cartoon": "missing", "sketch": "missing"}
    assert rows["visda"]["home"] and rows["visda"]["licence"]


def test_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("DEPT_DATA", raising=False)
    with pytest.raises(UsageError, match=r"--root DIR, or \$DEPT_DATA"):
        bench_datasets.run([])
    with pytest.raises(DataError, match="is not a folder"):
        bench_datasets.run(["--root", str(tmp_path / "nowhere")])
    monkeypatch.setenv("DEPT_DATA", str(tmp_path))
    assert "missing" in printed(capsys)


def test_it_does_not_wait_for_torch(tmp_path: Path) -> None:
    fill(tmp_path / "imagenet", ("n01440764",))
    code = (
        "import sys; from dept.cli.bench_datasets import run; "
        f"run(['--root', {str(tmp_path)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
