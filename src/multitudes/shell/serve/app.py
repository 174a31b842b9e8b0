"""App: the routes of the server. `/predict` takes rows, `/health` and `/metrics` say how it is, `/` is a page to try it."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from multitudes.errors import RunError
from multitudes.shell.serve import bodies
from multitudes.shell.serve.batching import Batcher, QueueFull
from multitudes.shell.serve.bodies import Refused
from multitudes.shell.serve.body_limit import BodyLimit
from multitudes.shell.serve.forms import read_files
from multitudes.shell.serve.graph import Arrays, Graph
from multitudes.shell.serve.limits import Limits
from multitudes.shell.serve.metrics import Metrics
from multitudes.shell.serve.openapi import HEALTH, METRICS, predict_schema
from multitudes.shell.serve.page import headers, page
from multitudes.version import __version__

SMALL = 2**16
"""Bytes of a body that is decoded at once; decoding a longer one would keep others waiting."""

DECODERS = 2
"""Threads that decode long bodies and images: each may hold an image in full size."""


class Server:
    """A graph, its queue and its metrics."""

    def __init__(self, graph: Graph, limits: Limits, token: str | None) -> None:
        self.graph = graph
        self.limits = limits
        self.token = token
        self.metrics = Metrics(graph)
        self.batcher = Batcher(graph.run, limits, self.metrics.count_batch)
        self.metrics.queue.set_function(lambda: self.batcher.held)
        self.decoders = anyio.CapacityLimiter(DECODERS)

    def knows(self, request: Request) -> bool:
        """Whether the request has the token, or needs none. The comparison takes the same time for every wrong token."""
        if self.token is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode())

    def check_token(self, request: Request) -> None:
        """Refuses a request without the token."""
        if not self.knows(request):
            raise HTTPException(401, "a token is needed: send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    async def predict(self, request: Request) -> Response:
        """Answers a request to `/predict`, and counts it."""
        start = time.perf_counter()
        try:
            response = await self._predict(request)
        except Refused as refused:
            response = _error(refused.status, refused.text)
        except HTTPException as refused:
            response = _error(refused.status_code, refused.detail, refused.headers)
        except ClientDisconnect:
            response = _error(400, "the connection ended before the body was whole")
        self.metrics.requests.labels(str(response.status_code)).inc()
        self.metrics.seconds.observe(time.perf_counter() - start)
        return response

    async def _predict(self, request: Request) -> Response:
        self.check_token(request)
        wanted = self._wanted(request)
        try:
            arrays, notes = await asyncio.wait_for(self._arrays(request), self.limits.timeout)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.timeout:g} seconds") from None
        try:
            outputs = await asyncio.wait_for(self.batcher.submit(arrays), self.limits.timeout)
        except QueueFull:
            raise HTTPException(503, "the queue is full: try again later", {"Retry-After": "1"}) from None
        except asyncio.TimeoutError:
            raise Refused(
                504, f"no answer within {self.limits.timeout:g} seconds: send fewer rows, or try again later"
            ) from None
        except RunError as error:
            raise Refused(422, str(error)) from None
        _check_finite(outputs)
        return _answer({name: outputs[name] for name in wanted}, notes)

    def _wanted(self, request: Request) -> tuple[str, ...]:
        """Returns the outputs that `?outputs=label,probs` asks for; all by default."""
        asked = request.query_params.get("outputs")
        if asked is None:
            return self.graph.outputs
        names = tuple(dict.fromkeys(asked.split(",")))
        if unknown := [name for name in names if name not in self.graph.outputs]:
            raise Refused(422, f"there is no output {unknown[0][:100]!r}. Outputs: {', '.join(self.graph.outputs)}")
        return names

    async def _arrays(self, request: Request) -> tuple[Arrays, list[str]]:
        """Returns the rows of a request in the form of its content type, and notes on them."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        inputs, limits = self.graph.inputs, self.limits
        if kind == "multipart/form-data":
            files = await read_files(request, limits)
            return await self._aside(lambda: bodies.from_images(files, inputs, limits))
        if kind in ("image/png", "image/jpeg"):
            body = await request.body()
            return await self._aside(lambda: bodies.from_images([body], inputs, limits))
        read = {"application/json": bodies.from_json, "application/octet-stream": bodies.from_bytes}.get(kind)
        if read is None:
            raise Refused(415, "send application/json, application/octet-stream, image/png, image/jpeg or multipart/form-data")
        body = await request.body()
        if len(body) <= SMALL:
            return read(body, inputs, limits), []
        return await self._aside(lambda: read(body, inputs, limits)), []

    async def _aside(self, decode: Callable[[], Any]) -> Any:
        """Decodes in another thread, so that others need not wait."""
        return await anyio.to_thread.run_sync(decode, limiter=self.decoders)

    def health(self, request: Request) -> Response:
        """Says whether rows are answered, and to whom it knows what is served."""
        status = "ok" if self.batcher.alive else "stopping"
        about = self._about() if self.knows(request) else {}
        return _json({"status": status, **about}, 200 if self.batcher.alive else 503)

    def _about(self) -> dict[str, Any]:
        about, limits = self.graph.about, self.limits
        return {
            "file": self.graph.name, "task": about.task, "method": about.method, "members": about.members,
            "inputs": [vars(one) | {"image": one.is_image and len(self.graph.inputs) == 1} for one in self.graph.inputs],
            "outputs": self.graph.outputs, "labels": about.labels,
            "threshold": None if about.threshold is None else vars(about.threshold),
            "reference": None if (watch := self.metrics.watch) is None else {
                "score": watch.score, "line": watch.line, "expected_rate": watch.expected, "rate": watch.recent.share,
                "rows": watch.recent.rows, "alarm": watch.alarm,
            },
            "limits": {name: getattr(limits, name) for name in ("batch", "queue", "rows", "body", "pixels", "timeout")},
            "notes": self.graph.notes, "version": __version__,
        }  # fmt: skip


def make_app(graph: Graph, limits: Limits | None = None, token: str | None = None) -> FastAPI:
    """Returns the application. Its queue is answered to the end when it is shut down."""
    limits = limits or Limits()
    server = Server(graph, limits, token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(server.batcher.close)

    app = FastAPI(title=f"multitudes: {graph.name}", version=__version__, openapi_url=None, lifespan=lifespan)
    app.state.server = server
    app.add_middleware(BodyLimit, most=limits.body)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(Exception, _failed)
    text = page().encode()

    @app.post("/predict", summary="Predict rows, with uncertainty", **predict_schema(graph, limits, token is not None))
    async def predict(request: Request) -> Response:
        return await server.predict(request)

    @app.get("/health", summary="Whether rows are answered, and what is served", responses=HEALTH)
    async def health(request: Request) -> Response:
        return server.health(request)

    @app.get("/metrics", summary="Metrics for Prometheus", responses=METRICS)
    async def metrics(request: Request) -> Response:
        server.check_token(request)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json", include_in_schema=False)
    async def schema(request: Request) -> Response:
        server.check_token(request)
        return _json(app.openapi())

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return Response(text, media_type="text/html; charset=utf-8", headers=headers())

    if token is not None:
        app.openapi().setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return app


def _check_finite(outputs: Arrays) -> None:
    """Refuses rows with an output that is not finite, asked for or not: a label of probabilities that are NaN says nothing."""
    for name, value in outputs.items():
        if value.dtype.kind == "f" and not (finite := np.isfinite(value)).all():
            row = int((~finite).reshape(len(value), -1).any(1).argmax())
            raise Refused(422, f"the network's answer to row {row} is not a finite number: see {name}")


def _answer(outputs: Arrays, notes: list[str]) -> Response:
    """Returns outputs as JSON, one array per output."""
    return _json(
        {**{name: np.ascontiguousarray(value) for name, value in outputs.items()}, **({"notes": notes} if notes else {})}
    )


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(
        body, status, media_type="application/json", headers={"X-Content-Type-Options": "nosniff", **(headers or {})}
    )


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json({"detail": text}, status, headers)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail), error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answers what should not happen without saying what it was: that is in the log."""
    return _error(500, "an error of the server: its log has the details")
