"""Metrics of a server, as Prometheus reads them: latencies, batches, abstention, and inputs unlike the reference."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multitudes.shell.serve.description import Reference
from multitudes.shell.serve.graph import Arrays, Graph

WINDOW = 1000
"""Rows over which rates are taken."""

FEWEST = 50
"""Rows that are needed before there is an alarm."""

SURE = 4.0
"""The alarm is given where the count of strange rows is this many standard deviations above what the reference has."""

LOW_IS_STRANGE = ("confidence",)
"""Scores that are small where an ensemble is unsure."""


class Recent:
    """The share of True among the last rows."""

    def __init__(self, window: int = WINDOW) -> None:
        self._flags = np.zeros(window, bool)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, flags: NDArray[np.bool_]) -> None:
        """Adds rows; the oldest are forgotten."""
        with self._lock:
            last = flags[-len(self._flags) :]
            places = (self._count + np.arange(len(last))) % len(self._flags)
            self._flags[places] = last
            self._count += len(last)

    @property
    def rows(self) -> int:
        """The number of rows that are remembered."""
        return min(self._count, len(self._flags))

    @property
    def share(self) -> float:
        """The share among them; 0 without rows."""
        with self._lock:
            return float(self._flags[: self.rows].mean()) if self._count else 0.0


class Watch:
    """Counts rows whose score is beyond the outermost quantile of the reference, and says when these are too many."""

    def __init__(self, reference: Reference) -> None:
        self.score = reference.score
        self._below = reference.score in LOW_IS_STRANGE
        quantile = (min if self._below else max)(reference.quantiles)
        self.line = reference.quantiles[quantile]
        self.expected = quantile if self._below else round(1 - quantile, 12)
        """The share of rows beyond the line among data like the reference."""

        self.recent = Recent()

    def add(self, scores: NDArray[Any]) -> None:
        """Adds the scores of rows; a dense score counts by its mean over a row. A score that is NaN is beyond the line."""
        each = scores.reshape(len(scores), -1).mean(1)
        self.recent.add(~(each >= self.line if self._below else each <= self.line))

    @property
    def alarm(self) -> bool:
        """Whether recent rows are beyond the line much more often than those of the reference: a binomial test."""
        rows = self.recent.rows
        spread = math.sqrt(self.expected * (1 - self.expected) / max(rows, 1))
        return rows >= FEWEST and self.recent.share > self.expected + SURE * spread


class Metrics:
    """What a server counts."""

    def __init__(self, graph: Graph) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry, "namespace": "multitudes"}
        self.requests = Counter("requests", "Requests to /predict by status", ["status"], **own)
        times = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
        self.seconds = Histogram("request_seconds", "Time from a request to its answer", buckets=times, **own)
        self.rows = Counter("rows", "Rows predicted", **own)
        self.batches = Histogram("batch_rows", "Rows in a batch", buckets=[2**i for i in range(11)], **own)
        self.queue = Gauge("queue_rows", "Rows that wait or run", **own)
        self.abstained = Counter("abstained_rows", "Rows on which the ensemble abstained", **own)
        self.abstention = Recent()
        rate = Gauge("abstention_rate", f"Share of the last {WINDOW} rows on which the ensemble abstained", **own)
        rate.set_function(lambda: self.abstention.share)
        reference = graph.about.reference
        self.watch = Watch(reference) if reference is not None and reference.score in graph.outputs else None
        if (watch := self.watch) is not None:
            text = f"Share of the last {WINDOW} rows whose {watch.score} is beyond the reference's line"
            Gauge("ood_rate", text, **own).set_function(lambda: watch.recent.share)
            Gauge("ood_expected_rate", "The same share among data like the reference", **own).set(watch.expected)
            Gauge("ood_alarm", "1 if the OOD rate is clearly above the expected one", **own).set_function(
                lambda: float(watch.alarm)
            )

    def count_batch(self, rows: int, outputs: Arrays) -> None:
        """Counts a batch by its outputs."""
        self.batches.observe(rows)
        self.rows.inc(rows)
        if "abstain" in outputs:
            flags = np.any(outputs["abstain"].reshape(rows, -1), axis=1)
            self.abstained.inc(int(flags.sum()))
            self.abstention.add(flags)
        if self.watch is not None:
            self.watch.add(outputs[self.watch.score])

    def text(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
