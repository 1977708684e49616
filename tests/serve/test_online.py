"""Online adaptation: the learner by itself, and one real process behind the API."""

from __future__ import annotations

import io
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from serve_support import service, until, write_adapter

from dept.core.adapter import Adapter
from dept.data.views import make_view, view_rng
from dept.models.files import load_adapter, load_model, save_model
from dept.serve.api import create_app
from dept.serve.engine import Engine
from dept.serve.learner import Learner, Task, Told, run
from support import picture, tiny_model


def pngs(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(picture(n % 3, rng, dim=0.6)) for n in range(count)]


@torch.no_grad()
def spread_on_pictures(file: Path) -> Path:
    """A model that predicts all classes about equally often on the pictures of this test."""
    model = tiny_model()
    views = [make_view(Image.fromarray(one), "t", model.card.preprocess, model.card.augment, view_rng(0, 0, 0, 0))
             for one in pictures(40)]  # fmt: skip
    features = model.read(Engine(model).normalised(views)).features
    centred = features - features.mean(dim=0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    angles = 2 * torch.pi * torch.arange(3) / 3  # three directions in the plane in which the pictures differ most
    model.head.weight.copy_(torch.stack([angles.cos(), angles.sin()], dim=1) @ directions)
    model.head.bias.copy_(-model.head.weight @ features.mean(dim=0))
    return save_model(model, file)


@pytest.fixture(scope="module")
def spread_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spread_on_pictures(tmp_path_factory.mktemp("spread") / "model.safetensors")


class Heard(list[Told]):
    """What a learner tells."""

    def kinds(self) -> set[str]:
        return {one.kind for one in self}


def started(model_file: Path, folder: Path, adapter: Path | None = None) -> tuple[Learner, Heard]:
    heard = Heard()
    made = Learner(Task(model_file, adapter, "neo", "cpu", folder, every=1), heard.append)
    return made, heard


def test_a_candidate_is_the_served_adapter_with_what_was_learned(spread_model: Path, tmp_path: Path) -> None:
    start = write_adapter(spread_model, tmp_path / "start.safetensors", names=("prompts",), scale=0.001)
    made, heard = started(spread_model, tmp_path, start)
    for one in pictures(160):
        made.learn(one)
    told = next(one for one in reversed(heard) if one.kind == "candidate")
    assert told.file is not None and told.images > 64 and told.updates > 0 and told.verdict is not None
    source = load_model(spread_model)
    adapter = load_adapter(told.file, source)  # fits the source model, not the adapted one
    assert adapter.tensors.keys() == {"prompts", "head.bias"}
    assert torch.equal(adapter.tensors["prompts"], load_adapter(start, source).tensors["prompts"])
    assert not torch.equal(adapter.tensors["head.bias"], source.head.bias)
    made.published()
    assert torch.equal(made.served["head.bias"], adapter.tensors["head.bias"])


def test_a_harmful_candidate_is_refused_and_learning_begins_again(spread_model: Path, tmp_path: Path) -> None:
    made, heard = started(spread_model, tmp_path)
    before, first = made.stream.method.model.head.bias.clone(), made.stream

    def collapsed() -> Adapter:
        return Adapter({"head.bias": torch.tensor([1e3, 0.0, 0.0])})  # the guard does not see this, the verdict does

    made.stream.method.adapter = collapsed  # type: ignore[method-assign]
    for one in pictures(160):
        made.learn(one)
        if "refused" in heard.kinds():
            break
    told = heard[-1]
    assert told.kind == "refused" and "worse than" in told.detail
    assert told.verdict is not None and told.verdict["verdict"] == "harmful"
    assert made.stream is not first and torch.equal(made.stream.method.model.head.bias, before)
    assert made.updates == told.updates and not list(tmp_path.glob("candidate*"))


def test_the_guard_speaks_up(spread_model: Path, tmp_path: Path) -> None:
    made, heard = started(spread_model, tmp_path)
    for _ in range(96):
        made.learn(pictures(1)[0])  # always the same image
    assert heard.kinds() == {"notice"} and "paused" in heard[0].detail and made.updates == 0


def test_traffic_teaches_a_domain_in_shadow_and_then_on(spread_model: Path, tmp_path: Path) -> None:
    opened = service(spread_model, tmp_path, poll=0.05, publish_every=1)
    opened.pool.create("a", "alice")
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        assert client.put("/v1/domains/nowhere/online", json={"mode": "on"}).status_code == 404
        assert client.put("/v1/domains/a/online", json={"mode": "on", "method": "lame"}).status_code == 400
        answer = client.put("/v1/domains/a/online", json={"mode": "shadow", "method": "neo"}).json()
        assert answer["online"]["mode"] == "shadow"
        until(lambda: opened.learners.status(opened.pool.domains["a"])["state"] == "learning", 300, 0.3)
        sent = [pngs(one) for one in pictures(160)]

        def online() -> dict[str, Any]:
            return dict(client.get("/v1/domains/a").json()["online"])

        def send_until(met: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
            for _ in range(20):
                for at in range(0, len(sent), 32):
                    files = [("images", (f"{n}.png", one)) for n, one in enumerate(sent[at : at + 32])]
                    assert client.post("/v1/predict?domain=a", files=files).status_code == 200
                    time.sleep(0.2)
                if met(found := online()):
                    return found
            raise AssertionError(found)

        seen = send_until(lambda found: found["comparison"])
        assert seen["published"] == 0 and client.get("/v1/domains/a").json()["active"] == 0  # shadow serves nothing
        client.put("/v1/domains/a/online", json={"mode": "on", "method": "neo"})
        send_until(lambda found: found["published"])
        latest = client.get("/v1/domains/a/versions").json()[0]
        assert latest["made_by"] == "online" and latest["verdict"]["verdict"] != "harmful"
        assert client.get("/v1/domains/a").json()["active"] > 0
        client.put("/v1/domains/a/online", json={"mode": "off"})
        until(lambda: online()["state"] == "stopped")


def test_one_process_learns_and_the_other_says_so(model_file: Path, pool_folder: Path) -> None:
    one, two = service(model_file, pool_folder), service(model_file, pool_folder)
    one.learners.switch("a", "shadow", "neo", "alice")
    try:
        one.learners.tend()
        two.pool.sync()
        two.learners.tend()
        assert one.learners.listening and not two.learners.listening
        assert two.learners.status(two.pool.domains["a"])["state"] == "elsewhere"
    finally:
        one.learners.close()
    two.learners.tend()
    assert two.learners.listening
    two.learners.close()


def test_a_learner_that_was_stopped_leaves_nothing_and_can_begin_again(model_file: Path, pool_folder: Path) -> None:
    opened, image = service(model_file, pool_folder), np.zeros((256, 256, 3), np.uint8)
    tending = ThreadPoolExecutor(1)  # begun in one thread of a server, stopped in another
    tending.submit(int).result()
    before = set(threading.enumerate())
    for _ in range(2):
        opened.learners.switch("a", "shadow", "neo", "alice")
        tending.submit(opened.learners.tend).result()
        assert opened.learners.listening, opened.learners.status(opened.pool.domains["a"])
        for _ in range(100):  # more than a pipe holds: the process has not begun to read
            opened.learners.offer("a", image)
        assert opened.learners.status(opened.pool.domains["a"])["dropped"] > 0
        opened.learners.switch("a", "off", "neo", "alice")
    until(lambda: set(threading.enumerate()) <= before, 10)
    opened.learners.switch("a", "shadow", "neo", "alice")
    opened.learners.close()
    opened.learners.tend()  # of a round that was under way
    assert not opened.learners.listening


def test_a_learner_ends_with_its_server(model_file: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    theirs, images = context.Pipe(duplex=False)
    told, outbox = context.Pipe(duplex=False)
    task = Task(model_file, None, "neo", "cpu", tmp_path, every=1)
    process = context.Process(target=run, args=(task, theirs, outbox))
    process.start()
    theirs.close()
    assert told.recv().kind == "learning"
    images.close()  # as the system does it for a server that was killed
    process.join(60)
    assert process.exitcode == 0
