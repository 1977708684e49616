from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dept.core.losses import entropy
from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.shotpp import SHOTPlus, easy_split, sharpened
from dept.models.model import Model
from support import FixedPasses, moved, random_batch, scramble, spread_predictions, state_of, tiny_model


@pytest.fixture
def sharp() -> Model:
    model = tiny_model()
    scramble(model, scale=0.2)
    with torch.no_grad():
        return spread_predictions(model)


def second_step(model: Model, **changes: object) -> SHOTPlus:
    """A method in its second step, at its last iteration."""
    method = SHOTPlus(model, SHOTPlus.Config(**{"shot_share": 0.0, "batch": 4, **changes}))  # type: ignore[arg-type]
    method.begin(FixedPasses(10, 4))
    method.at(Progress(9, 10, 3))
    return method


def test_split_takes_the_surest_of_every_class() -> None:
    logits = torch.tensor([[5.0, 0], [4.0, 0], [3.0, 0], [0.1, 0], [0, 0.3], [0, 0.2]])
    assert easy_split(logits, 0.5).tolist() == [True, True, False, False, True, False]
    values = entropy(logits)
    share = float((values < values.mean()).double().mean())
    assert share == 0.5 and torch.equal(easy_split(logits), easy_split(logits, share))
    assert easy_split(logits, 0.3).tolist() == [True, False, False, False, False, False]  # int(4·.3), int(2·.3)


def test_sharpening_by_hand() -> None:
    torch.testing.assert_close(sharpened(torch.tensor([[0.8, 0.2]]), 0.5), torch.tensor([[0.64, 0.04]]) / 0.68)


def test_mixmatch_against_a_slow_formula(sharp: Model) -> None:
    method = second_step(sharp)
    assert method.easy is not None and method.labels is not None
    method.easy[:] = torch.arange(10) % 2 == 0
    views = random_batch("ww", 6)
    batch = Batch(views.views, torch.tensor([0, 1, 2, 3, 4, 5]))
    state = method.generator.get_state()
    terms = {name: float(term.detach()) for name, term in method.loss(batch).items()}
    # the same draws again
    generator = torch.Generator()
    generator.set_state(state)
    weight = float(np.random.default_rng(int(torch.randint(2**31, (), generator=generator))).beta(0.75, 0.75))
    weight = max(weight, 1 - weight)
    order = torch.randperm(9, generator=generator).tolist()
    one, two = batch.views
    guess = (sharp(one).softmax(dim=1) + sharp(two).softmax(dim=1)).detach() / 2
    guess = guess**2 / (guess**2).sum(dim=1, keepdim=True)
    rows = [(one[i], F.one_hot(method.labels[i], 3).float()) for i in (0, 2, 4)]
    rows += [(view[i], guess[i]) for view in (one, two) for i in (1, 3, 5)]
    labelled, unlabelled = 0.0, 0.0
    for position, (image, target) in enumerate(rows):
        other_image, other_target = rows[order[position]]
        mixed = weight * image + (1 - weight) * other_image
        target = weight * target + (1 - weight) * other_target
        p = sharp(mixed[None]).softmax(dim=1)[0].detach()
        if position < 3:
            labelled -= float((target * p.log()).sum()) / 3
        else:
            unlabelled += float(((p - target) ** 2).sum()) / (6 * 3)
    assert terms["labelled"] == pytest.approx(labelled, rel=1e-4)
    assert terms["unlabelled"] == pytest.approx(100.0 * unlabelled, rel=1e-4)  # the ramp has reached 1


def test_ramp_of_the_unlabelled_weight(sharp: Model) -> None:
    method = second_step(sharp)
    method.second_start, state = 10, method.generator.get_state()
    values = []
    for step in (10, 14, 19):
        method.at(Progress(step, 20, 0))
        method.generator.set_state(state)  # the same mixture each time
        values.append(float(method.loss(random_batch("ww", 8))["unlabelled"].detach()))
    assert [value / values[-1] for value in values] == pytest.approx([0.1, 0.5, 1.0], rel=1e-4)


@pytest.mark.parametrize("easy", [True, False])
def test_batches_of_one_kind(sharp: Model, easy: bool) -> None:
    method = second_step(sharp)
    assert method.easy is not None
    method.easy[:] = easy
    assert set(method.loss(random_batch("ww"))) == {"labelled" if easy else "unlabelled"}


def test_first_step_is_shot_and_leaves_the_head(sharp: Model) -> None:
    method = SHOTPlus(sharp, SHOTPlus.Config(batch=4, epochs=5, lr=0.01))
    passes = FixedPasses(10, 4)
    method.begin(passes)
    assert method.second_start == 9  # 3 epochs of 3 steps of 5
    before = state_of(sharp)
    method.at(Progress(0, 15, 0))
    assert {"entropy", "class_diversity", "pseudo_label"} < set(method.step(random_batch("ww")))
    assert not any(name.startswith("head.") for name in moved(before, sharp))
    method.at(Progress(8, 15, 2))
    method.refresh(passes, 2)
    assert method.easy is not None and 0 < int(method.easy.sum()) < 10
    method.at(Progress(9, 15, 3))
    before = state_of(sharp)
    method.step(random_batch("ww"))
    assert {"head.weight", "head.bias"} <= moved(before, sharp)


def test_labels_of_the_split_are_kept_though_shot_counts_steps(sharp: Model) -> None:
    method, passes = SHOTPlus(sharp, SHOTPlus.Config(labels_per_run=5)), FixedPasses(10, 4)
    method.labels = kept = torch.full((10,), 2)
    method.easy = torch.ones(10, dtype=torch.bool)
    method.at(Progress(2, 10, 0))
    method.before_step(passes)
    assert method.labels is kept
    method.easy = None
    method.before_step(passes)
    assert method.labels is not kept


def test_learning_rate_starts_anew(sharp: Model) -> None:
    method = SHOTPlus(sharp, SHOTPlus.Config(batch=4, epochs=5, lr=1.0, head_lr_scale=10.0))
    passes = FixedPasses(10, 4)
    method.begin(passes)

    def rates(step: int) -> list[float]:
        method.at(Progress(step, 15, step // 3))
        assert method.optimizer is not None
        return [group["lr"] for group in method.optimizer.param_groups]

    assert rates(0) == [1.0, 10.0]
    assert rates(8)[0] == pytest.approx(0.5 * (1 + math.cos(math.pi * 8 / 9)))
    method.refresh(passes, 2)
    assert rates(9) == [1.0, 10.0] and rates(12)[0] == pytest.approx(0.5)


def test_second_step_alone(sharp: Model) -> None:
    config = SHOTPlus.preset("second-step")
    assert config.epochs == 10
    method = SHOTPlus(sharp, config)
    method.begin(FixedPasses(10, 4))
    assert method.easy is not None and method.second_start == 0


def test_predictions_become_the_labels(sharp: Model) -> None:
    passes = FixedPasses(10, 4)
    method = second_step(sharp)
    images = torch.cat([batch.views[0] for batch in passes()])
    logits = sharp(images).detach()
    assert method.labels is not None and method.easy is not None
    assert torch.equal(method.labels, logits.argmax(dim=1))
    assert int((method.easy ^ easy_split(logits)).sum()) == 0
