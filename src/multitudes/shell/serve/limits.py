"""Limits: how much a server takes at once, so that no request can exhaust it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from multitudes.settings import Count, Settings, above, at_least, check_rules, check_settings, explained


@explained
@dataclass(frozen=True, kw_only=True)
class Limits(Settings):
    """What a server refuses to exceed. Requests beyond a limit are answered with an error, and never dropped in silence."""

    batch: Count = 32
    """Most rows in one run of the network."""

    wait: Annotated[float, at_least(0)] = 2.0
    """Milliseconds that a row waits for others to fill its batch."""

    queue: Count = 256
    """Most rows that wait or run. A request beyond them is answered with 503 and Retry-After."""

    rows: Count = 128
    """Most rows in a request."""

    body: Count = 16 * 2**20
    """Most bytes in the body of a request."""

    pixels: Count = 2**25
    """Most pixels in the images of a request, together, before they are resized."""

    timeout: Annotated[float, above(0)] = 30.0
    """Seconds that a body may take to arrive, and an answer to be computed."""

    connections: Count = 512
    """Most connections at once. Those beyond them are answered with 503."""

    def __post_init__(self) -> None:
        check_settings(self)
        check_rules(
            self, (self.rows > self.queue, "rows queue", "a request must fit the queue: make rows smaller or queue larger")
        )
