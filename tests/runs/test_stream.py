from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import dept
from dept.data.images import find_labelled
from dept.data.loader import Runtime, Views
from dept.data.streams import domain_by_domain
from dept.methods.dept import DePT
from dept.methods.shot import SHOT
from dept.methods.tent import Tent
from dept.models.files import load, load_model
from dept.models.model import Model
from dept.runs.stream import Stream, open_stream, run_scenario
from dept.runs.stream_run import stream_into
from dept.runs.train import TrainRun
from support import tiny_config


def paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def opened(model: Model, **settings: object) -> Stream:
    return open_stream(model, method="tent", device="cpu", **settings)  # type: ignore[arg-type]


def test_online_dept_follows_the_paper(source_model: Model, target_images: Path) -> None:
    """No bank, constant rate, label from the model's own prediction, predicted after the update."""
    stream = open_stream(source_model, method="dept", batch=4, device="cpu")
    files = paths(target_images)
    reply = stream.feed(files[:4])
    method = stream.method
    assert method.bank is None and method.config.schedule == "constant"  # type: ignore[attr-defined]
    images = [Image.open(path) for path in files[:4]]
    again = torch.tensor([p.confidence for image in images for p in dept.predict(source_model, image, device="cpu")])
    torch.testing.assert_close(reply.probabilities.max(dim=1).values, again)  # the model as it is after the step
    assert reply.event is not None and "pseudo_label" in reply.event.terms


def test_small_groups_are_predicted_at_once_and_learned_from_later(source_model: Model, target_images: Path) -> None:
    stream, files = opened(source_model, batch=4, lr=0.5), paths(target_images)
    before = stream.method.adapter()
    events = [stream.feed([path]).event for path in files[:3]]
    assert events == [None, None, None] and not any(stream.method.adapter().diff(before).values())
    assert stream.feed([files[3]]).event is not None
    assert any(stream.method.adapter().diff(before).values())


def test_one_by_one_learns_the_same_as_a_batch(source_run: TrainRun, target_images: Path) -> None:
    files = paths(target_images)[:4]
    single, whole = (opened(load_model(source_run.file), batch=4, lr=0.5) for _ in range(2))
    logits = torch.cat([single.feed([path]).logits for path in files])
    torch.testing.assert_close(whole.feed(files).logits, logits, rtol=1e-4, atol=1e-5)
    assert max(single.method.adapter().diff(whole.method.adapter()).values()) < 1e-5


def test_the_end_of_a_stream_is_learned_from(source_model: Model, target_images: Path) -> None:
    stream = opened(source_model, batch=4, lr=0.5)
    before = stream.method.adapter()
    stream.feed(paths(target_images)[:2])
    assert stream.finish() is not None and any(stream.method.adapter().diff(before).values())
    assert stream.finish() is None


def test_state_restores_to_the_same_bits(source_run: TrainRun, target_images: Path) -> None:
    files = paths(target_images)
    first = open_stream(load_model(source_run.file), method="dept", batch=4, device="cpu")
    for path in files[:6]:
        first.feed([path])
    second = open_stream(load_model(source_run.file), method="dept", batch=4, device="cpu")
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    for path in files[6:]:
        assert torch.equal(first.feed([path]).logits, second.feed([path]).logits)


def test_learning_rates_do_not_decay_in_a_stream(source_model: Model, target_images: Path) -> None:
    """Whatever the schedule of the preset is: there is no end to decay to."""
    files = paths(target_images)
    for preset in ("offline", "released"):  # cosine, and SHOT's own
        stream = open_stream(source_model, method="shot", preset=preset, batch=2, device="cpu")
        events = [stream.feed(files[n : n + 2]).event for n in (0, 2, 4)]
        assert {event.lr for event in events if event is not None} == {stream.method.config.lr}
        assert not any(event.last for event in events if event is not None)
    assert open_stream(source_model, method="shot", device="cpu").method.config == SHOT.preset("online-ln")


def test_generator_form(source_model: Model, target_images: Path) -> None:
    files = paths(target_images)
    groups = [files[:4], files[4:8], files[8:]]
    replies = list(dept.stream(source_model, groups, method="tent", batch=4, device="cpu"))
    assert [len(logits) for logits, _ in replies] == [4, 4, len(files) - 8]


@pytest.mark.parametrize("reset", ["domain", "never", "batch"])
def test_reset_policies(source_run: TrainRun, target_labelled: Path, reset: str) -> None:
    """Adapting to B after A with a reset is adapting to B alone; without it, it is not."""
    images = find_labelled(target_labelled)

    def play(*names: str) -> dict[str, torch.Tensor]:
        model = load_model(source_run.file)
        method = Tent(model, Tent.Config(batch=4, lr=0.5))
        scenario = domain_by_domain([(name, images) for name in names], order="as-is", reset=reset)  # type: ignore[arg-type]
        parts: dict[str, list[torch.Tensor]] = {}
        for name, _, logits in run_scenario(method, scenario, Views(model.card.preprocess), Runtime()):
            parts.setdefault(name, []).append(logits)
        return {name: torch.cat(values) for name, values in parts.items()}

    after, alone = play("a", "b")["b"], play("b")["b"]
    assert torch.equal(after, alone) == (reset != "never")
    if reset == "batch":
        source = load_model(source_run.file)
        expected = dept.predict(source, images, device="cpu")
        assert after.argmax(dim=1).tolist() == [source.classes.index(p.label) for p in expected]


def test_a_scenario_predicts_every_image_exactly_once_in_order(source_model: Model, target_labelled: Path) -> None:
    images = find_labelled(target_labelled)
    scenario = domain_by_domain([("a", images)], seed=3)
    for kind, changes in ((Tent, {}), (DePT, {"bank": False, "predict": "after"})):
        method = kind(source_model, tiny_config(kind, **changes))
        seen = list(run_scenario(method, scenario, Views(source_model.card.preprocess), Runtime()))
        assert torch.cat([index for _, index, _ in seen]).tolist() == list(scenario.segments[0].order)
        assert [len(logits) for _, _, logits in seen] == [4, 4, 4] and not any(o.requires_grad for *_, o in seen)


@pytest.mark.parametrize(("method", "batch"), [("tent", 4), ("dept", 5), ("neo", 5)])
def test_a_stream_over_a_folder_gives_the_predictions_of_the_benchmark(
    source_run: TrainRun, target_labelled: Path, tmp_path: Path, method: str, batch: int
) -> None:
    """Bit for bit, with a short last batch, for methods that predict before and after their update."""
    out, settings = tmp_path / "run", {"method": method, "seed": 7, "batch": batch, "device": "cpu"}
    run = stream_into(source_run.file, target_labelled, out=out, guard=False, **settings)
    again = open_stream(source_run.file, **settings)
    images = find_labelled(target_labelled)
    played = run_scenario(again.method, domain_by_domain([("a", images)], seed=7), again.views, Runtime())
    probabilities, order = [], []
    for _, index, logits in played:
        probabilities += logits.softmax(dim=1).max(dim=1).values.tolist()
        order += [str(images.paths[position]) for position in index.tolist()]
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [row["path"] for row in rows] == order
    assert [row["confidence"] for row in rows] == [round(value, 6) for value in probabilities]
    ours, theirs = load(source_run.file, adapter=out / "adapter.safetensors"), again.method.adapter()
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in theirs.tensors.items())
    assert run.result["images"] == 12 and run.result["steps"] == -(-12 // batch) and not run.stopped
