"""Five ways to write a table: terminal, Markdown, brief Markdown, LaTeX (booktabs), JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise

from dept.bench.entry import Entry
from dept.bench.notes import METRICS
from dept.bench.table import MEAN, Line, Table

Style = Callable[[str, Entry], str]

MISSING = "–"
WIDE = 5  # tables with more columns show gains in that of the mean only
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "–": "--", "−": "$-$", "×": r"$\times$", "β": r"$\beta$", "τ": r"$\tau$",
    "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "§": r"$^{\S}$", "¶": r"$^{\P}$", "‖": r"$^{\|}$", "※": r"$^{*}$",
}  # fmt: skip


def render(table: Table, form: str) -> str:
    """The table in one of the forms of `FORMS`."""
    return FORMS[form](table)


def terminal(table: Table, *, ansi: bool | None = None) -> str:
    """Aligned text; best in bold and second underlined where the output is a terminal that wants it (NO_COLOR)."""
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ if ansi is None else ansi
    plain = [_header(table), *(_cells(table, line, _unstyled) for line in table.lines)]
    widths = [max(len(row[n]) for row in plain) for n in range(len(plain[0]))]
    styled = [plain[0], *(_cells(table, line, _ansi if coloured else _unstyled) for line in table.lines)]
    lines = [_aligned(row, bare, widths) for row, bare in zip(styled, plain, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    body = _blocks(table, lines[1:], rule)
    return "\n".join([table.title, "", lines[0], rule, *body, "", *below(table)])


def markdown(table: Table) -> str:
    """A pipe table, footnotes and the protocol."""
    lines = pipe_table(_header(table), [_cells(table, line, _starred) for line in table.lines])
    return "\n".join([lines, "", "\n\n".join(below(table))])


def brief(table: Table) -> str:
    """One number per cell in Markdown, the gain in a column of its own, and the protocol in one line."""
    rows = [
        [
            line.label,
            *(MISSING if e.mean is None else _starred(number(e), e) + e.mark for e in line.entries),
            _gain(line.entries[-1]) or MISSING,
        ]
        for line in table.lines
    ]
    header = ["method", *table.columns, "gain" if len(table.columns) == 1 else f"{table.columns[-1]} gain"]
    metric = METRICS.get(table.metric, table.metric)
    read = f"{metric[0].upper()}{metric[1:]} in %; gain over the row's own source model with its 95 % interval."
    notes = [f"{note.mark} {note.text}" for note in table.notes if note.mark]
    return "\n\n".join(
        [pipe_table(header, rows), *notes, " ".join(filter(None, (read, table.summary and f"{table.summary}.")))]
    )


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A bare Markdown table: first column left, the others right-aligned."""
    escaped_rows = [[text.replace("|", r"\|") for text in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped_rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(header) - 1), *lines[1:]])


def latex(table: Table) -> str:
    """A booktabs tabular (needs \\usepackage{booktabs}) with footnotes below."""
    header = _header(table)
    rows = [" & ".join([*map(escaped, _cells(table, line, _tokens))]) + r" \\" for line in table.lines]
    notes = [rf"\par\smallskip\footnotesize {escaped(text)}" for text in below(table)]
    text = "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            " & ".join(map(escaped, header)) + r" \\",
            r"\midrule",
            *_blocks(table, rows, r"\midrule"),
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
        ]
    )
    return text.replace("\x01", r"\textbf{").replace("\x02", r"\underline{").replace("\x03", "}")


def as_json(table: Table) -> str:
    """Everything, for machines."""
    return json.dumps(asdict(table), indent=1, ensure_ascii=False)


FORMS: dict[str, Callable[[Table], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "brief": brief,
    "latex": latex,
    "json": as_json,
}


def escaped(text: str) -> str:
    """Text for LaTeX, arrows and dashes included."""
    return "".join(_LATEX.get(letter, letter) for letter in text.replace("->", "→")).replace("→", r"$\to$")


# -- what all forms share ----------------------------------------------------------------------------------


def _header(table: Table) -> list[str]:
    return ["method", "tuned", *table.columns, "changed", "time/run"]


def _cells(table: Table, line: Line, style: Style) -> list[str]:
    narrow, entries = len(table.columns) <= WIDE, tuple(zip(table.columns, line.entries, strict=True))
    return [
        line.label,
        MISSING if line.tunable is None else f"{line.tunable:,}",
        *(_text(entry, style, gains=narrow or name == MEAN) for name, entry in entries),
        MISSING if line.changed is None or line.method == "source" else f"{100 * line.changed:.1f} %",
        MISSING if line.seconds is None else duration(line.seconds),
    ]


def _text(entry: Entry, style: Style, *, gains: bool) -> str:
    """75.1 ± 0.4† / 79.2, +13.8 [+11.0, +16.5] (90.6).

    Mean ± sd, mark, mean per class, gain with its interval, the paper's number.
    """
    paper = "" if entry.paper is None else f" ({entry.paper:.1f})"
    if entry.mean is None:
        return MISSING + paper
    gain = f", {_gain(entry)}" if gains and entry.gain is not None else ""
    per_class = "" if entry.per_class is None or not gains else f" / {entry.per_class:.1f}"
    return style(number(entry), entry) + entry.mark + per_class + gain + paper


def _gain(entry: Entry) -> str:
    if entry.gain is None:
        return ""
    ends = entry.interval
    return f"{entry.gain:+.1f}" + ("" if ends is None else f" [{ends[0]:+.1f}, {ends[1]:+.1f}]")


def number(entry: Entry) -> str:
    """Mean ± sd."""
    return f"{entry.mean:.1f}" + ("" if entry.sd is None else f" ± {entry.sd:.1f}")


def duration(seconds: float) -> str:
    """In the unit that people would use."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def below(table: Table) -> list[str]:
    """Footnotes, how to read the table, and its protocol."""
    lines = [f"{note.mark} {note.text}".strip() for note in table.notes]
    if any(e.per_class is not None for line in table.lines for e in line.entries):
        lines.append("Second number: mean per-class accuracy.")
    if table.citation:
        lines.append(f"In parentheses what the paper prints: {table.citation}")
    return [*lines, table.protocol] if table.protocol else lines


def _blocks(table: Table, rows: Sequence[str], rule: str) -> list[str]:
    """The rows with a rule between settings."""
    if not rows:
        return []
    body = [rows[0]]
    for (line, after), row in zip(pairwise(table.lines), rows[1:], strict=True):
        body += [rule, row] if line.setting != after.setting else [row]
    return body


def _aligned(row: Sequence[str], bare: Sequence[str], widths: Sequence[int]) -> str:
    """First column left, the others right; widths are those of the text without escape codes."""
    padded = [
        text + " " * (width - len(plain)) if n == 0 else " " * (width - len(plain)) + text
        for n, (text, plain, width) in enumerate(zip(row, bare, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


# -- emphasis ----------------------------------------------------------------------------------------------


def _unstyled(text: str, entry: Entry) -> str:
    return text


def _ansi(text: str, entry: Entry) -> str:
    code = "1" if entry.best else "4" if entry.second else ""
    return f"\033[{code}m{text}\033[0m" if code else text


def _starred(text: str, entry: Entry) -> str:
    return f"**{text}**" if entry.best else f"<u>{text}</u>" if entry.second else text


def _tokens(text: str, entry: Entry) -> str:
    """Control characters stand for commands until the rest is escaped."""
    return f"\x01{text}\x03" if entry.best else f"\x02{text}\x03" if entry.second else text
