from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dept.data.images import ImageSet
from dept.report.measure import Measured, Readout
from dept.report.verdict import verdict
from dept.runs.read import RunFiles

RUN = cast(RunFiles, SimpleNamespace(kind="adapt", result={}, judged={}))
RIGHT = [0, 1, 2] * 4


def measured(before: list[int], after: list[int]) -> Measured:
    """Twelve images of three classes, four each, with their predictions before and after."""
    images = ImageSet(Path(), tuple(Path(f"{n}.png") for n in range(12)), tuple(RIGHT), ("a", "b", "c"))

    def called(predicted: list[int]) -> Readout:
        return Readout(torch.eye(3)[predicted], torch.zeros(12, 4))

    model: Any = SimpleNamespace(classes=("a", "b", "c"))
    return Measured(images, 12, True, model, called(before), called(after))


@pytest.mark.parametrize(
    ("before", "after", "begins", "tone", "warns"),
    [
        ([(n + 1) % 3 for n in RIGHT], RIGHT, "Adaptation helped.", "good", False),
        (RIGHT, [(n + 1) % 3 for n in RIGHT], "Adaptation hurt.", "bad", False),
        (RIGHT, [1, *RIGHT[1:]], "No clear effect.", "unclear", False),
        # Eight are wrong and become one class: four of twelve are right before and after.
        ([0] * 4 + [1] * 4 + [2] * 4, [0] * 12, "No clear effect.", "bad", True),
    ],
)
def test_labels_decide_else_a_collapse_does(
    before: list[int], after: list[int], begins: str, tone: str, warns: bool
) -> None:
    sentence, found = verdict(RUN, measured(before, after))
    assert sentence.startswith(begins) and found == tone
    assert ("Warning: predictions collapsed from 3.0 to 1.0 effective classes" in sentence) == warns
