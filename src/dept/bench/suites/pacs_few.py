"""`pacs-few`: targets with three of the seven classes, from the photo model of `pacs-mini`: class shares are unlike the
source's, and nobody says so. At most 500 images, 200 steps, seed 0; some rows in bf16.
"""

from __future__ import annotations

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_all import ROWS, RUN
from dept.bench.suites.pacs_mini import BF16
from dept.bench.suites.pacs_mini import SUITE as MINI

SUITE = Suite(
    name="pacs-few",
    title="PACS photo -> three of seven classes of the other domains; ViT-Ti/16 at 128 px, 200 steps",
    data="pacs",
    shifts=shifts(*(f"photo->{target}/3-classes" for target in ("art_painting", "cartoon", "sketch"))),
    sources=MINI.lend("G"),
    rows=(*ROWS, Row("NOTELA on prompts", "notela", "G", config=RUN, extra=BF16)),
    most=500,
)
