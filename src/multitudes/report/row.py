"""Rows: what trials came to, each saved in a folder of its own.

    row.json           scores, cost, settings, and the command that gives the row again
    row.safetensors    the predictions they were counted from, and a digest of row.json

Each file is written whole or not at all, row.json last; a pair that does not belong together is told. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import Tensor

from multitudes.errors import FileError, InputError
from multitudes.prediction.prediction import Prediction
from multitudes.scores.scores import Scores, json_number

FORMAT = 1
JSON, TENSORS = "row.json", "row.safetensors"
OWN = "test"
"""What the prediction of the test set is called beside those of `foreign`, which are "ood/..."."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a trial came to: a line of a table, and all that a report shows of it.

    >>> Row(name="packed", method="Packed(members=4)", scores=Scores({"accuracy": 0.9}, task="classes")).seed
    0
    """

    name: str
    """What the row is called; rows of one name with other seeds are shown as one, with their mean and spread."""

    method: str
    """The method with its settings, as it is printed."""

    seed: int = 0
    """What the trial was drawn from."""

    scores: Scores
    """Of the test set, as `mt.score` gives them."""

    prediction: Prediction | None = None
    """Of the test set, with targets."""

    ood: Mapping[str, Prediction] = field(default_factory=dict)
    """Of sets out of distribution, by name."""

    shifted: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Scores of the corrupted test set, by severity."""

    cost: Mapping[str, float] = field(default_factory=dict)
    """`parameters`, `multiply_adds`, `memory` in bytes, `latency` in seconds, or others; the single network's beside them as
    `single_parameters` and so on."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The recipe and what else there is to know, as JSON has it; `data` and `network` are named at the top of a report."""

    command: str = ""
    """What to type to get this row again."""

    seconds: float | None = None
    """Of training."""

    def __post_init__(self) -> None:
        wrong = []
        if not isinstance(self.name, str) or not self.name.strip():
            wrong.append(f"name={self.name!r}: a row needs a name")
        if not isinstance(self.scores, Scores):
            wrong.append(f"scores are {type(self.scores).__name__}: give what mt.score returns")
        given = {"prediction": self.prediction, **{f"ood={name!r}": one for name, one in self.ood.items()}}
        wrong += [
            f"{name} is {type(one).__name__}: give what mt.predict returns"
            for name, one in given.items()
            if not isinstance(one, Prediction) and not (one is None and name == "prediction")
        ]
        wrong += [f"shifted={severity!r}: severities are numbers" for severity in self.shifted if not isinstance(severity, int)]
        try:
            json.dumps(self.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            wrong.append(f"settings must be what JSON can hold: {error}")
        if wrong:
            raise InputError("; ".join(wrong))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes row.json and row.safetensors into the folder, which is made if need be."""
        from multitudes.storage import save_tensors, write

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
        text = json.dumps(self._described(), indent=1, ensure_ascii=False).encode()
        save_tensors(place / TENSORS, "row", {"row": _digest(text), "predictions": about}, tensors)
        write(place / JSON, text)

    def _described(self) -> dict[str, Any]:
        """Everything but the predictions, as JSON."""
        from multitudes.version import __version__

        return {
            "format": FORMAT, "multitudes": __version__, "name": self.name, "method": self.method, "seed": self.seed,
            "command": self.command, "seconds": None if self.seconds is None else json_number(self.seconds),
            "settings": dict(self.settings), "cost": {name: json_number(value) for name, value in self.cost.items()},
            "shifted": {str(s): {name: json_number(value) for name, value in own.items()} for s, own in self.shifted.items()},
            "scores": json.loads(self.scores.json()),
        }  # fmt: skip

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Row:
        """The row in a folder; its scores have no examples any more, its predictions do."""
        from multitudes.storage import load_tensors

        place = Path(folder)
        text, found = _read(place / JSON)
        about, tensors = load_tensors(place / TENSORS, "row")
        if about.get("row") != _digest(text):
            raise FileError(
                f"{place / JSON} was altered, or is not of the same run as {TENSORS} beside it: run the trial again"
            )
        try:
            made = {one["name"]: Prediction.from_tensors(one, _of(one["name"], tensors)) for one in about["predictions"]}
            return cls(
                name=found["name"], method=found["method"], seed=found["seed"], command=found["command"],
                scores=Scores.from_json(json.dumps(found["scores"])), prediction=made.pop(OWN, None),
                ood={name.removeprefix("ood/"): one for name, one in made.items()},
                shifted={int(s): {n: float(v) for n, v in own.items()} for s, own in found["shifted"].items()},
                cost={name: float(value) for name, value in found["cost"].items()}, settings=found["settings"],
                seconds=None if found["seconds"] is None else float(found["seconds"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, FileError) as error:
            raise FileError(f"{place} does not hold a row: {type(error).__name__}: {error}") from error


def load_rows(paths: Iterable[str | PathLike[str]] | str | PathLike[str]) -> list[Row]:
    """Every row in these folders and below, by name and seed."""
    given = [Path(path) for path in ([paths] if isinstance(paths, (str, PathLike)) else paths)]
    missing = [fspath(path) for path in given if not path.exists()]
    if missing:
        raise FileError(f"there is no {', no '.join(missing)}")
    found: dict[Path, Path] = {}
    for path in given:
        files = [path] if path.is_file() else sorted(path.rglob(JSON))
        found.update({file.resolve(): file for file in files if file.name == JSON})
    if not found:
        where = ", ".join(map(fspath, given)) or "what was given"
        raise FileError(f"there is no row in {where}: a trial leaves {JSON} in its folder")
    loaded = [(Row.load(file.parent), str(file)) for file in found.values()]
    return [row for row, _ in sorted(loaded, key=lambda pair: (pair[0].name, pair[0].seed, pair[1]))]


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """A file of JSON, as it is and what it says."""
    from multitudes.storage import described

    try:
        text = path.read_bytes()
    except OSError as error:
        raise FileError(f"there is no row in {path.parent}: cannot read {path.name}: {error.strerror or error}") from error
    return text, described(text, path, "row", FORMAT)


def _of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one prediction; a set's name may have a / in it."""
    return {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
