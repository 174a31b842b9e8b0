"""The table of a running sweep. It reads the folders of the trials, so trials may run in any process or machine."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table

from multitudes.files.old_settings import current_metrics
from multitudes.report.row import Row
from multitudes.shell.trial import Trial

SHOWN = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "rmse": "RMSE"}
"""Columns of the table: score and heading. Scores that no trial has are left out; those of OOD sets follow."""

NARROW = 100
"""Terminals of fewer columns are narrow."""

STATE, DIGITS = 14, 6
"""Width of a trial's state, and least width of a score, which no terminal cuts: methods and headings fold instead."""

OOD = "/auroc/msp"
"""The end of the key of an OOD set's score that has a column."""


class SweepTable:
    """A rich table with one line for each trial: waiting, training, done or failed."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)
        self.outcomes: dict[Trial, Row | Exception] = {}
        self.start = time.perf_counter()

    def update(self, trial: Trial, outcome: Row | Exception) -> None:
        """Records the row of a trial, or its error."""
        self.outcomes[trial] = outcome

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws the table. In a narrow terminal it has no padding, and cuts states instead of scores."""
        narrow = options.max_width < NARROW
        rows = [outcome for outcome in self.outcomes.values() if isinstance(outcome, Row)]
        scores = [name for name in SHOWN if any(name in row.scores for row in rows)] or ["accuracy", "nll"]
        scores += dict.fromkeys(name for row in rows for name in row.scores if name.endswith(OOD))
        title = f"{len(rows)} of {len(self.trials)} trials, {time.perf_counter() - self.start:.0f} s"
        table = Table(title=title, title_justify="left", padding=(0, 0) if narrow else (0, 1))
        table.add_column("method", overflow="fold")
        table.add_column("seed", justify="right", min_width=4)
        table.add_column("state", no_wrap=True, min_width=None if narrow else STATE, max_width=STATE if narrow else None)
        for name in scores:
            heading = SHOWN.get(name) or f"OOD AUROC {name.removesuffix(OOD)}"
            table.add_column(heading, justify="right", min_width=DIGITS)
        table.add_column("seconds", justify="right", min_width=3)
        for trial in self.trials:
            table.add_row(trial.name, str(trial.seed), *self._cells(trial, scores))
        yield table

    def _cells(self, trial: Trial, scores: list[str]) -> list[str]:
        """The state of a trial, its scores and its seconds."""
        outcome = self.outcomes.get(trial)
        if isinstance(outcome, Row):
            values = [f"{outcome.scores[name]:.3f}" if name in outcome.scores else "" for name in scores]
            return ["done", *values, "" if outcome.seconds is None else f"{outcome.seconds:.0f}"]
        if outcome is not None:
            return [f"[red]{type(outcome).__name__}[/red]", *("" for _ in scores), ""]
        metrics, epochs = _progress(trial)
        if not epochs:
            return ["[dim]waiting[/dim]", *("" for _ in scores), ""]
        values = [f"[dim]{metrics[f'val_{name}']:.3f}[/dim]" if f"val_{name}" in metrics else "" for name in scores]
        return [f"epoch {metrics.get('epoch', 0)}/{epochs}", *values, ""]


def _progress(trial: Trial) -> tuple[dict[str, Any], int]:
    """Reads the latest metrics of a trial and its number of epochs; empty and 0 if its files are missing or half written."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        epochs = int(json.loads((trial.folder / "config.json").read_text(encoding="utf-8"))["recipe"]["epochs"])
        with contextlib.suppress(OSError, ValueError, IndexError):
            metrics = json.loads((trial.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
            return current_metrics(metrics), epochs
        return {}, epochs
    return {}, 0


@contextlib.contextmanager
def live_table(trials: Sequence[Trial], live: bool | None = None) -> Iterator[SweepTable]:
    """Shows a live table on standard error. Without a terminal it prints one line for each trial that ends.

    live    True: live table; False: lines; None: a live table if standard error is a terminal
    """
    table = SweepTable(trials)
    if sys.stderr.isatty() if live is None else live:
        with Live(table, console=Console(stderr=True), refresh_per_second=2, transient=True):
            yield table
        return
    record = table.update

    def update(trial: Trial, outcome: Row | Exception) -> None:
        record(trial, outcome)
        state = f"{outcome.seconds or 0:.0f} s of training" if isinstance(outcome, Row) else type(outcome).__name__
        sys.stderr.write(f"{len(table.outcomes)}/{len(trials)} {trial.name} (seed {trial.seed}): {state}\n")

    table.update = update  # type: ignore[method-assign]
    yield table
