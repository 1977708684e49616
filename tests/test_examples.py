"""The examples run as they stand, on the embedded model and embedded digits."""

from __future__ import annotations

import io
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn.datasets")

from dept import methods
from dept.data.digits import real_digits, write_digits
from dept.demo import EMBEDDED

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "01_adapt_a_folder.py": r"Adapter: runs/site/adapter.safetensors[^$]*\.png: \d \(\d\.\d\d\)",
    "02_stream.py": r"(\S+\.png \d \d\.\d\d\n){20}",
    "03_several_sources.py": r"Prompts started from the source domains by signature: dark [\d.]+, light [\d.]+\.",
    "04_compare_methods.py": r"dept\+ +\d\d\.\d% +\d\d\.\d%  \w+, [+-]\d+ to [+-]\d+ points",
    "05_write_your_own_method.py": r"sharp-and-even: adapted to 96 images, 2,048 parameters tuned",
    "06_many_domains_in_one_batch.py": r"16 images of 2 domains in one forward; logits \(16, 10\)\n.*: \d\.\de[-+]0\d",
    "07_label_twenty_and_judge.py": r"points .*95 %",
    "08_fleet.py": r"4 sites\n[^$]*broken failed: None of the 1 images[^$]*inverted: ",
    "11_serve_many_domains.py": r"faded with faded: \d+ of 64 digits right",
}
"""what an example prints, by its file; the others are run by tests of their own"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    images, labels = real_digits()
    write_digits(folder, (images[:96], labels[:96]))
    return folder


@pytest.mark.parametrize("name", SAYS)
def test_the_example_runs(
    name: str, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = "\n".join(map(str, sorted(digits.rglob("*.png"))[:20])) + "\n"
    monkeypatch.setattr("sys.argv", [name, str(EMBEDDED), str(digits)])
    monkeypatch.setattr("sys.stdin", io.StringIO(paths))
    monkeypatch.setattr("dept.runs.auto.LEAST_STEPS", 1)
    monkeypatch.setattr("dept.runs.auto.EPOCHS", 2)
    monkeypatch.setattr(methods, "_OWN", {})
    monkeypatch.chdir(tmp_path)
    if name == "11_serve_many_domains.py":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(SAYS[name], printed), printed


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_short_says_how_to_run_it_and_is_tested(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert f"python examples/{file.name}" in text or f"examples/{file.name}" in text.split('"""')[1]
    assert any(file.name in test.read_text(encoding="utf-8") for test in (ROOT / "tests").rglob("test_*.py"))
