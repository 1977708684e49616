from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dept.data.images import ImageSet, find_images, find_labelled
from dept.data.loader import Batch, LabelledBatch, Runtime, TestPasses, Views
from dept.errors import UsageError
from dept.methods.base import BaseConfig, Progress
from dept.methods.dept import DePT
from dept.methods.shot import SHOT
from dept.methods.source import Source
from dept.methods.tent import Tent
from dept.models.files import load_model
from dept.models.model import Model
from dept.runs.job import RunOptions
from dept.runs.loops import collect, offline, planned_steps, steps_per_epoch
from dept.runs.train import TrainRun
from support import same_bits, tiny_config


class Recorder(Source):
    """Writes down what the engine does to a method."""

    views = "ws"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.diary: list[Any] = []
        self.batches: list[Batch] = []

    def begin(self, passes: Any) -> None:
        self.diary.append(("begin", passes.image_count, [b.index.tolist() for b in passes()]))

    def refresh(self, passes: Any, epoch: int) -> None:
        self.diary.append(("refresh", epoch))

    def at(self, progress: Progress) -> None:
        self.diary.append(("at", *progress))

    def before_step(self, passes: Any) -> None:
        self.diary.append(("before", passes.image_count))

    def step(self, batch: Batch) -> dict[str, float]:
        self.batches.append(batch)
        self.diary.append("step")
        return {"loss": 1.0}


@pytest.fixture
def images(target_images: Path) -> ImageSet:
    return find_images(target_images)


def recorder(model: Model, **config: Any) -> Recorder:
    return Recorder(model, BaseConfig(**{"batch": 4, "epochs": 2, **config}))


def test_counts_of_steps() -> None:
    assert [steps_per_epoch(547, 128), steps_per_epoch(8, 4), steps_per_epoch(9, 4), steps_per_epoch(1, 4)] == [
        5,
        2,
        3,
        1,
    ]
    assert planned_steps(BaseConfig(batch=128, epochs=1500), 547) == 7500
    assert planned_steps(BaseConfig(batch=4, epochs=2, max_iters=7), 100) == 7


def test_offline_says_what_happens_when(model: Model, images: ImageSet) -> None:
    method = recorder(model)
    events = list(offline(method, images, Views(model.card.preprocess), Runtime(eval_batch=8)))
    first = [("begin", 10, [[*range(8)], [8, 9]])]
    one, two = (
        [e for step in steps for e in (("at", step, 6, step // 3), ("before", 10), "step")]
        for steps in (range(3), range(3, 6))
    )
    expected = [*first, *one, ("refresh", 0), *two]
    assert method.diary == expected  # no refresh after the last epoch
    assert [event.epoch_end for event in events] == [False, False, True] * 2
    assert [event.last for event in events] == [False] * 5 + [True]


def test_every_image_once_per_epoch_in_a_new_order(model: Model, images: ImageSet) -> None:
    method = recorder(model)
    list(offline(method, images, Views(model.card.preprocess), Runtime()))
    order = [batch.index.tolist() for batch in method.batches]
    assert [len(part) for part in order] == [4, 4, 2] * 2
    one, two = ([i for part in epoch for i in part] for epoch in (order[:3], order[3:]))
    assert sorted(one) == sorted(two) == list(range(10)) and one != two and one != sorted(one)


def test_start_skips_what_was_done(model: Model, images: ImageSet) -> None:
    whole, rest = recorder(model), recorder(model)
    views = Views(model.card.preprocess, seed=3)
    list(offline(whole, images, views, Runtime()))
    list(offline(rest, images, views, Runtime(), start=4))
    assert not any(entry[0] == "begin" for entry in rest.diary)
    assert len(rest.batches) == 2
    for one, two in zip(whole.batches[4:], rest.batches, strict=True):
        assert torch.equal(one.index, two.index) and all(map(torch.equal, one.views, two.views))


def test_labels_that_are_made_within_an_epoch_survive_a_resume(source_run: TrainRun, images: ImageSet) -> None:
    """Epochs of 3 steps, labels before steps 0, 2, 4 and 6: the run that stops after 4 must make those of 4 itself."""
    config = tiny_config(SHOT, max_iters=7, labels_per_run=3, lr=0.05)
    views = Views(load_model(source_run.file).card.preprocess, seed=1)

    def state_after(steps: int, start: int = 0, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        method = SHOT(load_model(source_run.file), config, seed=1)
        if state is not None:
            method.load_state_dict(state)
        for event in offline(method, images, views, Runtime(), start=start):
            if event.progress.step + 1 == steps:
                break
        return {name: tensor.clone() for name, tensor in method.state_dict().items()}

    assert same_bits(state_after(7), state_after(7, 4, state_after(4)))


def test_max_iters_cuts_an_epoch(model: Model, images: ImageSet) -> None:
    events = list(offline(recorder(model, max_iters=4), images, Views(model.card.preprocess), Runtime()))
    assert [event.progress.epoch for event in events] == [0, 0, 0, 1] and events[-1].last


def test_adaptation_sees_no_labels(model: Model, target_labelled: Path) -> None:
    method = recorder(model, epochs=1)
    list(offline(method, find_labelled(target_labelled), Views(model.card.preprocess), Runtime()))
    assert all(type(batch) is Batch and not hasattr(batch, "labels") for batch in method.batches)


def test_training_sees_the_right_labels(model: Model, target_labelled: Path) -> None:
    method, images = recorder(model, epochs=1), find_labelled(target_labelled)
    list(offline(method, images, Views(model.card.preprocess), Runtime(), labelled=True))
    for batch in method.batches:
        assert isinstance(batch, LabelledBatch)
        names = [images.paths[i].parent.name for i in batch.index.tolist()]
        assert [images.classes[label] for label in batch.labels.tolist()] == names


def test_result_does_not_depend_on_workers(source_run: TrainRun, images: ImageSet) -> None:
    states = []
    for workers in (0, 2):
        model = load_model(source_run.file)
        method = DePT(model, tiny_config(DePT, epochs=1), seed=1)
        terms = [
            e.terms for e in offline(method, images, Views(model.card.preprocess, seed=1), Runtime(workers=workers))
        ]
        states.append((terms, {name: tensor.clone() for name, tensor in method.state_dict().items()}))
    assert states[0][0] == states[1][0] and same_bits(states[0][1], states[1][1])


def test_learning_rate_in_events(source_model: Model, images: ImageSet) -> None:
    method = Tent(source_model, tiny_config(Tent, schedule="cosine", lr=0.1))
    rates = [e.lr for e in offline(method, images, Views(source_model.card.preprocess), Runtime())]
    assert rates[0] == 0.1 and rates[3] == pytest.approx(0.05) and rates == sorted(rates, reverse=True)


def test_collect_gathers_the_whole_pass(source_model: Model, images: ImageSet) -> None:
    passes = TestPasses(images, Views(source_model.card.preprocess), Runtime(eval_batch=3))
    scores = collect(passes(), Source(source_model))
    assert scores.keys() == {"student"} and scores["student"].shape == (10, 3) and passes.image_count == 10
    whole = collect(TestPasses(images, passes.views, Runtime(eval_batch=64))(), Source(source_model))
    assert torch.allclose(scores["student"], whole["student"], atol=1e-5)


@pytest.mark.parametrize("seed", [-1, 10**20])
def test_a_seed_that_torch_does_not_take(seed: int) -> None:
    with pytest.raises(UsageError, match="`seed` must be at least 0"):
        RunOptions(seed=seed)
