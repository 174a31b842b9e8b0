"""score: computes all scores of a prediction and its uncertainty."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from inspect import cleandoc
from typing import Any

import torch

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import check_prediction, checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, ood_criteria, regression_evidence
from multitudes.scores.evidence import Columns, Evidence, Settings
from multitudes.scores.meaning import ALL_CRITERIA, glossary
from multitudes.scores.scores import Scores
from multitudes.scores.shift import BASELINES, Errors
from multitudes.settings import takes_names


@takes_names()
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
    """Computes all scores that the prediction's task has. Get one by its name: `scores["nll"]`, `scores["svhn/auroc/msp"]`.

    targets    labels or target values ``[N, ...]``; by default those of the predicted dataset
    ood        predictions of out-of-distribution sets by name: {"svhn": pred} gives `svhn/auroc/msp`. One prediction without a
               name is called ood: `ood/auroc/msp`
    shift      shifted sets by name: {severity: (prediction, targets)} for a corruption, (prediction, targets) for another set,
               (prediction, targets, anchors) for video frames; names become prefixes: `fog/3/accuracy`, `sketches/rAcc`
    baseline   the baseline of mCE and rmCE: the scores of another run on the same corruptions, or "alexnet"
    bins       the number of bins of the calibration errors
    drop       leaves bins with at most this many examples out of ECE and MCE. The EMP paper uses bins=20, drop=5
    level      the probability of the intervals that coverage and width are computed for
    ignore     the label of entries that do not count, besides -100; by default the prediction's, from its dataset
    intervals  the number of bootstrap samples for 95 % confidence intervals; 0 for no intervals
    seed       the seed of the bootstrap

    >>> pred = Prediction(probs=torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3], [0.2, 0.8]]]))
    >>> print(f"{score(pred, torch.tensor([0, 1]))['nll']:.4f}")
    0.2899
    """
    check_prediction(prediction, "score")
    settings = Settings(bins=bins, drop=drop, level=level)
    evidence = _evidence(prediction, targets, settings, ignore, by_class=True)
    if ood is not None:
        known = _in_distribution_criteria(prediction, evidence)
        evidence = replace(evidence, in_distribution=known, ood=_criteria_by_set(prediction, ood))
    if shift is not None:
        evidence = replace(evidence, shifts=_shifts(prediction, shift, settings, ignore))
    if baseline is not None:
        if shift is None:
            raise InputError("baseline= is for scores under corruption: pass the corrupted sets as shift=, or remove baseline=")
        evidence = replace(evidence, baseline=_baseline(baseline))
    scores = Scores.of(evidence)
    _warn_if_collapsed(scores, prediction)
    return scores.with_intervals(intervals, seed=seed) if intervals else scores


score.__doc__ = f"{cleandoc(score.__doc__ or '')}\n\n{glossary()}"


def _evidence(prediction: Prediction, targets: Any, settings: Settings, ignore: int | None, by_class: bool = False) -> Evidence:
    checked = checked_targets(prediction, targets, ignore)
    if prediction.task not in CLASSES:
        return regression_evidence(prediction, checked, settings)
    return classification_evidence(prediction, checked, settings, by_class=by_class)


def _in_distribution_criteria(prediction: Prediction, evidence: Evidence) -> Columns:
    """Returns the OOD scores of the in-distribution examples: from the evidence, except for multilabel tasks."""
    if prediction.task == "multilabel":
        return ood_criteria(prediction)
    between_members = {"mutual_information", "variation_ratio", "epistemic"} if prediction.count == 1 else set()
    names = {*ALL_CRITERIA, "example"} - between_members
    return {name: column for name, column in evidence.columns.items() if name in names}


def _criteria_by_set(prediction: Prediction, ood: Any) -> dict[str, Columns]:
    sets = {"ood": ood} if isinstance(ood, Prediction) else ood
    if not isinstance(sets, Mapping) or not sets or not all(isinstance(p, Prediction) for p in sets.values()):
        raise InputError("ood= takes predictions by name: ood={'svhn': mt.predict(ens, svhn)}")
    for name, other in sets.items():
        _check_same_ensemble(prediction, other, f"ood={name!r}")
    criteria = {_set_name(name, "ood"): ood_criteria(other) for name, other in sets.items()}
    if not all(criteria.values()):
        raise InputError(
            "OOD scores need an uncertainty, but a single regression network without variances has none: remove ood="
        )
    return criteria


def _set_name(name: str, argument: str) -> str:
    """Refuses names with a slash, because a slash separates the parts of a score's key, and names without a letter."""
    if not str(name).strip():
        raise InputError(f"{argument}= has a set without a name, {name!r}: name it, as in {argument}={{'svhn': ...}}")
    if "/" in str(name):
        raise InputError(f"{argument}= has a set named {name!r}: rename it without /")
    return name


def _check_same_ensemble(prediction: Prediction, other: Prediction, argument: str) -> None:
    """Refuses a prediction that cannot be of the same ensemble."""
    if other.task != prediction.task or other.count != prediction.count:
        raise InputError(
            f"{argument} must come from the same ensemble as the test set's prediction: {other} differs from {prediction}"
        )
    if other.task == "classes" and other.classes != prediction.classes:
        raise InputError(
            f"{argument} has {other.classes} classes, but the prediction has {prediction.classes}: use the same ensemble"
        )
    if other.temperature != prediction.temperature or other.calibrator != prediction.calibrator:
        raise InputError(f"{argument} and the prediction have different calibrators: predict both with the same ens.calibrator")


def _shifts(
    prediction: Prediction, shift: Mapping[str, Any], settings: Settings, ignore: int | None
) -> dict[tuple[str, int | None], Evidence]:
    """Returns the evidence of each shifted set, by name and severity."""
    if not isinstance(shift, Mapping):
        raise InputError("shift= takes sets by name: {'fog': {1: (pred, targets), ...}, 'sketches': (pred, targets)}")
    evidence: dict[tuple[str, int | None], Evidence] = {}
    for name, parts in shift.items():
        _set_name(name, "shift")
        by_severity = parts if isinstance(parts, Mapping) else {None: parts}
        if wrong := [severity for severity in by_severity if severity is not None and not str(severity).isdigit()]:
            raise InputError(f"shift= has the severity {wrong[0]!r} for {name!r}: give whole numbers, {{1: (pred, targets)}}")
        for severity, part in by_severity.items():
            key = name, None if severity is None else int(severity)
            evidence[key] = _shifted(prediction, name, part, settings, ignore)
    return evidence


def _shifted(prediction: Prediction, name: str, part: Any, settings: Settings, ignore: int | None) -> Evidence:
    parts = (part,) if isinstance(part, Prediction) else part
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3 or not isinstance(parts[0], Prediction):
        raise InputError(f"shift[{name!r}] must be (prediction, targets), or (prediction, targets, anchors) for video frames")
    if parts[0].task not in CLASSES:
        raise InputError(
            f"shift[{name!r}] needs a classification, not task={parts[0].task!r}: score that set by itself, without shift="
        )
    _check_same_ensemble(prediction, parts[0], f"shift={name!r}")
    evidence = _evidence(parts[0], parts[1] if len(parts) > 1 else None, settings, ignore)
    if len(parts) < 3:
        return evidence
    return replace(evidence, columns={**evidence.columns, "anchor": torch.as_tensor(parts[2]).cpu()})


def _baseline(baseline: Scores | str) -> Errors:
    if isinstance(baseline, Scores):
        return baseline.errors()
    if baseline not in BASELINES:
        raise InputError(f"baseline={baseline!r} must be the Scores of a run, or one of {', '.join(BASELINES)}")
    return BASELINES[baseline]


def _warn_if_collapsed(scores: Scores, prediction: Prediction) -> None:
    """Warns if members are practically equal: they cost as much as an ensemble, but predict like one network."""
    if prediction.count == 1:
        return
    if prediction.task in CLASSES:
        assert scores.evidence is not None
        entropy = float(scores.evidence.columns["entropy"].double().mean())
        collapsed = scores["disagreement"] < 1e-3 and scores["mean_mutual_information"] <= 1e-3 * entropy
        shown = f"they disagree on {scores['disagreement']:.2%} of the examples"
    else:
        collapsed = scores["epistemic_std"] <= 1e-3 * scores["rmse"]
        shown = f"the standard deviation of their means is {scores['epistemic_std']:.2g}, and the RMSE {scores['rmse']:.2g}"
    if collapsed:
        warnings.warn(f"the {prediction.count} members have collapsed into one network: {shown}", stacklevel=4)
