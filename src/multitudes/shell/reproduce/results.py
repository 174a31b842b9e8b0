"""Results: the rows of an item as JSON files, one for each row, with all its runs.

    OUT/PAPER/ITEM/SCALE/ROW.json

A file holds what the paper prints in this row, what differs, and for each run its scores, costs, settings and command. Runs
with other seeds are added to those that are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from multitudes.errors import FileError
from multitudes.shell.reproduce.item import Column, Item

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run of a row: its numbers, and where they come from."""

    seed: int
    scores: Mapping[str, float]
    """Scores by name."""
    job: str = ""
    """The job's name in its item; empty for numbers that no job made."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """Costs by name; those of the single network as `single_...`."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the job."""
    ood: tuple[str, ...] = ()
    """Names of the OOD sets, in the job's order."""
    key: str = ""
    """What {key} in the scores of columns stands for."""
    rows: int | None = None
    """For numbers that no job made, how many rows were computed with this one: if fewer are there, they are computed again."""
    method: str = ""
    network: str = ""
    budget: str = ""
    date: str = ""
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The recipe and other settings."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages, and the device."""
    command: str = ""

    def value(self, column: Column) -> float | None:
        """Returns the number of a column, as the paper would print it; None if this run has none."""
        name = column.score.replace("{key}", self.key)
        kind, _, rest = name.partition("/")
        if kind == "cost":
            found = self.cost.get(rest)
        elif kind == "relative":
            single = self.cost.get(f"single_{rest}")
            found = self.cost[rest] / single if single and rest in self.cost else None
        elif kind == "measured":
            found = self.measured.get(rest, self.scores.get(rest))
        elif kind == "ood":
            found = self.scores.get(f"{self.ood[0]}/{rest}") if self.ood else None
        else:
            found = self.scores.get(name)
        return None if found is None else float(found) * column.factor


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of an item, with all its runs at one scale."""

    item: str
    scale: str
    label: str
    runs: tuple[Measured, ...]
    printed: Mapping[str, float] = field(default_factory=dict)
    """What the paper prints in this row, by column."""
    differs: str = ""
    """What differs from the paper."""

    def values(self, column: Column) -> list[float]:
        """Returns the numbers of a column in all runs that have it."""
        return [value for run in self.runs if (value := run.value(column)) is not None]

    def save(self, out: Path) -> Path:
        """Writes the file of the row, with the runs that are there already and have another seed or job."""
        from multitudes.storage import write

        file = place(out, self.item, self.scale) / f"{slug(self.label)}.json"
        old = {(run.job, run.seed): run for run in (load(file).runs if file.is_file() else ())}
        mine = {(run.job, run.seed): _as_first_written(run, old.get((run.job, run.seed))) for run in self.runs}
        runs = [*(run for key, run in old.items() if key not in mine), *mine.values()]
        ordered = sorted(runs, key=lambda run: (run.job, run.seed))
        content = {**asdict(self), "format": FORMAT, "runs": [_short(run) for run in ordered]}
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        return file


def _as_first_written(run: Measured, old: Measured | None) -> Measured:
    """Returns a run with the date and the device of the file, if the file holds the same run: it was only read again.

    Numbers that follow from other rows are kept too: those rows may not have been asked for this time.
    """
    if old is None or (old.scores, old.seconds) != (run.scores, run.seconds):
        return run
    return replace(run, date=old.date, versions=old.versions, measured={**old.measured, **run.measured})


def _short(run: Measured) -> dict[str, Any]:
    """Returns a run as JSON, without fields that are empty."""
    return {name: value for name, value in asdict(run).items() if value not in ("", None, {}, ())}


def place(out: Path, item: str, scale: str) -> Path:
    """Returns the folder of an item's rows and figures at a scale."""
    return out / item / scale


def slug(label: str) -> str:
    """Returns a label as the name of a file: letters, digits, dots and dashes.

    >>> slug("Packed-Ensembles, C10, R18"), slug("α = 2, γ = 1")
    ('packed-ensembles-c10-r18', 'alpha-2-gamma-1')
    """
    greek = {"α": "alpha", "γ": "gamma", "ρ": "rho", "τ": "tau", "σ": "sigma", "λ": "lambda", "×": "x"}
    plain = "".join(greek.get(letter, letter) for letter in label.lower())
    return "-".join("".join(c if c.isascii() and (c.isalnum() or c == ".") else " " for c in plain).split())


def load(file: Path) -> Result:
    """Reads the file of a row."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("format") > FORMAT:
            raise FileError(f"{file} was written by a newer version of multitudes: update it")
        runs = tuple(
            Measured(**{**run, "ood": tuple(run.get("ood", ())), "scores": _current(run)}) for run in content.pop("runs")
        )
        if not runs:
            raise ValueError("it has no runs")
        return Result(**content, runs=runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{file} holds no row of a table: {type(error).__name__}: {error}") from error


def _current(run: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scores of a run by the names that they have now. Names of the first files were without the OOD set."""
    scores: dict[str, float] = run.get("scores", {})
    if not any(name.startswith("auroc/") for name in scores):
        return scores
    from multitudes.scores.old_names import current_names

    return current_names(scores, ood=run["ood"][0])


def check_rows(out: Path, item: Item, scale: str, force: bool) -> None:
    """Checks, before any work, that the files of an item's rows can be read. With `force`, those that cannot are removed."""
    for file in sorted(place(out, item.name, scale).glob("*.json")):
        try:
            load(file)
        except FileError as error:
            if not force:
                raise FileError(f"{error}. Replace it with --force, or choose another --out") from error
            file.unlink()


def load_all(out: Path, item: Item, scale: str) -> list[Result]:
    """Reads the rows of an item at a scale, in the order of its labels; none if nothing was run."""
    found = [load(file) for file in sorted(place(out, item.name, scale).glob("*.json"))]
    order = {label: index for index, label in enumerate(dict.fromkeys([*item.rows, *item.printed.rows]))}
    return sorted(found, key=lambda one: (order.get(one.label, len(order)), _natural(one.label)))


def _natural(label: str) -> list[tuple[bool, float, str]]:
    """Returns a key that sorts labels with their numbers by size: S = 2 before S = 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(part[:1].isdigit(), float(part) if part[:1].isdigit() else 0.0, part) for part in parts]


def about_runs(results: Sequence[Result]) -> dict[str, list[str]]:
    """Returns what runs were: their budgets, devices, dates, seeds and jobs, each value once."""
    runs = [run for result in results for run in result.runs]
    kinds = {
        "budget": [run.budget for run in runs],
        "device": [run.versions.get("device", "") for run in runs],
        "date": [run.date for run in runs],
        "seeds": [str(run.seed) for run in runs],
    }
    return {name: sorted({value for value in values if value}) for name, values in kinds.items()}
