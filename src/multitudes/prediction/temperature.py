"""Temperature scaling: how sure an ensemble may be of itself, fitted on data that it was not trained on.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599
Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, https://arxiv.org/abs/2007.08792

Of the members: each is divided by a temperature of its own, p_m ∝ exp(z_m / T_m), by which its own NLL is least. Of the
mixture: the members stay, and p ∝ p̄^(1/T), by which the ensemble's NLL is least. A mixture of calibrated members is less
sure than they are, so that for predictions the mixture is what should be calibrated.
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
from multitudes.prediction.values import log_probs_of

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction

LEAST, MOST = 0.01, 100.0


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """Temperatures of the members, or one of the mixture. Set `ens.calibrator` to it, and it travels with the ensemble."""

    members: tuple[float, ...] | None = None
    """A temperature for each member."""

    mixture: float | None = None
    """The temperature of the mixture."""

    def __post_init__(self) -> None:
        if (self.members is None) == (self.mixture is None):
            raise InputError("give the temperatures of the members, or that of the mixture: Calibrator(mixture=1.2)")
        if self.members is not None and not len(self.members):
            raise InputError("give a temperature for each member, and there is none")
        object.__setattr__(self, "members", None if self.members is None else tuple(float(t) for t in self.members))
        for value in self.members if self.members is not None else (self.mixture,):
            if not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
                raise InputError(f"a temperature must be a number above 0: {value!r}")

    def subset(self, members: Sequence[int]) -> Calibrator | None:
        """Of an ensemble of these members; that of another mixture is not known."""
        if self.members is None:
            return None
        return replace(self, members=tuple(self.members[m] for m in members))

    def applied(self, values: Mapping[str, Tensor], task: str) -> tuple[dict[str, Tensor], float]:
        """Members' values with their temperatures, and the temperature of the mixture that is still to be had."""
        if task not in ("classes", "binary", "multilabel"):
            raise InputError(f"task={task!r} has no temperature: it is for classes")
        if self.mixture is not None:
            return dict(values), self.mixture
        assert self.members is not None
        logits = values.get("logits")
        if logits is None:
            raise InputError("temperatures of members divide their logits, and this prediction was given probabilities")
        if logits.shape[0] != len(self.members):
            raise InputError(f"there are temperatures of {len(self.members)} members, and {logits.shape[0]} members")
        shape = [-1] + [1] * (logits.ndim - 1)
        return {"logits": logits / torch.tensor(self.members, dtype=logits.dtype, device=logits.device).reshape(shape)}, 1.0

    def settings(self) -> dict[str, Any]:
        """What makes it again, as JSON."""
        return {"members": None if self.members is None else list(self.members), "mixture": self.mixture}


def calibrate(
    prediction: Prediction, targets: Any = None, of: Literal["mixture", "members"] = "mixture", *, ignore: int | None = None
) -> Calibrator:
    """The temperatures by which a held-out prediction has the least NLL; `ignore` stands for entries without a label.

    >>> calibrator = mt.calibrate(mt.predict(ens, validation))            # doctest: +SKIP
    >>> ens.calibrator = calibrator                                       # doctest: +SKIP
    """
    if of not in ("mixture", "members"):
        raise InputError(f"of={of!r}: say 'mixture' or 'members'")
    if prediction.task not in ("classes", "binary", "multilabel"):
        raise InputError(f"task={prediction.task!r} has no temperature: it is for classes")
    if not len(prediction):
        raise InputError("there are no examples to calibrate on")
    if prediction.calibrator is not None:
        raise InputError("this prediction is calibrated already: set ens.calibrator = None, and predict again")
    log_probs, wanted = _held_out(prediction, checked_targets(prediction, targets, ignore))
    if of == "mixture":
        return Calibrator(mixture=_temperature(uncertainty.pooled_log_probs(log_probs), wanted))
    return Calibrator(members=tuple(_temperature(member, wanted) for member in log_probs))


def _held_out(prediction: Prediction, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Members' log probabilities ``[M, n, K]`` in double precision and the classes ``[n]``, without what is to be ignored."""
    parts = [log_probs_of(values).double().cpu() for _, values in prediction.pieces()]
    flat = targets.reshape(-1).long()
    kept = flat >= 0
    return torch.cat(parts, 1)[:, kept], flat[kept]


def _temperature(log_probs: Tensor, targets: Tensor) -> float:
    """The T by which softmax(log p / T) has the least NLL: convex in 1/T, so Newton's steps, halved where they overshoot."""
    if not len(targets):
        raise InputError("every example is to be ignored: there is nothing to calibrate on")
    log_probs = log_probs.clamp(min=-1e4)
    inverse = torch.tensor(1.0, dtype=torch.float64)
    chosen = log_probs.gather(1, targets[:, None]).squeeze(1).mean()
    for _ in range(100):
        probs = (inverse * log_probs).softmax(1)
        mean = (probs * log_probs).sum(1)
        slope = mean.mean() - chosen
        bend = (probs * (log_probs - mean[:, None]) ** 2).sum(1).mean()
        step = slope / bend.clamp(min=1e-12)
        new = (inverse - step).clamp(max(1 / MOST, float(inverse) / 4), min(1 / LEAST, float(inverse) * 4))
        if abs(float(new - inverse)) <= 1e-12 * float(inverse):
            break
        inverse = new
    return 1 / float(inverse)
