"""What only shows in a process of its own: imports, exit codes, pipes. Few, because starting torch takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dept.runs.train import TrainRun


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)


def test_importing_dept_is_instant() -> None:
    heavy = "[m for m in ('torch', 'timm', 'tyro') if m in sys.modules]"
    done = python(f"import sys, dept; dept.__version__; dir(dept); print({heavy})")
    assert done.stdout.strip() == "[]", done.stderr


def test_help_and_typing_errors_do_not_import_torch() -> None:
    code = """
import sys
from dept.cli.main import main
codes = [main(argv) for argv in (["--help"], ["--version"], [], ["adpat"])]
heavy = [m for m in ("torch", "timm", "numpy", "tyro", "PIL") if m in sys.modules]
print("RESULT", codes, heavy)
"""
    done = python(code)
    assert "RESULT [0, 0, 0, 2] []" in done.stdout, done.stdout + done.stderr
    assert "Did you mean `dept adapt`?" in done.stderr


def test_listing_names_of_methods_does_not_import_torch() -> None:
    done = python("import sys, dept; print(len(dept.methods.available()) >= 3, 'torch' in sys.modules)")
    assert done.stdout.strip() == "True False", done.stderr


def test_exit_code_and_stderr_of_a_real_process() -> None:
    """`python -m dept` through to the shell: the code, one sentence, nothing on stdout."""
    done = subprocess.run([sys.executable, "-m", "dept", "evalute"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "dept: there is no command 'evalute'. Did you mean `dept evaluate`?\n"


def test_predict_imports_only_what_it_needs(source_run: TrainRun, target_images: Path) -> None:
    """Beside torch and timm, whose import is the waiting time."""
    image = next(target_images.rglob("*.png"))
    code = f"""
import sys
from dept.cli.main import main
code = main(["predict", {str(source_run.file)!r}, {str(image)!r}, "--device", "cpu"])
needless = ("scipy", "sklearn", "matplotlib", "jinja2", "dept.runs", "dept.bench", "dept.report", "dept.demo")
print("RESULT", code, [name for name in needless if name in sys.modules])
"""
    done = python(code)
    assert "RESULT 0 []" in done.stdout, done.stdout + done.stderr
