"""Choices made on held-out data: a confidence threshold, and the best members."""

from __future__ import annotations

from typing import Any

import torch

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, check_prediction, checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, regression_evidence
from multitudes.scores.evidence import Settings
from multitudes.scores.selective import threshold_for
from multitudes.settings import takes_names


@takes_names()
def threshold(
    prediction: Prediction,
    targets: Any = None,
    *,
    error: float | None = None,
    coverage: float | None = None,
    ignore: int | None = None,
) -> float:
    """Returns the confidence threshold below which to abstain, fitted on held-out data. Pass `error` or `coverage`.

    targets   labels ``[N, ...]``; by default those of the predicted dataset
    error     the largest allowed share of errors among answered examples; returns the lowest threshold that allows it
    coverage  the smallest share of examples to answer; returns the highest threshold that reaches it
    ignore    the label of entries that do not count, besides -100; by default the prediction's, from its dataset

    >>> answered = mt.predict(ens, test)                                  # doctest: +SKIP
    >>> answered[answered.confidence >= mt.threshold(held_out, error=0.01)]  # doctest: +SKIP
    """
    check_prediction(prediction, "threshold")
    if (error is None) == (coverage is None):
        raise InputError("pass either error= or coverage=: threshold(pred, targets, error=0.01)")
    for name, value in (("error", error), ("coverage", coverage)):
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{name}={value} must be between 0 and 1, such as 0.05 for 5 %")
    if prediction.task not in CLASSES:
        raise InputError(f"task={prediction.task!r} has no confidence: for a regression choose a limit on pred.std")
    labels = checked_targets(prediction, targets, ignore).flatten()
    labelled = labels != IGNORED
    if not bool(labelled.any()):
        raise InputError("threshold needs at least one example with a label: there are no targets, or all equal ignore=")
    correct = (prediction.labels.flatten().cpu() == labels).double()
    return threshold_for(prediction.confidence.flatten().cpu()[labelled], correct[labelled], error, coverage)


@takes_names()
def select(
    ensemble: Ensemble,
    data: Any,
    k: int,
    *,
    targets: Any = None,
    ignore: int | None = None,
    **options: Any,
) -> Ensemble:
    """Returns a new ensemble: a copy of the k members that are best on held-out data.

    The best members have the lowest NLL, or in a regression without variances the lowest squared error. `data` and `options`
    are those of `predict`. The new ensemble has no mixture temperature, which was fitted to all members: calibrate again.
    """
    if isinstance(ensemble, Ensemble) and not 1 <= k <= ensemble.members:
        raise InputError(f"k={k!r} must be between 1 and {ensemble.members}, the number of members")
    prediction = predict(ensemble, data, **options)
    if not prediction.has_members:
        raise InputError("select needs the members' outputs: remove moments_only=True")
    targets = checked_targets(prediction, targets, ignore)
    if prediction.task in CLASSES:
        losses = classification_evidence(prediction, targets, Settings()).columns["member_nll"].double().mean(0)
    elif "variance" in prediction.members:
        densities = [prediction.subset([m]).log_density(targets) for m in range(prediction.count)]
        losses = -torch.stack([density.double().mean() for density in densities])
    else:
        losses = regression_evidence(prediction, targets, Settings()).columns["member_squares"].double().mean(0)
    return ensemble.subset(sorted(losses.argsort()[:k].tolist()))
