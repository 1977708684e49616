"""`digits`: the demo's table over three seeds, from the embedded source model; needs no data and no weights."""

from __future__ import annotations

from dept.bench.suite import Row, Source, Suite
from dept.demo import ADAPTING, EMBEDDED, PROMPTS, STAGES


def _row(label: str, method: str) -> Row:
    """A method with the demo's settings."""
    settings = dict(ADAPTING[method])
    return Row(label, method, "G", preset=settings.pop("preset"), config=settings)


SUITE = Suite(
    name="digits",
    title="rendered digits -> real handwritten ones; the demo, embedded source model",
    data="digits",
    shifts=("rendered->real",),
    sources={"G": Source("vit_tiny_patch16_224", STAGES["G"], PROMPTS, 32, config=None, file=EMBEDDED)},
    rows=(Row("Source (prompted, M=4)", "source", "G"), _row("Tent", "tent"), _row("DePT-G", "dept")),
    seeds=(0, 1, 2),
)
