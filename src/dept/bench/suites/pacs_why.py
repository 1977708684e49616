"""`pacs-why`: why SHOT is ahead of DePT-G on `pacs-mini`. One thing is changed in every row."""

from __future__ import annotations

from dept.bench.learning_rates import scaled_lr
from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import ON_PROMPTS, QUIET, RUN, TOGETHER
from dept.bench.suites.pacs_mini import SUITE as MINI

BASE = RUN | TOGETHER
FULL, SHOT = MINI.row("Full (DePT's objective, all weights)"), MINI.row("SHOT").config
LONG = {"max_iters": 1200}
# Half of the authors' strength: crops of 60 % and more, half the jitter, half as many grey and blurred views.
MILD = {"crop_scale": (0.6, 1.0), "jitter": (0.2, 0.2, 0.2, 0.05), "grey": 0.1, "blur": 0.25}

SUITE = Suite(
    name="pacs-why",
    title="DePT-G and SHOT, one thing changed at a time; PACS photo -> the three other domains",
    data="pacs",
    shifts=shifts("photo->cartoon", "photo->art_painting", "photo->sketch"),
    sources=MINI.lend("plain", "G"),
    rows=(
        Row("DePT-G", "dept", "G", config=RUN, home="pacs-mini"),
        Row("DePT-G, four times the steps", "dept", "G", tag="-long", config=RUN | LONG),
        # The next rows change this one.
        Row("DePT-G, clipped together", "dept", "G", tag="-together", config=BASE, home="pacs-mini"),
        Row("DePT-G, five times the rate", "dept", "G", tag="-lr5", config=BASE | {"lr": 0.025}),
        Row("DePT-G, teacher momentum 0.95", "dept", "G", tag="-ema95", config=BASE | {"ema": 0.95}),
        Row("DePT-G, gradients not clipped", "dept", "G", tag="-free", config=RUN | {"clip": 0.0}),
        Row("DePT-G, milder views", "dept", "G", tag="-mild", config=BASE, extra={"augmentation": MILD}),
        Row("DePT-G, labels not voted", "dept", "G", tag="-unvoted", config=BASE | {"bank": False}),
        Row("DePT-G, no labels", "dept", "G", tag="-unlabelled", config=BASE | {"pseudo_labels": False}),
        Row("Full", "full", "G", config=FULL.config, home="pacs-mini"),
        Row("Full, five times the rates", "full", "G", tag="-lr5", config=scaled_lr(FULL, 5.0).config),
        Row("SHOT", "shot", "plain", preset="offline", config=SHOT, home="pacs-mini"),
        Row("SHOT, four times the steps", "shot", "plain", tag="-long", preset="offline", config={**SHOT, **LONG}),
        Row("SHOT on DePT-G's source model", "shot", "G", preset="offline", config=SHOT),
        # SHOT's loss with what DePT tunes (but for the head), at DePT's rate.
        Row(
            "SHOT on DePT-G's source model, prompts only",
            "shot",
            "G",
            tag="-prompts",
            preset="offline",
            config=RUN | ON_PROMPTS,
        ),
        Row("SHOT, published rate", "shot", "plain", tag="-published", preset="offline", config=RUN | QUIET),
    ),
    most=1000,
)
