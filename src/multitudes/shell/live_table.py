"""Watching a sweep: a live table of its trials, read from their folders, so that it does not matter where they run."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from multitudes.report.row import Row
from multitudes.shell.trial import Trial

SHOWN = {
    "accuracy": ("accuracy", "{:.3f}"), "nll": ("NLL", "{:.3f}"), "ece": ("ECE", "{:.3f}"), "rmse": ("RMSE", "{:.3f}"),
    "lpd": ("log density", "{:.3f}"), "auroc/msp": ("OOD AUROC", "{:.3f}"),
}  # fmt: skip
"""The scores that a sweep's table has, where there are any."""


class SweepTable:
    """A table of trials as they stand."""

    def __init__(self, wanted: Sequence[Trial]) -> None:
        self.wanted = list(wanted)
        self.outcomes: dict[Trial, Row | Exception] = {}
        self.begun = time.perf_counter()

    def update(self, trial: Trial, outcome: Row | Exception) -> None:
        """Takes note of what a trial came to."""
        self.outcomes[trial] = outcome

    def __rich__(self) -> Table:
        done = sum(isinstance(found, Row) for found in self.outcomes.values())
        title = f"{done} of {len(self.wanted)} trials, {time.perf_counter() - self.begun:.0f} s"
        names = [name for name in SHOWN if any(isinstance(f, Row) and name in f.scores for f in self.outcomes.values())]
        table = Table(title=title, title_justify="left")
        table.add_column("method", no_wrap=True)
        table.add_column("seed", justify="right")
        table.add_column("state", min_width=14, no_wrap=True)
        for name in names or ["accuracy", "nll"]:
            table.add_column(SHOWN[name][0], justify="right")
        table.add_column("seconds", justify="right")
        for trial in self.wanted:
            table.add_row(trial.name, str(trial.seed), *self._cells(trial, names or ["accuracy", "nll"]))
        return table

    def _cells(self, trial: Trial, names: list[str]) -> list[str]:
        outcome = self.outcomes.get(trial)
        if isinstance(outcome, Row):
            values = [SHOWN[name][1].format(outcome.scores[name]) if name in outcome.scores else "" for name in names]
            return ["done", *values, "" if outcome.seconds is None else f"{outcome.seconds:.0f}"]
        if outcome is not None:
            return [f"[red]{type(outcome).__name__}[/red]", *("" for _ in names), ""]
        line, epochs = _progress(trial)
        if not epochs:
            return ["[dim]waiting[/dim]", *("" for _ in names), ""]
        values = [f"[dim]{line[f'val_{name}']:.3f}[/dim]" if f"val_{name}" in line else "" for name in names]
        return [f"epoch {line.get('epoch', 0)}/{epochs}", *values, ""]


def _progress(trial: Trial) -> tuple[dict[str, Any], int]:
    """The last line of a run's metrics, and how many epochs it has: nothing yet where there is nothing to read."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        epochs = int(json.loads((trial.folder / "config.json").read_text(encoding="utf-8"))["recipe"]["epochs"])
        with contextlib.suppress(OSError, ValueError, IndexError):
            return json.loads((trial.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]), epochs
        return {}, epochs
    return {}, 0


@contextlib.contextmanager
def watching(wanted: Sequence[Trial], live: bool | None = None) -> Iterator[SweepTable]:
    """A live table on standard error where there is a terminal, else a line for each trial that ends."""
    watch = SweepTable(wanted)
    if sys.stderr.isatty() if live is None else live:
        with Live(watch, console=Console(stderr=True), refresh_per_second=2, transient=True):
            yield watch
        return
    noted = watch.update

    def update(trial: Trial, outcome: Row | Exception) -> None:
        noted(trial, outcome)
        state = f"{outcome.seconds or 0:.0f} s of training" if isinstance(outcome, Row) else type(outcome).__name__
        sys.stderr.write(f"{len(watch.outcomes)}/{len(wanted)} {trial.name} (seed {trial.seed}): {state}\n")

    watch.update = update  # type: ignore[method-assign]
    yield watch
