from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dept.methods.base import Progress
from dept.methods.shot import SHOT, centroid_labels, information_maximisation, power_decay
from dept.models.model import Model
from support import FixedPasses, moved, random_batch, same_bits, scramble, state_of, tiny_model


@pytest.fixture
def sharp() -> Model:
    model = tiny_model()
    scramble(model, scale=0.2)
    return model


def total(terms: dict[str, torch.Tensor]) -> float:
    return float(torch.stack(list(terms.values())).sum().detach())


@pytest.mark.parametrize("log", ["shifted", "clamped"])
def test_information_maximisation_by_hand(log: str) -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    terms = information_maximisation(logits, log)  # type: ignore[arg-type]
    assert float(terms["entropy"]) == pytest.approx(0.365334, abs=3e-5)
    assert float(terms["class_diversity"]) == pytest.approx(-0.693147, abs=3e-5)
    assert total(terms) == pytest.approx(-0.327813, abs=1e-5)


def test_information_maximisation_against_a_slow_formula() -> None:
    logits = torch.randn(5, 4).double()
    p = logits.softmax(dim=1).tolist()
    mean = [sum(row[c] for row in p) / 5 for c in range(4)]
    entropy = -sum(x * math.log(x + 1e-5) for row in p for x in row) / 5
    assert total(information_maximisation(logits)) == pytest.approx(
        entropy + sum(x * math.log(x + 1e-5) for x in mean), abs=1e-9
    )


@pytest.mark.parametrize("log", ["shifted", "clamped"])
def test_a_probability_that_underflows_has_a_finite_gradient(log: str) -> None:
    logits = torch.tensor([[500.0, 0.0], [500.0, 1.0]], requires_grad=True)
    terms = information_maximisation(logits, log)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(torch.stack(list(terms.values())).sum(), logits)
    assert math.isfinite(total(terms)) and bool(gradient.isfinite().all())


def released_labels(features: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The published algorithm, written with loops."""
    n, classes = probabilities.shape
    points = [np.append(f, 1.0) / np.linalg.norm(np.append(f, 1.0)) for f in features]
    weights, labels = probabilities, probabilities.argmax(axis=1)
    for _ in range(2):
        used = [c for c in range(classes) if (labels == c).any()]
        centroids = {}
        for c in used:
            centroids[c] = sum(weights[i, c] * points[i] for i in range(n)) / (1e-8 + weights[:, c].sum())
        distances = np.array(
            [[1 - p @ centroids[c] / np.linalg.norm(p) / np.linalg.norm(centroids[c]) for c in used] for p in points]
        )
        labels = np.array(used)[distances.argmin(axis=1)]
        weights = np.eye(classes)[labels]
    return labels


@pytest.mark.parametrize("seed", range(5))
def test_centroid_labels_against_loops(seed: int) -> None:
    torch.manual_seed(seed)
    features, probabilities = torch.randn(30, 6).double(), (3 * torch.randn(30, 5)).double()
    probabilities[:, 4] -= 20  # a class that nobody is assigned to
    probabilities = probabilities.softmax(dim=1)
    got = centroid_labels(features, probabilities)
    assert got.tolist() == released_labels(features.numpy(), probabilities.numpy()).tolist()
    assert 4 not in got.tolist()


def test_centroids_correct_a_lonely_mistake() -> None:
    features = torch.tensor([[5.0, 0.0], [5.0, 0.2], [5.0, -0.2], [0.0, 5.0], [0.2, 5.0], [0.1, 4.0]])
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9]])
    assert centroid_labels(features, probabilities).tolist() == [0, 0, 0, 1, 1, 1]


def test_released_decay() -> None:
    assert [round(power_decay(t, 100), 5) for t in (0, 50, 100)] == [1.0, 0.26085, 0.16556]
    method = SHOT(tiny_model(), SHOT.preset("released"))
    for step, expected in ((0, 1.1**-0.75), (49, 0.26085), (99, 0.16556)):  # the 1st, 50th and 100th step
        method.at(Progress(step, 100, 7))
        assert method.lr == pytest.approx(1e-4 * expected, rel=1e-4)


def test_encoder_moves_head_stays(sharp: Model) -> None:
    before = state_of(sharp)
    method = SHOT(sharp, SHOT.Config(batch=4, lr=0.01))
    method.begin(FixedPasses(10, 4))
    method.step(random_batch("w"))
    names = moved(before, sharp)
    assert "prompts" in names and "backbone.patch_embed.proj.weight" in names
    assert not any(name.startswith("head.") for name in names)


def test_prompts_alone_can_move(sharp: Model) -> None:
    before = state_of(sharp)
    method = SHOT(sharp, SHOT.Config(batch=4, epochs=1, tune="prompts"))
    method.begin(FixedPasses())
    method.at(Progress(0, 2, 0))
    method.step(random_batch(method.views))
    assert moved(before, sharp) == {"prompts"}
    with pytest.raises(ValueError, match="'shot' has nothing to tune"):
        SHOT(tiny_model(stages=0), SHOT.Config(tune="prompts"))


def test_labels_belong_to_their_images(sharp: Model) -> None:
    passes = FixedPasses(10, 4)
    method = SHOT(sharp)
    method.begin(passes)
    assert method.labels is not None
    images = torch.cat([batch.views[0] for batch in passes()])
    output = sharp.read(images)
    expected = centroid_labels(output.features.detach(), output.logits.detach().softmax(dim=1))
    assert torch.equal(method.labels, expected)
    passes.batches = passes.batches[::-1]  # another order of the same images
    method.begin(passes)
    assert torch.equal(method.labels, expected)


def test_cross_entropy_term(sharp: Model) -> None:
    method = SHOT(sharp)
    method.labels = torch.tensor([2, 0, 1, 1, 2, 0])
    batch = random_batch("w", 2)
    batch = type(batch)(batch.views, torch.tensor([4, 1]))
    logits = sharp(batch.views[0]).detach()
    expected = 0.3 * -(logits[0].log_softmax(0)[2] + logits[1].log_softmax(0)[0]) / 2
    assert float(method.loss(batch)["pseudo_label"].detach()) == pytest.approx(float(expected), rel=1e-5)


def test_when_the_cross_entropy_is_silent(sharp: Model) -> None:
    batch, passes = random_batch("w"), FixedPasses(10, 4)

    def terms(epoch: int, **changes: object) -> set[str]:
        method = SHOT(sharp, SHOT.Config(**changes))  # type: ignore[arg-type]
        method.begin(passes)
        method.at(Progress(epoch, 15, epoch))
        return set(method.loss(batch))

    assert "pseudo_label" in terms(0)
    assert "pseudo_label" not in terms(0, quiet_start=True) and "pseudo_label" in terms(1, quiet_start=True)
    assert "pseudo_label" not in terms(5, im_only=True)
    assert SHOT.preset("im").im_only  # type: ignore[attr-defined]
    assert "pseudo_label" not in SHOT(sharp).loss(batch)  # online: no pass came before


def labelled_before(method: SHOT, total: int) -> list[int]:
    """The steps before which pseudo-labels are made, in a run without epochs."""
    passes, steps = FixedPasses(10, 4), []
    made, method._centroid_labels = method._centroid_labels, lambda p: (steps.append(method.progress.step), made(p))[1]
    method.at(Progress(0, total, 0))
    method.begin(passes)
    for step in range(total):
        method.at(Progress(step, total, 0))
        method.before_step(passes)
        method.refresh(passes, step)
    return steps


def test_the_released_labels_are_made_fifteen_times_per_run_whatever_the_epochs(sharp: Model) -> None:
    released = SHOT.preset("released")
    assert labelled_before(SHOT(sharp, released), 45) == list(range(0, 45, 3))
    # Their interval is rounded down: 16 times in 46 steps.
    assert labelled_before(SHOT(sharp, released), 46) == list(range(0, 46, 3))
    assert labelled_before(SHOT(sharp, replace(released, im_only=True)), 45) == []


def test_the_released_quiet_start_ends_with_the_last_step_of_the_first_labels(sharp: Model) -> None:
    """They count steps from 1 and are silent while the count is below the interval: here for steps 0 and 1 of 3."""
    method, batch = SHOT(sharp, SHOT.preset("released")), random_batch("w")
    method.begin(FixedPasses(10, 4))
    speaks = []
    for step in range(4):
        method.at(Progress(step, 45, 0))
        speaks.append("pseudo_label" in method.loss(batch))
    assert speaks == [False, False, True, True]


def test_labels_are_refreshed_on_time_and_scale_with_the_ratio(sharp: Model) -> None:
    scaled = SHOT.scaled(SHOT.Config(), 0.01)
    assert scaled.epochs == 1500 and scaled.label_refresh == 100  # type: ignore[attr-defined]
    method = SHOT(sharp, SHOT.Config(label_refresh=2))
    passes = FixedPasses(10, 4)
    method.refresh(passes, 0)
    assert method.labels is None
    method.refresh(passes, 1)
    assert method.labels is not None
    method.reset()
    assert method.labels is None


def test_state_keeps_the_labels(sharp: Model) -> None:
    method = SHOT(sharp)
    method.begin(FixedPasses(10, 4))
    state = {n: t.clone() for n, t in method.state_dict().items()}
    method.reset()
    method.load_state_dict(state)
    assert same_bits(state, method.state_dict()) and method.labels is not None


def test_online_ln_form(sharp: Model) -> None:
    method = SHOT(sharp, SHOT.preset("online-ln"))
    assert method.views == "t" and all("norm" in name for name in method.trained_names)
    batch = random_batch("t")
    expected, before = sharp(batch.views[0]).detach(), method.adapter()
    logits, terms = method.observe(batch.views[0], batch)
    assert torch.equal(logits, expected) and set(terms) == {"loss", "entropy", "class_diversity"}
    after = method.adapter()
    step = torch.cat([(after.tensors[n] - t).flatten() for n, t in before.tensors.items()]).norm()
    assert 0 < float(step) <= 1e-3 * 1.001  # lr times the clipped norm


def test_the_gradient_is_clipped_as_a_whole(sharp: Model) -> None:
    steps = {}
    for clip in (0.0, 0.01):
        method = SHOT(sharp, replace(SHOT.preset("online-ln"), lr=1.0, clip=clip))
        before = method.adapter()
        method.step(random_batch("t"))
        after = method.adapter()
        steps[clip] = float(torch.cat([(after.tensors[n] - t).flatten() for n, t in before.tensors.items()]).norm())
        method.reset()
    assert steps[0.0] > 0.02 and steps[0.01] == pytest.approx(0.01, rel=1e-3)


def test_the_clamped_logarithm_ends_at_minus_100() -> None:
    """p = (1, q) with q = e^-150: q times -100 instead of -150, and 1 log 1 = 0."""
    terms = information_maximisation(torch.tensor([[150.0, 0.0]], dtype=torch.float64), "clamped")
    assert float(terms["class_diversity"]) == pytest.approx(-100 * math.exp(-150), rel=1e-9, abs=0)
