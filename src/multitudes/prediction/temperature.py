"""Temperature and variance scaling: calibrates an ensemble's confidence on held-out data.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599
Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, https://arxiv.org/abs/2007.08792

Members can be calibrated: p_m ∝ exp(z_m / T_m), where T_m minimises the NLL of member m. Or the mixture can be: p ∝ p̄^(1/T),
where T minimises the NLL of the ensemble and members do not change. A mixture of calibrated members is underconfident, so
calibrate the mixture for predictions.

Predicted numbers with variances have one factor s, σ²_m → s σ²_m for every member, which minimises the NLL of the mixture's
density, −log 1/M Σ_m N(y; μ_m, s σ²_m). Means do not change, so the members' disagreement does not either. For one network s is
the mean of (y − μ)²/σ² (Levi et al., "Evaluating and Calibrating Uncertainty Prediction in Regression Tasks", 2022,
https://arxiv.org/abs/1905.11659, scale the standard deviation in the same way).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction import uncertainty
from multitudes.prediction.mappings import AFFINE, Affine, Isotonic, fit_mapping, mapping_from
from multitudes.prediction.targets import check_prediction, checked_targets
from multitudes.prediction.values import CLASSES, log_probs_of
from multitudes.settings import at_least, check_value, takes_names

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction

LEAST, MOST = 0.01, 100.0
"""The range of fitted temperatures."""
LEAST_FACTOR, MOST_FACTOR = 1e-8, 1e8
"""The range of fitted factors of variances."""
GRID = 64
"""Steps of the search for a factor."""


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """Temperatures of the members, a temperature or a mapping of the mixture, or one factor of all variances.

    Assign it to `ens.calibrator`: `mt.predict` and `ens.average()` then apply it, and `mt.save` stores it.
    """

    members: tuple[float, ...] | None = None
    """One temperature per member."""

    mixture: float | None = None
    """The temperature of the mixture."""

    variance: float | None = None
    """The factor of the members' variances, for predicted numbers."""

    mapping: Affine | Isotonic | None = None
    """Vector, matrix, Dirichlet or isotonic calibration of the mixture; also as the JSON of its `settings()`."""

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.members, self.mixture, self.variance, self.mapping)) != 1:
            raise InputError(
                "pass either members= or mixture= temperatures, the factor variance=, or mapping=: Calibrator(mixture=1.2)"
            )
        if self.mapping is not None:
            object.__setattr__(self, "mapping", mapping_from(self.mapping))
            return
        if self.members is not None:
            object.__setattr__(self, "members", tuple(float(t) for t in self.members))
        what = "a temperature" if self.variance is None else "a factor of variances"
        for value in self.members or (self.mixture if self.variance is None else self.variance,):
            if value is None or not (math.isfinite(value) and value > 0):
                raise InputError(f"{what} must be above 0 and finite, not {value!r}")

    def subset(self, members: Sequence[int]) -> Calibrator | None:
        """Returns the calibrator of some members. None for that of a mixture, which was fitted to all members.

        A factor of variances belongs to each member and stays, though it was fitted to the mixture of all: calibrate again.
        """
        if self.members is None:
            return self if self.variance is not None else None
        return replace(self, members=tuple(self.members[m] for m in members))

    def applied(self, values: Mapping[str, Tensor], task: str) -> tuple[dict[str, Tensor], float]:
        """Divides members' logits by their temperatures, or scales variances. Returns the values, and the temperature of their
        mixture."""
        if self.variance is not None:
            _check_variances(values, task)
            return {**values, "variance": values["variance"] * self.variance}, 1.0
        _check_probabilities(task)
        if self.mapping is not None:
            _check_count(self.mapping.classes, values, task)
            return dict(values), 1.0
        if self.mixture is not None:
            return dict(values), self.mixture
        assert self.members is not None
        logits = values.get("logits")
        if logits is None:
            raise InputError(
                "temperatures of members need logits, but this prediction has probs: use calibrate(pred, of='mixture')"
            )
        if logits.shape[0] != len(self.members):
            raise InputError(
                f"the calibrator has {len(self.members)} temperatures for {logits.shape[0]} members: call calibrate again"
            )
        shape = [-1] + [1] * (logits.ndim - 1)
        return {"logits": logits / torch.tensor(self.members, dtype=logits.dtype, device=logits.device).reshape(shape)}, 1.0

    def settings(self) -> dict[str, Any]:
        """Returns the arguments that make this calibrator, as JSON."""
        about: dict[str, Any] = {"members": None if self.members is None else list(self.members), "mixture": self.mixture}
        about |= {} if self.variance is None else {"variance": self.variance}
        return about | ({} if self.mapping is None else {"mapping": self.mapping.settings()})


def checked_calibrator(value: Any, taker: str) -> Calibrator:
    """Returns a calibrator; refuses anything else, such as a temperature by itself."""
    if isinstance(value, Calibrator):
        return value
    own = f", or multitudes.prediction.temperature.Calibrator(mixture={value:g})" if isinstance(value, (int, float)) else ""
    raise InputError(f"{taker} takes a calibrator, not a {type(value).__name__}: mt.calibrate(held_out) fits one{own}")


def _check_probabilities(task: str) -> None:
    if task not in CLASSES:
        raise InputError(
            f"task={task!r} cannot be calibrated by temperatures: use 'classes', 'binary' or 'multilabel', or scale variances, "
            "Calibrator(variance=...)"
        )


def _check_count(classes: int, values: Mapping[str, Tensor], task: str) -> None:
    """Refuses a mapping of another number of classes."""
    found = next(iter(values.values())).shape[2] if task == "classes" else 2
    if found != classes:
        raise InputError(f"the calibrator is of {classes} classes, but the prediction has {found}: call calibrate again")


def _check_variances(values: Mapping[str, Tensor], task: str) -> None:
    if task in CLASSES:
        raise InputError(f"task={task!r} has no variances to scale: calibrate it by temperatures, Calibrator(mixture=...)")
    if "variance" not in values:
        raise InputError(
            "calibration needs variances, but these members predict only means: convert with task='gaussian', or use "
            "EMP(tau_output=...)"
        )


@takes_names()
def calibrate(
    prediction: Prediction,
    targets: Any = None,
    of: Literal["mixture", "members"] = "mixture",
    *,
    how: Literal["temperature", "vector", "matrix", "dirichlet", "isotonic"] = "temperature",
    penalty: float | None = None,
    ignore: int | None = None,
) -> Calibrator:
    """Fits a calibration on a held-out prediction: the temperature, or factor of variances, of the least NLL, or a mapping.

    Where every held-out example is right, the NLL falls as T goes to 0, which would make all predictions certain: T is then 1,
    with a warning.

    targets   labels or numbers ``[N, ...]``; by default those of the predicted dataset
    of        "mixture" for one temperature or factor of the ensemble, "members" for one temperature per member
    how       "temperature" is one number, and changes no label. Of a mixture of classes, on more held-out data: "vector" has a
              weight and a bias of each class, "matrix" K × K weights, "dirichlet" these with a penalty, "isotonic" a curve each
    penalty   of "dirichlet", λ of its paper; by default the best of five on left-out fifths of the data
    ignore    the label of entries that do not count, besides -100; by default the prediction's, from its dataset

    >>> calibrator = mt.calibrate(mt.predict(ens, validation))            # doctest: +SKIP
    >>> ens.calibrator = calibrator                                       # doctest: +SKIP
    """
    check_prediction(prediction, "calibrate")
    _check_choices(of, how, penalty)
    if prediction.calibrator is not None:
        raise InputError("this prediction is already calibrated: set ens.calibrator = None and predict again")
    if prediction.task not in CLASSES:
        return _variance_calibrator(prediction, targets, of, how)
    labels = checked_targets(prediction, targets, ignore)
    if not bool((labels >= 0).any()):
        raise InputError("calibrate needs at least one example with a label: no target is a class, or all equal ignore=")
    log_probs, labels = _labelled(prediction, labels)
    networks = uncertainty.pooled_log_probs(log_probs)[None] if of == "mixture" else log_probs
    if how != "temperature":
        return Calibrator(mapping=fit_mapping(how, networks[0], labels, penalty))
    found = [None if _all_right(network, labels) else _temperature(network, labels) for network in networks]
    if None in found:
        _warn_of_no_error(found, len(labels))
    temperatures = tuple(1.0 if temperature is None else temperature for temperature in found)
    return Calibrator(mixture=temperatures[0]) if of == "mixture" else Calibrator(members=temperatures)


def _check_choices(of: str, how: str, penalty: float | None) -> None:
    if of not in ("mixture", "members"):
        raise InputError(f"of={of!r}: choose 'mixture' or 'members'")
    if how not in ("temperature", *AFFINE, "isotonic"):
        raise InputError(f"how={how!r}: choose one of temperature, {', '.join(AFFINE)}, isotonic")
    if how != "temperature" and of != "mixture":
        raise InputError(f"how={how!r} calibrates the mixture: leave of='members' out, or use how='temperature'")
    if penalty is not None and how != "dirichlet":
        raise InputError(f"penalty={penalty} is for how='dirichlet', not how={how!r}: leave it out")
    check_value("penalty", penalty, Annotated[float, at_least(0)] | None)


def _variance_calibrator(prediction: Prediction, targets: Any, of: str, how: str) -> Calibrator:
    _check_variances(prediction.members, prediction.task)
    if how != "temperature":
        raise InputError(f"how={how!r} is for classes: predicted numbers have one factor for all variances, leave it out")
    if of != "mixture":
        raise InputError(f"of={of!r}: predicted numbers have one factor for all variances, of='mixture'")
    numbers = checked_targets(prediction, targets).double().flatten()
    if not len(numbers):
        raise InputError("calibrate needs at least one example with a target")
    mean, variance = (prediction.members[name].double().cpu().flatten(1) for name in ("mean", "variance"))
    return Calibrator(variance=_factor(numbers, mean, variance))


def _factor(targets: Tensor, mean: Tensor, variance: Tensor) -> float:
    """Returns the s that minimises the NLL of the mixture of N(mean, s · variance): ``[n]``, ``[M, n]``, ``[M, n]``.

    The NLL may have several minima, so it is tried on a grid of log s; golden sections refine the lowest of them.
    """

    def nll(log: float) -> float:
        return -float(uncertainty.pooled_log_probs(uncertainty.log_normal(targets, mean, math.exp(log) * variance)).mean())

    low, high = math.log(LEAST_FACTOR), math.log(MOST_FACTOR)
    grid = [low + (high - low) * k / GRID for k in range(GRID + 1)]
    at = min(range(GRID + 1), key=lambda k: nll(grid[k]))
    if not math.isfinite(nll(grid[at])):
        raise InputError("some variances are 0, and no factor scales them: predict variances above 0")
    low, high = grid[max(at - 1, 0)], grid[min(at + 1, GRID)]
    inner = (math.sqrt(5) - 1) / 2
    while high - low > 1e-8:
        first, second = high - inner * (high - low), low + inner * (high - low)
        low, high = (low, second) if nll(first) <= nll(second) else (first, high)
    return math.exp((low + high) / 2)


def _labelled(prediction: Prediction, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns members' log probabilities ``[M, n, K]`` in double precision and labels ``[n]``, without ignored entries."""
    parts = [log_probs_of(values).double().cpu() for _, values in prediction.pieces()]
    flat = targets.reshape(-1).long()
    kept = flat >= 0
    return torch.cat(parts, 1)[:, kept], flat[kept]


def _all_right(log_probs: Tensor, targets: Tensor) -> bool:
    """Checks whether no class is likelier than the label in any example, and some is less: no T above 0 has the least NLL."""
    right = log_probs.gather(1, targets[:, None]) >= log_probs.max(1, keepdim=True).values
    return bool(right.all()) and bool((log_probs != log_probs[:, :1]).any())


def _warn_of_no_error(found: Sequence[float | None], count: int) -> None:
    """Warns of networks that make no error in `count` examples."""
    who = f" by {found.count(None)} of {len(found)} members" if len(found) > 1 else ""
    examples = "the one held-out example is" if count == 1 else f"all {count} held-out examples are"
    warnings.warn(
        f"{examples} predicted right{who}, so no temperature above 0 has the least NLL: T = 1, which changes nothing. "
        "Calibrate on more held-out data",
        stacklevel=4,
    )


def _temperature(log_probs: Tensor, targets: Tensor) -> float:
    """Returns the T that minimises the NLL of softmax(log p / T).

    The NLL is convex in 1/T. Newton's method finds the minimum; a step changes 1/T by a factor of 4 at most.
    """
    log_probs = log_probs.clamp(min=-1e4)
    inverse = torch.tensor(1.0, dtype=torch.float64)
    chosen = log_probs.gather(1, targets[:, None]).squeeze(1).mean()
    for _ in range(100):
        probs = (inverse * log_probs).softmax(1)
        mean = (probs * log_probs).sum(1)
        slope = mean.mean() - chosen
        curvature = (probs * (log_probs - mean[:, None]) ** 2).sum(1).mean()
        step = slope / curvature.clamp(min=1e-12)
        new = (inverse - step).clamp(max(1 / MOST, float(inverse) / 4), min(1 / LEAST, float(inverse) * 4))
        if abs(float(new - inverse)) <= 1e-12 * float(inverse):
            break
        inverse = new
    return 1 / float(inverse)
