"""A limit on the bodies of requests, kept while they arrive: what is too large is never held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BodyLimit:
    """Middleware that refuses bodies of more than `most` bytes, by their announced length or while they arrive."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]], most: int) -> None:
        self.app = app
        self.most = most

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Passes a request on, and counts the bytes of its body."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        text = f"the body is too large: send at most {self.most} bytes"
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self.most:
            return await JSONResponse({"detail": text}, 413, {"Connection": "close"})(scope, receive, send)
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.most:
                raise HTTPException(413, text, {"Connection": "close"})
            return message

        await self.app(scope, counted, send)
