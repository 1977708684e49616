"""The HTTP API with tiny models: predictions, adapters, limits, and what the dashboard is told."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from serve_support import png, service, until, write_adapter

from dept.inference import predict
from dept.models.files import load
from dept.serve.api import create_app
from dept.serve.service import Given, Service

RAW = {"content-type": "image/png"}


def served(client: TestClient) -> Service:
    return client.app.state.service  # type: ignore[attr-defined, no-any-return]


def files(*contents: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{number}.png", content)) for number, content in enumerate(contents)]


# ---- predictions ----


def test_predictions_are_those_of_the_library(client: TestClient, model_file: Path, adapters: Path) -> None:
    for domain in ("source", "a", "b", "norms"):
        model = load(model_file, adapter=None if domain == "source" else adapters / f"{domain}.safetensors")
        contents = [png(seed=seed) for seed in range(3)]
        answer = client.post("/v1/predict", params={"domain": domain, "topk": 2}, files=files(*contents)).json()
        for content, row in zip(contents, answer["predictions"], strict=True):
            (expected,) = predict(model, Image.open(io.BytesIO(content)), topk=2, device="cpu")
            assert row["label"] == expected.label and row["domain"] == domain
            assert row["confidence"] == pytest.approx(expected.confidence, abs=1e-4)
            assert [one["label"] for one in row["topk"]] == [label for label, _ in expected.topk]
        assert {"decode_ms", "queue_ms", "forward_ms", "total_ms"} == answer["timing"].keys()


def test_one_image_may_be_the_body_itself(client: TestClient) -> None:
    answer = client.post("/v1/predict?domain=a", content=png(), headers=RAW)
    assert answer.status_code == 200 and answer.json()["predictions"][0]["version"] == 1


def test_requests_of_many_domains_share_a_batch(model_file: Path, pool_folder: Path) -> None:
    opened = service(model_file, pool_folder, wait_ms=300, batch=8)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:

        def ask(domain: str) -> None:
            client.post("/v1/predict", params={"domain": domain}, content=png(), headers=RAW)

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b", "source", "a")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        text = client.get("/metrics").text
    assert 'dept_batch_domains_bucket{le="2.0"} 1.0' in text  # the warm-up alone; then three domains in one forward
    assert 'dept_batch_domains_bucket{le="4.0"} 2.0' in text


def test_a_broken_image_does_not_harm_the_others_of_a_request(client: TestClient) -> None:
    answer = client.post("/v1/predict?domain=a", files=files(png(), b"no image", png(seed=1)))
    rows = answer.json()["predictions"]
    assert [bool(row["label"]) for row in rows] == [True, False, True] and "JPEG" in rows[1]["error"]
    alone = client.post("/v1/predict?domain=a", content=b"no image", headers=RAW)
    assert alone.status_code == 422 and "cannot be decoded" in alone.json()["detail"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"params": {"domain": "nowhere"}, "content": png(), "headers": RAW}, 404),
        ({"params": {"domain": "../a"}, "content": png(), "headers": RAW}, 404),
        ({"params": {"topk": 0}, "content": png(), "headers": RAW}, 422),
        ({"content": png(), "headers": {"content-type": "text/plain"}}, 415),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400),
        ({"content": b"", "headers": RAW}, 422),
        ({"files": [("other", ("a.png", png()))]}, 422),
        ({"files": files(*[png()] * 5)}, 400),
        ({"content": png(size=400), "headers": RAW}, 422),
    ],
    ids=["unknown", "path", "topk", "type", "form", "empty", "field", "many", "pixels"],
)
def test_bad_requests_are_refused_with_a_sentence(
    model_file: Path, pool_folder: Path, request_: dict[str, Any], status: int
) -> None:
    opened = service(model_file, pool_folder, max_images=4, max_megapixels=0.1)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/predict", **request_)
        assert answer.status_code == status and answer.json()["detail"]
        assert client.post("/v1/predict?domain=a", content=png(), headers=RAW).status_code == 200


class Held:
    """Makes the inference thread of a service wait."""

    def __init__(self, opened: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release, logits = threading.Event(), opened.engine.logits

        def slow(*given: Any) -> Any:
            self.release.wait(10)
            return logits(*given)

        monkeypatch.setattr(opened.engine, "logits", slow)


def test_a_full_queue_is_429_with_retry_after(
    model_file: Path, pool_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = service(model_file, pool_folder, queue=2, poll=1.0)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        held, done = Held(opened, monkeypatch), []

        def ask() -> None:
            done.append(client.post("/v1/predict?domain=a", files=files(png(), png())).status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: opened.batcher.pending == 2)
        refused = client.post("/v1/predict?domain=a", content=png(), headers=RAW)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        held.release.set()
        thread.join()
        assert done == [200] and client.post("/v1/predict?domain=a", content=png(), headers=RAW).status_code == 200


def test_a_deadline_counts_while_images_are_decoded(
    model_file: Path, pool_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, release = service(model_file, pool_folder, decoders=1), threading.Event()
    decoded: list[str] = []

    def slow(name: str, data: bytes) -> Given:
        decoded.append(name)
        release.wait(10)
        return Given(name, None, "slow", 0.0)

    monkeypatch.setattr(opened, "_decoded", slow)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        late = client.post("/v1/predict?domain=a&deadline_ms=50", files=files(png(), png()))
        assert late.status_code == 408 and opened.batcher.pending == 0
        release.set()
    assert decoded == ["0.png"]  # the other one had not begun


def test_a_deadline_that_passes_is_408(model_file: Path, pool_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = service(model_file, pool_folder, poll=1.0)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        held = Held(opened, monkeypatch)
        began = time.monotonic()
        late = client.post("/v1/predict?domain=a&deadline_ms=50", content=png(), headers=RAW)
        assert late.status_code == 408 and time.monotonic() - began < 5
        held.release.set()
        assert client.post("/v1/predict?domain=a", content=png(), headers=RAW).status_code == 200


# ---- adapters ----


def test_an_adapter_is_uploaded_promoted_and_rolled_back(client: TestClient, model_file: Path, tmp_path: Path) -> None:
    file = write_adapter(model_file, tmp_path / "new.safetensors", seed=7)
    with file.open("rb") as content:
        made = client.post("/v1/domains/a/versions", files={"adapter": content}, data={"note": "from the lab"})
    assert made.status_code == 201
    assert made.json() | {"number": 2, "active": False, "note": "from the lab", "made_by": "local"} == made.json()

    def version() -> int:
        answer = client.post("/v1/predict?domain=a", content=png(), headers=RAW).json()
        return int(answer["predictions"][0]["version"])

    assert version() == 1
    assert client.post("/v1/domains/a/activate", json={"version": 2}).json()["active"] == 2
    assert version() == 2
    assert client.post("/v1/domains/a/rollback").json()["active"] == 1 and version() == 1
    assert client.post("/v1/domains/a/activate", json={"version": 9}).status_code == 404
    assert client.put("/v1/domains/a/pin", json={"pinned": True}).json()["pinned"]
    assert client.post("/v1/domains/a/activate", json={"version": 2}).status_code == 409
    with file.open("rb") as content:  # refused as a whole: no version that nobody serves
        again = client.post("/v1/domains/a/versions", files={"adapter": content}, data={"activate": "true"})
    assert again.status_code == 409 and "pinned" in again.json()["detail"]
    actions = [row["action"] for row in client.get("/v1/domains/a/history").json()]
    assert actions == ["pin", "rollback", "activate", "add", "activate", "add"]
    listed = client.get("/v1/domains/a/versions").json()
    assert [(one["number"], one["active"]) for one in listed] == [(2, False), (1, True)]
    assert client.get("/v1/domains/a/versions/2/adapter").content == file.read_bytes()


@pytest.mark.parametrize("content", [b"", b"no adapter", b"\xff" * 4096], ids=["empty", "text", "noise"])
def test_a_bad_adapter_is_refused_and_nothing_changes(client: TestClient, content: bytes) -> None:
    before = client.get("/v1/domains").json()
    answer = client.post("/v1/domains/new/versions", files={"adapter": content}, data={"activate": "true"})
    assert answer.status_code == 422 and str(served(client).pool.folder) not in answer.json()["detail"]
    assert len(client.get("/v1/domains").json()) == len(before) and "new" not in served(client).pool.names()
    assert not list(served(client).pool.folder.glob(".upload*"))
    assert not (served(client).pool.folder / "versions" / "new").exists()


def test_an_upload_under_a_bad_name_is_refused(client: TestClient, adapters: Path) -> None:
    content = (adapters / "a.safetensors").read_bytes()
    for name in ("source", "..%2Fup", "%2Fetc", ".hidden", "a%00b"):
        answer = client.post(f"/v1/domains/{name}/versions", files={"adapter": content})
        assert answer.status_code in (400, 404), name
    assert sorted(served(client).pool.names()) == ["a", "b", "norms"]


def test_a_swap_under_load_loses_nothing(client: TestClient, model_file: Path, tmp_path: Path) -> None:
    file = write_adapter(model_file, tmp_path / "new.safetensors", seed=7)
    client.post("/v1/domains/a/versions", files={"adapter": file.read_bytes()})
    stop, statuses, versions = threading.Event(), [], set()

    def ask() -> None:
        while not stop.is_set():
            answer = client.post("/v1/predict?domain=a", content=png(), headers=RAW)
            statuses.append(answer.status_code)
            versions.add(answer.json()["predictions"][0]["version"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in (2, 1, 2, 1, 2):
        client.post("/v1/domains/a/activate", json={"version": number})
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200} and versions == {1, 2}


# ---- what the dashboard is told ----


def test_the_latest_images_are_shown_before_and_after(client: TestClient) -> None:
    client.post("/v1/predict?domain=a", files=files(png(), png(seed=1)))
    (shown,) = until(lambda: client.get("/v1/domains/a/recent").json())
    assert shown["thumbnail"].startswith("data:image/jpeg;base64,") and shown["name"] == "0.png"
    assert shown["changed"] == (shown["before"]["label"] != shown["after"]["label"])
    before = client.post("/v1/predict?domain=source", files=files(png())).json()["predictions"][0]
    assert shown["before"]["label"] == before["label"]


def test_no_image_is_kept_if_none_is_wanted(model_file: Path, pool_folder: Path) -> None:
    opened = service(model_file, pool_folder, thumbnails=0, poll=0.05)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        client.post("/v1/predict?domain=a", files=files(png()))
        until(lambda: opened.watches.of("a").compared)
        assert client.get("/v1/domains/a/recent").json() == []


def test_traffic_is_counted_and_summed_over_processes(client: TestClient, model_file: Path, pool_folder: Path) -> None:
    for seed in range(3):
        client.post("/v1/predict?domain=a", files=files(png(seed=seed), b"broken"))
    until(lambda: client.get("/v1/domains/a").json()["requests"] == 3)
    other = service(model_file, pool_folder, poll=0.05)
    with TestClient(create_app(other), base_url="http://127.0.0.1") as second:
        second.post("/v1/predict?domain=a", files=files(png()))
        until(lambda: second.get("/v1/domains/a").json()["requests"] == 4)
        found = client.get("/v1/domains/a").json()
    assert (found["images"], found["errors"]) == (4, 3) and found["images_per_minute"] == 4
    assert found["latency"]["p50_ms"] > 0 and found["health"] == "warning"
    assert "cannot be decoded" in found["reasons"][0]


def test_the_gain_on_live_traffic_needs_fifty_images(client: TestClient) -> None:
    watch = served(client).watches.of("a")
    watch.version = 1
    watch.compared.extend([(0, 0), (0, 1), (0, 2), (1, 1)] * 12)
    served(client).watches._changed.add("a")
    until(lambda: served(client).pool.index.traffic(0).get("a"))
    assert client.get("/v1/domains/a").json()["live_gain"] is None
    watch.compared.extend([(0, 1), (0, 2)] * 3)
    served(client).watches._changed.add("a")
    gain = until(lambda: client.get("/v1/domains/a").json()["live_gain"])
    assert gain["low"] <= gain["gain"] <= gain["high"] and gain["gain"] > 0 and gain["images"] == 54
    assert gain["verdict"] == "uncertain"  # without labels, traffic alone proves no improvement


def test_ready_live_metrics_and_the_page(client: TestClient) -> None:
    assert client.get("/live").json() == {"status": "live"} and client.get("/ready").json() == {"status": "ready"}
    client.post("/v1/predict?domain=b", content=png(), headers=RAW)
    text = until(lambda: (found := client.get("/metrics").text) and "dept_domains 3.0" in found and found)
    assert 'dept_images_total{domain="b"} 1.0' in text and 'dept_active_version{domain="a"} 1.0' in text
    assert 'dept_requests_total{route="/v1/predict",status="200"} 1.0' in text
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/docs").status_code == 404  # it would fetch scripts from elsewhere
    info = client.get("/v1/server").json()
    assert info["domains"] == ["a", "b", "norms"] and info["you"] == "local" and "tent" in info["online_methods"]
    assert "cfa" not in info["online_methods"]  # it needs source statistics, which the server does not have
