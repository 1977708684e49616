"""What files of others can make a command print: nothing that a terminal obeys, nothing without end, no bad advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dept.cli.main import main
from dept.cli.show import visible
from dept.io import FORMAT
from dept.runs.train import TrainRun
from support import picture

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def test_visible() -> None:
    assert visible("é→ “x”") == "é→ “x”"
    assert visible("a\x1b[31m\r\u202e\udcff\nb") == "a\\x1b[31m\\r\\u202e\\udcff\\nb"
    assert visible("a\n\tb", lines=True) == "a\n\\tb"


def hostile(file: Path, meta: Any) -> Path:
    text = meta if isinstance(meta, str) else json.dumps(meta)
    save_file({"head.weight": torch.zeros(2, 2), f"{ESCAPE}.x": torch.zeros(1)}, file, metadata={"dept": text})
    return file


BASE = {"format": FORMAT, "kind": "adapter"}


@pytest.mark.parametrize(
    "meta",
    [
        BASE | {"domains": 5},
        BASE | {"domains": {"names": [1], "weights": ["x"]}},
        BASE | {"domains": {"names": ["a"], "weights": None, "shared_prompts": 1, "domain_prompts": 1}},
        BASE | {"kind": ESCAPE},
        BASE | {"kind": ["a"] * 10_000},
        BASE | {ESCAPE: ESCAPE, "x": "y" * 1_000_000},
        BASE | {"x" * 100_000: 1},
        BASE | {f"key{number}": number for number in range(50_000)},
        '{"format": 1, "kind": "adapter", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "[" * 100_000,
        "[1]",
        json.dumps({**BASE, "format": ESCAPE}),
    ],
)
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_info_on_hostile_metadata(
    meta: Any, flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = hostile(tmp_path / "x.safetensors", meta)
    code = main(["info", str(file), *flag])
    out, err = capsys.readouterr()
    assert code in (0, 3) and "Details" not in err and "\x1b" not in out + err
    assert len(err) < 2000 and (flag or len(out) < 40_000)


def test_names_of_files_are_shown_escaped(
    source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    site = tmp_path / "site"
    site.mkdir()
    picture(0, np.random.default_rng(0)).save(site / "good.png")
    (site / f"{ESCAPE}\ndept: all is well.png").write_bytes(b"no image")
    assert main(["predict", str(source_run.file), str(site), "--device", "cpu"]) == 0
    err = capsys.readouterr().err
    assert "\x1b" not in err and err.startswith("skipped ") and "\\x1b]0;owned" in err and len(err.splitlines()) == 1
    assert main(["predict", str(source_run.file), str(tmp_path / f"gone{ESCAPE}\n")]) == 3
    err = capsys.readouterr().err
    assert "\x1b" not in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (KeyboardInterrupt(), "stopped.", 130),
        (MemoryError(), "out of memory. Lower --batch", 1),
        (RecursionError("deep"), "nested too deeply", 3),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to …"), "out of memory", 1),
        (ValueError(f"{ESCAPE} is odd"), "\\x1b]0;owned\\x07\\x1b[2J is odd", 1),
    ],
)
def test_each_failure_is_a_sentence(
    error: BaseException, words: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("dept.cli.info.run", explode)
    assert main(["info", "x"]) == code
    err = capsys.readouterr().err
    assert words in err and len(err.splitlines()) == 1 and "Details" not in err


def test_no_advice_to_load_what_was_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"net": torch.nn.Linear(2, 2)}, tmp_path / "x.pth")
    (tmp_path / "classes.txt").write_text("a\nb\n")
    command = ["convert", tmp_path / "x.pth", "--arch", "resnet18", "--classes", tmp_path / "classes.txt"]
    assert main([str(word) for word in [*command, "--out", tmp_path / "m.safetensors"]]) == 3
    err = capsys.readouterr().err
    assert "loading that could run code" in err and "weights_only" not in err and "can still be loaded" not in err
