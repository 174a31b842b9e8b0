"""Outputs: the mixture of members and its uncertainty, as operations of the exported graph.

The formulas are those of `multitudes.prediction`; every output has the batch axis first. Single precision is used, since many
runtimes have no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from multitudes.data.dataset import Data
from multitudes.errors import InputError
from multitudes.files.export.mapped import mapped
from multitudes.lazy_names import meant
from multitudes.prediction.tasks import values_of
from multitudes.prediction.temperature import Calibrator
from multitudes.prediction.values import CLASSES, with_classes_second

OF_CLASSES = """probs label confidence margin entropy expected_entropy mutual_information variation_ratio disagreement max_logit
    energy member_probs member_logits abstain""".split()
OF_NUMBERS = "mean variance std aleatoric epistemic member_mean member_variance abstain".split()
USUAL = """probs label confidence entropy mutual_information member_probs mean variance aleatoric epistemic member_mean
    abstain""".split()
"""The outputs of an export that names none, if the task has them."""
NOT_SCORES = ("probs", "label", "member_probs", "member_logits", "member_mean", "member_variance", "mean", "abstain")
RISING = ("confidence", "margin", "max_logit")
"""Scores that are high where the ensemble is sure; the others are high where it is not."""
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The score at which to abstain: below the value for a confidence, above it for an uncertainty."""

    score: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the members' outputs mean, and what the graph returns of them."""

    task: str
    outputs: tuple[str, ...]
    calibrator: Calibrator | None = None
    class_axis: int = 1
    noise: Tensor | None = None
    """In a regression, the variance of an observation; None if it is unknown."""
    units: Data | None = None
    """The dataset whose targets were standardised: predicted numbers are put back into their units."""
    threshold: Threshold | None = None


def chosen_outputs(task: str, outputs: Sequence[str] | None, threshold: Threshold | None, variances: bool) -> tuple[str, ...]:
    """Returns the names of the outputs; refuses those that the task does not have."""
    known = [name for name in (OF_CLASSES if task in CLASSES else OF_NUMBERS) if name != "abstain" or threshold is not None]
    if not variances:
        known = [name for name in known if name != "member_variance"]
    if threshold is not None and (threshold.score not in known or threshold.score in NOT_SCORES):
        scores = ", ".join(name for name in known if name not in NOT_SCORES)
        raise InputError(f"threshold= has the score {threshold.score!r}, but task={task!r} has {scores}: name one of these")
    if outputs is None:
        return tuple(name for name in known if name in USUAL)
    if isinstance(outputs, str):
        raise InputError(f"outputs={outputs!r} must be a list of names: outputs=[{outputs!r}]")
    for name in outputs:
        if name == "abstain" and threshold is None:
            raise InputError("the output 'abstain' needs a threshold: give threshold=mt.threshold(held_out, error=0.01)")
        if name not in known:
            raise InputError(f"outputs= has {name!r}, which task={task!r} does not have{meant(name, known)}: it has {known}")
    if not outputs or len(set(outputs)) < len(outputs):
        raise InputError(f"outputs={list(outputs)} must name at least one output, and none twice: name some of {known}")
    return tuple(outputs)


class Outputs(nn.Module):
    """Computes the outputs of the graph from those of the members, ``[M, B, ...]``."""

    def __init__(self, members: nn.Module, meaning: Meaning) -> None:
        super().__init__()
        self.members = members
        self.meaning = meaning
        self.mapped = mapped(meaning.calibrator)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs in the order of `meaning.outputs`."""
        found = describe(self.members(*tensors), self.meaning, self.mapped)
        return tuple(found[name].contiguous() for name in self.meaning.outputs)


def describe(members: Tensor, meaning: Meaning, remap: nn.Module | None = None) -> dict[str, Tensor]:
    """Computes everything that the task has of members' outputs ``[M, B, ...]``. `remap` calibrates the mixture."""
    found = _of_classes(members, meaning, remap) if meaning.task in CLASSES else _of_numbers(members, meaning)
    threshold = meaning.threshold
    if threshold is not None:
        score = found[threshold.score]
        sure = score >= threshold.value if threshold.score in RISING else score <= threshold.value
        found["abstain"] = sure.logical_not()  # also where the score is NaN
    return found


def _of_classes(members: Tensor, meaning: Meaning, remap: nn.Module | None) -> dict[str, Tensor]:
    logits = values_of(members, meaning.task)["logits"]
    if meaning.task == "classes":
        logits = with_classes_second(logits, meaning.class_axis)
    if meaning.task == "binary" and logits.ndim > 2 and logits.shape[2] == 1:
        logits = logits.squeeze(2)
    temperature = 1.0
    if meaning.calibrator is not None:
        values, temperature = meaning.calibrator.applied({"logits": logits}, meaning.task)
        logits = values["logits"]
    several = meaning.task == "classes"
    z = logits.movedim(2, -1) if several else torch.stack([-logits / 2, logits / 2], -1)  # [M, B, ..., K]
    logs = z.log_softmax(-1)
    probs = logs.exp()
    mean = probs.mean(0)
    shown = mean
    if remap is not None or temperature != 1.0:
        log_mean = logs.logsumexp(0) - math.log(logs.shape[0])  # a small probability has a logarithm where it has no digits
        shown = (log_mean / temperature).softmax(-1) if remap is None else remap(log_mean)
    found = _uncertainties(z, logs, probs, mean, shown)
    own = probs.movedim(-1, 2) if several else probs[..., 1]
    return {
        **found,
        "probs": shown.movedim(-1, 1) if several else shown[..., 1],
        "member_probs": own.transpose(0, 1),
        "member_logits": logits.transpose(0, 1),
    }


def _uncertainties(z: Tensor, logs: Tensor, probs: Tensor, mean: Tensor, shown: Tensor) -> dict[str, Tensor]:
    """Computes label, confidence and uncertainties. Shape: z, logs, probs ``[M, B, ..., K]``, mean, shown ``[B, ..., K]``"""
    members, classes = z.shape[0], z.shape[-1]
    total = -(mean * mean.clamp(min=TINY).log()).sum(-1)
    expected = -(probs * logs.clamp(min=math.log(TINY))).sum(-1).mean(0)
    confidence, label = shown.max(-1)
    top = shown.topk(min(2, classes)).values
    votes = (logs.argmax(-1)[..., None] == torch.arange(classes)).to(z.dtype).sum(0)  # [B, ..., K]
    pairs = max(members * (members - 1), 1)
    agreeing = (votes * (votes - 1)).sum(-1) if members > 1 else torch.full_like(confidence, pairs)
    return {
        "label": label,
        "confidence": confidence,
        "margin": top[..., 0] - top[..., 1] if classes > 1 else top[..., 0],
        "entropy": -(shown * shown.clamp(min=TINY).log()).sum(-1),
        "expected_entropy": expected,
        "mutual_information": (total - expected).clamp(min=0),
        "variation_ratio": 1 - votes.amax(-1) / members,
        "disagreement": 1 - agreeing / pairs,
        "max_logit": z.mean(0).amax(-1),
        "energy": -z.logsumexp(-1).mean(0),
    }


def _of_numbers(members: Tensor, meaning: Meaning) -> dict[str, Tensor]:
    values = values_of(members, meaning.task, meaning.noise)
    if meaning.calibrator is not None:
        values, _ = meaning.calibrator.applied(values, meaning.task)
    each, variance = values["mean"], values.get("variance")
    if meaning.units is not None and meaning.units.target_std is not None:
        each = meaning.units.original(each)
        variance = None if variance is None else variance * meaning.units.target_std.to(variance) ** 2
    mean = each.mean(0)
    aleatoric = torch.zeros_like(mean) if variance is None else variance.mean(0)
    epistemic = ((each - mean) ** 2).mean(0)
    total = aleatoric + epistemic
    found = {"mean": mean, "variance": total, "std": total.sqrt(), "aleatoric": aleatoric, "epistemic": epistemic}
    if variance is not None:
        found["member_variance"] = variance.transpose(0, 1)
    return {**found, "member_mean": each.transpose(0, 1)}
