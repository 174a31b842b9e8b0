"""The command `multitudes serve`: checks the file and the token, and runs the server until it is stopped."""

from __future__ import annotations

import ipaddress
import os
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from multitudes.errors import FileError, InputError
from multitudes.shell.serve.limits import Limits

if TYPE_CHECKING:
    from multitudes.shell.serve.graph import Graph

NEEDED = ("fastapi", "multipart", "onnx", "onnxruntime", "orjson", "PIL", "prometheus_client", "uvicorn")
"""Modules of the extra `serve`."""

TOKEN = "MULTITUDES_TOKEN"
"""Environment variable of the token. A token on the command line would be seen in the list of processes."""


def check_installed() -> None:
    """Says what to install if a part of the extra is missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise InputError(f"serve needs {', '.join(missing)}: pip install 'multitudes[serve]'")


def find_token(file: Path | None) -> str | None:
    """Returns the token of a file, or of the environment; None if there is neither."""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read the token in {file}: {error}") from error
    elif (given := os.environ.get(TOKEN)) is not None:
        text = given
    else:
        return None
    if not text.strip():
        raise InputError(f"the token in {file or TOKEN} is empty: write one, or leave it out to serve without")
    token = text.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(
            f"the token in {file or TOKEN} must be one word of ASCII letters, digits and signs, as headers take it"
        )
    return token


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    path: str | PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    threads: int = 0,
    token: str | None = None,
) -> None:
    """Serves an ONNX file until SIGINT or SIGTERM; requests that have arrived are answered before it ends."""
    check_installed()

    from multitudes.shell.serve.graph import load_graph

    run(load_graph(path, threads), host=host, port=port, limits=limits or Limits(), token=token)


def run(graph: Graph, *, host: str, port: int, limits: Limits, token: str | None) -> None:
    """Runs uvicorn with the limits."""
    import uvicorn

    from multitudes.shell.serve.app import make_app
    from multitudes.shell.serve.connections import patient

    config = uvicorn.Config(
        make_app(graph, limits, token), host=host, port=port, log_level="warning", access_log=False, server_header=False,
        limit_concurrency=limits.connections, timeout_keep_alive=max(5, round(limits.timeout)), lifespan="on",
        timeout_graceful_shutdown=round(2 * limits.timeout) + 1, ws="none", proxy_headers=False,
        http=patient(limits.timeout), h11_max_incomplete_event_size=2**16,
    )  # fmt: skip
    uvicorn.Server(config).run()
