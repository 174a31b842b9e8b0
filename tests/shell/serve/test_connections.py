"""Connections: their clock tells requests apart, and closes those that stand still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from multitudes.shell.serve.connections import patient


class Clock:
    """A loop whose time is set by hand."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)


def connection() -> Any:
    """A connection of 4 seconds, without a network."""
    kind = patient(4)
    made: Any = kind.__new__(kind)
    made.loop, made.cycle, made.aborted = Clock(), None, False
    made.transport = SimpleNamespace(abort=lambda: setattr(made, "aborted", True))
    made._seen, made._since = None, 0.0
    return made


class Request:
    """What uvicorn holds of a request."""

    def __init__(self, done: bool) -> None:
        self.response_complete = done


def test_a_new_request_at_the_place_of_an_old_one_is_new() -> None:
    """Python gives the next object the place of the last one, so that their ids are equal."""
    one = connection()
    for second in range(1, 20):
        one.cycle = None  # the last request is forgotten, and its place is free
        one.cycle = Request(done=True)
        one.loop.now = float(second)
        one._look()
        assert not one.aborted, f"closed after {second} seconds, a request in each"


@pytest.mark.parametrize(("done", "most"), [(None, 4), (True, 4), (False, 12)])
def test_a_connection_that_stands_still_is_closed(done: bool | None, most: int) -> None:
    """A request that is not answered has the time of its body, its answer and the reading of it."""
    one = connection()
    one.cycle = None if done is None else Request(done)
    for second in range(1, most + 3):
        one.loop.now = float(second)
        one._look()
        assert one.aborted == (second > most + 1), second
