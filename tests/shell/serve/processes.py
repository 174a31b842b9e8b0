"""Servers in processes of their own, as the shell starts them."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(file: Path, port: int, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a server, and returns when it answers."""
    command = [sys.executable, "-m", "multitudes", "serve", str(file), "--port", str(port), "--threads", "1", *options]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        with contextlib.suppress(OSError):
            if asked(port, "GET", "/health", timeout=5)[0] == 200:
                return process
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


def asked(port: int, method: str, path: str, body: Any = None, timeout: float = 30, **headers: str) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def running(file: Path, *options: str, **environment: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server for a with-block; it is asked to stop at the end."""
    port = free_port()
    process = started(file, port, *options, **environment)
    try:
        yield port, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
