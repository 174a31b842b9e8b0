"""Sweeps: methods × seeds on a job, in this process, over local processes, or on Ray. Each trial has its own folder.

To resume a sweep, start it again: finished trials are only read, and an interrupted trial resumes from its last checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib import import_module
from os import PathLike
from pathlib import Path

import torch

from multitudes.errors import ConversionError, FileError, InputError, MultitudesError, RunError
from multitudes.report.row import Row
from multitudes.settings import Count, check_value
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Root, find_job
from multitudes.shell.told import remove_run
from multitudes.shell.trial import Trial

FINAL = (InputError, ConversionError, FileError)
"""Errors that the same command would meet again."""

ATTEMPTS = 3
"""How many times a trial is started before it counts as failed."""

Outcome = Row | Exception


def trials(
    job_name: str = "fashion",
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    budget: str | None = None,
    out: str | PathLike[str] = "runs/bench",
    root: Root = None,
) -> list[Trial]:
    """Lists the trials of a sweep: all methods with the first seed, then all with the next seed, and so on.

    methods    as on the command line, such as ["packed(alpha=2)"]; None for all, the single network first
    budget     as on the command line, such as "30 seconds"; None for the epochs of the job's recipe
    """
    job = find_job(job_name, root)
    texts = list(methods) if methods else job.methods()
    given = Budget.read(budget) if budget else None
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {list(seeds)}: give at least one seed, and none twice")
    sweep = []
    for seed in seeds:
        for text in texts:
            name = "".join(text.split()).lower()
            limit = given or Budget(job.recipe_of(text).epochs, "epochs")
            words = ["multitudes", "bench", "--job", job_name, "--methods", text, "--seeds", str(seed), "--budget", str(limit)]
            words += ["--out", str(out)]
            trial = Trial(
                job=job_name,
                name=name,
                text=text,
                method=job.method(text),
                seed=seed,
                budget=limit,
                folder=Path(out) / f"{_folder_name(name)}-{seed}",
                root=None if root is None else str(root),
                command=shlex.join(words + ([] if root is None else ["--root", str(root)])),
            )
            sweep.append(trial)
    if len({trial.folder for trial in sweep}) < len(sweep):
        raise InputError("--methods names the same method twice: remove one")
    return sweep


def _folder_name(name: str) -> str:
    """A trial's name with every sign but letters and digits replaced by an underscore."""
    return "".join(letter if letter.isalnum() else "_" for letter in name).strip("_")


def check_folders(sweep: Sequence[Trial], page: Path, force: bool) -> None:
    """Checks, before any training, that no trial and no page of other settings lies where the sweep writes.

    With `force` such trials are removed, and unfinished ones too.
    """
    errors = []
    for trial in sweep:
        try:
            if trial.done():
                trial.read()
            elif force:
                remove_run(trial.folder)
        except FileError as error:
            errors.append(str(error))
            if force:
                remove_run(trial.folder)
    if errors and not force:
        raise FileError("\n".join(errors))
    if page.exists() and not force and not any(trial.folder.exists() for trial in sweep):
        raise FileError(f"{page} is not of this sweep: replace it with --force, or choose another --out")


def run_trials(
    sweep: Sequence[Trial],
    *,
    workers: int = 1,
    ray: bool = False,
    ray_address: str | None = None,
    on_end: Callable[[Trial, Outcome], None] | None = None,
) -> list[Row]:
    """Runs trials and returns their rows in the order of `sweep`. If any fail, one RunError at the end names them all.

    on_end    called with each trial that ends, and its row or its error
    """
    check_value("--workers", workers, Count)
    rows: dict[Trial, Row] = {}
    errors: dict[Trial, Exception] = {}
    if ray or ray_address:
        outcomes = on_ray(sweep, workers, ray_address)
    else:
        outcomes = one_by_one(sweep) if workers == 1 else by_processes(sweep, workers)
    for trial, outcome in outcomes:
        if isinstance(outcome, Row):
            rows[trial] = outcome
        else:
            errors[trial] = outcome
        if on_end is not None:
            on_end(trial, outcome)
    if errors:
        lines = [f"{trial.name} (seed {trial.seed}): {type(e).__name__}: {e}" for trial, e in errors.items()]
        final = all(isinstance(error, FINAL) for error in errors.values())
        retry = "" if final else "; run the command again to retry"
        raise RunError(f"{len(errors)} of {len(sweep)} trials failed{retry}\n" + "\n".join(lines))
    return [rows[trial] for trial in sweep]


def one_by_one(sweep: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """Runs trials in this process."""
    for trial in sweep:
        yield trial, _outcome(trial)


def _outcome(trial: Trial) -> Outcome:
    """Runs a trial and returns its row or its error. Errors of this package are final; others are retried."""
    for attempt in range(ATTEMPTS):
        try:
            return trial.run()
        except Exception as error:  # a user's network may raise anything: the other trials run all the same
            if isinstance(error, MultitudesError) or attempt == ATTEMPTS - 1:
                return error
    raise AssertionError("there is at least one attempt")


def by_processes(sweep: Sequence[Trial], workers: int) -> Iterator[tuple[Trial, Outcome]]:
    """Runs trials in several processes. If one process dies, its whole pool dies, and a new pool takes the remaining trials."""
    remaining, threads = list(sweep), max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    for _ in range(ATTEMPTS):
        with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            running = {pool.submit(_remote_error, trial): trial for trial in remaining}
            for future in as_completed(running):
                trial = running[future]
                try:
                    error = future.result()
                except BrokenProcessPool:
                    continue
                remaining.remove(trial)
                yield trial, error or trial.read()
        if not remaining:
            return
    for trial in remaining:
        yield trial, RunError(f"its process died {ATTEMPTS} times, maybe for lack of memory: use fewer --workers")


def _remote_error(trial: Trial) -> Exception | None:
    """Runs a trial in another process. Its row stays in its folder; errors are returned as such that can be pickled."""
    outcome = _outcome(trial)
    if isinstance(outcome, Row):
        return None
    return outcome if isinstance(outcome, FINAL) else RunError(f"{type(outcome).__name__}: {outcome}")


def on_ray(sweep: Sequence[Trial], workers: int, address: str | None) -> Iterator[tuple[Trial, Outcome]]:
    """Runs trials on Ray: on this machine, or on the cluster at `address`, whose machines must share the trials' folder."""
    try:
        ray = import_module("ray")
    except ImportError as missing:
        raise InputError("--ray needs Ray: pip install 'multitudes[ray]'") from missing
    started = not ray.is_initialized()
    if started:
        local = {} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, logging_level="error", **local)
    try:
        remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_remote_error)
        running = {remote.remote(replace(trial, folder=trial.folder.resolve())): trial for trial in sweep}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            trial = running.pop(ready)
            try:
                error: Exception | None = ray.get(ready)
            except ray.exceptions.RayError as lost:
                error = RunError(f"its process died {ATTEMPTS} times: {type(lost).__name__}")
            if error is None and not trial.done():
                error = RunError(f"{trial.folder} is not on this machine: --out must be a folder that all machines share")
            yield trial, error or trial.read()
    finally:
        if started:
            ray.shutdown()
