"""Trials: one method with one seed on one job, trained, predicted, scored, and saved in a folder as a Row."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.conversion.convert import ensemble as convert
from multitudes.conversion.cost import Cost, cost
from multitudes.data import corrupt
from multitudes.data.corruptions.published import SEVERITIES
from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.errors import FileError
from multitudes.method import Method
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import calibrate
from multitudes.prediction.values import CLASSES
from multitudes.report.row import Row
from multitudes.report.sources import MOST
from multitudes.scores.score import score
from multitudes.scores.scores import Scores
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Job, find_job
from multitudes.training.fit import Run, fit
from multitudes.training.recipe import Recipe

INTERVALS = 100
"""Bootstrap samples of the test set, for the intervals of the scores."""
COST_BATCH = 32
"""Rows of the batch on which the cost is measured."""

Shifted = dict[str, dict[int, Prediction]]
"""Predictions of corrupted images, by corruption and severity."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The settings of one trial. They can be pickled and sent to another process."""

    task: str
    """The job's name, or MODULE:FUNCTION."""

    name: str
    """The name of the row in tables and in the report."""

    method: Method
    seed: int
    budget: Budget
    folder: Path
    root: str | None = None
    command: str = ""
    """The command that runs this trial alone."""

    def done(self) -> bool:
        """Whether the folder has the trial's row."""
        return (self.folder / "row.json").is_file()

    def run(self) -> Row:
        """Returns the saved row if there is one. Otherwise trains, from the last checkpoint if there is one, and scores."""
        return self.read() if self.done() else self._train_and_score(load_job(self.task, self.root))

    def read(self) -> Row:
        """Reads the row from the folder; raises FileError if it is the row of another trial."""
        row = Row.load(self.folder)
        mine = {"method": repr(self.method), "seed": self.seed, "task": self.task, "budget": str(self.budget)}
        saved = {"method": row.method, "seed": row.seed, **{key: row.settings.get(key) for key in ("task", "budget")}}
        differences = [f"{key} was {saved[key]} and is {mine[key]}" for key in mine if mine[key] != saved[key]]
        if differences:
            raise FileError(f"{self.folder} holds another trial: {'; '.join(differences)}. Choose another --out")
        return row

    def _train_and_score(self, job: Job) -> Row:
        torch.manual_seed(self.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        ensemble = convert(job.network(), self.method, job.example, seed=self.seed, task=job.task).to(device)
        recipe = replace(job.recipe, seed=self.seed)
        recipe = replace(recipe, **_rescaled(recipe, self._epochs(ensemble, job, recipe)))
        run = fit(ensemble, job.train, recipe, val=job.validation, out=self.folder, resume=True, progress=False)
        ensemble.to(memory_format=torch.contiguous_format)
        settings = {
            "task": self.task,
            "data": job.name,
            "network": type(ensemble.base).__name__,
            "epoch": job.epoch if job.validation is not None else "last",
            "recipe": {key: value for key, value in recipe.settings().items() if key != "seed"},
            "budget": str(self.budget),
        }
        row = self._scored_run(run, job)
        row = replace(row, settings=settings, seconds=sum(line["seconds"] for line in run.metrics))
        row.save(self.folder)
        return row

    def _scored_run(self, run: Run, job: Job) -> Row:
        """Scores the epoch that the job names; the other epoch, and the calibrated ensemble, become variants."""
        ensemble, variants = run.ensemble, {}
        if job.validation is not None and job.epoch == "best":
            variants["last epoch"] = score(predicted(ensemble, job.test, job), intervals=INTERVALS)
            run.use_best()
        test, shift = predicted(ensemble, job.test, job), self._shift(ensemble, job)
        row = self._score(ensemble, job, test, shift)
        if job.validation is None:
            return row
        if job.task in CLASSES or job.task == "gaussian":
            calibrator = calibrate(predict(ensemble, job.validation, progress=False))
            calm = {name: {s: one.calibrated(calibrator) for s, one in sets.items()} for name, sets in shift.items()}
            variants["calibrated"] = score(test.calibrated(calibrator), shift=calm or None, intervals=INTERVALS)
        if job.epoch == "last":
            run.use_best()
            variants["best epoch"] = score(predicted(ensemble, job.test, job), intervals=INTERVALS)
        every = {"": row.scores, **variants}
        losses = {name: values for name, scores in every.items() if (values := _losses(scores)) is not None}
        return replace(row, variants=variants, losses=losses)

    def _epochs(self, ensemble: Ensemble, job: Job, recipe: Recipe) -> int:
        """Returns the number of epochs. A resumed run keeps its number, because timing it again would give another."""
        config = self.folder / "config.json"
        if config.is_file() and self.budget.unit != "epochs":
            return int(json.loads(config.read_text(encoding="utf-8"))["recipe"]["epochs"])
        return self.budget.epochs(ensemble, job, recipe)

    def _score(self, ensemble: Ensemble, job: Job, test: Prediction, shift: Shifted) -> Row:
        """Scores predictions of the test set and of corrupted images, predicts out-of-distribution sets, measures the cost."""
        ood = {name: predicted(ensemble, data, job) for name, data in job.ood.items()}
        batch = job.test.batch(slice(0, COST_BATCH))[0].to(next(ensemble.parameters()).device)
        return Row(
            name=self.name,
            method=repr(self.method),
            seed=self.seed,
            scores=score(test, ood=ood or None, shift=shift or None, intervals=INTERVALS),
            prediction=test,
            ood=ood,
            cost=_cost_columns(cost(ensemble, batch, training=True)),
            command=self.command,
        )

    def _shift(self, ensemble: Ensemble, job: Job) -> Shifted:
        """Predicts the corrupted images; empty if the job has no corruptions."""
        sets = corrupted(self.task, self.root)
        return {name: {s: predicted(ensemble, data, job) for s, data in one.items()} for name, one in sets.items()}


@functools.lru_cache(maxsize=2)
def load_job(task: str, root: str | None) -> Job:
    """Makes a job and caches it for the other trials of this process."""
    return find_job(task, root)


@functools.lru_cache(maxsize=2)
def corrupted(task: str, root: str | None) -> Mapping[str, Mapping[int, Data]]:
    """Returns the job's test images under each of its corruptions, by name and severity."""
    job = load_job(task, root)
    if not job.corruptions:
        return {}
    clean = job.test.subset(range(min(job.corrupted, len(job.test)))).in_memory()
    assert isinstance(clean.inputs, Tensor)
    return {
        name: {severity: replace(clean, inputs=corrupt(clean.inputs, name, severity), name=name) for severity in SEVERITIES}
        for name in job.corruptions
    }


def predicted(ensemble: Ensemble, data: Data, job: Job) -> Prediction:
    """Predicts a dataset, in the original units of the job's targets."""
    return predict(ensemble, data, progress=False, tau_output=job.tau_output).in_original_units(job.test)


def _losses(scores: Scores) -> Tensor | None:
    """Returns the NLL of each example, or minus its log density; None without densities, or for very many pixels."""
    assert scores.evidence is not None
    columns = scores.evidence.columns
    losses = columns["nll"] if "nll" in columns else -columns["log_density"] if "log_density" in columns else None
    return losses if losses is not None and len(losses) <= MOST else None


def _cost_columns(measured: Cost) -> dict[str, float]:
    """Returns the costs of a call by name, and those of the single network as `single_...`."""
    names = ("parameters", "multiply_adds", "memory", "latency", "step")
    ensemble = {name: float(getattr(measured.ensemble, name)) for name in names}
    single = {f"single_{name}": float(getattr(measured.base, name)) for name in names}
    return {**ensemble, **single}


def _rescaled(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """Returns the settings that make a recipe last `epochs`, with warm-up and milestones at the same fractions of the run."""
    ratio = epochs / recipe.epochs
    milestones = tuple(sorted({max(1, round(m * ratio)) for m in recipe.milestones}))
    return {"epochs": epochs, "milestones": milestones, "warmup": recipe.warmup * ratio}
