"""Forms: the files of a multipart body, all of them or none. A body that was cut must not lose its last file in silence."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from multitudes.shell.serve.bodies import Refused
from multitudes.shell.serve.limits import Limits


class Form(MultiPartParser):
    """Starlette's parser, which also counts the parts as they begin, and knows whether the last boundary came."""

    parts = 0
    most = 0
    is_whole = False

    def on_part_begin(self) -> None:
        """Counts a part; refuses those beyond the limit before they are held."""
        self.parts += 1
        if self.parts > self.most:
            raise Refused(413, f"the form has too many images: send at most {self.most} in a request")
        super().on_part_begin()

    def on_end(self) -> None:
        """The last boundary has come."""
        self.is_whole = True


async def read_files(request: Request, limits: Limits) -> list[bytes]:
    """Returns the files of a form; refuses one with other fields, with too many files, or without its end."""

    async def whole() -> AsyncGenerator[bytes, None]:
        async for part in request.stream():
            yield part
        if not parser.is_whole:  # raised here, where the parser still closes what it holds
            raise Refused(400, "the form has no end: its last boundary is missing")

    parser = Form(request.headers, whole(), max_files=limits.rows, max_fields=0, max_part_size=limits.body)
    parser.most = limits.rows
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refused(400, f"the form cannot be read: {error.message}") from None
    try:
        return [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]
    finally:
        await form.close()
