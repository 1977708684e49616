"""Sites: sub-folders or lines of a CSV file, each fault one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from dept.errors import UsageError
from dept.runs.sites import Site, find_sites


def csv_file(folder: Path, text: str) -> Path:
    file = folder / "sites.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_sub_folders_are_sites(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "loose.png").touch()
    assert find_sites(tmp_path) == [Site("a", tmp_path / "a"), Site("b", tmp_path / "b")]


def test_lines_of_a_csv_file_are_sites(tmp_path: Path) -> None:
    lines = ("\ufeffprior,site,images,method,owner", ",north,imgs/n,,Ann", "shares.json,south,/data/s,auto,", "")
    text = "\r\n".join([*lines, "uniform,west,s3://bucket/w,,", ""])
    north, south, west = find_sites(csv_file(tmp_path, text))
    assert north == Site("north", tmp_path / "imgs/n")
    assert south == Site("south", Path("/data/s"), "auto", str(tmp_path / "shares.json"))
    assert west.prior == "uniform" and str(west.images) == "s3://bucket/w"  # neither is a file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks the columns site, images, method, prior"),
        ("site,images,method\na,b,c\n", "lacks the column prior"),
        ("name,images,method,prior\na,b,,\n", "lacks the column site.*found: name, images"),
        ("site,images,method,prior\n", "lists no sites"),
        ("site,images,method,prior\na,b,,\na,c,,\n", "'a' more than once"),
        ("site,images,method,prior\na,b\n", "line 2 has 2 fields; the first line has 4"),
        ("site,images,method,prior\n../a,b,,\n", "line 2: '../a' cannot be the name"),
        ("site,images,method,prior\n,b,,\n", "line 2: '' cannot be the name"),
        ("site,images,method,prior\nfleet.json,b,,\n", "cannot be the name"),
        ("site,images,method,prior\na\x1b[2J,b,,\n", "cannot be the name"),
        ("site,images,method,prior\na,,,\n", "line 2: the field images is empty"),
        ('site,images,method,prior\n"a,b,,\n', "cannot be read as a CSV file"),
    ],
)
def test_faults_of_a_csv_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_sites(csv_file(tmp_path, text))


def test_other_faults(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for place, message in (("bytes.csv", "cannot be read"), ("", "no sub-folders"), ("nothing", "does not exist")):
        with pytest.raises(UsageError, match=message):
            find_sites(tmp_path / place)
