"""Wrong command lines: every one ends with an exit code of ours, without a traceback and without a details file."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

from attack.stage import MEMORY, SMALL, TINY, Row, Stage, forked

CODES = {0, 1, 2, 3, 4, 130}
VALUES = (
    "", " ", "-1", "0", "1", "2", "0.5", "nan", "inf", "-inf", "1e308", "x", "None", "--", "-", "cpu:", "cuda:99",
    "/dev/null", "/dev/zero/x", "nowhere/at/all", "\x1b[31m", "é", "{}", "[1]", '{"depth": 0}', "1,2", "a" * 3000,
    "\udcff",
)  # fmt: skip
HUGE = ("999999999999999999999", "1000000")
UNBOUNDED = {"max_iters", "epochs", "iters_per_epoch", "workers", "severity", "fisher_images"}
"""a huge value of these is not wrong, only long"""
LEFT_OUT = {"watch", "compile", "pretrained", "tensorboard"}
"""without an end, slow, or from a network"""


def attack(stage: Stage, count: int, seed: int) -> Iterator[Row]:
    """One row."""
    row, rng = Row("wrong calls: an exit code and a sentence"), random.Random(seed)
    calls = list(_calls(stage, rng))
    rng.shuffle(calls)
    for words in calls[:count]:
        out = stage.root / "out"
        shutil.rmtree(out, ignore_errors=True)
        outcome = forked(lambda words=words: _said(words, stage.root), 60, MEMORY)
        row.add(_problem(words, outcome.kind, outcome.value), "" if outcome.kind != "value" else f"{outcome.value[0]}")
    shutil.rmtree(stage.root / "out", ignore_errors=True)
    yield row


def _problem(words: list[str], kind: str, value: object) -> str | None:
    said = f"`dept {' '.join(word[:60] for word in words)!r}`"
    if kind != "value":
        return f"{said}: {kind}: {value}"
    assert isinstance(value, tuple)
    code, err = value
    if code not in CODES or "Traceback" in err or "unexpected error" in err:
        return f"{said}: code {code}, {err[-300:]!r}"
    if code not in (0, 130) and not err.strip():
        return f"{said}: code {code} without a word"
    return None


def _said(words: list[str], folder: Path) -> tuple[object, str]:
    """Exit code and stderr of a command line."""
    from huggingface_hub import constants

    from dept.cli.main import main

    tempfile.tempdir = str(folder)  # for a file with the details of an error that nobody expected
    constants.HF_HUB_OFFLINE = True  # nothing is asked of a network, and nobody waits for one
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            code: object = main(words)
        except SystemExit as stop:
            code = stop.code or 0
    return code, err.getvalue()[-3000:]


def _bases(stage: Stage) -> dict[str, list[str]]:
    """A right command line of every command that is not a benchmark."""
    model, images, labelled, out = map(str, (stage.model, stage.images, stage.labelled, stage.root / "out"))
    few = ["--max-iters", "1", *SMALL]
    tiny = ["--arch", "vit_tiny_patch16_224", "--timm", json.dumps(TINY), "--stages", "2", "--prompts", "3"]
    return {
        "adapt": [model, images, "--out", out, "--method", "tent", *few],
        "train": [labelled, "--out", out, "--no-pretrained", *tiny, *few],
        "uda": [model, labelled, images, "--out", out, "--method", "erm", *few],
        "stream": [model, images, "--out", out, "--method", "tent", *SMALL],
        "predict": [model, images, "--device", "cpu"],
        "evaluate": [model, labelled, "--device", "cpu"],
        "stats": [model, labelled, "--out", f"{out}/stats.safetensors", "--device", "cpu"],
        "corrupt": [images, out, "--type", "fog", "--size", "32"],
        "info": [model],
        "methods": ["tent"],
        "report": [str(stage.run), "--out", f"{out}/r.html", "--device", "cpu", "--projection", "pca"],
        "convert": [model, "--arch", "resnet18", "--classes", model, "--out", f"{out}/m.safetensors"],
    }


def _calls(stage: Stage, rng: random.Random) -> Iterator[list[str]]:
    from dept.cli.command import flag_names

    bases = _bases(stage)
    files = [stage.model, stage.adapter, stage.stats, stage.run, stage.images, stage.labelled, stage.root / "gone"]
    files += [stage.run / "events.jsonl", stage.images / "red0.png"]
    for name, base in bases.items():
        command = resolve_name(f"dept.cli.{name}:COMMAND")
        for flag in sorted(flag_names(command, base) - LEFT_OUT):
            dashed = f"--{flag.replace('_', '-')}"
            kept = [w for w, before in zip(base, ["", *base], strict=False) if dashed not in (w, before)]
            values = VALUES if flag in UNBOUNDED else VALUES + HUGE
            yield from ([name, *kept, dashed, value] for value in rng.sample(values, min(6, len(values))))
            yield [name, *base, dashed]
        for at in range(len(base)):
            yield [name, *base[:at], *base[at + 1 :]]
            yield [name, *base[:at], base[at], *base[at:]]
            yield from ([name, *base[:at], str(file), *base[at + 1 :]] for file in rng.sample(files, 3))
            yield [name, *base[:at], rng.choice(VALUES), *base[at + 1 :]]
    yield from ([""], ["\x1b[31m"], ["--nope"], ["bench", "nope"], ["bench", "--", "x"], ["bench", "diff"], ["help"])
