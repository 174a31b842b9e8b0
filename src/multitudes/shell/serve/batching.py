"""Batching: rows of requests that arrive together run as one batch, in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multitudes.errors import RunError
from multitudes.shell.serve.graph import Arrays
from multitudes.shell.serve.limits import Limits


class QueueFull(Exception):
    """There is no room for these rows now."""


@dataclass(eq=False)
class Job:
    """The rows of one request, and the future of their answer."""

    arrays: Arrays
    future: asyncio.Future[Arrays]
    loop: asyncio.AbstractEventLoop
    arrived: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.rows = len(next(iter(self.arrays.values())))
        self.kind = tuple((name, array.shape[1:]) for name, array in self.arrays.items())
        """Only rows of the same shapes share a batch."""


class Batcher:
    """A bounded queue of rows, drained by one thread."""

    def __init__(
        self,
        run: Callable[[Arrays], Arrays],
        limits: Limits,
        on_batch: Callable[[int, Arrays], None] = lambda rows, outputs: None,
    ) -> None:
        """Starts the thread.

        run        computes the outputs of a batch
        on_batch   is told the number of rows of each batch, and its outputs
        """
        self.limits = limits
        self._run = run
        self._on_batch = on_batch
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._held = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    @property
    def held(self) -> int:
        """The number of rows that wait or run."""
        return self._held

    @property
    def alive(self) -> bool:
        """Whether batches are run."""
        return self._thread.is_alive() and not self._closing

    async def submit(self, arrays: Arrays) -> Arrays:
        """Returns the outputs of rows once their batch was run; raises QueueFull if there is no room."""
        loop = asyncio.get_running_loop()
        job = Job(arrays, loop.create_future(), loop)
        with self._changed:
            if self._closing or self._held + job.rows > self.limits.queue:
                raise QueueFull
            self._held += job.rows
            self._waiting.append(job)
            self._changed.notify()
        return await job.future

    def close(self) -> None:
        """Takes no more rows, and returns when those that wait are answered."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while jobs := self._take():
            self._answer(jobs)

    def _take(self) -> list[Job]:
        """Returns the jobs of the next batch when it is full, or when its first row has waited long enough; none at the end."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting:
                return []
            due = self._waiting[0].arrived + self.limits.wait / 1000
            while self._held < self.limits.batch and not self._closing and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            jobs = [self._waiting.popleft()]
            rows = jobs[0].rows
            while self._waiting and self._waiting[0].kind == jobs[0].kind and rows + self._waiting[0].rows <= self.limits.batch:
                jobs.append(self._waiting.popleft())
                rows += jobs[-1].rows
            return jobs

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Runs jobs as one batch and passes their parts on. If the batch fails, each job runs alone: none may spoil others."""
        left = [job for job in jobs if not job.future.cancelled()]  # whoever waited too long is gone
        results: list[Arrays | Exception] = []
        try:
            results = list(self._outputs(left)) if left else []
        except Exception as error:  # whatever a network may raise goes to whoever asked
            if len(left) > 1:
                for job in jobs:
                    self._answer([job])
                return
            results = [error]
        with self._changed:
            self._held -= sum(job.rows for job in jobs)
        for loop in {job.loop for job in left}:
            own = [(job.future, result) for job, result in zip(left, results, strict=True) if job.loop is loop]
            try:
                loop.call_soon_threadsafe(_deliver, own)
            except RuntimeError:  # the loop is closed, and with it whoever asked
                continue

    def _outputs(self, jobs: Sequence[Job]) -> list[Arrays]:
        """Returns the outputs of each job."""
        joined = {name: _joined([job.arrays[name] for job in jobs]) for name in jobs[0].arrays}
        outputs = self._in_parts(joined)
        ends = np.cumsum([job.rows for job in jobs])
        return [
            {name: value[end - job.rows : end] for name, value in outputs.items()} for job, end in zip(jobs, ends, strict=True)
        ]

    def _in_parts(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Runs the rows, those of a large request in parts."""
        rows, most = len(next(iter(arrays.values()))), self.limits.batch
        parts = [self._counted({name: value[i : i + most] for name, value in arrays.items()}) for i in range(0, rows, most)]
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}

    def _counted(self, arrays: Arrays) -> Arrays:
        """Runs one batch, and tells of it."""
        outputs = self._run(arrays)
        self._on_batch(len(next(iter(arrays.values()))), outputs)
        return outputs


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _deliver(answers: Sequence[tuple[asyncio.Future[Arrays], Arrays | Exception]]) -> None:
    """Gives each future its outputs or its error; it runs in the loop that waits for them."""
    for future, result in answers:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(RunError(f"the network cannot run these rows: {(str(result) or type(result).__name__)[:300]}"))
        else:
            future.set_result(result)
