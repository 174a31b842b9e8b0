"""After training: when to answer at all, and which members to keep."""

from __future__ import annotations

from typing import Any

import torch

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, regression_evidence
from multitudes.scores.evidence import Settings
from multitudes.scores.selective import threshold_for


def threshold(
    prediction: Prediction,
    targets: Any = None,
    *,
    error: float | None = None,
    coverage: float | None = None,
    ignore: int | None = None,
) -> float:
    """The confidence from which on to answer, found on held-out data; below it, abstain.

    error     the share of wrong answers that is allowed among those given: as many are given as that allows
    coverage  the share of examples that are to be answered at least

    >>> answered = mt.predict(ens, test)                                  # doctest: +SKIP
    >>> answered[answered.confidence >= mt.threshold(held_out, error=0.01)]  # doctest: +SKIP
    """
    if (error is None) == (coverage is None):
        raise InputError("say which error is allowed or which coverage is wanted: threshold(pred, targets, error=0.01)")
    for name, value in (("error", error), ("coverage", coverage)):
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{name}={value}: a share between 0 and 1")
    if prediction.task not in CLASSES:
        raise InputError(f"task={prediction.task!r} has no confidence: abstain by pred.std")
    wanted = checked_targets(prediction, targets, ignore).flatten()
    kept = wanted != IGNORED
    confidence, labels = prediction.confidence.flatten().cpu()[kept], prediction.labels.flatten().cpu()[kept]
    if not len(confidence):
        raise InputError("there are no examples to find a threshold on")
    return threshold_for(confidence, (labels == wanted[kept]).double(), error, coverage)


def select(
    ensemble: Ensemble, data: Any, k: int, *, targets: Any = None, ignore: int | None = None, **options: Any
) -> Ensemble:
    """An ensemble of the k members that are best by themselves on held-out data: a detached copy.

    Best is the least NLL, and for plain regression the least squared error. `data` and `options` are those of `predict`.
    The temperature of the whole mixture is not that of fewer members, and is left out: calibrate again.
    """
    if isinstance(ensemble, Ensemble) and (isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= ensemble.members):
        raise InputError(f"k={k!r}: keep 1 to {ensemble.members} members")
    prediction = predict(ensemble, data, **options)
    if not prediction.has_members:
        raise InputError("members are judged one by one, and moments have none: select without moments_only")
    wanted = checked_targets(prediction, targets, ignore)
    if prediction.task in CLASSES:
        each = classification_evidence(prediction, wanted, Settings()).columns["member_nll"].double().mean(0)
    elif "variance" in prediction.members:
        parts = [prediction.subset([m]).log_density(wanted) for m in range(prediction.count)]
        each = -torch.stack([part.double().mean() for part in parts])
    else:
        each = regression_evidence(prediction, wanted, Settings()).columns["member_squares"].double().mean(0)
    return ensemble.subset(sorted(each.argsort()[:k].tolist()))
