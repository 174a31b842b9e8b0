"""bench: methods × seeds on a job, one after another, over local processes, or on Ray; each trial in a folder of its own.

What is there already is not done again, and a trial whose process died is taken up where it stopped: a sweep that was stopped
goes on when it is started again.
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

from multitudes.errors import InputError, MultitudesError, RunError
from multitudes.report.row import Row
from multitudes.settings import Count, check
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Root, job
from multitudes.shell.trial import Trial

ATTEMPTS = 3
"""How often a trial is tried: it may fail, or its process die, of something else than the trial."""

Outcome = Row | Exception
Tell = Callable[[Trial, Outcome], None]


def trials(
    task: str = "fashion",
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    budget: str | None = None,
    out: str | PathLike[str] = "runs/bench",
    root: Root = None,
) -> list[Trial]:
    """Every method with every seed, the single network first."""
    what = job(task, root)
    texts = list(methods) if methods else what.methods()
    allowed = Budget.read(budget) if budget else Budget(what.recipe.epochs, "epochs")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {list(seeds)}: at least one, and each once")
    found = []
    for seed in seeds:
        for text in texts:
            method, name = what.method(text), "".join(text.split()).lower()
            folder = Path(out) / f"{_folder_name(name)}-{seed}"
            typed = ["multitudes", "bench", "--task", task, "--methods", text, "--seeds", str(seed), "--budget", str(allowed)]
            command = shlex.join(typed + ([] if root is None else ["--root", str(root)]))
            found.append(
                Trial(
                    task=task,
                    name=name,
                    method=method,
                    seed=seed,
                    budget=allowed,
                    folder=folder,
                    root=None if root is None else str(root),
                    command=command,
                )
            )
    if len({trial.folder for trial in found}) < len(found):
        raise InputError("--methods has the same method twice")
    return found


def _folder_name(name: str) -> str:
    """A name for a folder."""
    return "".join(letter if letter.isalnum() else "_" for letter in name).strip("_")


def run_trials(
    wanted: Sequence[Trial], *, workers: int = 1, ray: bool = False, ray_address: str | None = None, tell: Tell | None = None
) -> list[Row]:
    """Runs trials, and returns their rows in the order given; those that fail are named together at the end."""
    check("--workers", workers, Count)
    rows: dict[Trial, Row] = {}
    wrong: dict[Trial, Exception] = {}
    if ray or ray_address:
        outcomes = on_ray(wanted, workers, ray_address)
    else:
        outcomes = one_by_one(wanted) if workers == 1 else by_processes(wanted, workers)
    for trial, outcome in outcomes:
        if isinstance(outcome, Row):
            rows[trial] = outcome
        else:
            wrong[trial] = outcome
        if tell is not None:
            tell(trial, outcome)
    if wrong:
        lines = [f"{trial.name} (seed {trial.seed}): {type(e).__name__}: {e}" for trial, e in wrong.items()]
        raise RunError(f"{len(wrong)} of {len(wanted)} trials failed; the same command tries them again\n" + "\n".join(lines))
    return [rows[trial] for trial in wanted]


def one_by_one(wanted: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """In this process."""
    for trial in wanted:
        yield trial, _tried(trial)


def _tried(trial: Trial) -> Outcome:
    """The row, or what went wrong: at once where that is certain, else when it went wrong again and again."""
    for attempt in range(ATTEMPTS):
        try:
            return trial.run()
        except Exception as error:  # of one's own network or task, which may raise anything: the others are done all the same
            if isinstance(error, MultitudesError) or attempt == ATTEMPTS - 1:
                return error
    raise AssertionError("there is at least one attempt")


def by_processes(wanted: Sequence[Trial], workers: int) -> Iterator[tuple[Trial, Outcome]]:
    """Over processes of this machine. Should one die, all of a pool do: what was not done goes to the next pool."""
    left, threads = list(wanted), max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    for _ in range(ATTEMPTS):
        with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            running = {pool.submit(_remote, trial): trial for trial in left}
            for future in as_completed(running):
                trial = running[future]
                try:
                    error = future.result()
                except BrokenProcessPool:
                    continue
                left.remove(trial)
                yield trial, error or trial.read()
        if not left:
            return
    for trial in left:
        yield trial, RunError(f"its process died {ATTEMPTS} times")


def _remote(trial: Trial) -> Exception | None:
    """Runs a trial elsewhere: the row is in its folder, and what went wrong comes back as a plain error."""
    outcome = _tried(trial)
    return None if isinstance(outcome, Row) else RunError(f"{type(outcome).__name__}: {outcome}")


def on_ray(wanted: Sequence[Trial], workers: int, address: str | None) -> Iterator[tuple[Trial, Outcome]]:
    """On Ray: here, or on the cluster at an address, whose machines must share the folder of the trials."""
    try:
        ray = import_module("ray")
    except ImportError as missing:
        raise InputError("--ray needs Ray: pip install 'multitudes[ray]'") from missing
    ours = not ray.is_initialized()
    if ours:
        here = {} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, logging_level="error", **here)
    try:
        remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_remote)
        running = {remote.remote(replace(trial, folder=trial.folder.resolve())): trial for trial in wanted}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            trial = running.pop(ready)
            try:
                error: Exception | None = ray.get(ready)
            except ray.exceptions.RayError as lost:
                error = RunError(f"its process died {ATTEMPTS} times: {type(lost).__name__}")
            if error is None and not trial.done():
                error = RunError(f"{trial.folder} was written on another machine: --out must be a folder that all share")
            yield trial, error or trial.read()
    finally:
        if ours:
            ray.shutdown()
