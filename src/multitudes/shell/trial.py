"""Trials: one method with one seed on one job, trained, predicted, scored, and saved in a folder as a Row."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multitudes.ensemble import Ensemble
from multitudes.errors import FileError
from multitudes.method import Method
from multitudes.report.row import Row
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Job, find_job
from multitudes.shell.scoring import scored_row
from multitudes.shell.told import Told
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The settings of one trial. They can be pickled and sent to another process."""

    job: str
    """The job's name, or MODULE:FUNCTION."""

    name: str
    """The name of the row in tables and in the report."""

    text: str
    """The method as it is typed."""

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
        return self.read() if self.done() else self._train_and_score(load_job(self.job, self.root))

    def read(self) -> Row:
        """Reads the row from the folder; raises FileError if it is the row of another trial."""
        row = Row.load(self.folder)
        mine = {"method": repr(self.method), "seed": self.seed, "job": self.job, "budget": str(self.budget)}
        saved = {"method": row.method, "seed": row.seed, **{key: row.settings.get(key) for key in ("job", "budget")}}
        differences = [f"{key} was {saved[key]} and is {mine[key]}" for key in mine if mine[key] != saved[key]]
        if differences:
            raise FileError(
                f"{self.folder} holds another trial: {'; '.join(differences)}. Choose another --out, or replace it with --force"
            )
        return row

    def _train_and_score(self, job: Job) -> Row:
        ensemble = job.ensemble(self.method, self.seed, row=self.text)
        recipe = replace(job.recipe_of(self.text), seed=self.seed)
        recipe = replace(recipe, **rescaled(recipe, self._epochs(ensemble, job, recipe)))
        self._check_epochs(recipe.epochs)
        Told(job=self.job, method=self.text, seed=self.seed, root=self.root).save(self.folder)
        run = fit(ensemble, job.train, recipe, val=job.validation, out=self.folder, resume=True, progress=False)
        settings = {"job": self.job, "budget": str(self.budget)}
        row = scored_row(run, job, name=self.name, command=self.command, settings=settings, row=self.text)
        row.save(self.folder)
        return row

    def _check_epochs(self, epochs: int) -> None:
        """Refuses an unfinished run of another length: all trials of a sweep train by the same schedule from the start."""
        saved = self._saved_epochs()
        if saved not in (None, epochs):
            raise FileError(
                f"{self.folder} holds another trial: recipe.epochs was {saved} and is {epochs}. Choose another --out, or "
                "replace it with --force"
            )

    def _saved_epochs(self) -> int | None:
        """Returns the number of epochs of the run in the folder; None if there is none."""
        config = self.folder / "config.json"
        return int(json.loads(config.read_text(encoding="utf-8"))["recipe"]["epochs"]) if config.is_file() else None

    def _epochs(self, ensemble: Ensemble, job: Job, recipe: Recipe) -> int:
        """Returns the number of epochs. A resumed run keeps its number, because timing it again would give another."""
        saved = self._saved_epochs()
        if saved is not None and self.budget.unit != "epochs":
            return saved
        return self.budget.epochs(ensemble, job, recipe)


@functools.lru_cache(maxsize=2)
def load_job(name: str, root: str | None) -> Job:
    """Makes a job and caches it for the other trials of this process."""
    return find_job(name, root)


def rescaled(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """Returns the settings that make a recipe last `epochs`, with warm-up and milestones at the same fractions of the run."""
    ratio = epochs / recipe.epochs
    milestones = tuple(sorted({max(1, round(m * ratio)) for m in recipe.milestones}))
    return {"epochs": epochs, "milestones": milestones, "warmup": recipe.warmup * ratio}
