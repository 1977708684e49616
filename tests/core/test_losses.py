"""Every loss against hand values (recipes §11), an independent slow formula, and the authors' released code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dept.core import losses

OFFICIAL = json.loads((Path(__file__).parents[1] / "fixtures" / "official_losses.json").read_text())


def near(value: Tensor | float, expected: float, tolerance: float = 2e-6) -> bool:
    return math.isclose(float(value), expected, rel_tol=0, abs_tol=tolerance)


# ---- slow formulas, in plain Python ----


def slow_softmax(row: list[float]) -> list[float]:
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def slow_cos(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def slow_weights(stages: int, weighting: str) -> list[float]:
    return [1 / stages] * stages if weighting == "uniform" else slow_softmax([float(i) for i in range(1, stages + 1)])


def slow_consistency(student: Tensor, teacher: Tensor, weighting: str, reduction: str) -> float:
    total = 0.0
    for weight, s, t in zip(slow_weights(len(student), weighting), student.tolist(), teacher.tolist(), strict=True):
        batch, prompts = len(s), len(s[0])
        distance = sum(1 - slow_cos(s[b][p], t[b][p]) for b in range(batch) for p in range(prompts))
        total += weight * (distance / (batch * prompts) if reduction == "mean" else 2 * distance / batch)
    return total


def slow_diversity(student: Tensor, weighting: str, reduction: str) -> float:
    total = 0.0
    for weight, s in zip(slow_weights(len(student), weighting), student.tolist(), strict=True):
        batch, prompts = len(s), len(s[0])
        pairs = [(p, q) for p in range(prompts) for q in range(p)]
        distance = sum(1 - slow_cos(s[b][p], s[b][q]) for b in range(batch) for p, q in pairs)
        total += weight * (2 * distance / (batch * prompts**2) if reduction == "mean" else distance / batch)
    return total


# ---- hand values ----


def test_cross_entropy_and_entropy_by_hand() -> None:
    logits, label = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
    assert near(losses.cross_entropy(logits, label), 0.407606)
    assert near(losses.cross_entropy(logits, label, 0.1), 0.507606)
    assert near(losses.entropy(logits), 0.832396)


def test_cross_entropy_is_a_batch_mean() -> None:
    logits, labels = torch.randn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    slow = [-math.log(slow_softmax(row)[y]) for row, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    assert near(losses.cross_entropy(logits, labels), sum(slow) / 5)


def test_entropy_survives_certainty_and_is_maximal_when_uniform() -> None:
    values = losses.entropy(torch.tensor([[1000.0, 0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0]]))
    assert values.isfinite().all() and near(values[0], 0.0) and near(values[1], math.log(4))


def slow_opinion_entropy(row: list[float]) -> float:
    strength = sum(math.exp(value) for value in row) + len(row)
    masses = [math.exp(value) / strength for value in row] + [len(row) / strength]
    return -sum(mass * math.log(mass) for mass in masses)


def test_opinion_entropy_by_hand_and_by_the_slow_formula() -> None:
    """Logits of 0 are three beliefs of 1/6 and an uncertainty of 1/2: H = ½ ln 6 + ½ ln 2."""
    rows = [[0.0, 0.0, 0.0], [2.0, 1.0, 0.0], [-3.0, 0.5, 4.0]]
    values = losses.opinion_entropy(torch.tensor(rows))
    assert near(values[0], 0.5 * math.log(12))
    assert all(near(value, slow_opinion_entropy(row)) for value, row in zip(values, rows, strict=True))


def test_opinion_entropy_turns_the_logits_without_growing_them() -> None:
    """Its gradient is that of the plain formula without the part along the logits."""
    logits = torch.tensor([[2.0, 1.0, 0.0], [-3.0, 0.5, 4.0]], dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(losses.opinion_entropy(logits).sum(), logits)
    step = 1e-6
    for row, found in zip(logits.tolist(), got, strict=True):
        moved = [[value + step * (i == j) for i, value in enumerate(row)] for j in range(3)]
        slope = torch.tensor([(slow_opinion_entropy(m) - slow_opinion_entropy(row)) / step for m in moved])
        unit = torch.nn.functional.normalize(torch.tensor(row), dim=0)
        torch.testing.assert_close(found.float(), slope - (slope @ unit) * unit, rtol=1e-4, atol=1e-5)
    nothing = torch.zeros(1, 3, requires_grad=True)
    (at_zero,) = torch.autograd.grad(losses.opinion_entropy(nothing).sum(), nothing)
    assert not at_zero.any()


def test_symmetric_cross_entropy_equals_the_slow_formula() -> None:
    one, two = torch.randn(4, 3), torch.randn(4, 3)
    for value, a, b in zip(losses.symmetric_cross_entropy(one, two), one.tolist(), two.tolist(), strict=True):
        p, q = slow_softmax(a), slow_softmax(b)
        there = -sum(x * math.log(y) for x, y in zip(p, q, strict=True))
        back = -sum(y * math.log(x) for x, y in zip(p, q, strict=True))
        assert near(value, (there + back) / 2)
    assert near(losses.symmetric_cross_entropy(one[:1], one[:1]), float(losses.entropy(one[:1])))


def test_dino_and_centre_by_hand() -> None:
    student, teacher = torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[0.3, 0.0, -0.3]])
    center = torch.tensor([0.1, 0.0, -0.1])
    loss = losses.dino(student, teacher, center=center, student_temperature=0.1, teacher_temperature=0.07)
    assert near(loss, 2.347242)
    assert torch.allclose(losses.updated_center(center, teacher, 0.9), torch.tensor([0.12, 0.0, -0.12]))
    assert torch.equal(center, torch.tensor([0.1, 0.0, -0.1]))


def test_dino_of_equal_logits_is_log_k() -> None:
    flat = torch.zeros(3, 2048)
    loss = losses.dino(flat, flat, center=torch.zeros(2048), student_temperature=0.1, teacher_temperature=0.07)
    assert near(loss, 7.6246, 1e-4)


def test_centre_uses_the_batch_mean_not_the_sum() -> None:
    teacher = torch.tensor([[1.0, 3.0], [3.0, 5.0]])
    assert torch.allclose(losses.updated_center(torch.zeros(2), teacher, 0.9), torch.tensor([0.2, 0.4]))


def test_dino_gives_no_gradient_to_the_teacher() -> None:
    student, teacher = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    losses.dino(student, teacher, center=torch.zeros(4), student_temperature=0.1, teacher_temperature=0.07).backward()
    assert teacher.grad is None and student.grad is not None and bool(student.grad.abs().sum() > 0)


def test_prompt_consistency_by_hand() -> None:
    student = [torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])]
    teacher = [torch.tensor([[[0.0, 3.0], [0.0, 1.0]]])]  # one orthogonal pair, one parallel pair
    assert near(losses.prompt_consistency(student, teacher, weighting="uniform", reduction="sum"), 2.0)
    assert near(losses.prompt_consistency(student, teacher, weighting="softmax", reduction="mean"), 0.5)


def test_prompt_diversity_by_hand() -> None:
    orthonormal, equal = [torch.eye(3)[None]], [torch.ones(2, 3, 4)]
    assert near(losses.prompt_diversity(orthonormal, weighting="uniform", reduction="sum"), 3.0)
    assert near(losses.prompt_diversity(orthonormal, weighting="uniform", reduction="mean"), 6 / 9)
    for reduction in ("sum", "mean"):
        assert near(losses.prompt_diversity(equal, reduction=reduction), 0.0)


def test_stage_weights_by_hand() -> None:
    weights = losses.stage_weights(4)
    assert torch.allclose(weights, torch.tensor([0.032059, 0.087144, 0.236883, 0.643914]), atol=1e-6)
    assert near(weights.sum(), 1.0)
    assert losses.stage_weights(4, "uniform").tolist() == [0.25] * 4
    assert losses.stage_weights(1).tolist() == [1.0]


def test_class_diversity_by_hand() -> None:
    assert near(losses.class_diversity(torch.zeros(5, 12)), -2.484907)
    one_sided = torch.zeros(5, 12)
    one_sided[:, 3] = 50.0
    assert near(losses.class_diversity(one_sided), 0.0)


def test_class_diversity_is_of_the_mean_not_the_mean_of_entropies() -> None:
    confident_and_balanced = 50.0 * torch.eye(12)
    assert near(losses.class_diversity(confident_and_balanced), -2.484907)


# ---- gradients: where minimisation drives the prompts ----


def test_descent_on_consistency_turns_student_towards_teacher() -> None:
    student = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    teacher = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    losses.prompt_consistency([student], [teacher]).backward()
    assert student.grad is not None and student.grad[0, 0, 1] < 0 and teacher.grad is None


def test_subtracting_diversity_drives_prompts_apart() -> None:
    start = torch.tensor([[[1.0, 0.2], [1.0, -0.2]]], requires_grad=True)
    (-0.05 * losses.prompt_diversity([start])).backward()
    assert start.grad is not None
    after = (start - 0.5 * start.grad).detach()
    assert slow_cos(*after[0].tolist()) < slow_cos(*start[0].tolist())


def test_gradient_of_the_subtracted_term_is_minus_lambda_times_that_of_the_spread() -> None:
    prompts = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(-0.05 * losses.prompt_diversity([prompts], weighting="uniform"), prompts)
    step = 1e-6
    for place in [(0, 0, 0), (1, 2, 3)]:
        shifted = prompts.detach().clone()
        shifted[place] += step
        rise = slow_diversity(shifted[None], "uniform", "mean") - slow_diversity(
            prompts.detach()[None], "uniform", "mean"
        )
        assert math.isclose(float(ours[place]), -0.05 * rise / step, rel_tol=1e-3, abs_tol=1e-7)


def test_identical_prompts_have_a_finite_gradient() -> None:
    prompts = torch.ones(1, 3, 4, requires_grad=True)
    losses.prompt_diversity([prompts]).backward()
    assert prompts.grad is not None and prompts.grad.isfinite().all()


# ---- slow formulas on random inputs ----


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**6),
    st.sampled_from(["softmax", "uniform"]), st.sampled_from(["mean", "sum"]),
)  # fmt: skip
def test_prompt_terms_equal_the_slow_formulas(
    stages: int, batch: int, prompts: int, seed: int, weighting: str, reduction: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, stages, batch, prompts, 5, dtype=torch.float64, generator=generator)
    kwargs = {"weighting": weighting, "reduction": reduction}
    ours = losses.prompt_consistency(student.unbind(), teacher.unbind(), **kwargs)
    assert near(ours, slow_consistency(student, teacher, **kwargs), 1e-6)
    assert near(losses.prompt_diversity(student.unbind(), **kwargs), slow_diversity(student, **kwargs), 1e-6)


def test_paper_and_released_conventions_differ_by_the_known_factors() -> None:
    """At P = 50: 2·50 = 100 times for the consistency; 1225 pairs / (49/50) = 1250 times for the spread."""
    student, teacher = torch.randn(2, 3, 50, 8).unbind()

    def ratio(term: object, *sides: list[Tensor]) -> float:
        return float(term(*sides, reduction="sum") / term(*sides, reduction="mean"))  # type: ignore[operator]

    assert near(ratio(losses.prompt_consistency, [student], [teacher]), 100.0, 1e-2)
    assert near(ratio(losses.prompt_diversity, [student]), 1250.0, 1e-1)


# ---- the authors' released code ----


def official(name: str) -> Tensor:
    return torch.tensor(OFFICIAL[name])


def test_dino_agrees_with_the_released_code_over_two_calls() -> None:
    student, teacher, center = official("student_cls"), official("teacher_cls"), torch.zeros(6)
    for call in ("first_call", "second_call"):
        loss = losses.dino(
            student,
            teacher,
            center=center,
            student_temperature=OFFICIAL["student_temp"],
            teacher_temperature=OFFICIAL["teacher_temp"],
        )
        center = losses.updated_center(center, teacher, OFFICIAL["center_momentum"])
        assert near(loss, OFFICIAL[call]["cls"], 1e-5)
        assert torch.allclose(center, torch.tensor(OFFICIAL[call]["center_after"]), atol=1e-6)


@pytest.mark.parametrize("call", ["first_call", "second_call"])
def test_prompt_terms_agree_with_the_released_code(call: str) -> None:
    student, teacher = list(official("student_prompts")), list(official("teacher_prompts"))
    assert near(losses.prompt_consistency(student, teacher), OFFICIAL[call]["prompt"], 1e-5)
    assert near(-losses.prompt_diversity(student), OFFICIAL[call]["prompt_div"], 1e-5)


def test_class_diversity_agrees_with_the_released_code() -> None:
    assert near(losses.class_diversity(official("class_logits")), OFFICIAL["class_diversity"], 1e-6)
