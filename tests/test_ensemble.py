from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dept.inference import evaluate, evaluate_ensemble, mean_probabilities
from support import scramble, tiny_model


def test_mean_has_the_argmax_of_the_sum_and_is_a_distribution() -> None:
    members = [torch.tensor([[0.6, 0.4, 0.0]]), torch.tensor([[0.0, 0.45, 0.55]]), torch.tensor([[0.1, 0.6, 0.3]])]
    mean = mean_probabilities(members)
    torch.testing.assert_close(mean, torch.tensor([[0.7, 1.45, 0.85]]) / 3)
    assert int(mean.argmax()) == 1
    torch.testing.assert_close(mean.sum(dim=1), torch.ones(1))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_probabilities([])
    with pytest.raises(ValueError, match="same images"):
        mean_probabilities([torch.zeros(2, 3), torch.zeros(2, 4)])
    with pytest.raises(ValueError, match="same classes"):
        evaluate_ensemble([tiny_model(3), tiny_model(("a", "b", "c"))], "nowhere")
    with pytest.raises(ValueError, match="at least one"):
        evaluate_ensemble([], "nowhere")


def test_one_member_is_the_model_itself_and_a_copy_changes_nothing(target_labelled: Path) -> None:
    model = tiny_model()
    scramble(model, scale=0.2)
    alone = evaluate(model, target_labelled, device="cpu")
    assert evaluate_ensemble([model], target_labelled, device="cpu") == alone
    assert evaluate_ensemble([model, model], target_labelled, device="cpu")["top1"] == alone["top1"]
