"""Rows: the results of trials, each saved in its own folder.

    row.json           scores, cost, settings, and the command that reproduces the row
    row.safetensors    the predictions behind the scores, and a digest of row.json

Files are written atomically, row.json last. Loading refuses two files from different runs. No pickle is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import Tensor

from multitudes.errors import FileError, InputError
from multitudes.files.old_settings import current_text, with_job
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator
from multitudes.scores.old_names import with_current_names
from multitudes.scores.scores import Scores, json_number

FORMAT = 2
"""2: scores of corrupted sets are among the scores, by corruption. 1: `shifted` held scores of all corruptions pooled."""

POOLED = ("accuracy", "nll")
"""Scores that are the same for a pool of equally large sets as in the mean over them. A calibration error is not."""

JSON, TENSORS = "row.json", "row.safetensors"
LOSSES = "losses/"
"""Prefix of the losses in row.safetensors."""
OWN = "test"
"""Name of the test set's prediction in row.safetensors; those of OOD sets are called "ood/..."."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of a trial: its line in the report's table, and everything else that the report shows of it.

    >>> Row(name="packed", method="Packed(members=4)", scores=Scores({"accuracy": 0.9}, task="classes")).seed
    0
    """

    name: str
    """Name of the row. Rows with the same name and different seeds are shown as one, with mean and standard deviation."""

    method: str
    """The method with its settings, as printed."""

    seed: int = 0
    """Random seed of the trial."""

    scores: Scores
    """Scores of the test set, from `mt.score`; those of corrupted sets too, by `mt.score(shift=...)`."""

    prediction: Prediction | None = None
    """Prediction of the test set, with targets."""

    ood: Mapping[str, Prediction] = field(default_factory=dict)
    """Predictions of out-of-distribution sets, by name."""

    variants: Mapping[str, Scores] = field(default_factory=dict)
    """Scores of the test set for the same run used otherwise, by name: `best epoch`, `last epoch`, `calibrated`."""

    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """NLL of each test example ``[N]``: of the row itself under "", of variants under their names. With them methods are
    compared example by example."""

    calibrator: Calibrator | None = None
    """Temperature, or factor of variances, that the run fitted on its validation set. The variant `calibrated` is scored with
    it; `prediction` and `ood` are without it."""

    cost: Mapping[str, float] = field(default_factory=dict)
    """Costs by name: `parameters`, `multiply_adds`, `memory` in bytes, `latency` in seconds, or others. `single_parameters` and
    so on are the costs of the single network."""

    measured: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the trained ensemble by name, as the job measures them."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The recipe and other settings, as JSON. The report shows `data` and `network` at its top."""

    command: str = ""
    """Shell command that reproduces this row."""

    seconds: float | None = None
    """Training time."""

    def __post_init__(self) -> None:
        wrong = []
        if not isinstance(self.name, str) or not self.name.strip():
            wrong.append(f"name={self.name!r}: give a non-empty str")
        if not isinstance(self.scores, Scores):
            wrong.append(f"scores must be the result of mt.score, not {type(self.scores).__name__}")
        predictions = {"prediction": self.prediction, **{f"ood={name!r}": one for name, one in self.ood.items()}}
        wrong += [
            f"{name} must be the result of mt.predict, not {type(one).__name__}"
            for name, one in predictions.items()
            if not isinstance(one, Prediction) and not (one is None and name == "prediction")
        ]
        wrong += [
            f"variants[{name!r}] must be the result of mt.score, not {type(one).__name__}"
            for name, one in self.variants.items()
            if not isinstance(one, Scores)
        ]
        try:
            json.dumps(self.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            wrong.append(f"settings must be plain values that JSON can hold: {error}")
        if wrong:
            raise InputError("; ".join(wrong))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes row.json and row.safetensors into a folder, which is created if missing."""
        from multitudes.storage import digest, save_tensors, write

        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write into {place}: {error.strerror or error}") from error
        about, tensors = [], {}  # type: list[dict[str, Any]], dict[str, Tensor]
        own = {} if self.prediction is None else {OWN: self.prediction}
        for name, prediction in (own | {f"ood/{name}": one for name, one in self.ood.items()}).items():
            settings, own_tensors = prediction.to_tensors()
            about.append({"name": name, **settings})
            tensors.update({f"{name}/{key}": value for key, value in own_tensors.items()})
        tensors.update({f"{LOSSES}{name}": values.float().contiguous() for name, values in self.losses.items()})
        text = json.dumps(self._described(), indent=1, ensure_ascii=False).encode()
        save_tensors(place / TENSORS, "row", {"row": digest({}, text.decode()), "predictions": about}, tensors)
        write(place / JSON, text)

    def _described(self) -> dict[str, Any]:
        """Returns everything but the predictions, as JSON."""
        from multitudes.version import __version__

        return {
            "format": FORMAT, "multitudes": __version__, "name": self.name, "method": self.method, "seed": self.seed,
            "command": self.command, "seconds": None if self.seconds is None else json_number(self.seconds),
            "settings": dict(self.settings), "cost": {name: json_number(value) for name, value in self.cost.items()},
            "measured": {name: json_number(value) for name, value in self.measured.items()},
            "calibrator": None if self.calibrator is None else self.calibrator.settings(),
            "variants": {name: json.loads(one.json()) for name, one in self.variants.items()},
            "scores": json.loads(self.scores.json()),
        }  # fmt: skip

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Row:
        """Loads the row in a folder. Its predictions are complete, but its scores have no data per example."""
        from multitudes.storage import digest, load_tensors

        place = Path(folder)
        text, found = _read(place / JSON)
        about, tensors = load_tensors(place / TENSORS, "row")
        if about.get("row") != digest({}, text.decode(errors="replace")):
            raise FileError(f"{place / JSON} was altered, or is from another run than {TENSORS} beside it: run the trial again")
        try:
            made = {one["name"]: Prediction.from_tensors(one, _of(one["name"], tensors)) for one in about["predictions"]}
            own = made.pop(OWN, None)
            ood = {name.removeprefix("ood/"): one for name, one in made.items()}
            return cls(
                name=found["name"], method=current_text(found["method"]), seed=found["seed"],
                command=current_text(found["command"]),
                scores=_scores(_with_pooled(found), ood), prediction=own, ood=ood,
                variants={name: _scores(one, ood) for name, one in found.get("variants", {}).items()},
                calibrator=None if found.get("calibrator") is None else Calibrator(**found["calibrator"]),
                losses={name.removeprefix(LOSSES): values for name, values in tensors.items() if name.startswith(LOSSES)},
                cost={name: float(value) for name, value in found["cost"].items()}, settings=with_job(found["settings"]),
                measured={name: float(value) for name, value in found.get("measured", {}).items()},
                seconds=None if found["seconds"] is None else float(found["seconds"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, FileError) as error:
            raise FileError(
                f"{place} holds no valid row (the result of a trial): {type(error).__name__}: {error}. Run the trial again"
            ) from error


def _scores(saved: Mapping[str, Any], ood: Mapping[str, Prediction]) -> Scores:
    """Reads scores of a row. If they were written without the name of the only OOD set, they are given it."""
    return Scores.from_json(json.dumps(with_current_names(saved, next(iter(ood)) if len(ood) == 1 else "ood")))


def _with_pooled(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores in a row's JSON. Pooled scores of format 1 become those of one corruption, called `corrupted`."""
    scores = saved["scores"]
    pooled = {f"corrupted/{s}/{key}": own[key] for s, own in saved.get("shifted", {}).items() for key in POOLED if key in own}
    return {**scores, "scores": {**scores["scores"], **pooled}}


def load_rows(paths: Iterable[str | PathLike[str]] | str | PathLike[str]) -> list[Row]:
    """Loads every row in these folders and their subfolders, by job, name and seed. Each folder must hold at least one.

    Jobs are in the order of the folders, so that a page of several jobs has its parts in this order.
    """
    places = _places(paths)
    missing = [fspath(path) for path in places if not path.exists()]
    if missing:
        raise FileError(f"there is no folder {', '.join(missing)}: give folders of runs")
    files = {path: [path] if path.name == JSON else sorted(path.rglob(JSON)) for path in places}
    empty = [fspath(path) for path, own in files.items() if not own]
    if empty or not files:
        where = ", ".join(empty) or "an empty list of folders"
        raise FileError(
            f"there is no row in {where}: give folders of finished runs, which hold {JSON}. "
            "`multitudes train --resume --out FOLDER` finishes and scores a run"
        )
    unique = {file.resolve(): file for own in files.values() for file in own}
    loaded = [(Row.load(file.parent), str(file)) for file in unique.values()]
    jobs = list(dict.fromkeys(_job(row) for row, _ in loaded))
    return [row for row, _ in sorted(loaded, key=lambda pair: (jobs.index(_job(pair[0])), pair[0].name, pair[0].seed, pair[1]))]


def _job(row: Row) -> tuple[str, ...]:
    """Returns what tells the job of a row from others: data, job and task."""
    return (*(str(row.settings.get(name)) for name in ("data", "job")), row.scores.task)


def without_row(paths: Iterable[str | PathLike[str]] | str | PathLike[str]) -> list[Path]:
    """Returns the folders of runs, in these folders and their subfolders, that hold no row: they are not finished."""
    runs = dict.fromkeys(file.parent for path in _places(paths) for file in sorted(path.rglob("config.json")))
    return [run for run in runs if (run / "checkpoints").is_dir() and not (run / JSON).exists()]


def _places(paths: Iterable[str | PathLike[str]] | str | PathLike[str]) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, (str, PathLike)) else paths)]


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Returns the bytes of a JSON file and the parsed dict."""
    from multitudes.storage import described

    try:
        text = path.read_bytes()
    except OSError as error:
        raise FileError(f"there is no row in {path.parent}: cannot read {path.name}: {error.strerror or error}") from error
    return text, described(text, path, "row", FORMAT)


def _of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of one prediction. The name of an OOD set may hold a slash."""
    return {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
