"""The page to label on: nothing is fetched, names are text, and in a browser two keys make a table."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dept.health.label_page import label_page, picture
from dept.health.labels import Asked, Questions, read_labels

HOSTILE = '</script><img src=x onerror="document.title=1">,"\n'
ASKED = (Asked("a.png", "cat", "dog"), Asked(HOSTILE, "<b>cow</b>", "dog"), Asked("c.png", "cat", "cow", "after"))
QUESTIONS = Questions(ASKED, ("cat", "cow", "dog", "<b>cow</b>"))


def page(seed: int = 0, questions: Questions = QUESTIONS) -> str:
    pictures = [picture(Image.new("RGB", (40, 30), colour)) for colour in ("red", "green", "blue")]
    return label_page(questions, pictures, command="dept judge 'my run' labels.csv", seed=seed, key="abc")


def data(text: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    value: dict[str, object] = json.loads(found)
    return value


def test_names_are_data_and_nothing_is_fetched() -> None:
    text = page()
    assert [item["image"] for item in data(text)["items"]] == ["a.png", HOSTILE, "c.png"]  # type: ignore[attr-defined]
    assert text.count("<script") == 2 and "<img src=x" not in text
    assert "default-src 'none'" in text and not re.search(r"https?://|@import|url\(|innerHTML", text)


def test_sides_are_hidden_and_seeded() -> None:
    def swapped(seed: int) -> list[bool]:
        return [item["swapped"] for item in data(page(seed))["items"]]  # type: ignore[attr-defined]

    assert page(1) == page(1) and {tuple(swapped(seed)) for seed in range(20)} > {tuple(swapped(0))}


def test_pictures_are_small_and_whole() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 1600, 3), dtype=np.uint8))
    assert len(picture(noise)) < 120_000
    for size in ((40, 30), (640, 480)):
        uri = picture(Image.new("RGB", size))
        assert uri.startswith("data:image/jpeg;base64,") and len(uri) < 6000


browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium here")


def pressed(text: str, keys: list[str], folder: Path) -> str:
    """The page after these keys, and with the table that it then makes in `folder`."""
    drive = """<script>
    window.addEventListener("load", () => {
      const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
      @KEYS@.forEach(press);
      HTMLAnchorElement.prototype.click = () => {};
      URL.createObjectURL = (blob) => { blob.text().then((text) => { document.body.dataset.csv = text; }); };
      document.getElementById("save").click();
    });
    </script></body>"""
    file = folder / "label.html"
    file.write_text(text.replace("</body>", drive.replace("@KEYS@", json.dumps(keys))), encoding="utf-8")
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    words += ["--virtual-time-budget=3000", "--dump-dom", file.as_uri()]
    shown = subprocess.run(words, capture_output=True, timeout=120, text=True).stdout
    (table,) = re.findall(r'<body data-csv="(.*?)">', shown, re.DOTALL)
    (folder / "labels.csv").write_text(html.unescape(table), newline="")
    return shown


@browser
def test_two_keys_make_a_table(tmp_path: Path) -> None:
    """Left on the first image, back, right instead, neither on the second; the third is labelled already."""
    shown = pressed(page(), ["ArrowLeft", "ArrowUp", "J", "ArrowDown"], tmp_path)
    items = data(page())["items"]
    first = "before" if items[0]["swapped"] else "after"  # type: ignore[index]
    expected = {"a.png": first, HOSTILE: "neither", "c.png": "after"}
    assert read_labels(tmp_path / "labels.csv", QUESTIONS) == expected
    assert "<title>Which label is right?</title>" in shown and "dept judge 'my run' labels.csv" in shown


@browser
def test_an_answer_leads_to_the_next_image_without_one(tmp_path: Path) -> None:
    first, second, third = ASKED
    some = Questions((first, replace(second, right="before"), replace(third, right="")), QUESTIONS.classes)
    pressed(page(questions=some), ["ArrowDown", "n"], tmp_path)
    expected = {"a.png": "neither", HOSTILE: "before", "c.png": "neither"}
    assert read_labels(tmp_path / "labels.csv", some) == expected
