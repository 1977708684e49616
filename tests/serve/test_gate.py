"""Who may do what, and what is refused before it is read."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from serve_support import png, service
from starlette.exceptions import HTTPException

from dept.errors import DataError, UsageError
from dept.serve import gate
from dept.serve.api import create_app
from dept.serve.gate import Buckets, _Limited
from dept.serve.options import ServeOptions
from dept.serve.tokens import new_token, read_tokens

RAW = {"content-type": "image/png"}


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, str, str]:
    file = tmp_path / "tokens.txt"
    return file, new_token(file, "camera", "predict"), new_token(file, "alice", "operate")


@pytest.fixture
def guarded(model_file: Path, pool_folder: Path, tokens: tuple[Path, str, str]) -> Any:
    opened = service(model_file, pool_folder, no_auth=False, token_file=tokens[0])
    with TestClient(create_app(opened)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_without_a_token_only_the_open_routes_answer(guarded: TestClient) -> None:
    for path in ("/", "/live", "/ready", "/openapi.json"):
        assert guarded.get(path).status_code == 200
    for method, path in (
        ("POST", "/v1/predict"),
        ("GET", "/v1/domains"),
        ("GET", "/metrics"),
        ("DELETE", "/v1/jobs/x"),
    ):
        answer = guarded.request(method, path)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    for header in ("Bearer wrong", "Bearer ", "Basic YTpi", "bearer", "Bearer \u00e9"):
        assert guarded.get("/v1/server", headers={"authorization": header.encode()}).status_code in (401, 429)


def test_every_route_but_three_needs_the_role_operate(guarded: TestClient, tokens: tuple[Path, str, str]) -> None:
    _, camera, alice = tokens
    allowed = {("post", "/v1/predict"), ("get", "/v1/server"), ("get", "/metrics")}
    for path, operations in guarded.get("/openapi.json").json()["paths"].items():
        for method in operations:
            if path in ("/live", "/ready"):
                continue
            place = path.replace("{domain}", "a").replace("{version}", "1").replace("{job}", "x")
            status = guarded.request(method, place, headers=bearer(camera)).status_code
            assert (status != 403) == ((method, path) in allowed), (method, path, status)
    assert guarded.get("/v1/domains", headers=bearer(alice)).status_code == 200
    predicted = guarded.post("/v1/predict?domain=a", content=png(), headers=bearer(camera) | RAW)
    assert predicted.status_code == 200


def test_the_history_names_the_token(guarded: TestClient, tokens: tuple[Path, str, str]) -> None:
    guarded.put("/v1/domains/a/pin", json={"pinned": True}, headers=bearer(tokens[2]))
    assert guarded.get("/v1/domains/a/history", headers=bearer(tokens[2])).json()[0]["made_by"] == "alice"


def test_no_token_is_logged_or_stored(
    guarded: TestClient, tokens: tuple[Path, str, str], caplog: pytest.LogCaptureFixture, pool_folder: Path
) -> None:
    file, camera, alice = tokens
    with caplog.at_level(logging.DEBUG):
        guarded.get("/v1/server", headers=bearer(camera))
        guarded.get("/v1/server", headers=bearer("wrong-token"))
        guarded.post("/v1/domains/a/rollback", headers=bearer(alice))
    stored = b"".join(path.read_bytes() for path in pool_folder.rglob("*") if path.is_file()) + file.read_bytes()
    for token in (camera, alice, "wrong-token"):
        assert token not in caplog.text and token.encode() not in stored
    assert hashlib.sha256(camera.encode()).hexdigest() in file.read_text() and file.stat().st_mode & 0o077 == 0


def test_a_body_that_is_too_large_is_refused(model_file: Path, pool_folder: Path) -> None:
    opened = service(model_file, pool_folder, max_body_mb=1)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        said = client.post("/v1/predict?domain=a", content=bytes(1_100_000), headers=RAW)
        assert said.status_code == 413

        def chunks() -> Any:
            yield from [bytes(100_000)] * 12  # without a length

        unsaid = client.post("/v1/predict?domain=a", content=chunks(), headers=RAW)
        assert unsaid.status_code == 413 and "1 MB" in unsaid.json()["detail"]
        settings = client.put("/v1/domains/a/pin", content=bytes(1_100_000))
        assert settings.status_code == 413
        assert client.post("/v1/predict?domain=a", content=png(), headers=RAW).status_code == 200


def test_a_body_that_comes_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)

    async def never() -> Any:
        await asyncio.sleep(10)

    with pytest.raises(HTTPException) as caught:
        asyncio.run(_Limited(never, 100)())
    assert caught.value.status_code == 408


def test_the_rate_of_a_caller_is_limited_and_recovers() -> None:
    now = 0.0
    buckets = Buckets(2.0, clock=lambda: now)
    assert [buckets.wait("a") for _ in range(4)] == [0.0] * 4
    assert buckets.wait("a") == pytest.approx(0.5) and buckets.wait("b") == 0.0
    now = 0.5
    assert buckets.wait("a") == 0.0 and buckets.wait("a") > 0
    assert Buckets(0).wait("a") == 0.0


def test_a_caller_above_the_rate_gets_429(model_file: Path, pool_folder: Path) -> None:
    opened = service(model_file, pool_folder, rate=1)
    with TestClient(create_app(opened), base_url="http://127.0.0.1") as client:
        answers = [client.get("/v1/server") for _ in range(4)]
        assert [answer.status_code for answer in answers][:2] == [200, 200]
        assert answers[-1].status_code == 429 and answers[-1].headers["retry-after"] == "1"


def test_other_web_pages_and_other_names_are_refused(client: TestClient) -> None:
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}, {"origin": "null"}):
        assert client.post("/v1/domains/a/rollback", headers=headers).status_code == 403
    for headers in ({"origin": "http://["}, {"host": "["}):
        assert client.get("/v1/server", headers=headers).status_code == 400
    own = client.get("/v1/server", headers={"origin": "http://127.0.0.1"})
    assert own.status_code == 200
    for header in ("x-content-type-options", "x-frame-options", "cache-control"):
        assert header in own.headers
    assert "access-control-allow-origin" not in own.headers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "dept token"),
        ({"no_auth": True, "host": "0.0.0.0"}, "loopback"),
        ({"no_auth": True, "host": "example.org"}, "loopback"),
        ({"no_auth": True, "token_file": Path("x")}, "contradict"),
        ({"no_auth": True, "port": 70_000}, "65535"),
        ({"no_auth": True, "queue": 0}, "queue"),
    ],
)
def test_a_server_without_protection_does_not_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ServeOptions(**settings)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "root alice " + "0" * 64, "operate alice secret-token", "operate " + "0" * 64]
)
def test_a_bad_token_file_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_tokens(file)
    assert "secret-token" not in str(caught.value)


def test_a_name_has_one_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    token = new_token(file, "alice", "operate")
    with pytest.raises(UsageError, match="already"):
        new_token(file, "alice", "predict")
    with pytest.raises(UsageError, match="letters"):
        new_token(file, "a b", "predict")
    caller = read_tokens(file).caller(token)
    assert caller is not None and (caller.name, caller.role) == ("alice", "operate")
    assert read_tokens(file).caller(token + "x") is None
