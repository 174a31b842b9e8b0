"""Mappings: calibrations of a mixture's probabilities by more than one number, fitted on held-out data.

With q the log probabilities of the mixture,

    vector      softmax(w ∘ q + b)         Guo et al. 2017, https://arxiv.org/abs/1706.04599
    matrix      softmax(W q + b)           the same
    dirichlet   softmax(W q + b)           Kull et al. 2019, https://arxiv.org/abs/1910.12656
    isotonic    r_k(p_k) / Σ_j r_j(p_j)    Zadrozny, Elkan 2002, https://doi.org/10.1145/775047.775151

dirichlet has a penalty (ODIR) on what is off the diagonal of W, and on b: λ Σ_{i≠j} w²_ij / (K (K − 1)) + λ Σ_j b²_j / K.
r_k is the nondecreasing function that is nearest to the labels, class k against the others.

The first three minimise the NLL, which is convex in weights and biases. A mixture has no logits; its log probabilities are what
a softmax takes to give it.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from multitudes.errors import InputError

AFFINE = ("vector", "matrix", "dirichlet")
LEAST_LOG = math.log(1e-12)
"""Smaller log probabilities count as this one: a weight would make a large number of any rounding error in them."""
PENALTIES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Penalties of which cross-validation chooses one, from the strongest."""
FOLDS = 5
FITTED = 1e-6
"""A held-out NLL below this one has no minimum: weights grow without end."""


@dataclass(frozen=True)
class Affine:
    """softmax(W q + b) of log probabilities q ``[..., K]``. Vector scaling has a diagonal W, which is stored as one row."""

    how: str
    weight: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]

    def __post_init__(self) -> None:
        rows = 1 if self.how == "vector" else len(self.bias)
        if [len(row) for row in self.weight] != [len(self.bias)] * rows:
            raise InputError(f"{self.how} scaling of {len(self.bias)} classes needs {rows} rows of weights: calibrate again")
        if not all(math.isfinite(value) for row in (*self.weight, self.bias) for value in row):
            raise InputError(f"{self.how} scaling has a weight that is not finite: calibrate again")

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return len(self.bias)

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.weight, dtype=torch.float64), torch.tensor(self.bias, dtype=torch.float64)

    def __call__(self, logs: Tensor) -> Tensor:
        """Returns the calibrated log probabilities, ``[..., K]``."""
        weight, bias = (tensor.to(logs) for tensor in self._tensors)
        return _affine(logs.clamp(min=LEAST_LOG), weight, bias).log_softmax(-1)

    def settings(self) -> dict[str, Any]:
        """Returns the numbers of this mapping, as JSON."""
        return {"how": self.how, "weight": [list(row) for row in self.weight], "bias": list(self.bias)}

    def __repr__(self) -> str:
        return f"Affine({self.how}, {self.classes} classes)"


@dataclass(frozen=True)
class Isotonic:
    """A nondecreasing curve of each class, whose values are divided by their sum."""

    curves: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    """Corners of each curve, with straight lines between: probabilities in rising order, and their calibrated values."""
    floor: float
    """The share of a uniform distribution that is mixed in, so that no class is impossible."""

    how = "isotonic"

    def __post_init__(self) -> None:
        for xs, ys in self.curves:
            rising = all(a < b for a, b in itertools.pairwise(xs))
            if len(xs) != len(ys) or len(xs) < 2 or not rising or not all(0 <= y <= 1 for y in ys):
                raise InputError("a curve of an isotonic calibration has no rising corners between 0 and 1: calibrate again")
        if not 0 <= self.floor <= 1:
            raise InputError(f"floor={self.floor} of an isotonic calibration must be between 0 and 1: calibrate again")

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return len(self.curves)

    @cached_property
    def _corners(self) -> tuple[Tensor, Tensor, Tensor]:
        """Corners ``[K, L]``, of shorter curves with ∞ behind them, and the last place of each ``[K, 1]``."""
        longest = max(len(xs) for xs, _ in self.curves)
        found = torch.full((2, len(self.curves), longest), math.inf, dtype=torch.float64)
        for k, curve in enumerate(self.curves):
            found[:, k, : len(curve[0])] = torch.tensor(curve, dtype=torch.float64)
        return found[0], found[1], torch.tensor([[len(xs) - 1] for xs, _ in self.curves])

    def __call__(self, logs: Tensor) -> Tensor:
        """Returns the calibrated log probabilities, ``[..., K]``."""
        probs = logs.double().exp().reshape(-1, self.classes).T.contiguous()
        xs, ys, last = (tensor.to(logs.device) for tensor in self._corners)
        after = torch.minimum(torch.searchsorted(xs, probs).clamp(min=1), last)
        (x0, x1), (y0, y1) = ((corner.gather(1, after - 1), corner.gather(1, after)) for corner in (xs, ys))
        values = y0 + ((probs - x0) / (x1 - x0)).clamp(0, 1) * (y1 - y0)
        total = values.sum(0)
        shares = torch.where(total > 0, values / total, 1 / self.classes)
        return (self.floor / self.classes + (1 - self.floor) * shares).T.contiguous().reshape(logs.shape).log().to(logs)

    def settings(self) -> dict[str, Any]:
        """Returns the numbers of this mapping, as JSON."""
        return {"how": self.how, "curves": [[list(xs), list(ys)] for xs, ys in self.curves], "floor": self.floor}

    def __repr__(self) -> str:
        return f"Isotonic({self.classes} classes)"


def mapping_from(settings: Any) -> Affine | Isotonic:
    """Returns the mapping of `settings()`; a mapping is returned as it is."""
    if isinstance(settings, (Affine, Isotonic)):
        return settings
    how = settings.get("how") if isinstance(settings, Mapping) else None
    try:
        if how == "isotonic":
            curves = tuple((tuple(map(float, xs)), tuple(map(float, ys))) for xs, ys in settings["curves"])
            return Isotonic(curves, float(settings["floor"]))
        if how in AFFINE:
            return Affine(how, tuple(tuple(map(float, row)) for row in settings["weight"]), tuple(map(float, settings["bias"])))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"mapping= of a calibrator lacks numbers of how={how!r}: calibrate again ({error!r})") from error
    raise InputError(f"mapping= of a calibrator must be one of {', '.join((*AFFINE, 'isotonic'))}: mt.calibrate(pred, how=...)")


def _affine(logs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W q + b; one row of weights is a diagonal."""
    return (logs * weight[0] if len(weight) == 1 else logs @ weight.T) + bias


def fit_mapping(how: str, logs: Tensor, targets: Tensor, penalty: float | None) -> Affine | Isotonic:
    """Fits a mapping to log probabilities ``[n, K]`` and labels ``[n]``; without a penalty, dirichlet chooses it by folds.

    Weights that fit all labels without an error would grow without end: then the mapping changes nothing, with a warning.
    """
    if how == "isotonic":
        return fit_isotonic(logs, targets)
    logs = logs.clamp(min=LEAST_LOG)
    if how == "dirichlet" and penalty is None:
        penalty = _chosen_penalty(logs, targets)
    weight, bias, nll = _minimised(how, logs, targets, penalty or 0.0)
    count = weight.numel() + bias.numel()
    if nll < FITTED:
        weight, bias = _identity(how, logs.shape[1])
        _warn(
            f"{how} scaling fits all {len(targets)} held-out examples without an error, so no weights are best: it does nothing"
        )
    elif how == "matrix" and len(targets) < count:
        _warn(f"matrix scaling fits {count} numbers to {len(targets)} held-out examples")
    return Affine(how, tuple(map(tuple, weight.tolist())), tuple(bias.tolist()))


def _warn(what: str) -> None:
    warnings.warn(f"{what}. Use how='temperature' or more held-out data", stacklevel=5)


def _identity(how: str, classes: int) -> tuple[Tensor, Tensor]:
    """Returns the weights and biases that change nothing."""
    weight = torch.ones(1, classes) if how == "vector" else torch.eye(classes)
    return weight.double(), torch.zeros(classes, dtype=torch.float64)


def _minimised(how: str, logs: Tensor, targets: Tensor, penalty: float, change: float = 1e-14) -> tuple[Tensor, Tensor, float]:
    """Returns the W and b of the least NLL plus penalty, and this NLL, by L-BFGS from the identity to this least `change`."""
    classes = logs.shape[1]
    weight, bias = (tensor.requires_grad_() for tensor in _identity(how, classes))
    off = 1 - torch.eye(classes, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=change,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def nll() -> Tensor:
        return torch.nn.functional.cross_entropy(_affine(logs, weight, bias), targets)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nll()
        if penalty:
            value = value + penalty * ((off * weight**2).sum() / max(1, classes * (classes - 1)) + (bias**2).mean())
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    with torch.no_grad():
        return weight.detach(), bias.detach(), float(nll())


def _chosen_penalty(logs: Tensor, targets: Tensor) -> float:
    """Returns the penalty of the least NLL on left-out folds; of equal ones the strongest."""
    if len(targets) < FOLDS:
        return PENALTIES[0]
    fold = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0)) % FOLDS

    def left_out(penalty: float) -> float:
        total = 0.0
        for k in range(FOLDS):
            weight, bias, _ = _minimised("dirichlet", logs[fold != k], targets[fold != k], penalty, change=1e-9)
            new = _affine(logs[fold == k], weight, bias)
            total += float(torch.nn.functional.cross_entropy(new, targets[fold == k], reduction="sum"))
        return total

    return min(PENALTIES, key=left_out)


def fit_isotonic(logs: Tensor, targets: Tensor) -> Isotonic:
    """Fits a curve of each class to log probabilities ``[n, K]`` and labels ``[n]``."""
    probs = logs.exp()
    curves = tuple(_curve(probs[:, k], (targets == k).double()) for k in range(probs.shape[1]))
    return Isotonic(curves, 1 / (len(targets) + 1))


def _curve(x: Tensor, y: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the corners of the nondecreasing function with the least squares, by pooling adjacent violators."""
    points, group, size = x.unique(return_inverse=True, return_counts=True)
    means = torch.zeros_like(points).index_add_(0, group, y) / size
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of points
    for mean, weight in zip(means.tolist(), size.double().tolist(), strict=True):
        count = 1
        while blocks and blocks[-1][0] >= mean:
            other, heavy, length = blocks.pop()
            mean, weight, count = (mean * weight + other * heavy) / (weight + heavy), weight + heavy, count + length
        blocks.append((mean, weight, count))
    return _corners_of(points.tolist(), [(mean, count) for mean, _, count in blocks])


def _corners_of(points: Sequence[float], blocks: Sequence[tuple[float, int]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the first and last point of each block; a single point becomes a constant."""
    corners, start = [], 0
    for mean, count in blocks:
        value = min(max(mean, 0.0), 1.0)
        corners += [(points[start], value)] + ([(points[start + count - 1], value)] if count > 1 else [])
        start += count
    if len(corners) == 1:
        corners.append((corners[0][0] + 1, corners[0][1]))
    return tuple(x for x, _ in corners), tuple(y for _, y in corners)
