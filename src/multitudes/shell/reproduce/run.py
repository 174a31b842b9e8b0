"""Runs an item: its jobs by the sweep of `bench`, or its function, and writes rows and figures."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from multitudes.report.row import Row
from multitudes.shell.jobs import Root
from multitudes.shell.reproduce.catalog import function_name, work_of
from multitudes.shell.reproduce.item import Findings, Item
from multitudes.shell.reproduce.results import Measured, Result, check_rows, load_all, place
from multitudes.shell.sweep import check_folders, run_trials, trials
from multitudes.shell.trial import Trial
from multitudes.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = ("accuracy", "nll", "ece")
"""Scores that are kept of each corruption and severity."""


def sweep_of(item: Item, scale: str, seeds: Sequence[int], runs: Path, root: Root) -> dict[str, list[Trial]]:
    """Returns the trials of an item by job."""
    chosen = item.rows_at(scale).values()
    wanted = {job: list(dict.fromkeys(one.row for one in chosen if job in one.jobs)) for job in item.at(scale).jobs}
    return {
        job: trials(item.job(job, scale), rows, seeds, None, runs / item.trained(job) / scale / job, root)
        for job, rows in wanted.items()
        if rows
    }


def run_item(
    item: Item,
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    out: Path,
    runs: Path,
    root: Root = None,
    workers: int = 1,
    ray: bool = False,
    ray_address: str | None = None,
    force: bool = False,
    watch: Callable[[Sequence[Trial]], Any] | None = None,
) -> list[Result]:
    """Runs an item at a scale, and returns its rows with all their runs. What is there already is read.

    watch    makes a context for the trials, whose value has `update`, as `live_table` does
    """
    chosen = list(seeds) if seeds else list(item.at(scale).seeds)
    check_rows(out, item, scale, force)
    if item.at(scale).jobs:
        _run_jobs(
            item, scale, chosen, out, runs, root, watch, {"workers": workers, "ray": ray, "ray_address": ray_address}, force
        )
    else:
        for seed in chosen:
            if force or not _computed(load_all(out, item, scale), seed):
                _run_function(item, scale, seed, out, root)
    results = load_all(out, item, scale)
    if item.draws and results:
        save_figures(work_of(item, item.draws)(results), place(out, item.name, scale))
    return results


def _run_jobs(
    item: Item,
    scale: str,
    seeds: Sequence[int],
    out: Path,
    runs: Path,
    root: Root,
    watch: Any,
    options: dict[str, Any],
    force: bool,
) -> None:
    """Trains the jobs of an item, and writes its rows."""
    from contextlib import nullcontext

    by_job = sweep_of(item, scale, seeds, runs, root)
    sweep = [trial for own in by_job.values() for trial in own]
    check_folders(sweep, runs / "no page", force)
    with nullcontext() if watch is None else watch(sweep) as table:
        rows = run_trials(sweep, **options, on_end=None if table is None else table.update)
    job_of = {trial.folder: job for job, own in by_job.items() for trial in own}
    done = {(job_of[trial.folder], trial.text, trial.seed): row for trial, row in zip(sweep, rows, strict=True)}
    days = {(job_of[trial.folder], trial.text, trial.seed): _day(trial) for trial in sweep}
    every = done if not item.derives else {**_finished(item, scale, seeds, runs, root), **done}
    for label, where in item.rows_at(scale).items():
        found = [(job, row) for (job, text, _), row in done.items() if job in where.jobs and text == where.row]
        if item.derives:
            derive = work_of(item, item.derives)
            found = [(job, _with_derived(row, derive, every, job)) for job, row in found]
        if found:
            _result(item, scale, label, [
                _measured(row, job, item, scale, root, where.key, days[job, where.row, row.seed]) for job, row in found
            ]).save(out)  # fmt: skip


def _finished(item: Item, scale: str, seeds: Sequence[int], runs: Path, root: Root) -> dict[tuple[str, str, int], Row]:
    """Reads what is trained of all rows of an item, also of those that were not asked for, by job, row and seed."""
    whole = replace(item, scales={scale: replace(item.at(scale), rows=())})
    found: dict[tuple[str, str, int], Row] = {}
    for job, own in sweep_of(whole, scale, seeds, runs, root).items():
        found |= {(job, trial.text, trial.seed): trial.read() for trial in own if trial.done()}
    return found


def _with_derived(row: Row, derive: Any, done: Mapping[tuple[str, str, int], Row], job: str) -> Row:
    """Adds the numbers that follow from all rows of the same job and seed."""
    rows = {text: one for (own, text, seed), one in done.items() if own == job and seed == row.seed}
    return replace(row, measured={**row.measured, **derive(row, rows)})


def _computed(results: Sequence[Result], seed: int) -> bool:
    """Whether all rows of a seed are there: of an interrupted command there may be some."""
    runs = [run for one in results for run in one.runs if run.seed == seed]
    return bool(runs) and len(runs) >= max(run.rows or 0 for run in runs)


def _run_function(item: Item, scale: str, seed: int, out: Path, root: Root) -> None:
    """Calls the function of an item, and writes its figures, then its rows."""
    at = item.at(scale)
    findings: Findings = work_of(item, at.work or function_name(item))(scale, seed, root)
    command = f"multitudes reproduce {item.name} --scale {scale} --seeds {seed}"
    folder = place(out, item.name, scale)
    if seed == at.seeds[0] or not any(folder.glob("*.png")):
        save_figures(findings.figures, folder)
    for label, numbers in findings.rows.items():
        run = Measured(
            seed=seed, scores=finite(numbers), rows=len(findings.rows), budget=findings.budget,
            date=date.today().isoformat(), versions=versions(), command=command,
        )  # fmt: skip
        _result(item, scale, label, [run]).save(out)


def _result(item: Item, scale: str, label: str, runs: Sequence[Measured]) -> Result:
    beside = {name: number.value for name, number in item.beside(label, scale).items()}
    return Result(item=item.name, scale=scale, label=label, runs=tuple(runs), printed=beside, differs=item.at(scale).differs)


def _day(trial: Trial) -> str:
    """Returns the day on which a trial was scored: it may have been long ago, and for another item."""
    return date.fromtimestamp((trial.folder / "row.json").stat().st_mtime).isoformat()


def _measured(row: Row, job: str, item: Item, scale: str, root: Root, key: str, day: str) -> Measured:
    """Makes a run of a row that the sweep returned."""
    hidden = "" if root is None else " --root FOLDER"
    return Measured(
        seed=row.seed, job=job, scores=_kept(row.scores), cost=finite(row.cost), measured=finite(row.measured),
        ood=tuple(row.ood), key=key,
        method=row.method, network=str(row.settings.get("network", "")), budget=str(row.settings.get("budget", "")),
        date=day, seconds=row.seconds, versions=versions(),
        settings={key: value for key, value in row.settings.items() if key in ("recipe", "epoch", "data")},
        command=f"multitudes reproduce {item.name} --scale {scale} --seeds {row.seed}{hidden}",
    )  # fmt: skip


def _kept(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns the scores that a file keeps: of each corruption and severity only a few."""
    kept = {}
    for name, value in scores.items():
        parts = name.split("/")
        if len(parts) == 3 and parts[1].isdigit() and parts[2] not in KEPT:
            continue
        kept[name] = float(value)
    return finite(kept)


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Returns the numbers that JSON can hold: without NaN and infinity."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def versions() -> dict[str, str]:
    """Returns the versions of what ran, and the device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"multitudes": __version__, "torch": torch.__version__, "python": platform.python_version(), "device": device}


def save_figures(figures: Mapping[str, Figure], folder: Path) -> None:
    """Writes figures as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110)
