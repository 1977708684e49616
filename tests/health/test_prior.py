"""Class shares that are believed, and files that give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dept.errors import DataError, UsageError
from dept.health.prior import believed

CLASSES = ("cat", "dog")


def test_what_is_asked_for() -> None:
    assert believed("uniform", CLASSES, (0.9, 0.1)).shares == (0.5, 0.5)
    source = believed("source", CLASSES, (0.9, 0.1))
    assert source.shares == (0.9, 0.1) and source.declared and str(source) == "class shares as in the source"
    guess = believed("unknown", CLASSES, (0.9, 0.1))
    assert guess.shares == (0.9, 0.1) and not guess.declared
    assert believed("unknown", CLASSES, ()).shares == (0.5, 0.5)


def test_a_source_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="`dept stats MODEL SOURCE`"):
        believed("source", CLASSES, ())


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shares.json"
    file.write_text('{"dog": 30, "cat": 10}')
    prior = believed(str(file), CLASSES, ())
    assert prior.shares == (0.25, 0.75) and prior.declared
    file.write_text('{"dog": 1}')
    assert believed(str(file), CLASSES, ()).shares == (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cow": 1}', "names 'cow', which is not a class"),
        ('{"dog": -1}', "must map class names to shares"),
        ('{"dog": true}', "must map class names to shares"),
        ('{"dog": 0}', "sum to 0"),
        ("[1]", "a JSON object is expected"),
        ("{", "not readable JSON"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "shares.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        believed(str(file), CLASSES, ())


def test_no_file() -> None:
    with pytest.raises(UsageError, match="source, uniform, unknown or a JSON file"):
        believed("sauce", CLASSES, ())
