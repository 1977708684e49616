from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dept.errors import DataError
from dept.health.labels import (
    Asked,
    Questions,
    as_csv,
    label_studio_config,
    label_studio_tasks,
    merged,
    read_labels,
)

CAT, DOG = Asked("a/cat 1.png", "cat", "dog", "before"), Asked('=b,"2".png', "dog", "cow")
QUESTIONS = Questions((CAT, DOG), ("cat", "cow", "dog"))


def table(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    file = folder / "labels.csv"
    file.write_text(text, encoding=encoding)
    return file


def test_the_table_comes_back(tmp_path: Path) -> None:
    text = as_csv(QUESTIONS)
    assert text.splitlines()[0] == "image,before,after,right"
    assert read_labels(table(tmp_path, text), QUESTIONS) == {"a/cat 1.png": "before"}
    assert list(csv.DictReader(text.splitlines()))[1]["image"] == '=b,"2".png'


@pytest.mark.parametrize(
    "text",
    [
        "image,right\na/cat 1.png,after\n",
        "\ufeffimage;before;after;right\r\na/cat 1.png;cat;dog; AFTER \r\n",  # a spreadsheet's
        "annotator,class,image,right\n1,dog,a/cat 1.png,\n",
        'image\tright\textra\n"a/cat 1.png"\tafter\n\n',
        "image,right\nother.png,\na/cat 1.png,after\na/cat 1.png,after\n",
    ],
)
def test_tables_that_are_read(text: str, tmp_path: Path) -> None:
    assert read_labels(table(tmp_path, text), QUESTIONS) == {"a/cat 1.png": "after"}


@pytest.mark.parametrize(("truth", "word"), [("cat", "before"), ("dog", "after"), ("cow", "neither")])
def test_the_true_class_decides(truth: str, word: str, tmp_path: Path) -> None:
    assert read_labels(table(tmp_path, f"image,class\na/cat 1.png,{truth}\n"), QUESTIONS) == {"a/cat 1.png": word}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image,right\nx.png,after\n", "line 2: this check has no image 'x.png'"),
        ("image,right\na/cat 1.png,maybe\n", "line 2: right is 'maybe'; expected before, after, neither, or nothing"),
        ("image,class\na/cat 1.png,lion\n", "line 2: there is no class 'lion'. Classes: cat, cow, dog"),
        ("image,right\na/cat 1.png,after\na/cat 1.png,before\n", "line 3: 'a/cat 1.png' is 'before' here and 'after'"),
        ("name,right\na/cat 1.png,after\n", "needs the columns image and right (or class). Its first line is 'name,ri"),
        ("image,answer\na/cat 1.png,after\n", "needs the columns"),
        ("image,before,after,right\na/cat 1.png,cat,cow,after\n", "predict 'cat' and 'cow' for 'a/cat 1.png' there"),
        ("", "needs the columns"),
    ],
)
def test_tables_that_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as found:
        read_labels(table(tmp_path, text), QUESTIONS)
    assert words in str(found.value) and "labels.csv" in str(found.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\x00")
    for file in (tmp_path / "image.png", tmp_path / "gone.csv", tmp_path):
        with pytest.raises(DataError, match="cannot be read as a table of labels"):
            read_labels(file, QUESTIONS)


def test_files_are_merged() -> None:
    one, two = Path("one.csv"), Path("two.csv")
    assert merged({one: {"a": "after", "b": "before"}, two: {"b": "before", "c": "neither"}}) == {
        "a": "after", "b": "before", "c": "neither",
    }  # fmt: skip
    with pytest.raises(DataError, match=r"two.csv: 'a' is labelled 'before' there and 'after' in another file"):
        merged({one: {"a": "after"}, two: {"a": "before"}})


def test_label_studio() -> None:
    hostile = Questions((CAT,), ("cat", 'd"o<g&', "dog"), ("first", "second"))
    (task,) = json.loads(json.dumps(label_studio_tasks(hostile, ["data:image/jpeg;base64,x"])))
    assert task["data"] == {"image": CAT.image, "before": "cat", "after": "dog", "picture": "data:image/jpeg;base64,x"}
    assert [one["model_version"] for one in task["predictions"]] == ["first", "second"]
    (choice,) = task["predictions"][1]["result"]
    assert choice["value"] == {"choices": ["dog"]} and choice["type"] == "choices"
    tree = ElementTree.fromstring(label_studio_config(hostile))
    choices = tree.find("Choices")
    assert choices is not None and [one.get("value") for one in choices] == list(hostile.classes)
    assert choice["from_name"] == choices.get("name") and choice["to_name"] == tree.find("Image").get("name")  # type: ignore[union-attr]
