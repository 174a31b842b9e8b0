"""The command: a server in a process of its own starts, answers, stops with grace, and comes back after a kill."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from shell.serve.graphs import classifier, expected, saved
from shell.serve.processes import asked, free_port, running, started
from typer.testing import CliRunner

import multitudes as mt
from multitudes.shell.commands import app
from multitudes.shell.serve.command import NEEDED, find_token, is_local
from multitudes.shell.serve.limits import Limits

X = np.random.default_rng(3).normal(size=(4, 5)).astype(np.float32)
JSON = {"Content_Type": "application/json"}
ROWS = json.dumps({"rows": X.tolist()})


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTITUDES_TOKEN", raising=False)
    assert find_token(None) is None
    monkeypatch.setenv("MULTITUDES_TOKEN", "abc\n")
    assert find_token(None) == "abc"
    (tmp_path / "token").write_text(" def\n")
    assert find_token(tmp_path / "token") == "def"
    for text in ("", "  \n", "two words", "é"):
        (tmp_path / "token").write_text(text)
        with pytest.raises(mt.InputError, match="token"):
            find_token(tmp_path / "token")
    with pytest.raises(mt.FileError, match="cannot read the token"):
        find_token(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("a.b", False),
    ],
)
def test_which_addresses_are_local(host: str, local: bool) -> None:
    assert is_local(host) == local


def test_other_machines_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTITUDES_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["serve", str(saved(tmp_path)), "--host", "0.0.0.0"])
    assert isinstance(result.exception, mt.InputError)
    assert "--token-file" in str(result.exception)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multitudes.shell.serve.command.find_spec", lambda name: None if name == "uvicorn" else name)
    result = CliRunner().invoke(app, ["serve", str(saved(tmp_path))])
    assert str(result.exception) == "serve needs uvicorn: pip install 'multitudes[serve]'"
    assert "uvicorn" in NEEDED


def test_limits_are_checked() -> None:
    with pytest.raises(mt.InputError, match="rows smaller or queue larger"):
        Limits(queue=8, rows=9)
    with pytest.raises(mt.InputError, match="batch must be"):
        Limits(batch=0)


@pytest.mark.slow
def test_a_server_answers_and_says_no_more_than_it_should(tmp_path: Path) -> None:
    """Also that it loads no torch, and shows no token among the processes."""
    with running(saved(tmp_path), MULTITUDES_TOKEN="hidden-token") as (port, process):
        status, body = asked(port, "POST", "/predict", ROWS, Authorization="Bearer hidden-token", **JSON)
        assert status == 200
        np.testing.assert_allclose(json.loads(body)["probs"], expected(X)["probs"], rtol=1e-4)
        assert asked(port, "POST", "/predict", ROWS, **JSON)[0] == 401
        assert b"hidden-token" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.slow
def test_a_stop_answers_what_has_arrived(tmp_path: Path) -> None:
    """Requests that wait for their batch when SIGTERM comes are answered; then nobody listens."""
    answers: list[tuple[int, bytes]] = []
    with running(saved(tmp_path), "--wait", "1500", "--batch", "100") as (port, process):

        def ask() -> None:
            answers.append(asked(port, "POST", "/predict", ROWS, **JSON))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        time.sleep(0.7)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(20)
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert [status for status, _ in answers] == [200] * 5
        with pytest.raises(OSError):
            asked(port, "GET", "/health")


@pytest.mark.slow
def test_killed_and_started_again(tmp_path: Path) -> None:
    """On the same port, three times, with a request under way."""
    file, port = saved(tmp_path), free_port()
    for _ in range(3):
        process = started(file, port, "--wait", "300", "--batch", "100")
        with socket.create_connection(("127.0.0.1", port)) as under_way:
            head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(ROWS)}\r\n\r\n"
            under_way.sendall((head + ROWS).encode())
            assert asked(port, "POST", "/predict", ROWS, **JSON)[0] == 200
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_slow_body_and_a_large_head_are_refused(tmp_path: Path) -> None:
    with running(saved(tmp_path, classifier(described=False)), "--timeout", "0.5") as (port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in slow.recv(1000)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as large:
            large.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
            assert b" 400 " in large.recv(1000)
        assert asked(port, "GET", "/health")[0] == 200


@pytest.mark.slow
def test_clients_that_send_nothing_take_no_places(tmp_path: Path) -> None:
    """Neither before a request, nor within its head, nor after an answer."""
    with running(saved(tmp_path), "--timeout", "1") as (port, _):
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(520)]
        for one in silent[::3]:
            one.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nX: ")
        for one in silent[1:7:3]:  # so few that places come free only if the silent ones are closed
            one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert asked(port, "GET", "/health")[0] == 503
        deadline = time.monotonic() + 20
        while asked(port, "GET", "/health")[0] == 503 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert asked(port, "GET", "/health")[0] == 200
        for one in silent:
            with one, contextlib.suppress(ConnectionResetError):
                while one.recv(10_000):  # an answer may come first; a connection that is kept open ends in a timeout
                    pass
