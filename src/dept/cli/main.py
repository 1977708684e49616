"""Entry point. The table of commands is static, so that help and typing errors never import torch."""

from __future__ import annotations

import io
import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module

from dept._version import __version__
from dept.errors import DeptError

COMMANDS = {
    "demo": "try everything on embedded data: rendered digits -> real handwritten digits",
    "train": "train a source model on labelled images",
    "convert": "bring your own checkpoint",
    "adapt": "adapt a model to a folder of unlabelled images",
    "stream": "predict images as they arrive, adapting on the way",
    "uda": "adapt with labelled source and unlabelled target images together",
    "predict": "label images",
    "evaluate": "score a model on labelled images",
    "stats": "write the source statistics that some methods need",
    "info": "look inside a model or adapter file",
    "methods": "list the methods, or explain one",
    "report": "write an HTML page about a run or a benchmark",
    "corrupt": "write corrupted copies of images (ImageNet-C)",
    "bench": "run a benchmark suite",
}
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code (0 ok, 1 failure, 2 usage, 3 data problem)."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"dept {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean `dept {close[0]}`?" if close else " `dept --help` lists the commands."
        print(f"dept: there is no command {name!r}.{hint}", file=sys.stderr)
        return 2
    return _guarded(name, rest)


def usage() -> str:
    """The help page."""
    rows = "\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items())
    return (
        "usage: dept COMMAND …\n\nAdapt an image classifier to a new domain with unlabelled images.\n\n"
        f"{rows}\n\n`dept COMMAND --help` explains a command. Start with `dept demo`."
    )


def _guarded(name: str, rest: list[str]) -> int:
    """Run a command; every expected failure becomes a sentence and a code, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a file name need not be valid text
    try:
        code: int = import_module(f"dept.cli.{name}").run(rest)
        return code
    except DeptError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("stopped.", INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        return _fail(str(error), 1)
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        return _fail("out of memory. Lower --batch, or use a smaller model.", 1)


def _fail(message: str, code: int) -> int:
    # Library errors put the names of parameters in backticks; here they are flags.
    flagged = re.sub(r"`([a-z]\w*)`", lambda match: "--" + match[1].replace("_", "-"), message)
    print(f"dept: {flagged}", file=sys.stderr)
    return code
