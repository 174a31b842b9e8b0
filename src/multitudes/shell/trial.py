"""A trial: one method with one seed on one job: trained, predicted, scored, and kept in its folder as a Row."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.conversion.convert import ensemble as converted
from multitudes.conversion.cost import cost
from multitudes.data import corrupt
from multitudes.data.corruptions.published import SEVERITIES
from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.errors import FileError
from multitudes.method import Method
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.report.row import Row
from multitudes.scores.score import score
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Job, job
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

INTERVALS = 200
"""Bootstrap samples of the test set."""
CALL = 32
"""Inputs of the call whose cost is measured."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be tried; it travels to other processes."""

    task: str
    """The job's name, or MODULE:FUNCTION."""

    name: str
    """What the row is called."""

    method: Method
    seed: int
    budget: Budget
    folder: Path
    root: str | None = None
    command: str = ""
    """What to type for this row alone."""

    def done(self) -> bool:
        """Whether its row is there."""
        return (self.folder / "row.json").is_file()

    def run(self) -> Row:
        """The row: read where it is there, else made; a run that was stopped goes on."""
        return self.read() if self.done() else self._made(loaded(self.task, self.root))

    def read(self) -> Row:
        """The row that is there; that of another trial is refused."""
        row = Row.load(self.folder)
        here = {"method": repr(self.method), "seed": self.seed, "task": self.task, "budget": str(self.budget)}
        there = {"method": row.method, "seed": row.seed, **{key: row.settings.get(key) for key in ("task", "budget")}}
        wrong = [f"{key} was {there[key]} and is {here[key]}" for key in here if here[key] != there[key]]
        if wrong:
            raise FileError(f"{self.folder} holds another trial: {'; '.join(wrong)}; take another --out")
        return row

    def _made(self, what: Job) -> Row:
        torch.manual_seed(self.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        ensemble = converted(what.network(), self.method, what.example, seed=self.seed, task=what.task).to(device)
        recipe = replace(what.recipe, seed=self.seed)
        recipe = replace(recipe, **_rescaled(recipe, self._epochs(ensemble, what, recipe)))
        run = fit(ensemble, what.train, recipe, val=what.validation, out=self.folder, resume=True, progress=False)
        if what.validation is not None:
            run.use_best()
        ensemble.to(memory_format=torch.contiguous_format)
        row = self._judged(ensemble, what)
        said = {key: value for key, value in recipe.settings().items() if key != "seed"}
        settings = {"task": self.task, "data": what.name, "network": type(ensemble.base).__name__, "recipe": said}
        settings["budget"] = str(self.budget)
        row = replace(row, settings=settings, seconds=sum(line["seconds"] for line in run.metrics))
        row.save(self.folder)
        return row

    def _epochs(self, ensemble: Ensemble, what: Job, recipe: Recipe) -> int:
        """Of a run that goes on, as many as it was begun with: seconds are not counted the same twice."""
        config = self.folder / "config.json"
        if config.is_file() and self.budget.unit != "epochs":
            return int(json.loads(config.read_text(encoding="utf-8"))["recipe"]["epochs"])
        return self.budget.epochs(ensemble, what, recipe)

    def _judged(self, ensemble: Ensemble, what: Job) -> Row:
        here = in_original_units(predict(ensemble, what.test, progress=False), what.test)
        ood = {name: in_original_units(predict(ensemble, other, progress=False), what.test) for name, other in what.ood.items()}
        scores = score(here, ood=ood or None, intervals=INTERVALS)
        shifted = {
            severity: score(
                Prediction.cat([in_original_units(predict(ensemble, one, progress=False), what.test) for one in sets])
            )
            for severity, sets in corrupted(self.task, self.root).items()
        }
        spent = cost(ensemble, what.test.batch(slice(0, CALL))[0].to(next(ensemble.parameters()).device))
        return Row(
            name=self.name, method=repr(self.method), seed=self.seed, scores=scores, prediction=here, ood=ood,
            shifted={severity: dict(found) for severity, found in shifted.items()}, cost=_spent(spent), command=self.command,
        )  # fmt: skip


@functools.lru_cache(maxsize=2)
def loaded(task: str, root: str | None) -> Job:
    """A job, read once by a process."""
    return job(task, root)


@functools.lru_cache(maxsize=2)
def corrupted(task: str, root: str | None) -> Mapping[int, list[Data]]:
    """Images of the job's test set under each of its corruptions, by severity."""
    what = loaded(task, root)
    if not what.corruptions:
        return {}
    few = what.test.subset(range(min(what.corrupted, len(what.test)))).in_memory()
    assert isinstance(few.inputs, Tensor)
    found: dict[int, list[Data]] = {}
    for severity in SEVERITIES:
        made = {name: corrupt(few.inputs, name, severity) for name in what.corruptions}
        found[severity] = [replace(few, inputs=images, name=name) for name, images in made.items()]
    return found


def in_original_units(prediction: Prediction, data: Data) -> Prediction:
    """Of standardised targets, the prediction in the units that they had."""
    if data.target_std is None or prediction.task not in ("gaussian", "regression"):
        return prediction
    values: dict[str, Any] = dict(prediction.members)
    values["mean"] = data.original(values["mean"])
    if "variance" in values:
        values["variance"] = values["variance"] * data.target_std.to(values["variance"]) ** 2
    targets = prediction.targets
    return Prediction(**values, task=prediction.task, targets=None if targets is None else data.original(targets))


def _spent(found: Any) -> dict[str, float]:
    """What a call costs, and against the single network."""
    names = ("parameters", "multiply_adds", "memory", "latency")
    own = {name: float(getattr(found.ensemble, name)) for name in names}
    beside = {f"single_{name}": float(getattr(found.base, name)) for name in names}
    return {**own, **beside}


def _rescaled(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """So many epochs, and milestones at the same shares of them."""
    by = epochs / recipe.epochs
    return {"epochs": epochs, "milestones": tuple(sorted({max(1, round(m * by)) for m in recipe.milestones}))}
