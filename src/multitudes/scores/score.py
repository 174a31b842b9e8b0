"""score: how good a prediction and its uncertainty are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, ood_criteria, regression_evidence
from multitudes.scores.evidence import Columns, Evidence, Settings
from multitudes.scores.meaning import CRITERIA, SPREADS
from multitudes.scores.scores import Scores
from multitudes.scores.shift import BASELINES, Errors


def score(
    prediction: Prediction,
    targets: Any = None,
    *,
    ood: Prediction | Mapping[str, Prediction] | None = None,
    shift: Mapping[str, Any] | None = None,
    baseline: Scores | str | None = None,
    bins: int = 15,
    drop: int = 0,
    level: float = 0.95,
    ignore: int | None = None,
    intervals: int = 0,
    seed: int = 0,
) -> Scores:
    """All scores that the prediction's task has, by name: `scores["nll"]`, `scores["auroc/msp"]`.

    targets    what was right, ``[N, ...]``; by default what travelled with the prediction
    ood        a prediction of examples out of distribution, or several by name, which then stands in front: `svhn/auroc/msp`
    shift      shifted sets by name: a corruption as {severity: (prediction, targets)}, a set as (prediction, targets), frames
               as (prediction, targets, anchors)
    baseline   a run of the same corruptions, or "alexnet": mCE and rmCE are against it
    bins, drop of the calibration errors: 20 bins without those of at most 5 examples are Ensemble Model Patching's
    level      of the interval that coverage and width are of
    ignore     the target that stands for no label
    intervals  bootstrap samples for 95 % intervals; 0 for none

    >>> pred = Prediction(probs=torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3], [0.2, 0.8]]]))
    >>> print(f"{score(pred, torch.tensor([0, 1]))['nll']:.4f}")
    0.2899
    """
    if not isinstance(prediction, Prediction):
        raise InputError(
            f"score takes a Prediction, not a {type(prediction).__name__}: mt.predict(ens, data), or mt.Prediction(logits=...)"
        )
    settings = Settings(bins=bins, drop=drop, level=level)
    evidence = _evidence(prediction, targets, settings, ignore)
    if ood is not None:
        evidence = replace(evidence, inside=_inside(prediction, evidence), ood=_outside(prediction, ood))
    if shift is not None:
        evidence = replace(evidence, shifts=_shifts(prediction, shift, settings, ignore))
    if baseline is not None:
        if shift is None:
            raise InputError("baseline= is of corruptions, and there are none: give them as shift=")
        evidence = replace(evidence, baseline=_baseline(baseline))
    found = Scores.of(evidence)
    _say_collapsed(found, prediction)
    return found.with_intervals(intervals, seed=seed) if intervals else found


def _evidence(prediction: Prediction, targets: Any, settings: Settings, ignore: int | None) -> Evidence:
    wanted = checked_targets(prediction, targets, ignore)
    return (classification_evidence if prediction.task in CLASSES else regression_evidence)(prediction, wanted, settings)


def _inside(prediction: Prediction, evidence: Evidence) -> Columns:
    """The criteria of what is in distribution, as far as they are there already."""
    if prediction.task == "multilabel":
        return ood_criteria(prediction)
    single = {"mutual_information", "variation_ratio", "epistemic"} if prediction.count == 1 else set()
    names = [n for n in (*CRITERIA, *SPREADS) if n in evidence.columns and n not in single]
    return {name: evidence.columns[name] for name in (*names, *(["example"] if "example" in evidence.columns else []))}


def _outside(prediction: Prediction, ood: Any) -> dict[str, Columns]:
    sets = {"ood": ood} if isinstance(ood, Prediction) else ood
    if not isinstance(sets, Mapping) or not sets or not all(isinstance(p, Prediction) for p in sets.values()):
        raise InputError("ood= takes a Prediction, or several by name: ood={'svhn': mt.predict(ens, svhn)}")
    for name, other in sets.items():
        if "/" in str(name):
            raise InputError(f"ood={name!r}: a name without /")
        if not len(other):
            raise InputError(f"ood={name!r} has no examples")
        _of_the_same(prediction, other, f"ood={name!r}")
    found = {name: ood_criteria(other) for name, other in sets.items()}
    if not all(found.values()):
        raise InputError("one network that gives means only says nothing of how sure it is: there is nothing to detect by")
    return found


def _of_the_same(prediction: Prediction, other: Prediction, what: str) -> None:
    """Predictions that are compared must be of one ensemble."""
    if other.task != prediction.task or other.count != prediction.count:
        raise InputError(f"{what} is {other}, and not of the ensemble that gave {prediction}")
    if other.task == "classes" and other.classes != prediction.classes:
        raise InputError(f"{what} has {other.classes} classes, and the prediction {prediction.classes}")
    if other.temperature != prediction.temperature or other.calibrator != prediction.calibrator:
        raise InputError(f"{what} is calibrated in another way than the prediction: predict both with the same ens.calibrator")


def _shifts(
    prediction: Prediction, shift: Mapping[str, Any], settings: Settings, ignore: int | None
) -> dict[tuple[str, int | None], Evidence]:
    if not isinstance(shift, Mapping):
        raise InputError("shift= takes sets by name: {'fog': {1: (pred, targets), ...}, 'sketches': (pred, targets)}")
    found: dict[tuple[str, int | None], Evidence] = {}
    for name, given in shift.items():
        if "/" in str(name):
            raise InputError(f"shift={name!r}: a name without /")
        if isinstance(given, Mapping):
            if wrong := [s for s in given if not str(s).isdigit()]:
                raise InputError(f"shift={name!r}: severities are numbers, and {wrong[0]!r} is none")
            found.update(
                {(name, int(severity)): _shifted(prediction, name, part, settings, ignore) for severity, part in given.items()}
            )
        else:
            found[name, None] = _shifted(prediction, name, given, settings, ignore)
    return found


def _shifted(prediction: Prediction, name: str, given: Any, settings: Settings, ignore: int | None) -> Evidence:
    parts = (given,) if isinstance(given, Prediction) else given
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3 or not isinstance(parts[0], Prediction):
        raise InputError(f"shift={name!r}: give (prediction, targets), or (prediction, targets, anchors) for frames")
    if parts[0].task not in CLASSES:
        raise InputError(f"shift={name!r}: accuracy, NLL and ECE are of classes, and task={parts[0].task!r}")
    _of_the_same(prediction, parts[0], f"shift={name!r}")
    evidence = _evidence(parts[0], parts[1] if len(parts) > 1 else None, settings, ignore)
    if len(parts) < 3:
        return evidence
    anchors = torch.as_tensor(parts[2]).cpu()
    if anchors.shape != evidence.columns["correct"].shape:
        raise InputError(f"shift={name!r}: anchors are {list(anchors.shape)}, one for each of {len(evidence)} frames")
    return replace(evidence, columns={**evidence.columns, "anchor": anchors})


def _baseline(baseline: Scores | str) -> Errors:
    if isinstance(baseline, Scores):
        return baseline.errors()
    if baseline not in BASELINES:
        raise InputError(f"baseline={baseline!r}: a run's Scores, or one of {', '.join(BASELINES)}")
    return BASELINES[baseline]


def _say_collapsed(scores: Scores, prediction: Prediction) -> None:
    """Members that answer alike are one network at the cost of several."""
    if prediction.count == 1:
        return
    if prediction.task in CLASSES:
        evidence = scores.evidence
        assert evidence is not None
        unsure = float(evidence.columns["entropy"].double().mean())
        collapsed = scores["disagreement"] < 1e-3 and scores["idmi"] <= 1e-3 * unsure
        shown = f"they disagree on {scores['disagreement']:.2%} of the examples"
    else:
        collapsed = scores["epistemic_std"] <= 1e-3 * scores["rmse"]
        shown = f"the standard deviation of their means is {scores['epistemic_std']:.2g}, with an RMSE of {scores['rmse']:.2g}"
    if collapsed:
        warnings.warn(f"the {prediction.count} members have collapsed into one: {shown}", stacklevel=3)
