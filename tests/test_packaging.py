"""What people install: the wheel, from the source archive, in an environment of its own. And the set-up of make."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import dept
from dept import __version__

ROOT = Path(__file__).parents[1]
# Nothing of the repository: a test is often started with PYTHONPATH=src.
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def run(*words: object, folder: Path, **environment: str) -> str:
    """Standard output of a command, which must succeed."""
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=folder, env=OUTSIDE | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- the wheel ----


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked source archive: both work if it does."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("build")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", folder, "--target"]
    run(*build, "sdist", folder=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    run(*build, "wheel", folder=folder / archive.name.removesuffix(".tar.gz"))
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src/dept").rglob("*") if file.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("dept/")}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert "dept/py.typed" in packed


def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, folder=tmp_path)
    # torch and the rest are taken from the interpreter of the tests. Only names are found there: an editable dept in
    # the same folder works through a .pth file, which is not read from here.
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile"]
    run(*install, "--quiet", wheel, folder=tmp_path)

    assert run(python, "-c", "import dept; print(dept.__file__)", folder=tmp_path).startswith(str(packages))
    assert run(python, "-m", "dept", "--version", folder=tmp_path) == f"dept {__version__}\n"
    printed = run(home / "bin" / "dept", "demo", "--limit", 48, "--epochs", 1, folder=tmp_path)
    assert "DePT-G" in printed
    assert (tmp_path / "runs/demo/dept-G/report.html").is_file()


def test_the_version_is_told_once() -> None:
    """The changelog and the citation name the version of the package."""
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert dept.__version__ == __version__


# ---- the set-up of make ----

FAKE_UV = """#!/bin/sh
echo "$@" >> uv.log
case "$*" in *--torch-backend*) exit $REACHED ;; esac
test -z "$UV_TORCH_BACKEND"
"""


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("reached", [True, False])
def test_the_set_up_says_what_it_downloads(reached: bool, tmp_path: Path) -> None:
    """PyTorch's index if it answers; else PyPI, after a sentence about the size. uv is a stand-in here."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {"pip": "#!/bin/sh\n", "uv": FAKE_UV}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    settings = {"REACHED": "0" if reached else "2", "UV_TORCH_BACKEND": "cpu"}
    printed = run("make", ".venv/ready", "PYTHON=true", folder=tmp_path, **settings)
    calls = (tmp_path / "uv.log").read_text().splitlines()
    assert "--torch-backend cpu -e .[dev]" in calls[0]
    said = [line for line in printed.splitlines() if line.startswith("Installing torch from PyPI")]
    assert len(said) == len(calls) - 1 == (0 if reached else 1)
    if not reached:
        assert re.search(r"\d GB to download", said[0]) and "--torch-backend" not in calls[1]
