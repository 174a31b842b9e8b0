"""The steps that commands share: make a network, make or load an ensemble, write a report."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multitudes.conversion.convert import ensemble as convert
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, MultitudesError
from multitudes.files.ensemble_file import load
from multitudes.report import report
from multitudes.report.row import load_rows
from multitudes.shell.jobs import JOBS, Job, find_job
from multitudes.shell.parse import import_by_name


def make_network(factory: str) -> nn.Module:
    """Calls the function that MODULE:FACTORY names and returns its network. The name may also be that of a network."""
    value = import_by_name(factory)
    network = value() if not isinstance(value, nn.Module) and callable(value) else value
    if not isinstance(network, nn.Module):
        raise InputError(
            f"{factory} must be a network, or a function that returns one: it gave a {type(network).__name__}, not an nn.Module"
        )
    return network


def make_ensemble(job: Job, method: str, factory: str | None, seed: int) -> Ensemble:
    """Converts the job's network, or the one that `factory` names, and moves it to the GPU if there is one."""
    torch.manual_seed(seed)
    network = job.network() if factory is None else make_network(factory)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return convert(network, job.method(method), job.example, seed=seed, task=job.task).to(device)


def load_ensemble(run: Path, job: Job, factory: str | None) -> Ensemble:
    """Loads an ensemble from its file, or from the folder of its run: the best epoch, else the last one."""
    files = [run] if run.is_file() else [run / "best.multitude", run / "last.multitude"]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise InputError(
            f"{run} is not a .multitude file, nor a folder with best.multitude or last.multitude: "
            "give --out of a `multitudes train`"
        )
    return load(file, job.network() if factory is None else make_network(factory))


def write_report(folders: list[Path], out: Path, job: Job | None, title: str | None = None) -> Path:
    """Writes the report of the trials in `folders`. If `job` is None, uses the built-in job that all trials name, if any."""
    rows = load_rows(folders)
    tasks = {row.settings.get("task") for row in rows}
    if job is None and len(tasks) == 1 and tasks <= {*JOBS}:
        with contextlib.suppress(MultitudesError):  # its data may not be on this machine: the report does without images
            job = find_job(str(*tasks))
    options: dict[str, Any] = {}
    if job is not None:
        images = job.test.raw(slice(None)) if len(job.test.shape) == 3 else None
        options = {"classes": job.test.classes, "images": images, "title": job.about}
    if title is not None:
        options["title"] = title
    return report(rows, out, **options)
