"""Connections: those whose client sends or reads nothing for too long are closed, so that they take no other's place."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[H11Protocol]:
    """Returns uvicorn's protocol with limits on time.

    seconds   a request must begin within so many seconds, its headers complete. Its body, its answer and the reading of the
              answer have as many each
    """

    class Patient(H11Protocol):
        """A connection with a clock."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._seen: Any = None
            self._since = self.loop.time()
            self._clock = self.loop.call_later(seconds / 4, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            self._clock.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Closes the connection if its state has not changed for too long.

            The request that was seen is kept: were only its id, a later one could have the same.
            """
            asked = self.cycle is not None and not self.cycle.response_complete
            seen = (self.cycle, asked)
            if seen != self._seen:
                self._seen, self._since = seen, self.loop.time()
            if self.loop.time() - self._since > (3 if asked else 1) * seconds:
                self.transport.abort()
                return
            self._clock = self.loop.call_later(seconds / 4, self._look)

    return Patient
