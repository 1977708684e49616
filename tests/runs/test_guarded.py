"""The guard in a stream: it changes nothing while all is well, and it finds the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dept import methods
from dept.data.loader import Batch, Runtime, Views
from dept.errors import Diverged
from dept.health.guard import EVERY, FEWEST, Notice
from dept.methods.base import Method, Progress
from dept.methods.tent import Tent
from dept.models.files import load_model
from dept.models.model import Model
from dept.models.stats import load_stats
from dept.runs.guarded import SNAPSHOTS, SPACING, Guarded, expected_shares
from dept.runs.loops import Event
from dept.runs.stream import Stream
from dept.runs.train import TrainRun
from support import same_bits, spread_predictions, state_of, teach, tiny_config

SIZE = 64
SMALLEST = Tent.fewest_images


@pytest.fixture
def varied(source_run: TrainRun) -> Any:
    """Makes a source model that sees all classes in noise images."""
    return lambda: spread_predictions(load_model(source_run.file))


def streamed(model: Model, method: str = "tent", *, guard: bool = True, **settings: Any) -> Stream:
    kind = methods.get(method)
    made = kind(model, tiny_config(kind, **{"batch": SIZE, **settings}))
    return Stream(made, Views(model.card.preprocess), Runtime(), guard=guard)


def views(stream: Stream, number: int, size: int = SIZE) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randn(size, 3, 32, 32, generator=generator) for _ in stream.letters)


def take(stream: Stream, number: int, size: int = SIZE) -> Tensor:
    return stream.take(views(stream, number, size), list(range(size))).logits


def one_class(stream: Stream, number: int) -> tuple[Tensor, ...]:
    """Copies of one image: the source sees one class."""
    return tuple(view[:1].expand_as(view).clone() for view in views(stream, number))


def test_without_a_guard_a_stream_is_the_method(varied: Any) -> None:
    """Bit for bit what `at` and `observe` give, for methods that predict before and after their update."""
    for name in ("tent", "dept", "neo"):
        stream = streamed(varied(), name, guard=False)
        direct = streamed(varied(), name, guard=False).method
        for number in range(3):
            made = views(stream, number)
            direct.at(Progress(number, 0, 0))
            logits, _ = direct.observe(made[0], Batch(made[1:] or made, torch.arange(SIZE)))
            assert torch.equal(take(stream, number), logits)
        assert same_bits(state_of(stream.method.model), state_of(direct.model))


@pytest.mark.parametrize("name", ["tent", "dept", "sar"])
def test_a_quiet_stream_is_not_disturbed(varied: Any, name: str) -> None:
    guarded, free = streamed(varied(), name, lr=1e-4), streamed(varied(), name, lr=1e-4, guard=False)
    for number in range(6):
        assert torch.equal(take(guarded, number), take(free, number))
    assert guarded.guard is not None and guarded.guard.record()["updates"] == 6
    assert same_bits(state_of(guarded.method.model), state_of(free.method.model))


def test_a_collapse_is_caught(varied: Any) -> None:
    """A learning rate far too large: the guard goes back until it gives up, and ends with the source model."""
    stream, notices, source = streamed(varied(), lr=100.0), [], state_of(varied())
    stream.on_alarm = notices.append
    for number in range(40):
        logits = take(stream, number)
    assert stream.guard is not None and stream.guard.guard.stopped
    assert [notice.action for notice in notices] == ["source", "source", "source", "stop"]
    assert same_bits(state_of(stream.method.model), source)
    assert torch.equal(logits, streamed(varied()).method.predict(views(stream, 39)[0]))  # predicted again


def test_the_unguarded_stream_collapses(varied: Any) -> None:
    """What the test before this one prevents."""
    stream, source = streamed(varied(), lr=100.0, guard=False), varied()
    for number in range(10):
        logits = take(stream, number)
    with torch.no_grad():
        agrees = (logits.argmax(dim=1) == source(views(stream, 9)[0]).argmax(dim=1)).float().mean()
    assert agrees < 0.6


@pytest.mark.parametrize("size", [SIZE, 8])
@pytest.mark.parametrize("fault", ["predictions", "parameters", "gradients"])
def test_numbers_that_are_not_finite_never_leave_the_stream(
    varied: Any, size: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, notices = streamed(varied(), lr=1e-3), []
    stream.on_alarm = notices.append

    def broken(self: Method) -> None:
        if fault == "parameters":
            raise Diverged("not finite")
        if fault == "gradients":
            self.skipped_in_a_row += 1
        else:
            self.model.get_parameter(self.trained_names[0]).data.fill_(torch.nan)

    monkeypatch.setattr(Tent, "descend", broken)
    for number in range(5 * SIZE // size):
        assert bool(take(stream, number, size).isfinite().all())
    assert f"its {fault}" in notices[0].reason and "finite" in notices[0].reason


def test_a_single_class_teaches_nothing(varied: Any) -> None:
    stream, notices, source = streamed(varied(), lr=0.5), [], state_of(varied())
    stream.on_alarm = notices.append
    for number in range(4):
        reply = stream.take(one_class(stream, number), list(range(SIZE)))
        assert reply.event is None
    assert same_bits(state_of(stream.method.model), source)
    assert [(notice.action, notice.step) for notice in notices] == [("pause", 1)] and stream.steps == 4
    assert stream.guard is not None
    assert stream.guard.record() == {
        "updates": 0, "not_learned_from": 4, "alarms": 0, "learning_rate": 1.0, "state": "paused",
    }  # fmt: skip


def test_small_batches_are_gathered(varied: Any) -> None:
    """Predicted at once; learned from when there are enough, and never from fewer at the end."""
    stream, count = streamed(varied(), batch=1, lr=0.1), FEWEST + 3
    assert stream.batch == SMALLEST
    events = [stream.take(views(stream, n, 1), [0], last=n == count - 1).event for n in range(count)]
    # The first windows only show whether the images are varied enough to learn from.
    assert [number for number, event in enumerate(events) if event is not None] == [FEWEST - 1]
    assert stream.steps == FEWEST // SMALLEST + 1 and stream.finish() is None


def single(stream: Stream, first: int, last: int) -> list[Event | None]:
    """Images number `first` to `last` - 1, one by one."""
    return [stream.take(views(stream, number, 1), [number]).event for number in range(first, last)]


def test_early_windows_are_learned_from_later(varied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, once the source model has seen enough classes: no image is lost, none is learned twice."""
    stream, learned = streamed(varied(), batch=1, lr=1e-3), []
    learn = stream.method.learn
    monkeypatch.setattr(stream.method, "learn", lambda batch: learned.append(batch.index.tolist()) or learn(batch))
    single(stream, 0, FEWEST - 1)
    assert not learned
    single(stream, FEWEST - 1, FEWEST + 8 * SMALLEST)
    windows = [list(range(at, at + SMALLEST)) for at in range(0, FEWEST + 8 * SMALLEST, SMALLEST)]
    assert learned[:4] == [windows[0], windows[7], windows[1], windows[8]]
    assert sorted(learned) == windows


def test_early_windows_of_one_class_are_never_learned_from(varied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, source = streamed(varied(), batch=1, lr=0.5), state_of(varied())
    same = one_class(stream, 0)
    for number in range(2 * FEWEST):
        stream.take(tuple(view[:1] for view in same), [number])
    assert same_bits(state_of(stream.method.model), source)
    assert stream.guard is not None and not stream.guard.early


def test_a_window_of_smaller_batches_learns_faster(varied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In proportion to the batches that it stands for, as far as the method bears it. Tent does not."""
    assert streamed(varied(), batch=1).guard.faster == 1.0  # type: ignore[union-attr]
    monkeypatch.setattr(Tent, "window_rate", 5.0)
    for batch, factor in ((1, 5.0), (4, 2.0), (8, 1.0), (16, 1.0)):
        stream = streamed(varied(), batch=batch, lr=1e-3)
        event = next(filter(None, single(stream, 0, FEWEST + 16)))
        assert event.lr == pytest.approx(1e-3 * factor)


def test_a_stream_resumes_with_its_early_windows(varied: Any) -> None:
    first, second = (streamed(varied(), batch=1, lr=1e-3) for _ in range(2))
    single(first, 0, 5 * SMALLEST + 3)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    for stream in (first, second):
        single(stream, 5 * SMALLEST + 3, FEWEST + 2 * SMALLEST)
    assert first.guard is not None and first.guard.updates
    assert same_bits(first.state_dict(), second.state_dict())


def test_an_alarm_halves_the_learning_rate(varied: Any) -> None:
    stream = streamed(varied(), lr=0.01)
    assert stream.guard is not None
    stream.guard._go_back("a test says so")
    reply = stream.take(views(stream, 0), list(range(SIZE)))
    assert reply.event is not None and reply.event.lr == pytest.approx(0.005)


def test_snapshots_are_spaced_and_the_way_back_leads_to_them(varied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dept.runs.guarded.SPACING", 2)
    stream, states = streamed(varied(), lr=1e-3), []
    assert stream.guard is not None
    for number in range(16):
        take(stream, number)
        states.append(state_of(stream.method.model))
    ring = stream.guard.ring
    assert len(ring) == SNAPSHOTS and SPACING > 2
    stream.guard._go_back("a test says so")
    assert same_bits(state_of(stream.method.model), states[15])
    stream.guard._go_back("and again")
    assert same_bits(state_of(stream.method.model), states[9]) and len(stream.guard.ring) == 1
    stream.guard._go_back("and again")
    assert same_bits(state_of(stream.method.model), state_of(varied())) and not stream.guard.ring


def test_snapshots_of_a_whole_model_are_fewer(varied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dept.runs.guarded.SPACING", 1)
    monkeypatch.setattr("dept.runs.guarded.SNAPSHOT_BYTES", 1)
    stream = streamed(varied(), lr=1e-3)
    for number in range(3):
        take(stream, number)
    assert stream.guard is not None and len(stream.guard.ring) == 1


def test_what_it_costs(varied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a forward per update: at most 5 % of a step of DePT, which has five and predicts."""
    seen: list[int] = []
    read = Model.read
    monkeypatch.setattr(Model, "read", lambda self, x, **more: (seen.append(1), read(self, x, **more))[1])
    counts = {}
    for guard in (False, True):
        stream = streamed(varied(), "dept", guard=guard, lr=1e-4)
        seen.clear()
        for number in range(2 * EVERY):
            take(stream, number)
        counts[guard] = len(seen)
    extra = (counts[True] - counts[False]) / (2 * EVERY)
    assert extra == 1 / EVERY and extra <= 0.05 * (methods.get("dept").forwards_per_step + 1)


@pytest.fixture
def learner(request: pytest.FixtureRequest, varied: Any, stats_file: Path) -> Any:
    """Makes a guarded stream of the method that the test names."""

    def make() -> Stream:
        model, kind = varied(), methods.get(request.param)
        teach(model, kind.needs_task)
        made = kind(model, tiny_config(kind, batch=16), stats=load_stats(stats_file, model))
        return Stream(made, Views(model.card.preprocess), Runtime(), guard=True)

    return make


@pytest.mark.parametrize("learner", sorted(methods.available("online")), indirect=True)
def test_a_guarded_stream_resumes_to_the_same_bits(learner: Any) -> None:
    """Every method, in the middle of a window and after an alarm, with snapshots."""
    first = learner()
    if first.guard is not None:
        first.guard.ring = [first.method.snapshot()]
        first.guard._go_back("a test says so")
    for number in range(14):
        take(first, number, 16 if number < 4 else 6)
    second = learner()
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    for number in range(14, 24):
        assert torch.equal(take(first, number, 6), take(second, number, 6))
    assert same_bits(first.state_dict(), second.state_dict())


def test_methods_that_tune_nothing_need_no_guard(varied: Any) -> None:
    model = varied()
    for name in ("source", "lame"):
        method = methods.get(name)(model)
        assert Stream(method, Views(model.card.preprocess), Runtime(), guard=True).guard is None


def test_expected_shares(varied: Any, stats_file: Path) -> None:
    """Those of the statistics where the model file has none, and equal ones where nobody knows."""
    model = varied()
    assert expected_shares(Tent(model)) == pytest.approx(model.card.prior or (1 / 3,) * 3)
    guarded = Guarded(Tent(model, stats=load_stats(stats_file, model)))
    assert sum(guarded.guard.shares) == pytest.approx(1)


def test_a_notice_reads_well() -> None:
    notice = Notice("newest", "its predictions are no longer finite", 7)
    assert str(notice) == (
        "Back to the newest snapshot, at half the learning rate: its predictions are no longer finite."
    )


def test_restore_leaves_out_what_snapshots_leave_out(varied: Any) -> None:
    stream = streamed(varied(), "dept", lr=0.1, guard=False)
    method: Method = stream.method
    start = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    take(stream, 0)
    snapshot, later = method.snapshot(), {name: tensor.clone() for name, tensor in method.state_dict().items()}
    assert not any("projections" in name or name.startswith("optimizer") for name in snapshot)
    method.restore(snapshot)
    after = method.state_dict()
    assert all(torch.equal(after[name], later[name]) for name in snapshot)
    assert all(torch.equal(after[name], start[name]) for name in start if "projections" in name)
    assert not any(name.startswith("optimizer") for name in after)
    method.restore({name: start[name] for name in snapshot})
    assert same_bits(start, method.state_dict())
