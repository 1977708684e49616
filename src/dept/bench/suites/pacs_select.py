"""`pacs-select`: where the learning rates of `pacs-mini` are chosen, without any target image.

Three rates per method (a fifth of the published one, that, and five times it) on the photos that source training held
out, under four corruptions that no target has. The rate with the best top-1 is chosen, the published one among equals.
Offline methods run 100 steps, a third of what they run in `pacs-mini`, which favours large rates. DePT's rate was
searched with the prompts of all stages clipped together; its other rows, and Full, which has its objective, follow.
"""

from __future__ import annotations

from dataclasses import replace

from dept.bench.learning_rates import published_lr, searched
from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import OFFLINE, STREAMED
from dept.bench.suites.pacs_mini import SUITE as MINI

STEPS = 100
SOURCES = MINI.lend("plain", "G", "rotation")
VARIANTS = ("-published", "-fast", "-lean", "-recentred", "-prompts")
AT_DEPTS_RATE = ("full", "notela", "aad", "dept+")
"""methods that tune with DePT's rate"""


def shortened(row: Row) -> Row:
    """The row with the steps of the search, if it is an offline one."""
    return replace(row, config={**row.config, "max_iters": STEPS}) if row.setting == "offline" else row


SEARCHED = tuple(
    shortened(row)
    for row in OFFLINE + STREAMED
    if row.source in SOURCES and row.method not in AT_DEPTS_RATE and row.tag not in VARIANTS and row.label != "DePT-G"
    if published_lr(row)  # a method without a learning rate has nothing to search
)

SUITE = Suite(
    name="pacs-select",
    title="learning rates of pacs-mini, chosen on corrupted held-out photos",
    data="pacs",
    shifts=shifts("photo->photo/held-out"),
    sources=SOURCES,
    rows=searched(SEARCHED),
)
