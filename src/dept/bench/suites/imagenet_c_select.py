"""`imagenet-c-select`: where the learning rates of `imagenet-c-mini` are chosen, without any image of its streams.

Three rates per method (a fifth of the published one, that, and five times it) on the stand-in source images, each under
one of the four corruptions that no stream has. The rate with the smallest error is chosen, the published one among
equals. Full, which has DePT's objective, goes with DePT-G; methods without a learning rate are not searched.
"""

from __future__ import annotations

from dept.bench.learning_rates import published_lr, searched
from dept.bench.shift import shifts
from dept.bench.suite import Suite
from dept.bench.suites.imagenet_c_mini import ADAPTED
from dept.bench.suites.imagenet_c_mini import SUITE as MINI

SEARCHED = tuple(row for row in ADAPTED if row.method != "full" and published_lr(row))

SUITE = Suite(
    name="imagenet-c-select",
    title="learning rates of imagenet-c-mini, chosen on corrupted stand-in images",
    data=MINI.data,
    shifts=shifts("clean->clean/corrupted"),
    sources=MINI.lend(),
    rows=searched(SEARCHED),
    metric=MINI.metric,
)
