"""Reads and checks the tensors, arrays or lists that figures are drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, checked_targets

Numbers: TypeAlias = Tensor | NDArray[Any] | Sequence[Any]
Floats: TypeAlias = NDArray[np.float64]


@runtime_checkable
class Predicted(Protocol):
    """The part of a prediction that figures use."""

    @property
    def confidence(self) -> Tensor:
        """``[N, ...]``"""

    @property
    def labels(self) -> Tensor:
        """``[N, ...]``"""


def read(values: Numbers, name: str, axes: str, sizes: dict[str, int] | None = None) -> Floats:
    """Returns values in double precision after checking that they are finite and have these axes, such as "M N".

    `sizes` maps an axis to its length: lengths in `sizes` must match, and new axes are added to it.
    """
    array, sizes = _array(values, name), {} if sizes is None else sizes
    letters = axes.split()
    shape = f"[{', '.join(letters)}]"
    if array.ndim != len(letters):
        raise InputError(f"{name} must have the shape {shape}, not {list(array.shape)}")
    for letter, size in zip(letters, array.shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise InputError(f"{name} must have the shape {shape} with {letter} = {sizes[letter]}, not {list(array.shape)}")
    if not array.size:
        raise InputError(f"{name} is empty, of shape {list(array.shape)}: give at least one value")
    if not np.isfinite(array).all():
        kind = "NaN" if np.isnan(array).any() else "infinite"
        raise InputError(f"{name} is {kind} in {(~np.isfinite(array)).sum()} of {array.size} places: remove these values")
    return array


def read_labels(values: Numbers, name: str, axes: str, sizes: dict[str, int] | None = None) -> NDArray[np.int64]:
    """Returns integer labels after the checks of `read`."""
    array = read(values, name, axes, sizes)
    if (array != array.round()).any():
        raise InputError(f"{name} must be integers, not {array[array != array.round()][0]:g}")
    return array.astype(np.int64)


def named_runs(runs: Any, example: str) -> Iterator[tuple[str, Any]]:
    """Returns pairs of name and run in the order of the dict."""
    if not isinstance(runs, Mapping):
        raise InputError(f"runs must be a dict of name to run, {example}, not {type(runs).__name__}")
    if not runs:
        raise InputError(f"runs is empty: give at least one run, {example}")
    return ((legend_text(name), run) for name, run in runs.items())


def legend_text(name: Any) -> str:
    """Returns a name with dollar signs escaped, and refuses a leading underscore, which matplotlib leaves out of legends."""
    text = str(name)
    if text.startswith("_"):
        raise InputError(f"the name {text!r} starts with an underscore, and matplotlib leaves it out of the legend: rename it")
    return text.replace("$", r"\$")


def pair(run: Any, name: str, parts: str) -> tuple[Any, Any]:
    """Splits a run into its two parts. `parts` describes them in the error message."""
    if not isinstance(run, (tuple, list)) or len(run) != 2:
        raise InputError(f"{name!r} must be a pair {parts}, not {type(run).__name__}")
    return run[0], run[1]


def confidence_and_correct(runs: Any, ignore: int | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns (confidence ``[N]``, correct ``[N]``) of each run. A run may also be given as (prediction, targets)."""
    checked = {}
    for name, run in named_runs(runs, '{"single": (confidence, correct)}'):
        confidence, correct = pair(run, name, "(confidence [N], correct [N]) or (prediction, targets)")
        if isinstance(confidence, Predicted):
            confidence, correct = _of_prediction(confidence, correct, name, ignore)
        sizes: dict[str, int] = {}
        sure = read(confidence, f"confidence of {name!r}", "N", sizes)
        right = read(correct, f"correct of {name!r}", "N", sizes)
        if not np.isin(right, (0, 1)).all():
            raise InputError(f"correct of {name!r} must be true or false for each example, as in labels == targets")
        checked[name] = torch.from_numpy(sure), torch.from_numpy(right)
    return checked


def entropy_limit(entropies: list[Floats], top: float | None) -> float:
    """Returns the upper end of the colour scale: `top`, or the largest entropy."""
    if min(array.min() for array in entropies) < -1e-6:
        raise InputError("entropy is negative: give -(p * p.log()).sum() over classes")
    limit = (max(float(array.max()) for array in entropies) or 1.0) if top is None else top
    if not 0 < limit < np.inf:
        raise InputError(f"top={top} must be above 0 and finite, such as log(K) for K classes")
    return limit


def _of_prediction(prediction: Predicted, targets: Any, name: str, ignore: int | None) -> tuple[Tensor, Tensor]:
    """Returns confidence and correctness of every example or pixel whose target is not `ignore`."""
    if isinstance(prediction, Prediction):
        checked = checked_targets(prediction, targets, ignore).flatten()
        counted = checked != IGNORED
        return prediction.confidence.flatten().cpu()[counted], prediction.labels.flatten().cpu()[counted] == checked[counted]
    labels, targets = prediction.labels, torch.as_tensor(targets)
    if targets.shape != labels.shape:
        raise InputError(
            f"targets of {name!r} must have the shape of the labels, {list(labels.shape)}, not {list(targets.shape)}"
        )
    return prediction.confidence.flatten(), (labels.cpu() == targets.cpu()).flatten()


def _array(values: Any, name: str) -> Floats:
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64).numpy()
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a tensor, an array or a list of numbers: {error}") from None
