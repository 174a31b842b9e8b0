"""Temperature scaling: calibrates an ensemble's confidence on held-out data.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599
Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, https://arxiv.org/abs/2007.08792

Members can be calibrated: p_m ∝ exp(z_m / T_m), where T_m minimises the NLL of member m. Or the mixture can be: p ∝ p̄^(1/T),
where T minimises the NLL of the ensemble and members do not change. A mixture of calibrated members is underconfident, so
calibrate the mixture for predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction import uncertainty
from multitudes.prediction.targets import checked_targets
from multitudes.prediction.values import CLASSES, log_probs_of

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction

LEAST, MOST = 0.01, 100.0
"""The range of fitted temperatures."""


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """Temperatures of the members, or one temperature of the mixture.

    Assign it to `ens.calibrator`: `mt.predict` and `ens.average()` then apply it, and `mt.save` stores it.
    """

    members: tuple[float, ...] | None = None
    """One temperature per member."""

    mixture: float | None = None
    """The temperature of the mixture."""

    def __post_init__(self) -> None:
        if (self.members is None) == (self.mixture is None):
            raise InputError("pass either members= or mixture= temperatures: Calibrator(mixture=1.2)")
        if self.members is not None:
            object.__setattr__(self, "members", tuple(float(t) for t in self.members))
        for value in self.members or (self.mixture,):
            if value is None or not (math.isfinite(value) and value > 0):
                raise InputError(f"a temperature must be above 0 and finite, not {value!r}")

    def subset(self, members: Sequence[int]) -> Calibrator | None:
        """Returns the temperatures of some members. None for a mixture temperature, which was fitted to all members."""
        if self.members is None:
            return None
        return replace(self, members=tuple(self.members[m] for m in members))

    def applied(self, values: Mapping[str, Tensor], task: str) -> tuple[dict[str, Tensor], float]:
        """Divides members' logits by their temperatures. Returns the values, and the temperature of their mixture."""
        _check_task(task)
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
        return {"members": None if self.members is None else list(self.members), "mixture": self.mixture}


def _check_task(task: str) -> None:
    if task not in CLASSES:
        raise InputError(f"task={task!r} cannot be calibrated by temperatures: use 'classes', 'binary' or 'multilabel'")


def calibrate(
    prediction: Prediction,
    targets: Any = None,
    of: Literal["mixture", "members"] = "mixture",
    *,
    ignore: int | None = None,
) -> Calibrator:
    """Fits the temperatures that minimise the NLL of a held-out prediction.

    targets   labels ``[N, ...]``; by default those of the predicted dataset
    of        "mixture" for one temperature of the ensemble, "members" for one per member
    ignore    the label of entries that do not count

    >>> calibrator = mt.calibrate(mt.predict(ens, validation))            # doctest: +SKIP
    >>> ens.calibrator = calibrator                                       # doctest: +SKIP
    """
    if of not in ("mixture", "members"):
        raise InputError(f"of={of!r}: choose 'mixture' or 'members'")
    _check_task(prediction.task)
    if prediction.calibrator is not None:
        raise InputError("this prediction is already calibrated: set ens.calibrator = None and predict again")
    labels = checked_targets(prediction, targets, ignore)
    if not bool((labels >= 0).any()):
        raise InputError("calibrate needs at least one example with a label: no target is a class, or all equal ignore=")
    log_probs, labels = _labelled(prediction, labels)
    if of == "mixture":
        return Calibrator(mixture=_temperature(uncertainty.pooled_log_probs(log_probs), labels))
    return Calibrator(members=tuple(_temperature(member, labels) for member in log_probs))


def _labelled(prediction: Prediction, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns members' log probabilities ``[M, n, K]`` in double precision and labels ``[n]``, without ignored entries."""
    parts = [log_probs_of(values).double().cpu() for _, values in prediction.pieces()]
    flat = targets.reshape(-1).long()
    kept = flat >= 0
    return torch.cat(parts, 1)[:, kept], flat[kept]


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
