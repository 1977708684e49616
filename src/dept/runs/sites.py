"""The sites of a fleet: the sub-folders of a folder, or the lines of a CSV file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dept.data.places import Place, as_place
from dept.errors import DataError, UsageError, some

COLUMNS = ("site", "images", "method", "prior")
TAKEN = ("fleet.json", "report.html")
"""names of files beside the folders of the sites"""
LONGEST = 100
"""bytes of a site's name, which becomes a folder's"""


@dataclass(frozen=True)
class Site:
    """One target domain: a name and its images. An empty method or prior is that of the fleet."""

    name: str
    images: Place
    """a folder, archives, a list file or an address, as for `adapt`"""
    method: str = ""
    prior: str = ""


def find_sites(source: str | Path) -> list[Site]:
    """All sites, sorted by name if they are sub-folders, else in the order of the file. Images are not looked at."""
    path = Path(source)
    if path.is_file():
        return _listed(path)
    if not path.is_dir():
        raise UsageError(f"{path} does not exist. Give a folder with one sub-folder per site, or a CSV file.")
    try:
        found = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    if not found:
        raise UsageError(
            f"{path} has no sub-folders. Each one is a site, with its images at any depth. For a single folder of "
            "images there is `dept adapt`."
        )
    return [Site(check_name(one.name, f"The sub-folder {one}"), one) for one in found]


def _listed(path: Path) -> list[Site]:
    """The lines of a CSV file; relative paths are relative to its folder."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a CSV file ({error}).") from error
    header = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}. Its first line must name the "
            f"columns {', '.join(COLUMNS)}; found: {some(header) or 'nothing'}. The fields "
            "method and prior of a line may be empty."
        )
    sites = []
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise UsageError(f"{path}, line {number} has {len(row)} fields; the first line has {len(header)}.")
        sites.append(_site(path, number, dict(zip(header, map(str.strip, row), strict=True))))
    twice = [name for name, count in Counter(site.name for site in sites).items() if count > 1]
    if twice:
        raise UsageError(f"{path} names the site {twice[0]!r} more than once. Each site has a folder of its own.")
    if not sites:
        raise UsageError(f"{path} lists no sites: there is nothing below its first line.")
    return sites


def _site(path: Path, number: int, row: dict[str, str]) -> Site:
    where = f"{path}, line {number}"
    if not row["images"]:
        raise UsageError(f"{where}: the field images is empty. It is a folder, an archive, a list file or an address.")
    prior = row["prior"]
    if prior not in ("", "source", "uniform", "unknown"):
        prior = str(path.absolute().parent / prior)
    images = as_place(row["images"])
    images = path.parent / images if isinstance(images, Path) else images
    return Site(check_name(row["site"], where), images, row["method"], prior)


def check_name(name: str, where: str) -> str:
    """The name of a site, if a folder can be called so and a terminal can show it."""
    plain = name.isprintable() and not set(name) & set("/\\") and not name.startswith(".") and name not in TAKEN
    if not name or not plain or len(name.encode()) > LONGEST:
        raise UsageError(
            f"{where}: {name[:LONGEST]!r} cannot be the name of a site, because it becomes the name of a folder. Use "
            f"at most {LONGEST} bytes, no slashes, and no dot at the beginning."
        )
    return name
