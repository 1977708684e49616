"""`office-caltech`: Office-Caltech-10, three sources and six shifts; settings as chosen in `pacs-styles`.

ViT-Ti/16 at 128 px, trained as in `pacs-mini` but for 12 epochs (there are fewer images); at most 500 target images,
200 steps, seed 0; some rows in bf16.
"""

from __future__ import annotations

from itertools import permutations

from dept.bench.shift import shifts
from dept.bench.suite import Suite
from dept.bench.suites.pacs_all import ROWS
from dept.bench.suites.pacs_mini import TRAINING, source

SUITE = Suite(
    name="office-caltech",
    title="Office-Caltech-10, amazon, caltech10 and webcam to each other; ViT-Ti/16 at 128 px, 200 steps",
    data="office-caltech",
    shifts=shifts(*(f"{one}->{other}" for one, other in permutations(("amazon", "caltech10", "webcam"), 2))),
    sources={"G": source(4, config=TRAINING | {"epochs": 12})},
    rows=ROWS,
    most=500,
)
