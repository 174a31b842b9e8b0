"""Values: checks members' outputs, and computes the statistics of a piece of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction import uncertainty

CLASSES = ("classes", "binary", "multilabel")
"""Tasks whose predictions are probabilities."""

Remap = Callable[[Tensor], Tensor]
"""What calibration does to the mixture's log probabilities: ``[..., K]`` → ``[..., K]``"""


def as_member_tensor(name: str, value: Any) -> Tensor:
    """Returns the values as a detached float tensor ``[M, N, ...]``; half precision becomes single."""
    tensor = torch.as_tensor(value).detach()
    if not tensor.is_floating_point():
        raise InputError(f"{name} must be a float tensor, not {tensor.dtype}: use {name}.float()")
    if tensor.ndim < 2 or not tensor.shape[0]:
        raise InputError(
            f"{name} must be [M, N, ...] with at least one member, not {list(tensor.shape)}. For a single network: {name}[None]"
        )
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def check_names(task: str, values: Mapping[str, Tensor]) -> None:
    """Checks that the task takes values of these names, and that mean and variance have the same shape."""
    expected = "logits= or probs=" if task in CLASSES else "mean= and variance=" if task == "gaussian" else "mean="
    names = sorted(values)
    right = (
        len(names) == 1 and names[0] in ("logits", "probs") if task in CLASSES else names in (["mean"], ["mean", "variance"])
    )
    if not right or (task == "gaussian" and len(names) < 2):
        raise InputError(f"task={task!r} takes {expected}, but got {' and '.join(names) or 'nothing'}")
    if len(names) == 2 and values["mean"].shape != values["variance"].shape:
        shapes = [list(values[name].shape) for name in names]
        raise InputError(f"mean and variance must have the same shape, not {shapes[0]} and {shapes[1]}")


def with_classes_second(value: Tensor, class_axis: int) -> Tensor:
    """Moves the class axis of each member's output ``[N, ...]`` to its second place: returns ``[M, N, K, ...]``."""
    if value.ndim < 3:
        raise InputError(
            f"task='classes' needs logits or probs [M, N, K, ...], not {list(value.shape)}. For one network: "
            "logits[None]. For one logit per example: task='binary'"
        )
    rank = value.ndim - 1
    if not -rank <= class_axis < rank or class_axis % rank == 0:
        raise InputError(
            f"class_axis={class_axis} must be from 1 to {rank - 1}, or negative: an output has {rank} axes, "
            "and axis 0 is the batch"
        )
    return value.movedim(class_axis % rank + 1, 2)


def check_nan(name: str, value: Tensor, start: int = 0) -> None:
    """Refuses NaN in values ``[M, N, ...]``; the number of the first example is `start`."""
    if bool(value.isnan().any()):
        member, example = value.isnan().nonzero()[0][:2].tolist()
        raise InputError(f"{name} has a NaN, for member {member} and example {start + example}: training may have diverged")


def check_values(name: str, value: Tensor, task: str) -> None:
    """Refuses NaN, infinities, negative variances, and probabilities that are out of range or do not sum to 1."""
    if not value.numel():
        return
    low, high = (float(end) for end in torch.aminmax(value))
    if math.isnan(low):
        check_nan(name, value)
    if name != "probs" and (high == math.inf or (name != "logits" and low == -math.inf)):
        raise InputError(f"{name} has an infinite value: training may have diverged")
    if name == "logits" and task == "classes" and low == -math.inf:
        masked = value.amax(2) == -math.inf
        if bool(masked.any()):
            member, example = masked.nonzero()[0][:2].tolist()
            raise InputError(
                f"logits of member {member} and example {example} are −∞ for every class: leave at least one class unmasked"
            )
    if name == "variance" and low < 0:
        raise InputError(f"variance has the value {low:.4g}, but must be at least 0: pass variances, not their logs")
    if name == "probs" and not (low >= -1e-6 and high <= 1 + 1e-6):
        raise InputError(f"probs has the value {low if low < 0 else high:.4g}, not between 0 and 1: pass logits as logits=")
    if name == "probs" and task == "classes":
        sums = value.sum(2)
        off = (sums - 1).abs() > 1e-3
        if bool(off.any()):
            at = off.nonzero()[0].tolist()
            raise InputError(
                f"probs of member {at[0]} and example {at[1]} sum to {float(sums[tuple(at)]):.4g}, not 1. "
                "Normalise them, or pass task='multilabel' if several labels can be true"
            )


def flatten_examples(value: Tensor, task: str) -> Tensor:
    """Flattens pixels, tokens or labels into examples: returns ``[M, n, K]`` for task 'classes', otherwise ``[M, n]``."""
    if task == "classes":
        return value.movedim(2, -1).flatten(1, -2)
    return value.flatten(1)


def log_probs_of(values: Mapping[str, Tensor]) -> Tensor:
    """Returns members' log probabilities ``[M, n, K]`` from flattened logits or probs; binary tasks have K = 2, no and yes."""
    if "logits" in values:
        logits = values["logits"]
        if logits.ndim == 3:
            return logits.log_softmax(-1)
        return torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], -1)
    probs = values["probs"]
    return (probs if probs.ndim == 3 else torch.stack([1 - probs, probs], -1)).clamp(0, 1).log()


def pooled(values: Mapping[str, Tensor], remap: Remap | None) -> Tensor:
    """Returns the mixture's probabilities ``[n, K]``, calibrated by `remap`."""
    logs = log_probs_of(values)
    return uncertainty.mixture(logs.exp()) if remap is None else remap(uncertainty.pooled_log_probs(logs)).exp()


def pooled_logs(values: Mapping[str, Tensor], remap: Remap | None) -> Tensor:
    """Returns the mixture's log probabilities ``[n, K]`` in double precision, calibrated by `remap`."""
    logs = uncertainty.pooled_log_probs(log_probs_of(values).double())
    return logs if remap is None else remap(logs)


def sharpened(logs: Tensor, temperature: float) -> Tensor:
    """Returns the log of the calibrated mixture, p ∝ p̄^(1/T): ``[..., K]`` → ``[..., K]``"""
    return (logs / temperature).log_softmax(-1)


def describe(values: Mapping[str, Tensor], remap: Remap | None) -> dict[str, Tensor]:
    """Computes label, confidence and uncertainties of each example of a piece, ``[n]`` each.

    Uses double precision: in single, all confidences above 1 − 6e-8 are equal, and a small mutual information is lost.
    """
    values = {name: value.double() for name, value in values.items()}
    logs = log_probs_of(values)
    probs, labels = logs.exp(), logs.argmax(-1)
    mean = uncertainty.mixture(probs)
    shown = None if remap is None else remap(uncertainty.pooled_log_probs(logs)).exp()
    statistics = uncertainty.of_probs(probs, mean, labels, shown)
    top = (mean if shown is None else shown).topk(min(2, mean.shape[1])).values
    statistics["margin"] = top[:, 0] - top[:, 1] if top.shape[1] > 1 else top[:, 0]
    if "logits" in values:
        statistics.update(uncertainty.of_logits(as_two_classes(values["logits"]), logs, labels))
    return statistics


def as_two_classes(logits: Tensor) -> Tensor:
    """Returns logits of classes ``[M, n, K]``; a binary logit z becomes −z/2 for no and z/2 for yes."""
    return logits if logits.ndim == 3 else torch.stack([-logits / 2, logits / 2], -1)
