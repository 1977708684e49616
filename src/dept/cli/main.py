"""Entry point. The table of commands is static, so that help and typing errors never import torch."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import traceback
import warnings
from difflib import get_close_matches
from importlib import import_module

from dept._version import __version__
from dept.cli.show import show_progress
from dept.cli.torchrun import one_of_several, say_why
from dept.errors import DeptError, Interrupted, UsageError

_NO_MEMORY = re.compile("out of memory|(can't|cannot) allocate memory", re.IGNORECASE)
_UNSAFE_ADVICE = re.compile(r"Weights only load failed[^)]*|[^.()]*weights_only[^.()]*")

COMMANDS = {
    "demo": "try everything on embedded data: rendered digits -> real handwritten digits",
    "train": "train a source model on labelled images",
    "convert": "convert your own checkpoint into a model file",
    "doctor": "look at a model and images before adapting: what is wrong, what it would cost",
    "adapt": "adapt a model to a folder of unlabelled images",
    "fleet": "adapt a model to many sites, each a folder of images",
    "stream": "predict images as they arrive, adapting on the way",
    "uda": "adapt with labelled source and unlabelled target images together",
    "predict": "label images",
    "evaluate": "evaluate a model on labelled images",
    "check": "draw images to label, to find out whether a run helped",
    "judge": "judge a run by those labels: improved, uncertain or harmful",
    "undo": "restore the adapter that a run or a stream has replaced",
    "export": "write a model for ONNX Runtime, Triton or torch.export",
    "serve": "serve many domains on one backbone over HTTP",
    "token": "make an access token for `dept serve`",
    "push": "publish the adapter or model of a run on the Hugging Face hub",
    "stats": "write the source statistics that some methods need",
    "info": "look inside a model or adapter file",
    "methods": "list the methods, or explain one",
    "report": "write an HTML page about a run, a fleet or a benchmark",
    "corrupt": "write corrupted copies of images (ImageNet-C)",
    "bench": "run a benchmark suite",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code (0 ok, 1 failure, 2 usage, 3 data problem, 4 judged harmful)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file name need not be valid text, and a terminal need not have our letters.
            stream.reconfigure(errors="surrogateescape" if stream.encoding == "utf-8" else "backslashreplace")
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"dept {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean `dept {close[0]}`?" if close else "`dept --help` lists the commands."
        return _fail(f"there is no command {name!r}. {hint}", 2)
    return _guarded(name, rest)


def usage() -> str:
    """The help page."""
    rows = "\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items())
    return (
        "usage: dept COMMAND …\n\nAdapt an image classifier to a new domain with unlabelled images.\n\n"
        f"{rows}\n\n`dept COMMAND --help` explains a command. Start with `dept demo`."
    )


def _guarded(name: str, rest: list[str]) -> int:
    """Run a command; every failure becomes a sentence and a code, never a traceback."""
    # Pillow warns of images that are skipped anyway, with a reason.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    show_progress()
    try:
        with one_of_several(name, rest):
            code: int | None = import_module(f"dept.cli.{name}").run(rest)
        return code or 0
    except DeptError as error:
        return _fail(_in_flags(str(error), name, rest), error.exit_code)
    except KeyboardInterrupt:
        return _fail("stopped.", Interrupted.exit_code)
    except BrokenPipeError:
        # The reader went away (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        return _fail(_in_flags(str(error), name, rest), 1)
    except Exception as error:
        if isinstance(error, RecursionError):
            return _fail("a file is nested too deeply to be read. It is damaged, or dept did not write it.", 3)
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return _fail("out of memory. Lower --batch, or use a smaller model.", 1)
        with tempfile.NamedTemporaryFile("w", prefix="dept-error-", suffix=".txt", delete=False) as file:
            traceback.print_exc(file=file)
        summary = (str(error).splitlines() or [""])[0]
        return _fail(f"unexpected error ({type(error).__name__}: {summary}). Details: {file.name}", 1)


def _in_flags(message: str, name: str, rest: list[str]) -> str:
    """A message that names parameters, with the flags of the command in their place."""
    from dept.cli.command import flag_names, with_flags

    module = f"dept.cli.{name}"
    if name == "bench" and rest:
        from dept.cli.bench import COMMANDS as PARTS

        module += f"_{rest[0]}" if rest[0] in PARTS else "_suite"
    try:
        return with_flags(message, flag_names(import_module(module).COMMAND, rest))
    except (AttributeError, ImportError, UsageError):  # the command has no flags, or its method is unknown
        return message


def _fail(message: str, code: int) -> int:
    from dept.cli.show import visible

    # torch explains how to load a file that it refused as unsafe; nobody should follow that here.
    safe = _UNSAFE_ADVICE.sub("it holds more than plain tensors", message)
    say_why(visible(safe))
    return code
