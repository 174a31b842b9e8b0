"""Columns: what each example of a prediction contributes to the scores, gone through once and in pieces."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction import uncertainty
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED
from multitudes.prediction.values import CLASSES, as_two_classes, log_probs_of, sharpened
from multitudes.scores import calibration, diversity, regression, segmentation
from multitudes.scores.evidence import Columns, Evidence, Settings
from multitudes.scores.meaning import CRITERIA


def ood_criteria(prediction: Prediction) -> Columns:
    """How much each example looks out of distribution, larger for more; of several labels the mean, of energy the sum."""
    if prediction.task not in CLASSES:
        if prediction.count == 1 and not bool((prediction.variance > 0).any()):
            return {}
        found = {"variance": prediction.variance.flatten().double().cpu(), **_examples(prediction)}
        return {**found, "epistemic": prediction.epistemic.flatten().double().cpu()} if prediction.count > 1 else found
    said = prediction.described()
    scores = {"msp": 1 - said["confidence"], **{name: said[name] for name in CRITERIA if name in said and name != "max_logit"}}
    scores.update({"max_logit": -said["max_logit"]} if "max_logit" in said else {})
    if prediction.task == "multilabel" and len(prediction.shape) > 1:
        scores = {n: (s.flatten(1).sum(1) if n == "energy" else s.flatten(1).mean(1)) for n, s in scores.items()}
    single = {"mutual_information", "variation_ratio"} if prediction.count == 1 else set()
    found = {name: scores[name].flatten().cpu() for name in CRITERIA if name in scores and name not in single}
    return found if prediction.task == "multilabel" else {**found, **_examples(prediction)}


def _examples(prediction: Prediction) -> Columns:
    """Of which example each pixel, label or number is, where there are several."""
    if len(prediction.shape) < 2:
        return {}
    return {"example": torch.arange(len(prediction)).repeat_interleave(prediction.shape[1:].numel())}


def classification_evidence(prediction: Prediction, targets: Tensor, settings: Settings) -> Evidence:
    """The evidence of a classification and its targets, which are −1 for what does not count."""
    dense = prediction.task in ("classes", "binary") and len(prediction.shape) > 1
    if prediction.has_members:
        columns, sums = _by_piece(prediction, targets, settings.bins, dense)
    else:
        columns, sums = _by_moments(prediction, targets)
    for name, column in _examples(prediction).items():
        columns[name] = column[targets.flatten() != IGNORED]
    if prediction.task == "multilabel" and len(columns["correct"]) == targets.numel():
        exact = columns["correct"].reshape(len(prediction), -1).amin(1)
        sums["exact"] = torch.tensor([exact.sum(), len(exact)], dtype=torch.float64)
    return Evidence(prediction.task, settings, columns, sums)


def _by_piece(prediction: Prediction, targets: Tensor, bins: int, dense: bool) -> tuple[Columns, Columns]:
    parts: list[Columns] = []
    sums: Columns = {}
    for rows, values in prediction.pieces():
        wanted = targets[rows].flatten()
        kept = wanted != IGNORED
        if not bool(kept.all()):
            values, wanted = {name: value[:, kept] for name, value in values.items()}, wanted[kept]
        if not len(wanted):
            continue
        part, added = _piece(values, wanted, prediction.temperature, bins, dense)
        parts.append(part)
        sums = {name: sums[name] + value if name in sums else value for name, value in added.items()}
    if not parts:
        raise InputError("there is no example to score")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}, sums


def _piece(
    values: Mapping[str, Tensor], targets: Tensor, temperature: float, bins: int, dense: bool
) -> tuple[Columns, Columns]:
    """Columns and sums of a piece, ``[M, n, K]``."""
    logs = log_probs_of({name: value.double() for name, value in values.items()})
    probs, labels, targets = logs.exp(), logs.argmax(2), targets.to(logs.device)
    mean, chosen = uncertainty.mixture(probs), targets[:, None]
    own = logs.gather(2, chosen.expand(len(logs), -1, -1)).squeeze(2)
    shown, nll = mean, -uncertainty.pooled_log_probs(own)
    if temperature != 1.0:
        pool = sharpened(logs, temperature)
        shown, nll = pool.exp(), -pool.gather(1, chosen).squeeze(1)
    said = uncertainty.of_probs(probs, mean, labels, None if shown is mean else shown)
    right = shown.gather(1, chosen)
    found = {
        "correct": (said["labels"] == targets).float(), "confidence": said["confidence"], "nll": nll,
        "brier": (shown * shown).sum(1) - 2 * right.squeeze(1) + 1, "entropy": said["entropy"], "msp": 1 - said["confidence"],
        "mutual_information": said["mutual_information"], "variation_ratio": said["variation_ratio"],
        "member_correct": (labels == targets).float().T.contiguous(), "member_nll": -own.T.contiguous(),
    }  # fmt: skip
    if len(logs) > 1:
        found.update(disagreement=said["disagreement"])
        found["kl"] = diversity.kl_of(-said["expected_entropy"], mean, diversity.finite(logs))
    if logs.shape[2] > 5:
        found["top5"] = _in_top(5, shown, targets)
    if "logits" in values:
        seen = uncertainty.of_logits(as_two_classes(values["logits"]), logs, labels)
        found.update(max_logit=-seen["max_logit"], energy=seen["energy"])
    sums = {} if dense else {"classwise": calibration.classwise_bins(shown, targets, bins)}
    if dense:
        sums["confusion"] = segmentation.confusion(said["labels"], targets, logs.shape[2])
    return {name: column.cpu() for name, column in found.items()}, {name: value.cpu() for name, value in sums.items()}


def _in_top(count: int, probs: Tensor, targets: Tensor) -> Tensor:
    """Whether the target is among the so many most probable; of equal ones the first come first, as for labels."""
    right = probs.gather(1, targets[:, None])
    before = torch.arange(probs.shape[1], device=probs.device) < targets[:, None]
    return (((probs > right) | ((probs == right) & before)).sum(1) < count).float()


def _by_moments(prediction: Prediction, targets: Tensor) -> tuple[Columns, Columns]:
    """Columns of a prediction whose members are not held."""
    said = {name: value.flatten().cpu() for name, value in prediction.described().items()}
    wanted = targets.flatten()
    kept = wanted != IGNORED
    logs, wanted = prediction.logs.flatten(0, -2).cpu()[kept], wanted[kept]
    if not len(wanted):
        raise InputError("there is no example to score")
    flat = logs.exp()
    chosen = flat.gather(1, wanted[:, None]).squeeze(1)
    scores = ood_criteria(prediction) if prediction.task != "multilabel" else {}
    found = {name: value[kept] for name, value in scores.items() if name != "example"}
    found.update({name: said[name][kept] for name in ("confidence", "entropy", "mutual_information", "disagreement")})
    found.update(
        correct=(said["labels"][kept] == wanted).float(), nll=-logs.gather(1, wanted[:, None]).squeeze(1),
        brier=(flat * flat).sum(1) - 2 * chosen + 1,
    )  # fmt: skip
    if flat.shape[1] > 5:
        found["top5"] = _in_top(5, flat, wanted)
    return found, {}


def regression_evidence(prediction: Prediction, targets: Tensor, settings: Settings) -> Evidence:
    """The evidence of a regression."""
    mean, variance, wanted = prediction.mean.double().cpu(), prediction.variance.double().cpu(), targets.double()
    if not wanted.numel():
        raise InputError("there is no example to score")
    held = {name: value.double().cpu() for name, value in prediction.members.items()} if prediction.has_members else {}
    found: Columns = {"squares": (wanted - mean) ** 2, "variance": variance}
    if prediction.count > 1:
        found["epistemic"] = prediction.epistemic.double().cpu()
    if prediction.task == "gaussian" or "variance" in held or bool((prediction.aleatoric > 0).any()):
        low, high = (end.double().cpu() for end in prediction.interval(settings.level))
        found.update(gaussian_nll=regression.gaussian_nll(wanted, mean, variance), width=high - low)
        found["covered"] = ((wanted >= low) & (wanted <= high)).double()
    if held:
        found["crps"] = regression.crps(wanted, held["mean"], held.get("variance"))
    if "variance" in held:
        density = uncertainty.log_normal(wanted, held["mean"], held["variance"])
        found["log_density"] = uncertainty.pooled_log_probs(density)
    columns = {name: column.flatten() for name, column in found.items()}
    if held:
        columns["member_squares"] = ((wanted - held["mean"]) ** 2).flatten(1).T.contiguous()
    return Evidence(prediction.task, settings, {**columns, **_examples(prediction)})
