"""Which method for which situation, with what was measured: `python benchmarks/which_method.py` prints the table.

The advice is ours, the numbers are those of the committed results.
"""

from __future__ import annotations

from typing import NamedTuple

from committed import gain, line, result, table


class Advice(NamedTuple):
    """What to do in a situation, and the row of a table that speaks for it."""

    situation: str
    use: str
    suite: str
    row: str


EATA = "EATA (stand-in Fisher), published rate"  # the one that was run on all 15 corruptions
ADVICE = (
    Advice("you do not know, or classes may be absent", "`dept adapt` (method `auto`)", "pacs-few", "auto"),
    Advice("the classes are about as frequent as in the source images", "`--method dept+`", "pacs-mini", "DePT+"),
    Advice("the same, and every weight may change", "`--method shot`", "pacs-mini", "SHOT"),
    Advice("DePT as its authors released it", "`--method dept --preset official`", "pacs-mini", "DePT-G"),
    Advice("DePT, most predictions wrong at the start", "`--method dept --recentre`", "pacs-mini", "DePT-G, recentred"),
    Advice("fewer than 500 images", "`--method dept`", "pacs-ratio", "DePT-G, 20 %"),
    Advice("several source domains", "`dept train A B C`, then `--method dept`", "pacs-multi", "DePT-G"),
    Advice("a stream, and no time to train", "`dept stream --method neo`", "pacs-mini", "NEO (prompted, M=4)"),
    Advice("a stream of noise, blur or weather", "`dept stream --method eata`", "imagenet-c-mini", EATA),
    Advice("a stream that moves from domain to domain", "`dept stream --method dept`", "streams", "DePT-G, continual"),
    Advice("labelled source images are available", "`dept uda --method mcc`", "pacs-mini", "MCC (source data)"),
    Advice("avoid: entropy alone, many steps", "`--method tent` offline", "pacs-mini", "Tent, 300 steps"),
)  # fmt: skip


def rows() -> list[str]:
    """A row for every advice whose number is committed."""
    made = []
    for one in ADVICE:
        found = table(one.suite)
        if found is not None and any(row.label == one.row for row in found.lines):
            own, metric = line(one.suite, one.row), "error" if found.lower_is_better else "accuracy"
            cells = [one.situation, one.use, f"{one.row} (`{one.suite}`)", f"{metric} {result(found, own)}"]
            made.append(" | ".join([*cells, gain(found, own)]))
    return made


if __name__ == "__main__":
    print("| situation | use | measured | top-1, % | gain, points |\n|---|---|---|---|---|")
    print("\n".join(f"| {row} |" for row in rows()))
