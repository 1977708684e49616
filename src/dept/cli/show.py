"""What people see: progress on stderr, tables and JSON on stdout, and what a run prints at its end."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from dept.cli.parts import RunOutput
from dept.errors import HARMFUL, Interrupted, NothingReadable

if TYPE_CHECKING:
    from tqdm import tqdm

    from dept.data.images import ImageSet


class _Said(logging.Handler):
    """Shows on stderr what the library logs about long passes."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def show_progress() -> None:
    """Let the library say what it is about, and on a terminal how far a long pass over images is."""
    logger = logging.getLogger("dept.progress")
    logger.setLevel(logging.INFO)
    # In a file, a benchmark of many hours would leave a line every five seconds.
    logger.getChild("pass").setLevel(logging.NOTSET if sys.stderr.isatty() else logging.WARNING)
    if not any(isinstance(handler, _Said) for handler in logger.handlers):
        logger.addHandler(_Said())


class ProgressBar:
    """A listener of run events: a bar with the loss terms and ETA on a terminal, a line per event elsewhere."""

    def __init__(self) -> None:
        self.bar: tqdm[Any] | None = None
        self.terminal = sys.stderr.isatty()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "start":
            for note in event["notes"]:
                say(f"Note: {note}")
        elif kind == "note":
            say(f"Note: {event['text']}")
        elif kind == "guard":
            say(f"Guard, batch {event['step']}: {event['text']}")
        elif kind == "step" and self.terminal:
            if self.bar is None:
                from tqdm import tqdm

                self.bar = tqdm(total=event["total"], initial=event["step"], unit="step", file=sys.stderr)
            self.bar.set_postfix({name: f"{value:.3f}" for name, value in event["terms"].items()}, refresh=False)
            self.bar.update()
        elif kind == "score":
            self._line(event["step"], {name: f"{100 * value:.1f} %" for name, value in event["top1"].items()})
        elif kind == "held_out":
            self._line(event["step"], {"held-out accuracy": f"{100 * event['accuracy']:.1f} %"})
        elif kind == "end" and self.bar is not None:
            self.bar.close()
            self.bar = None  # the next run has its own

    def _line(self, step: int, values: dict[str, str]) -> None:
        text = f"step {step}: " + ", ".join(f"{name} {value}" for name, value in values.items())
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        else:
            say(text)


def show_run(words: list[str], output: RunOutput, start: Callable[..., Any], **settings: Any) -> int:
    """Run with a progress bar and print the outcome; after Ctrl-C, print the command that resumes the run.

    Args:
        words: the command line after `dept`.
        start: does the run with the settings; what it returns is printed, or its `result` as JSON.
    """
    from dept.runs.tensorboard import recorded

    settings |= {"out": output.out, "resume": output.resume, "overwrite": output.overwrite}
    try:
        with recorded(ProgressBar(), output.out, wanted=output.tensorboard) as listener:
            done = start(**settings, listener=listener)
    except Interrupted as stop:
        say(f"\nStopped after step {stop.step}. The state is saved. To continue:\n  {resume_command(words)}")
        return stop.exit_code
    if output.json:
        print(as_json(done.result))
    else:
        show(str(done))
    return HARMFUL if getattr(done, "rejected", False) else 0


def resume_command(words: list[str]) -> str:
    """The command line that resumes an interrupted run."""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return shlex.join(["dept", *kept, "--resume"])


def say(text: str) -> None:
    """Print a remark on stderr."""
    print(visible(text, lines=True), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print a result for people on stdout. Data for programs (JSON, CSV) is printed as it is."""
    print(visible(text, lines=True))


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything escaped that a terminal would obey instead of showing it.

    Names of files and classes may come from anyone: an escape sequence in one could rewrite what was printed before.

    Args:
        lines: keep line ends, for text of our own that has several lines.
    """
    return "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode()
        for char in text
    )


def report_skipped(images: ImageSet, file: Path | None = None, most: int = 5) -> None:
    """Show the first files that were left out, with the reason, and write all of them to a file."""
    _write_skipped(images.skipped, file)
    for path, reason in images.skipped[:most]:
        say(visible(f"skipped {path}: {reason}"))
    if len(images.skipped) > most:
        say(f"… and {len(images.skipped) - most} more files{f', see {file}' if file else ''}.")


@contextmanager
def skipped_kept(file: Path | None) -> Iterator[None]:
    """Write the list also where not one image is left, which is when it is needed most."""
    try:
        yield
    except NothingReadable as error:
        _write_skipped(error.skipped, file)
        raise


def _write_skipped(skipped: Sequence[tuple[PurePath, str]], file: Path | None) -> None:
    """One line for each file, whatever it is called."""
    if file is None:
        return
    from dept.io import write_atomic

    escapes = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
    lines = [f"{str(path).translate(escapes)}\t{reason.translate(escapes)}\n" for path, reason in skipped]
    write_atomic(file, "".join(lines).encode(errors="surrogateescape"))


def as_json(value: Any) -> str:
    """Indented JSON."""
    return json.dumps(value, indent=2, default=str)


def bold(text: str) -> str:
    """Bold on a terminal that has not asked for plain text (NO_COLOR)."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table: first column left, the others right-aligned."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([bold(line(header)), line(["-" * w for w in widths]), *(line(row) for row in rows)])
