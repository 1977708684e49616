from __future__ import annotations

import pytest

from dept.bench.paper import citation, paper_notes, paper_number, paper_rows
from dept.errors import UsageError


@pytest.mark.parametrize(
    ("table", "row", "column", "number"),
    [
        ("visda", "DePT-G (ViT-B) offline", "mean", 90.6),
        ("visda", "DePT-G (ViT-B) offline", "truck", 52.0),
        ("visda", "AdaContrast (ViT-B) online", "mean", 81.3),
        ("visda", "MCC (R101) uda", "knife", 93.2),
        ("imagenet-c", "DePT-G (ViT-B) offline", "contrast", 35.5),
        ("imagenet-c", "Source (ViT-B)", "mean", 49.7),
        ("domainnet", "DePT-G (ViT-B) online", "real->sketch", 68.5),
        ("domainnet-multi", "DePT-G", "painting", 84.0),
        ("prompt-number", "DePT-D p=100", "mean", 90.4),
        ("prompt-number", "DePT-S p=10", "parameters_M", 0.016),
        ("loss-ablation", "Full at 1 %", "mean", 81.3),
        ("loss-ablation", "4 at 100 %", "mean", 88.2),
        ("hyper-parameters", "teacher temperature 0.04-0.07", "mean", 90.5),
        ("cost", "DePT-G100", "memory_MB", 5207),
        ("data-ratio", "AdaContrast at 1 %", "mean", 80.87),
    ],
)
def test_numbers_by_hand(table: str, row: str, column: str, number: float) -> None:
    assert paper_number(table, row, column) == number


def test_what_is_not_printed() -> None:
    assert paper_number("visda", "DePT-G (ViT-B) offline", "moon") is None
    assert paper_number("visda", "Nobody", "mean") is None
    with pytest.raises(UsageError, match=r"no table 'moon'; choose from (\S+, ){8}\S+\.$"):
        paper_number("moon", "DePT-G", "mean")


def test_rows_and_notes() -> None:
    assert len(paper_rows("visda")) == 18 and len(paper_rows("imagenet-c")) == 7
    assert any("57.3" in note for note in paper_notes("visda"))
    assert "Visual Prompt Tuning" in citation()
