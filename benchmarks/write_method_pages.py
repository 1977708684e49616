"""Write a page for every method into docs/methods: `python benchmarks/write_method_pages.py`.

A page is made from the method's own file (docstring, class attributes, Config), from the committed results of every
suite, and from the numbers that the paper prints. With --check nothing is written, and the exit code is 1 if a page is
not what it should be.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from committed import ROOT, gain, result, table

from dept import methods
from dept.bench import suites
from dept.bench.paper import citation, paper_number
from dept.methods.base import Method
from dept.methods.declared import fields, module_docstring

PAGES = ROOT / "docs" / "methods"
COMMANDS = {  # by setting, or by the name of the method
    "auto": "dept adapt MODEL IMAGES --method {name} --out RUN",
    "offline": "dept adapt MODEL IMAGES --method {name} --out RUN",
    "online": "dept stream MODEL IMAGES --method {name} --out RUN",
    "uda": "dept uda MODEL SOURCE TARGET --method {name} --out RUN",
    "train": "dept train SOURCE --out RUN",
    "multi-source-training": "dept train SOURCE_A SOURCE_B --out RUN",
}
MEANT = {"uda": "adaptation with labelled source images", "train": "source training", "auto": "offline"}
# What a docstring says after its first words. Everything before the first of them is what the method does.
PARTS = {"Deviation": "Deviations", "Deviations": "Deviations", "Cost": "Cost", "Fails when": "When it fails"}
OURS = {"pacs-mini", "pacs-few", "pacs-multi", "pacs-full", "pacs-ratio", "streams", "imagenet-c-mini", "digits"}
"""suites that compare methods; searches and ablations are in results.md"""
PAPER = {"visda", "imagenet-c", "domainnet", "domainnet-multi", "data-ratio"}
"""tables of the paper that compare methods"""


def file_name(name: str) -> str:
    """The page of a method, called as its module."""
    return methods.place(name).split(":")[0].rsplit(".", 1)[1] + ".md"


def page(name: str) -> str:
    """The whole page."""
    kind, place = methods.get(name), methods.place(name)
    module = place.split(":")[0]
    title, _, body = module_docstring(module).partition("\n\n")
    parts = [
        f"# {kind.title}",
        "<!-- Written by `python benchmarks/write_method_pages.py`: change the method's file instead. -->",
        " ".join(title.split()),
        facts(kind, module),
        *prose(body),
        settings(kind, place),
        *own_numbers(name),
        *published(name),
    ]
    return "\n\n".join(parts) + "\n"


def facts(kind: type[Method], module: str) -> str:
    """What the class says of itself, as a table."""
    path = "src/" + module.replace(".", "/") + ".py"
    rows = {"name": f"`{kind.name}`", "meant for": ", ".join(MEANT.get(one, one) for one in kind.settings)}
    if issubclass(kind, Method):  # `auto` is a choice among methods, and has no step of its own
        needs = {
            "prompts, which a model without them is given": kind.needs_prompts,
            "source statistics (`dept stats`)": kind.needs_stats,
            f"a model from `dept train --aux {kind.needs_task}`": bool(kind.needs_task),
            "labelled source images": "uda" in kind.settings or "train" in kind.settings,
        }
        rows |= {
            "cost of a step": cost(kind),
            "assumes equally frequent classes": "yes" if kind.assumes_balance else "no",
            "needs": ", ".join(need for need, given in needs.items() if given) or "nothing but images",
        }
    rows["code"] = f"[`{path}`](../../{path})"
    command = (COMMANDS.get(kind.name) or COMMANDS[kind.settings[0]]).format(name=kind.name)
    command += " --stats STATS" if getattr(kind, "needs_stats", False) else ""
    lines = ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    return "\n".join([f"```bash\n{command}\n```\n", *lines])


def cost(kind: type[Method]) -> str:
    """What the estimates of time count, in forward passes."""
    if not kind.forwards_per_step:
        return "none: nothing is learned"
    passes = kind.passes_per_epoch
    per_epoch = f", and {passes} more per image and epoch" if passes else ""
    if start := kind.passes_at_start:
        per_epoch += f", and {start} more per image before the first step"
    many = "pass" if kind.forwards_per_step == 1 else "passes"
    return f"{kind.forwards_per_step:g} forward {many} per image, where a backward counts as one or two{per_epoch}"


def prose(body: str) -> Iterator[str]:
    """The docstring under headings."""
    pieces = re.split(rf"\b({'|'.join(PARTS)}): ", " ".join(body.split()))
    if pieces[0].strip():
        yield f"## What it does\n\n{escaped(pieces[0].strip())}"
    for name, words in zip(pieces[1::2], pieces[2::2], strict=True):
        words = f"When {words}" if name == "Fails when" else words[0].upper() + words[1:]
        yield f"## {PARTS[name]}\n\n{escaped(words.strip())}"


def settings(kind: type[Method], place: str) -> str:
    """Fields of the Config, and the presets."""
    rows = [
        f"| `--{one.name.replace('_', '-')}` | `{one.default}` | {escaped(one.text)} |"
        for one in fields(f"{place}.Config")
    ]
    lines = ["## Settings", "", "| flag | default | |", "|---|---|---|", *rows]
    for preset, changes in kind.presets.items():
        words = ", ".join(f"`{key}={value!r}`" for key, value in changes.items()) or "the defaults"
        lines += ["", f"Preset `{preset}`: {words}."]
    return "\n".join(lines)


def own_numbers(name: str) -> Iterator[str]:
    """A row for every committed row of the method."""
    rows = [
        f"| `{suite}` | {one.label} | {result(found, one)} | {gain(found, one)} |"
        for suite in suites.available()
        if suite in OURS and (found := table(suite))
        for one in found.lines
        if one.method == name and any(entry.mean is not None for entry in one.entries)
    ]
    if rows:
        yield "\n".join(
            [
                "## Our numbers",
                "",
                "Top-1 accuracy in % (`imagenet-c-mini`: error), as the mean over all targets or those that were run,",
                "and the gain over the row's own source model with its 95 % interval. Compare within a suite only:",
                "[results](../results.md) has the protocols, and marks what differs.",
                "",
                "| suite | row | result | gain |",
                "|---|---|---:|---:|",
                *rows,
            ]
        )


def published(name: str) -> Iterator[str]:
    """The means that the DePT paper prints for the method, by the suites that name its rows."""
    rows = {}
    for suite in map(suites.get, suites.available()):
        for row in suite.rows:
            value = paper_number(suite.paper, row.paper, "mean") if suite.paper in PAPER and row.paper else None
            if row.method == name and value is not None:
                rows[suite.paper, row.paper] = f"| `{suite.paper}` | {row.paper} | {value:g} |"
    if rows:
        yield "\n".join(
            [
                "## Published numbers",
                "",
                f"Means that the DePT paper prints, in % (`imagenet-c`: error). {citation()}",
                "",
                "| table | row | mean |",
                "|---|---|---:|",
                *rows.values(),
            ]
        )


def escaped(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([|<>*_])", r"\\\1", text) if "`" not in text else escaped_around_code(text)


def escaped_around_code(text: str) -> str:
    """The same for text with `code` in it, which stays."""
    return "`".join(part if n % 2 else escaped(part) for n, part in enumerate(text.split("`")))


def main(argv: list[str]) -> int:
    """Write every page; returns 1 if --check finds a stale one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only tell what is stale")
    check = parser.parse_args(argv).check
    wanted = {PAGES / file_name(name): page(name) for name in methods.available()}
    present = set(PAGES.glob("*.md")) - {PAGES / "index.md"}
    stale = [file for file, text in wanted.items() if file not in present or file.read_text("utf-8") != text]
    for file in sorted([*stale, *(present - set(wanted))]):
        print(
            f"{file.relative_to(ROOT)}: {'stale; run python benchmarks/write_method_pages.py' if check else 'written'}"
        )
    if not check:
        PAGES.mkdir(exist_ok=True)
        for file in present - set(wanted):
            file.unlink()
        for file in stale:
            file.write_text(wanted[file], "utf-8")
    return 1 if check and (stale or present - set(wanted)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
