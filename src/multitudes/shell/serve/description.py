"""Description: what an exported file says of itself, in its metadata, and what is missing there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from multitudes.errors import FileError

KEY = "multitudes"
"""Key of the description in the metadata of the ONNX file."""

FORMAT = 1
"""Newest format of the description that is known here."""

LONGEST = 2**24
"""Most characters of a description: names of classes are the longest part of it."""

NORMALISATION = ("mean", "std")


@dataclass(frozen=True)
class Input:
    """An input of the graph."""

    name: str
    shape: tuple[int | None, ...]
    """Sizes of one row, None where they are free."""

    dtype: str
    mean: tuple[float, ...] | None = None
    """Normalisation of training, for images of pixels from 0 to 1: what is subtracted in each channel or feature,"""

    std: tuple[float, ...] | None = None
    """and what they are divided by."""

    @property
    def is_image(self) -> bool:
        """Whether a row is an image ``[C, H, W]``, grey or in colour."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3) and self.dtype in ("float32", "float64", "float16", "uint8")


@dataclass(frozen=True)
class Threshold:
    """Where the ensemble abstains."""

    score: str
    value: float


@dataclass(frozen=True)
class Reference:
    """How a score is distributed on data like that of training."""

    score: str
    quantiles: Mapping[float, float]


@dataclass(frozen=True)
class Description:
    """What the file says of the ensemble; everything may be missing."""

    known: bool = False
    """Whether there is a description at all."""

    task: str | None = None
    method: str | None = None
    members: int | None = None
    version: str | None = None
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    threshold: Threshold | None = None
    temperature: Any = None
    reference: Reference | None = None
    sealed: bool = False
    """Whether the file must have a digest."""
    alone: bool = True
    """Whether a row's answer does not depend on the rows beside it."""

    def notes(self) -> tuple[str, ...]:
        """Says what is missing, and what follows from it."""
        if not self.known:
            return (
                "no description of multitudes: outputs are served under their names, without classes, abstention and OOD rate",
            )
        lines = {
            "no names of classes: labels are numbers": self.labels is None and self.task in ("classes", "binary", "multilabel"),
            "no threshold: the ensemble never abstains": self.threshold is None,
            "no reference: the OOD rate is not known": self.reference is None,
            "rows are sent normalised, as in training; images are normalised here": any(
                one.get("mean") for one in self.inputs.values()
            ),
        }
        return tuple(line for line, holds in lines.items() if holds)

    def complete(self, given: Input) -> Input:
        """Returns the input with its normalisation, if the file has one."""
        own = self.inputs.get(given.name, {})
        if not all(own.get(key) for key in NORMALISATION):
            return given
        mean, std = (tuple(float(value) for value in own[key]) for key in NORMALISATION)
        return replace(given, mean=mean, std=std)


def described(text: str | None, file: Path) -> Description:
    """Reads the description of a file; refuses one that is damaged, or newer than this version."""
    if text is None:
        return Description()
    try:
        if len(text) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST} characters")
        about = json.loads(text)
        if not isinstance(about, dict):
            raise TypeError("it is no object")
        newer = about["format"] > FORMAT
        found = None if newer else _read(about)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{file}: the description of the ensemble is damaged ({reason[:200]}): export it again") from error
    if found is None:
        raise FileError(f"{file} has a newer format: update multitudes")
    return found


def _read(about: Mapping[str, Any]) -> Description:
    """Returns the description, each part checked."""
    labels, threshold, reference = (about.get(key) for key in ("labels", "threshold", "reference"))
    return Description(
        known=True,
        task=_text(about["task"]),
        method=None if about.get("method") is None else _text(about["method"]),
        members=None if about.get("members") is None else int(about["members"]),
        version=None if about.get("version") is None else _text(about["version"]),
        inputs={_text(one["name"]): _input(one) for one in about.get("inputs") or []},
        outputs=tuple(_text(name) for name in about.get("outputs") or []),
        labels=None if labels is None else tuple(str(name) for name in labels),
        threshold=None if threshold is None else Threshold(_text(threshold["score"]), _number(threshold["value"])),
        temperature=about.get("temperature"),
        reference=None if reference is None else _reference(reference),
        sealed=about.get("sealed") is True,
        alone=about.get("alone", True) is True,
    )


def _input(one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an input says, its normalisation checked: a number for each channel or feature, none zero to divide by."""
    mean, std = ([_number(value) for value in one.get(key) or []] for key in NORMALISATION)
    shape = one.get("shape") or []
    if len(mean) != len(std) or (mean and (len(shape) < 2 or len(mean) != shape[1])) or any(value <= 0 for value in std):
        raise ValueError(f"the normalisation of {one['name']} does not fit its channels or features")
    return {"mean": mean, "std": std}


def _reference(about: Mapping[str, Any]) -> Reference:
    quantiles = {_number(float(key)): _number(value) for key, value in about["quantiles"].items()}
    if not quantiles or not all(0 < key < 1 for key in quantiles):
        raise ValueError("quantiles of the reference must lie between 0 and 1")
    return Reference(_text(about["score"]), quantiles)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no finite number")
    return float(value)
