"""Values: what figures are made from, read from tensors, arrays or lists and checked."""

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
    """A prediction, as far as figures look at it."""

    @property
    def confidence(self) -> Tensor:
        """``[N, ...]``"""

    @property
    def labels(self) -> Tensor:
        """``[N, ...]``"""


def read(values: Numbers, name: str, axes: str, sizes: dict[str, int] | None = None) -> Floats:
    """Values in double precision, if they have these axes, such as "M N", and are finite.

    `sizes` holds how long axes are, as far as it is known; what is new is added.
    """
    array, sizes = _array(values, name), {} if sizes is None else sizes
    letters = axes.split()
    wanted = f"[{', '.join(letters)}]"
    if array.ndim != len(letters):
        raise InputError(f"{name} must be {wanted}: it is {list(array.shape)}")
    for letter, size in zip(letters, array.shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise InputError(f"{name} must be {wanted} with {letter} = {sizes[letter]}: it is {list(array.shape)}")
    if not array.size:
        raise InputError(f"{name} is empty: {list(array.shape)}")
    if not np.isfinite(array).all():
        kind = "NaN" if np.isnan(array).any() else "infinite"
        raise InputError(f"{name} is {kind} in {(~np.isfinite(array)).sum()} of {array.size} places: leave those out")
    return array


def read_labels(values: Numbers, name: str, axes: str, sizes: dict[str, int] | None = None) -> NDArray[np.int64]:
    """The same for whole numbers, such as labels."""
    array = read(values, name, axes, sizes)
    if (array != array.round()).any():
        raise InputError(f"{name} must be whole numbers, such as labels: {array[array != array.round()][0]:g} is among them")
    return array.astype(np.int64)


def named_runs(runs: Any, example: str) -> Iterator[tuple[str, Any]]:
    """Runs with their names, in their order."""
    if not isinstance(runs, Mapping):
        raise InputError(f"runs come by name, as in {example}: not as {type(runs).__name__}")
    if not runs:
        raise InputError(f"there is nothing to draw: give at least one run, as in {example}")
    return ((legend_text(name), run) for name, run in runs.items())


def legend_text(name: Any) -> str:
    """A name as text in which matplotlib sees no formula; one that it would leave out of a legend is refused."""
    text = str(name)
    if text.startswith("_"):
        raise InputError(f"{text!r} starts with an underscore, and would be left out of the legend: give another name")
    return text.replace("$", r"\$")


def pair(run: Any, name: str, wanted: str) -> tuple[Any, Any]:
    """The two parts of a run."""
    if not isinstance(run, (tuple, list)) or len(run) != 2:
        raise InputError(f"{name!r} must be a pair {wanted}: it is {type(run).__name__}")
    return run[0], run[1]


def confidence_and_correct(runs: Any, ignore: int | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Confidences and whether they came true, of each run; also from a prediction and its targets."""
    found = {}
    for name, run in named_runs(runs, '{"single": (confidence, correct)}'):
        confidence, correct = pair(run, name, "(confidence [N], correct [N]) or (prediction, targets)")
        if isinstance(confidence, Predicted):
            confidence, correct = _of_prediction(confidence, correct, name, ignore)
        sizes: dict[str, int] = {}
        sure = read(confidence, f"the confidence of {name!r}", "N", sizes)
        true = read(correct, f"what is correct of {name!r}", "N", sizes)
        if not np.isin(true, (0, 1)).all():
            raise InputError(f"what is correct of {name!r} must be true or false for each example, as in labels == targets")
        found[name] = torch.from_numpy(sure), torch.from_numpy(true)
    return found


def entropy_limit(entropies: list[Floats], top: float | None) -> float:
    """Where the scale of entropies ends: at `top`, or at the largest."""
    if min(found.min() for found in entropies) < -1e-6:
        raise InputError("an entropy is negative, which -(p * p.log()).sum() over classes never is")
    limit = (max(float(found.max()) for found in entropies) or 1.0) if top is None else top
    if not 0 < limit < np.inf:
        raise InputError(f"top={top}: colours must end above 0, as at log(K) for K classes")
    return limit


def _of_prediction(prediction: Predicted, targets: Any, name: str, ignore: int | None) -> tuple[Tensor, Tensor]:
    """Confidences and correctness of every example, or of every pixel, but those to be ignored."""
    if isinstance(prediction, Prediction):
        wanted = checked_targets(prediction, targets, ignore).flatten()
        kept = wanted != IGNORED
        return prediction.confidence.flatten().cpu()[kept], prediction.labels.flatten().cpu()[kept] == wanted[kept]
    labels, targets = prediction.labels, torch.as_tensor(targets)
    if targets.shape != labels.shape:
        raise InputError(f"the targets of {name!r} must be {list(labels.shape)}, as the labels are: {list(targets.shape)}")
    return prediction.confidence.flatten(), (labels.cpu() == targets.cpu()).flatten()


def _array(values: Any, name: str) -> Floats:
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64).numpy()
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers, as a tensor, an array or a list: {error}") from None
