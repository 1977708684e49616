"""A real server process: SIGTERM drains, the command line says what is wrong, several processes share a folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from serve_support import png, until

from dept.cli.main import main
from dept.errors import DeptError
from dept.serve import server
from dept.serve.client import Client, Refused
from dept.serve.tokens import new_token


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(model_file: Path, folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    words = ["serve", str(model_file), "--adapters", str(folder), "--port", str(port), "--device", "cpu", *flags]
    words += [] if "--token-file" in flags else ["--no-auth"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dept", *words], stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )

    def ready() -> bool:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        try:
            return bool(Client(f"http://127.0.0.1:{port}").call("GET", "/ready"))
        except DeptError:
            return False

    try:
        until(ready, 300, 0.2)
    except BaseException:
        process.terminate()
        process.wait(60)
        raise
    return process, port


def test_sigterm_answers_what_was_accepted_and_no_token_is_printed(
    model_file: Path, pool_folder: Path, tmp_path: Path
) -> None:
    token = new_token(tmp_path / "tokens.txt", "alice", "operate")
    # A long wait for company: the requests are in the queue when the signal comes.
    flags = ("--token-file", str(tmp_path / "tokens.txt"), "--wait-ms", "1500")
    process, port = start(model_file, pool_folder, *flags)
    url, answers = f"http://127.0.0.1:{port}", []
    with pytest.raises(Refused, match="401"):
        Client(url).predict(png(), domain="a")

    def ask(domain: str) -> None:
        answers.append(Client(url, token).predict(png(), domain=domain)[0]["domain"])

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b", "source")]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    said = process.communicate(timeout=30)[1].decode()
    assert sorted(answers) == ["a", "b", "source"] and process.returncode in (0, -signal.SIGTERM)
    assert token not in said and "Serving 3 domains" in said and "Traceback" not in said
    with pytest.raises(DeptError, match="cannot be reached"):
        Client(url, token).domains()


def test_several_processes_serve_one_folder(model_file: Path, pool_folder: Path, adapters: Path) -> None:
    process, port = start(model_file, pool_folder, "--workers", "2")
    url = f"http://127.0.0.1:{port}"

    def clients() -> dict[str, Client]:
        """A connection to each process: which one answers is up to the system."""
        found: dict[str, Client] = {}
        for _ in range(200):
            opened = Client(url)
            found.setdefault(opened.call("GET", "/v1/server")["process"], opened)
            if len(found) == 2:
                break
        return found

    try:
        job = Client(url).adapt("a", [png()], method="t3a")["id"]
        Client(url).call("POST", f"/v1/jobs/{job}/cancel")
        assert Client(url).wait(job)["state"] == "cancelled"
        assert Client(url).call("DELETE", f"/v1/jobs/{job}") == ""  # an answer without a body
        one, two = until(lambda: len(found := clients()) == 2 and list(found.values()), 120)
        version = one.upload("a", adapters / "b.safetensors")["number"]
        began = time.monotonic()
        until(lambda: two.predict(png(), domain="a")[0]["version"] == version, 10)
        waited = time.monotonic() - began
        assert one.predict(png(), domain="a")[0]["version"] == version

        def counted() -> float:
            lines = one.call("GET", "/metrics").splitlines()
            return sum(float(line.split()[1]) for line in lines if line.startswith("dept_images_t"))

        until(lambda: counted() == two.domains()[0]["images"] >= 2)  # both of one sum, which is written now and then
        assert waited < 2 + 3 * os.getloadavg()[0]  # on a machine that has nothing else to do: 2 s
    finally:
        process.terminate()
        process.wait(60)


def test_the_command_line_refuses_with_a_sentence(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code, said in (
        ([str(model_file), "--adapters", str(tmp_path)], 2, "--token-file"),
        ([str(model_file), "--adapters", str(tmp_path), "--no-auth", "--host", "0.0.0.0"], 2, "loopback"),
        ([str(tmp_path / "no.safetensors"), "--adapters", str(tmp_path), "--no-auth"], 3, "does not exist"),
        ([str(model_file), "--adapters", str(model_file), "--no-auth"], 2, "folder"),
        ([str(model_file), "--adapters", str(tmp_path), "--token-file", str(tmp_path / "none")], 3, "dept token"),
    ):
        assert main(["serve", *words]) == code
        told = capsys.readouterr().err
        assert said in told and "Serving" not in told


def test_an_address_that_is_taken_is_refused_before_the_model_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_text("never read")
    words = ["serve", str(tmp_path / "model.safetensors"), "--adapters", str(tmp_path / "pool"), "--no-auth", "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main([*words, port]) == 2
    assert f"--port {port}" in capsys.readouterr().err


def test_a_model_of_the_hub_is_fetched_once_for_all_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "located", lambda place, names: tmp_path / f"{place}".replace(":", "/") / names[0])
    assert main(["serve", "hf-hub:user/repo", "--adapters", str(tmp_path), "--no-auth"]) == 3
    assert "hf-hub/user/repo/model.safetensors does not exist" in capsys.readouterr().err


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    for limits, expected in (((1024, 4096), 4096), ((1024, 10**6), server.OPEN_FILES), ((10**5, 10**6), 10**5)):
        made: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda kind, found=limits: found)
        monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted, made=made: made.append(wanted))
        server._allow_open_files()
        assert made == [(expected, limits[1])]


def test_a_client_survives_a_connection_that_the_server_has_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):  # one answer per connection, without a word about its end
                peer, _ = listening.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert client.call("GET", "/ready") == {}
        time.sleep(0.2)
        assert client.call("GET", "/ready") == {}
        client.close()
        thread.join()


def test_a_token_is_made_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.txt"
    assert main(["token", "alice", "--role", "operate", "--file", str(file)]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.strip()) > 40 and printed.out.strip() not in file.read_text() + printed.err
    assert main(["token", "alice", "--file", str(file)]) == 2
