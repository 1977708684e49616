"""`pacs-why`: why SHOT is ahead of DePT-G on `pacs-mini`. One thing is changed in every row."""

from __future__ import annotations

from dept.bench.rates import at_chosen, at_rate
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import CHOSEN, OFFLINE, QUIET, RUN, TOGETHER
from dept.bench.suites.pacs_mini import SUITE as MINI

FULL = next(row for row in OFFLINE if row.method == "full")
SHOT = next(row for row in OFFLINE if row.label == "SHOT")
# Half of the authors' strength: crops of 60 % and more, half the jitter, half as many grey and blurred views.
MILD = {"crop_scale": (0.6, 1.0), "jitter": (0.2, 0.2, 0.2, 0.05), "grey": 0.1, "blur": 0.25}

SUITE = Suite(
    name="pacs-why",
    title="DePT-G and SHOT, one thing changed at a time; PACS photo -> the three other domains",
    data="pacs",
    shifts=("photo->cartoon", "photo->art_painting", "photo->sketch"),
    sources=MINI.lend("plain", "G"),
    rows=(
        Row("DePT-G", "dept", "G", config=RUN | TOGETHER, home="pacs-mini"),
        Row("DePT-G, five times the rate", "dept", "G", tag="-lr5", config=RUN | TOGETHER | {"lr": 0.025}),
        Row("DePT-G, teacher momentum 0.95", "dept", "G", tag="-ema95", config=RUN | TOGETHER | {"ema": 0.95}),
        Row("DePT-G, gradients not clipped", "dept", "G", tag="-free", config=RUN | {"clip": 0.0}),
        Row("DePT-G, milder views", "dept", "G", tag="-mild", config=RUN | TOGETHER, extra={"augmentation": MILD}),
        Row("DePT-G, labels not voted", "dept", "G", tag="-unvoted", config=RUN | TOGETHER | {"bank": False}),
        Row("DePT-G, no labels", "dept", "G", tag="-unlabelled", config=RUN | TOGETHER | {"pseudo_labels": False}),
        Row("Full", "full", "G", config=FULL.config, home="pacs-mini"),
        Row("Full, five times the rates", "full", "G", tag="-lr5", config=at_rate(FULL, 5.0).config),
        Row("SHOT", "shot", "plain", preset="offline", config=at_chosen(SHOT, CHOSEN).config, home="pacs-mini"),
        Row("SHOT on DePT-G's source model", "shot", "G", preset="offline", config=at_chosen(SHOT, CHOSEN).config),
        # SHOT's loss with what DePT tunes (but for the head), at DePT's rate.
        Row(
            "SHOT on DePT-G's source model, prompts only",
            "shot",
            "G",
            tag="-prompts",
            preset="offline",
            config=RUN | QUIET | {"tune": "prompts", "lr": 5e-3},
        ),
        Row("SHOT, published rate", "shot", "plain", tag="-published", preset="offline", config=RUN | QUIET),
    ),
    most=1000,
)
