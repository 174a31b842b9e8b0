"""Columns: the numbers that each example contributes to the scores, computed piece by piece from a prediction."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction import uncertainty
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED
from multitudes.prediction.values import CLASSES, Remap, as_two_classes, log_probs_of
from multitudes.scores import calibration, diversity, regression, segmentation
from multitudes.scores.evidence import Columns, Evidence, Settings
from multitudes.scores.meaning import CRITERIA

NOTHING = "score needs at least one example with a label: there are no targets, or all equal ignore="


def ood_criteria(prediction: Prediction) -> Columns:
    """Returns the OOD scores of each example by name, larger for examples that look more out-of-distribution.

    In a multilabel task each score is the mean over an example's labels; energy is the sum. A single network has no mutual
    information, variation ratio or epistemic variance. For a single regression network without variances the result is empty.
    """
    if prediction.task not in CLASSES:
        if prediction.count == 1 and not bool((prediction.variance > 0).any()):
            return dict(prediction.criteria)
        spreads = {
            "variance": prediction.variance.flatten().double().cpu(),
            **_example_index(prediction),
            **prediction.criteria,
        }
        return {**spreads, "epistemic": prediction.epistemic.flatten().double().cpu()} if prediction.count > 1 else spreads
    statistics = prediction.described()
    scores = {"msp": 1 - statistics["confidence"], **{name: statistics[name] for name in CRITERIA if name in statistics}}
    scores.update({"max_logit": -statistics["max_logit"]} if "max_logit" in statistics else {})
    if prediction.task == "multilabel" and len(prediction.shape) > 1:
        scores = {n: (s.flatten(1).sum(1) if n == "energy" else s.flatten(1).mean(1)) for n, s in scores.items()}
    between_members = {"mutual_information", "variation_ratio"} if prediction.count == 1 else set()
    criteria = {name: scores[name].flatten().cpu() for name in CRITERIA if name in scores and name not in between_members}
    criteria |= prediction.criteria
    return criteria if prediction.task == "multilabel" else {**criteria, **_example_index(prediction)}


def _example_index(prediction: Prediction) -> Columns:
    """Returns the column "example": the example of each pixel, label or number. Empty if an example has only one."""
    if len(prediction.shape) < 2:
        return {}
    return {"example": torch.arange(len(prediction)).repeat_interleave(prediction.shape[1:].numel())}


def classification_evidence(prediction: Prediction, targets: Tensor, settings: Settings, *, by_class: bool = False) -> Evidence:
    """Returns the evidence of a classification; `targets` are checked labels, with −1 for ignored entries.

    With `by_class` there are columns for the scores of classes too, as large as the mixture's probabilities; not for pixels.
    """
    dense = prediction.task in ("classes", "binary") and len(prediction.shape) > 1
    by_class = by_class and len(prediction.shape) <= (2 if prediction.task == "multilabel" else 1)
    if prediction.has_members:
        columns, sums = _from_members(prediction, targets, settings.bins, dense, by_class)
    else:
        columns, sums = _from_moments(prediction, targets, by_class), {}
    labelled = targets.flatten() != IGNORED
    for name, column in {**_example_index(prediction), **prediction.criteria}.items():
        columns[name] = column[labelled]
    if by_class and prediction.task == "multilabel":
        columns["output"] = torch.arange(targets[:1].numel()).repeat(len(prediction))[labelled]
    if prediction.task == "multilabel" and len(columns["correct"]) == targets.numel():
        exact = columns["correct"].reshape(len(prediction), -1).amin(1)
        sums["exact"] = torch.tensor([exact.sum(), len(exact)], dtype=torch.float64)
    return Evidence(prediction.task, settings, columns, sums)


def _from_members(prediction: Prediction, targets: Tensor, bins: int, dense: bool, by_class: bool) -> tuple[Columns, Columns]:
    parts: list[Columns] = []
    sums: Columns = {}
    for rows, values in prediction.pieces():
        labels = targets[rows].flatten()
        labelled = labels != IGNORED
        if not bool(labelled.all()):
            values, labels = {name: value[:, labelled] for name, value in values.items()}, labels[labelled]
        if not len(labels):
            continue
        part, added = _piece_columns(values, labels, prediction.remap, bins, dense, by_class)
        parts.append(part)
        sums = {name: sums[name] + value if name in sums else value for name, value in added.items()}
    if not parts:
        raise InputError(NOTHING)
    return {name: torch.cat([part.pop(name) for part in parts]) for name in list(parts[0])}, sums  # frees as it goes


def _piece_columns(
    values: Mapping[str, Tensor], targets: Tensor, remap: Remap | None, bins: int, dense: bool, by_class: bool
) -> tuple[Columns, Columns]:
    """Returns the columns and sums of members' outputs ``[M, n, K]`` and labels ``[n]``."""
    logs = log_probs_of({name: value.double() for name, value in values.items()})
    probs, labels, targets = logs.exp(), logs.argmax(2), targets.to(logs.device)
    mean, chosen = uncertainty.mixture(probs), targets[:, None]
    member_logs = logs.gather(2, chosen.expand(len(logs), -1, -1)).squeeze(2)
    shown, nll = mean, -uncertainty.pooled_log_probs(member_logs)
    if remap is not None:
        pool = remap(uncertainty.pooled_log_probs(logs))
        shown, nll = pool.exp(), -pool.gather(1, chosen).squeeze(1)
    statistics = uncertainty.of_probs(probs, mean, labels, None if shown is mean else shown)
    columns = {
        "correct": (statistics["labels"] == targets).float(),
        "confidence": statistics["confidence"],
        "nll": nll,
        "brier": (shown * shown).sum(1) - 2 * shown.gather(1, chosen).squeeze(1) + 1,
        "entropy": statistics["entropy"],
        "msp": 1 - statistics["confidence"],
        "mutual_information": statistics["mutual_information"],
        "variation_ratio": statistics["variation_ratio"],
        "member_correct": (labels == targets).float().T.contiguous(),
        "member_nll": -member_logs.T.contiguous(),
    }
    if len(logs) > 1:
        columns["disagreement"] = statistics["disagreement"]
        columns["kl"] = diversity.kl_of(-statistics["expected_entropy"], mean, diversity.finite(logs))
    if logs.shape[2] > 5:
        columns["top5"] = _in_top(5, shown, targets)
    if "logits" in values:
        scores = uncertainty.of_logits(as_two_classes(values["logits"]), logs, labels)
        columns.update(max_logit=-scores["max_logit"], energy=scores["energy"])
    if by_class:
        columns.update(_class_columns(shown, statistics["labels"], targets, yes=next(iter(values.values())).ndim == 2))
    if dense:
        sums = {"confusion": segmentation.confusion(statistics["labels"], targets, logs.shape[2])}
    else:
        sums = {"classwise": calibration.classwise_bins(shown, targets, bins)}
    return {name: column.cpu() for name, column in columns.items()}, {name: value.cpu() for name, value in sums.items()}


def _class_columns(probs: Tensor, labels: Tensor, targets: Tensor, yes: bool) -> Columns:
    """Returns label, target and log odds of each class ``[n, K]``, or with `yes` of "yes" alone ``[n]``.

    Log odds rank as probabilities do. In single precision probabilities near 1 would be equal, log odds are not.
    """
    odds = probs.clamp(0, 1).logit().float()
    return {"label": labels, "target": targets, "log_odds": odds[:, 1].contiguous() if yes else odds}


def _in_top(count: int, probs: Tensor, targets: Tensor) -> Tensor:
    """Returns 1 where the target is among the `count` most probable classes. Of equal ones the lower counts, as in argmax."""
    right = probs.gather(1, targets[:, None])
    before = torch.arange(probs.shape[1], device=probs.device) < targets[:, None]
    return (((probs > right) | ((probs == right) & before)).sum(1) < count).float()


def _from_moments(prediction: Prediction, targets: Tensor, by_class: bool) -> Columns:
    """Returns the columns of a prediction that has no members' outputs."""
    statistics = {name: value.flatten().cpu() for name, value in prediction.described().items()}
    labels = targets.flatten()
    labelled = labels != IGNORED
    logs, labels = prediction.logs.flatten(0, -2).cpu()[labelled], labels[labelled]
    if not len(labels):
        raise InputError(NOTHING)
    probs = logs.exp()
    criteria = ood_criteria(prediction) if prediction.task != "multilabel" else {}
    columns = {name: value[labelled] for name, value in criteria.items() if name != "example"}
    columns |= {name: statistics[name][labelled] for name in ("confidence", "entropy", "mutual_information", "disagreement")}
    columns["correct"] = (statistics["labels"][labelled] == labels).float()
    columns["nll"] = -logs.gather(1, labels[:, None]).squeeze(1)
    columns["brier"] = (probs * probs).sum(1) - 2 * probs.gather(1, labels[:, None]).squeeze(1) + 1
    if probs.shape[1] > 5:
        columns["top5"] = _in_top(5, probs, labels)
    if by_class:
        columns |= _class_columns(probs, statistics["labels"][labelled], labels, yes=prediction.task != "classes")
    return columns


def regression_evidence(prediction: Prediction, targets: Tensor, settings: Settings) -> Evidence:
    """Returns the evidence of a regression; `targets` have the shape of the prediction."""
    mean, variance, targets = prediction.mean.double().cpu(), prediction.variance.double().cpu(), targets.double()
    if not targets.numel():
        raise InputError(NOTHING)
    members = {name: value.double().cpu() for name, value in prediction.members.items()} if prediction.has_members else {}
    values: Columns = {"squares": (targets - mean) ** 2, "variance": variance}
    if prediction.count > 1:
        values["epistemic"] = prediction.epistemic.double().cpu()
    if prediction.task == "gaussian" or "variance" in members or bool((prediction.aleatoric > 0).any()):
        low, high = (end.double().cpu() for end in prediction.interval(settings.level))
        values.update(gaussian_nll=regression.gaussian_nll(targets, mean, variance), width=high - low)
        values["covered"] = ((targets >= low) & (targets <= high)).double()
    if members:
        values["crps"] = regression.crps(targets, members["mean"], members.get("variance"))
    if "variance" in members:
        density = uncertainty.log_normal(targets, members["mean"], members["variance"])
        values["log_density"] = uncertainty.pooled_log_probs(density)
    elif prediction.targets is not None and prediction.has_log_density:
        values["log_density"] = prediction.log_density().double().cpu()
    columns = {name: value.flatten() for name, value in values.items()}
    if members:
        columns["member_squares"] = ((targets - members["mean"]) ** 2).flatten(1).T.contiguous()
    return Evidence(prediction.task, settings, {**columns, **_example_index(prediction), **prediction.criteria})
