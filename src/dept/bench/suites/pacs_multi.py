"""`pacs-multi`: three domains of PACS together, adapted to the fourth; otherwise as `pacs-mini`.

At most 1,000 images per source domain, 300 training steps; ERM is the plain model trained on their union. SHOT adapts
the three single-source models and adds up their predictions.
"""

from __future__ import annotations

from dept.bench.shift import Shift
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import RUN, TOGETHER, TRAINING, source
from dept.bench.suites.pacs_mini import SUITE as MINI

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
STEPS = TRAINING | {"max_iters": 300}
MOST = {"most": 1000}
ENSEMBLE = "SHOT, ensemble of single sources"

SUITE = Suite(
    name="pacs-multi",
    title="PACS, three domains -> the fourth, multi-source; ViT-Ti/16 at 128 px",
    data="pacs",
    shifts=tuple(Shift(tuple(other for other in DOMAINS if other != target), (target,)) for target in DOMAINS),
    sources={"ERM": source(0, config=STEPS, extra=MOST), "G": source(4, config=STEPS, extra=MOST)},
    rows=(
        Row("ERM on the union", "source", "ERM"),
        Row("Source (shared and domain prompts)", "source", "G"),
        Row(ENSEMBLE, "shot", "ERM", "ensemble", preset="offline", config=MINI.row("SHOT").config),
        Row("DePT-G", "dept", "G", config=RUN | TOGETHER),
    ),
    most=1000,
)
