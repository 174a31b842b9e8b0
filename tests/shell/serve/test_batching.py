"""Batching: rows share batches, none is lost or mixed up, and none spoils others."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from multitudes.errors import RunError
from multitudes.shell.serve.batching import Batcher, QueueFull
from multitudes.shell.serve.limits import Limits


class Network:
    """Doubles rows and remembers the sizes of batches; a negative number fails, and it waits while it is held."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
        self.free.wait(10)
        self.sizes.append(len(arrays["x"]))
        if (arrays["x"] < 0).any():
            raise ValueError("negative")
        return {"y": 2 * arrays["x"]}


def rows(*values: float) -> dict[str, Any]:
    return {"x": np.array(values)[:, None]}


def run(network: Network, limits: Limits, scene: Any) -> None:
    async def play() -> None:
        batcher = Batcher(network, limits)
        try:
            await asyncio.wait_for(scene(batcher), 20)
        finally:
            network.free.set()
            batcher.close()

    asyncio.run(play())


def test_requests_share_batches_and_keep_their_rows() -> None:
    network = Network()

    async def scene(batcher: Batcher) -> None:
        requests = [rows(*range(i, i + 1 + i % 3)) for i in range(60)]
        answers = await asyncio.gather(*map(batcher.submit, requests))
        for request, answer in zip(requests, answers, strict=True):
            np.testing.assert_array_equal(answer["y"], 2 * request["x"])

    run(network, Limits(batch=8, wait=50), scene)
    assert max(network.sizes) <= 8
    assert sum(network.sizes) == sum(1 + i % 3 for i in range(60))
    assert len(network.sizes) < 30


def test_a_row_does_not_wait_for_ever() -> None:
    network = Network()

    async def scene(batcher: Batcher) -> None:
        start = time.perf_counter()
        await batcher.submit(rows(1))
        assert time.perf_counter() - start < 5

    run(network, Limits(batch=8, wait=20), scene)
    assert network.sizes == [1]


def test_a_large_request_runs_in_parts() -> None:
    """And each part is told as a batch, since it is one for the network."""
    network = Network()
    told: list[int] = []

    async def scene(batcher: Batcher) -> None:
        batcher._on_batch = lambda rows, outputs: told.append(rows)
        np.testing.assert_array_equal((await batcher.submit(rows(*range(21))))["y"][:, 0], 2 * np.arange(21))

    run(network, Limits(batch=8), scene)
    assert network.sizes == told == [8, 8, 5]


def test_beyond_the_queue_is_refused_and_the_rest_answered() -> None:
    network = Network()
    network.free.clear()

    async def scene(batcher: Batcher) -> None:
        waiting = [asyncio.create_task(batcher.submit(rows(i))) for i in range(10)]
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await batcher.submit(rows(99))
        assert batcher.held == 10
        network.free.set()
        assert [float((await one)["y"][0, 0]) for one in waiting] == [2.0 * i for i in range(10)]
        assert (await batcher.submit(rows(4)))["y"][0, 0] == 8
        assert batcher.held == 0

    run(network, Limits(batch=4, queue=10, rows=10), scene)


def test_a_failing_row_spoils_no_other() -> None:
    network = Network()

    async def scene(batcher: Batcher) -> None:
        answers = await asyncio.gather(*(batcher.submit(rows(i)) for i in (1, -1, 3)), return_exceptions=True)
        assert [float(a["y"][0, 0]) for a in (answers[0], answers[2])] == [2, 6]  # type: ignore[index]
        assert isinstance(answers[1], RunError)
        assert "negative" in str(answers[1])
        assert batcher.held == 0

    run(network, Limits(batch=8, wait=100), scene)


def test_other_shapes_have_batches_of_their_own() -> None:
    network = Network()

    async def scene(batcher: Batcher) -> None:
        shapes = [(1, 2), (1, 2), (1, 3), (2, 2)]
        answers = await asyncio.gather(*(batcher.submit({"x": np.ones(shape)}) for shape in shapes))
        assert [answer["y"].shape for answer in answers] == shapes

    run(network, Limits(batch=8, wait=50), scene)
    assert sorted(network.sizes) == [1, 2, 2]


def test_whoever_gave_up_is_not_computed() -> None:
    network = Network()
    network.free.clear()

    async def scene(batcher: Batcher) -> None:
        first = asyncio.create_task(batcher.submit(rows(1)))
        await asyncio.sleep(0.05)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batcher.submit(rows(2)), 0.05)
        network.free.set()
        await first
        await batcher.submit(rows(3))
        assert batcher.held == 0

    run(network, Limits(batch=1, wait=0), scene)
    assert network.sizes == [1, 1]


def test_closing_answers_what_waits() -> None:
    network = Network()
    network.free.clear()

    async def scene(batcher: Batcher) -> None:
        waiting = [asyncio.create_task(batcher.submit(rows(i))) for i in range(9)]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await batcher.submit(rows(9))
        network.free.set()
        await closing
        assert [float((await one)["y"][0, 0]) for one in waiting] == [2.0 * i for i in range(9)]
        assert not batcher.alive

    run(network, Limits(batch=4), scene)
