"""The steps that commands share: find a run's job and network, make or load an ensemble, train it, write a report."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from multitudes.ensemble import Ensemble
from multitudes.errors import FileError, InputError
from multitudes.files.ensemble_file import load
from multitudes.prediction.temperature import Calibrator
from multitudes.report import report
from multitudes.report.row import Row, load_rows, without_row
from multitudes.shell.jobs import Job, find_job, is_of_images
from multitudes.shell.parse import import_by_name, own_code
from multitudes.shell.scoring import COST_BATCH, scored_row
from multitudes.shell.told import CONFIG, FILE, Told, check_one_run, remove_run
from multitudes.training.fingerprint import dataset_fingerprint
from multitudes.training.fit import Run, fit
from multitudes.training.recipe import Recipe


def make_network(factory: str) -> nn.Module:
    """Calls the function that MODULE:FACTORY names and returns its network. The name may also be that of a network."""
    value = import_by_name(factory)
    with own_code(factory):
        network = value() if not isinstance(value, nn.Module) and callable(value) else value
    if not isinstance(network, nn.Module):
        raise InputError(
            f"{factory} must be a network, or a function that returns one: it gave a {type(network).__name__}, not an nn.Module"
        )
    return network


def make_ensemble(job: Job, method: str, factory: str | None, seed: int) -> Ensemble:
    """Converts the job's network, or the one that `factory` names, and moves it to the GPU if there is one."""
    made = job.method(method)
    torch.manual_seed(seed)
    try:
        return job.ensemble(made, seed, None if factory is None else make_network(factory))
    except InputError as error:
        if FAILS not in str(error):
            raise
        reason = str(error).partition(FAILS)[2].partition(". Give a batch")[0]
        network = f"network= of the job {job.name}" if factory is None else f"--model {factory}"
        raise InputError(
            f"{network} does not take the inputs of the job's test set{reason}. Make its first layer as wide as these inputs"
        ) from error


def changed_recipe(recipe: Recipe, told: Told) -> Recipe:
    """Returns the job's recipe with the typed seed, epochs and learning rate. In a run too short for it, warm-up is shorter."""
    changes: dict[str, Any] = {name: value for name in ("seed", "epochs", "lr") if (value := getattr(told, name)) is not None}
    if changes.get("epochs", recipe.epochs) < recipe.warmup:
        changes["warmup"] = recipe.warmup * changes["epochs"] / recipe.epochs
    return replace(recipe, **changes)


def train_run(told: Told, out: Path, *, resume: bool = False, force: bool = False) -> tuple[Run, Row]:
    """Trains what `told` says in the folder `out`, scores it, and leaves its row there. `force` removes the run before it."""
    told.find_modules()
    job = find_job(told.job, told.root)
    if resume and (changed := changed_data(out, job)):
        raise FileError(f"{changed[0]} Restore the data to resume the run, or choose another --out")
    recipe = changed_recipe(job.recipe, told)
    ensemble = make_ensemble(job, told.method, told.model, told.seed)
    if force:
        remove_run(out)
    with told.saved(out):
        run = fit(ensemble, job.train, recipe, val=job.validation, out=out, resume=resume)
    name = "".join(told.method.split()).lower()
    settings = {"job": told.job, "budget": f"{recipe.epochs} epochs"}
    if told.model is not None:
        name = f"{name} of {told.model.rpartition(':')[2]}"
        settings["model"] = told.model
    row = scored_row(run, job, name=told.name or name, command=told.command(out), settings=settings)
    row.save(out)
    return run, row


def told_of(run: Path, job_name: str | None, model: str | None, root: Path | None) -> Told:
    """Returns what a run was told, except where the options here say otherwise."""
    if not run.exists():
        raise InputError(f"there is no {run}: give a .multitude file, or --out of a `multitudes train`")
    check_one_run(run)
    told = Told.load(run)
    if told is None and job_name is None:
        raise InputError(f"{run} does not say its job: give --job, and --model if it had one, as in its training")
    given: dict[str, Any] = {"job": job_name, "model": model, "root": None if root is None else str(root)}
    told = replace(told or Told(), **{name: value for name, value in given.items() if value is not None})
    told.find_modules()
    return told


def load_ensemble(run: Path, job: Job, told: Told) -> Ensemble:
    """Loads an ensemble from its file, or from the folder of its run: the epoch that the job's scores are of."""
    names = ("best.multitude", "last.multitude") if job.epoch == "best" else ("last.multitude", "best.multitude")
    files = [run] if run.is_file() else [run / name for name in names]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise InputError(
            f"{run} is not a .multitude file, nor a folder with best.multitude or last.multitude: "
            "give --out of a `multitudes train`"
        )
    try:
        return load(file, job.network() if told.model is None else make_network(told.model))
    except FileError as error:
        if "another architecture" not in str(error):
            raise
        tried = f"--job {told.job}" + ("" if told.model is None else f" --model {told.model}")
        raise FileError(f"{error}. The model here is that of {tried}: give --job and --model of the training") from error


def changed_data(run: Path, job: Job) -> list[str]:
    """Says which sets of the job are not those that a run was trained with; empty if all are."""
    try:
        config = json.loads((run / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a file without its run
        return []
    sets = {"train": [dataset_fingerprint(job.train, batches=True)]}
    if job.validation is not None:
        sets["val"] = dataset_fingerprint(job.validation)  # type: ignore[assignment]
    names = [
        {"train": "training", "val": "validation"}[key] for key, digest in sets.items() if config.get(key, digest) != digest
    ]
    return [f"the {' and '.join(names)} data of the job changed since {run} was trained."] if names else []


def calibrator_of(run: Path, epoch: str | None = None) -> Calibrator:
    """Returns the temperature, or factor of variances, that a run fitted on its validation set.

    epoch    the one that is predicted, "best" or "last"; a temperature of the other one is refused
    """
    row = Row.load(run) if (run / "row.json").is_file() else None
    if row is None or row.calibrator is None:
        raise InputError(
            f"{run} has no temperature: --calibrated needs the folder of a run whose job has validation=, for classes or for "
            "means and variances. Older runs are trained again with --force"
        )
    own = row.settings.get("epoch")
    if epoch is not None and own != epoch:
        raise InputError(
            f"{run} fitted its temperature to the {own} epoch, and the job now has epoch={epoch!r}: type epoch={own!r} there"
        )
    return row.calibrator


FAILS = "the model fails on the example"
"""How the error of a network begins that does not run on its example."""


class Page(NamedTuple):
    """A written report."""

    path: Path
    notes: list[str]
    """What a reader may miss on the page, and why: one sentence each."""


def write_report(folders: Sequence[Path], out: Path, job: Job | None, title: str | None = None) -> Page:
    """Writes the report of the runs in `folders`. If `job` is None, uses the job that all runs name, if it can be made."""
    rows = load_rows(folders)
    notes = [f"{folder} is left out: its training or its scoring is not finished" for folder in without_row(folders)]
    if job is None:
        try:
            job = _common_job(rows, folders)
        except Exception as error:  # its data may not be on this machine, and a module of the user may raise anything
            notes.append(f"there are no images and class names, since the runs' job cannot be made: {error}. Give --job")
    options: dict[str, Any] = {}
    if job is not None:
        options = {"classes": job.classes, "title": _title(rows, job)}
        shown = _images(rows, job)
        options.update(shown)
        if job.has_images and not shown:
            count = len(job.test)  # type: ignore[arg-type]
            notes.append(f"there are no images: the test set of the job has {count}, and the runs predicted others")
    if title is not None:
        options["title"] = title
    return Page(report(rows, out, **options), notes)


def _images(rows: Sequence[Row], job: Job) -> dict[str, Any]:
    """Returns the images of the job's sets as options of `report`: of those sets with one image for each prediction."""
    test: Any = job.test
    if not job.has_images or any(row.prediction is None or len(row.prediction) != len(test) for row in rows):
        return {}
    far: dict[str, Any] = {name: data for name, data in job.ood.items() if is_of_images(data)}
    fitting = {name: data for name, data in far.items() if all(len(row.ood.get(name, ())) == len(data) for row in rows)}
    ood = {name: data.raw(slice(None)) for name, data in fitting.items()}
    return {"images": test.raw(slice(None)), "ood_images": ood}


def _title(rows: Sequence[Row], job: Job) -> str:
    """Returns the title of a report: what is compared, and whether by the same budget."""
    about = f"{(job.about or f'Methods on {job.name}').rstrip('.')}."
    budgets = {row.settings.get("budget") for row in rows}
    if len(rows) < 2 or len(budgets) > 1 or None in budgets:
        return about
    budget = re.sub(r"^1 epochs$", "1 epoch", str(budgets.pop()))
    return f"{about} Every method has the same budget: {budget}. Costs are those of a call with {COST_BATCH} inputs."


def _common_job(rows: Sequence[Row], folders: Sequence[Path]) -> Job | None:
    """Returns the job that all rows name; None if they name several, or none.

    Rows may come from elsewhere, so that of their modules only those in the current folder are run.
    """
    names = {row.settings.get("job") for row in rows}
    if len(names) != 1 or not isinstance(name := names.pop(), str):
        return None
    module = Path(*name.partition(":")[0].split("."))
    if ":" in name and not (module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()):
        raise InputError(f"{name} is not in the current folder")
    told = [Told.load(file.parent) for folder in folders for file in sorted(folder.rglob(FILE))]
    with contextlib.suppress(StopIteration):
        return find_job(name, next(one.root for one in told if one is not None and one.root is not None))
    return find_job(name)
