"""Photographs redrawn, and the halves and few classes that suites are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from dept.data.datasets.derived import Domains
from dept.data.images import find_labelled
from dept.data.styles import STYLES, redrawn
from support import write_labelled


def photograph() -> Image.Image:
    image = Image.new("RGB", (64, 64), (30, 90, 160))
    ImageDraw.Draw(image).ellipse((16, 16, 48, 48), fill=(220, 180, 40))
    return image


def test_ink_keeps_outlines_only() -> None:
    pixels = np.asarray(STYLES["ink"](photograph()))
    assert (pixels[..., 0] == pixels[..., 1]).all()  # grey
    assert pixels[32, 32, 0] == pixels[4, 4, 0] == 255  # areas are paper
    assert pixels[32, 14:19, 0].min() < 100  # the outline is dark


def test_a_poster_keeps_areas_and_exchanges_colours() -> None:
    given, made = np.asarray(photograph()), np.asarray(STYLES["poster"](photograph()))
    assert given[4, 4].argmax() == 2 and made[4, 4].argmax() == 1  # blue became green
    assert len({tuple(pixel) for pixel in made.reshape(-1, 3)}) < 8


def test_files_are_written_once(tmp_path: Path) -> None:
    images = find_labelled(write_labelled(tmp_path / "photo", 2))
    first = redrawn(images, tmp_path / "out", "ink")
    stamps = [path.stat().st_mtime_ns for path in first.paths]
    again = redrawn(images, tmp_path / "out", "ink")
    assert [path.stat().st_mtime_ns for path in again.paths] == stamps
    assert first.labels == images.labels and first.paths[0].suffix == ".png"


@pytest.fixture
def domains(tmp_path: Path) -> Domains:
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        for label in classes:
            (tmp_path / "pacs" / domain / label).mkdir(parents=True)
            for number in range(4):
                photograph().save(tmp_path / "pacs" / domain / label / f"{number}.png")
    return Domains(tmp_path, tmp_path / "work", allow_partial=True)


def test_the_halves_of_a_domain_do_not_meet(domains: Domains) -> None:
    seen, unseen = domains.load("pacs", "photo/seen"), domains.load("pacs", "photo/ink")
    assert len(seen) == len(unseen) == 14
    names = {Path(name).with_suffix("").as_posix() for name in seen.names()}
    assert not names & {path.relative_to(domains.work / "pacs-unseen/photo/ink").with_suffix("").as_posix()
                        for path in unseen.paths}  # fmt: skip
    corrupted = domains.load("pacs", "photo/contrast")
    assert corrupted.labels == unseen.labels and len(corrupted) == 14


def test_three_classes_of_a_domain(domains: Domains) -> None:
    few = domains.load("pacs", "cartoon/3-classes")
    assert len(set(few.labels or ())) == 3 and len(few) == 12 and len(few.classes) == 7
    assert domains.load("pacs", "cartoon/3-classes").paths == few.paths
