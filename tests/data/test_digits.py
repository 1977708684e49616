"""The demo's data: rendered digits are reproducible and legible, real ones are scikit-learn's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")
sklearn_datasets = pytest.importorskip("sklearn.datasets")

from dept.data import digits  # noqa: E402
from dept.data.digits import FONTS, font_files, real_digits, rendered_digits, write_digits  # noqa: E402
from dept.errors import UsageError  # noqa: E402

PLAIN = digits.LEAST._replace(turn=0, slant=0, stretch=1, fill=0.9, shift_x=0, shift_y=0, stroke=0.5, detail=1)


def test_rendered_shape_dtype_range() -> None:
    images, labels = rendered_digits(50, seed=0, size=24)
    assert images.shape == (50, 24, 24) and images.dtype == np.uint8
    assert labels.shape == (50,) and labels.dtype == np.int64
    assert set(labels.tolist()) <= set(range(10))


def test_rendered_is_bright_on_dark() -> None:
    images, _ = rendered_digits(200, seed=0)
    assert (np.median(images, axis=(1, 2)) < 128).all()
    assert (images.max(axis=(1, 2)) > 150).all()


def test_rendered_is_pure_in_its_arguments() -> None:
    first, again, other = (rendered_digits(40, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_rendered_does_not_touch_the_global_generator() -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    rendered_digits(5, seed=0)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]


def test_longer_call_begins_with_the_shorter() -> None:
    short, long = rendered_digits(10, seed=5), rendered_digits(30, seed=5)
    assert np.array_equal(short[0], long[0][:10]) and np.array_equal(short[1], long[1][:10])


def test_rendered_classes_are_roughly_uniform() -> None:
    _, labels = rendered_digits(2000, seed=1, size=16)
    counts = np.bincount(labels, minlength=10)
    assert counts.min() > 150 and counts.max() < 250  # 200 +- 3.7 standard deviations


def test_no_digit_at_all() -> None:
    images, labels = rendered_digits(0, seed=0)
    assert images.shape == (0, 32, 32) and labels.shape == (0,)


@pytest.mark.parametrize(("count", "size", "word"), [(-1, 32, "count"), (1, 4, "size")])
def test_bad_arguments_are_named(count: int, size: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        rendered_digits(count, seed=0, size=size)


def test_every_font_draws_ten_digits_of_its_own() -> None:
    files = font_files()
    assert [path.stem for path in files] == list(FONTS)
    drawn = [np.asarray(glyph.field).tobytes() for glyph in digits._glyphs(files)]
    assert len(drawn) == len(set(drawn)) == 10 * len(FONTS)


def test_label_is_the_digit_drawn_upright() -> None:
    """A 7 has its bar above, a 4 below the middle: not so in another order, nor upside down."""
    glyphs = digits._glyphs(font_files())
    for first in range(0, len(glyphs), 10):
        four, seven = (digits._draw(glyphs[first + digit], PLAIN, 32) for digit in (4, 7))
        assert four[16:].sum() > 0.52 * four.sum()
        assert seven[16:].sum() < 0.4 * seven.sum()


@pytest.mark.parametrize("side", [-1, 1])
def test_digits_are_not_clipped(side: int) -> None:
    tight = PLAIN._replace(turn=15 * side, slant=0.2 * side, shift_x=0.5 * side, shift_y=0.5, fill=0.99)
    # Half the fill in twice the frame is the same drawing with room around it, so it has the same ink.
    roomy = tight._replace(shift_x=0, shift_y=0, fill=0.99 / 2, blur=tight.blur / 2)
    for glyph in digits._glyphs(font_files()):
        expected = digits._draw(glyph, roomy, 192).sum()
        assert digits._draw(glyph, tight, 96).sum() == pytest.approx(expected, rel=0.01)


def test_fewer_fonts_warn_and_none_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "fonts" / "ttf"
    folder.mkdir(parents=True)
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="reinstall matplotlib"):
        font_files()
    (folder / "cmr10.ttf").touch()
    assert [path.stem for path in font_files()] == ["cmr10"]
    assert "21 of 22 fonts are missing" in caplog.text


def test_real_digits_are_those_of_scikit_learn() -> None:
    images, labels = real_digits()
    theirs = sklearn_datasets.load_digits()
    assert images.shape == (1797, 32, 32) and images.dtype == np.uint8
    assert labels.dtype == np.int64 and np.array_equal(labels, theirs.target)
    assert images.min() == 0 and images.max() == 255
    assert np.array_equal(real_digits(8)[0], np.rint(theirs.images * 255 / 16))


def test_written_tree_gives_the_digits_back(tmp_path: Path) -> None:
    images, labels = rendered_digits(30, seed=2)
    write_digits(tmp_path / "new" / "set", (images, labels))
    paths = sorted(tmp_path.glob("new/set/*/*.png"), key=lambda path: path.name)
    assert [path.name for path in paths] == [f"{i:05d}.png" for i in range(30)]
    assert [int(path.parent.name) for path in paths] == labels.tolist()
    assert np.array_equal(np.stack([np.asarray(Image.open(path)) for path in paths]), images)


def test_write_refuses_unequal_lengths(tmp_path: Path) -> None:
    images, labels = rendered_digits(3, seed=0)
    with pytest.raises(ValueError, match="one label per image"):
        write_digits(tmp_path, (images, labels[:2]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("matplotlib", lambda: rendered_digits(1, seed=0)),
        ("scipy.ndimage", lambda: rendered_digits(1, seed=0)),
        ("sklearn.datasets", real_digits),
    ],
)
def test_missing_extra_says_what_to_install(
    module: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    digits._glyphs.cache_clear()  # or scipy would not be asked for again
    with pytest.raises(UsageError, match=r"pip install 'dept\[report\]'$"):
        call()
