"""Members' values: what they must be to mean something, and what is said of a piece of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction import uncertainty

CLASSES = ("classes", "binary", "multilabel")
"""Tasks that answer with probabilities."""


def as_member_tensor(name: str, value: Any) -> Tensor:
    """The values as a tensor of real numbers with members and examples; half precision becomes single."""
    found = torch.as_tensor(value).detach()
    if not found.is_floating_point():
        raise InputError(f"{name} must be real numbers, not {found.dtype}")
    if found.ndim < 2:
        raise InputError(f"{name} must be [M, N, ...], members first: {list(found.shape)}; of one network, {name}[None]")
    if not found.shape[0]:
        raise InputError(f"{name} is {list(found.shape)}: there is no member")
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def check_names(task: str, values: Mapping[str, Tensor]) -> None:
    """Values that the task has a meaning for, and that agree."""
    wanted = "logits= or probs=" if task in CLASSES else "mean= and variance=" if task == "gaussian" else "mean="
    names = sorted(values)
    right = (
        len(names) == 1 and names[0] in ("logits", "probs") if task in CLASSES else names in (["mean"], ["mean", "variance"])
    )
    if not right or (task == "gaussian" and len(names) < 2):
        raise InputError(f"task={task!r} takes {wanted} of the members, and was given {' and '.join(names) or 'nothing'}")
    if len(names) == 2 and values["mean"].shape != values["variance"].shape:
        shapes = [list(values[name].shape) for name in names]
        raise InputError(f"mean and variance must have one shape: {shapes[0]} and {shapes[1]}")


def with_classes_second(value: Tensor, class_axis: int) -> Tensor:
    """``[M, N, K, ...]``, whichever axis of one network's output ``[N, ...]`` is that of classes."""
    if value.ndim < 3:
        raise InputError(
            f"task='classes' needs scores of classes [M, N, K, ...]: {list(value.shape)}; for one logit, task='binary'"
        )
    rank = value.ndim - 1
    if not -rank <= class_axis < rank or class_axis % rank == 0:
        raise InputError(f"class_axis={class_axis} is no axis of classes in an output of {rank} axes, examples first")
    return value.movedim(class_axis % rank + 1, 2)


def check_values(name: str, value: Tensor, task: str) -> None:
    """No NaN anywhere, probabilities that are some, variances that are not negative."""
    if not value.numel():
        return
    low, high = torch.aminmax(value)
    if bool(low.isnan()):
        where = [int(axis) for axis in value.isnan().nonzero()[0][:2]]
        raise InputError(f"{name} has a NaN, first for member {where[0]} and example {where[1]}")
    if name == "logits" and float(high) == float("inf"):
        raise InputError("logits have an infinity")
    if name == "logits" and task == "classes" and float(low) == float("-inf"):
        none = value.amax(2) == float("-inf")
        if bool(none.any()):
            at = none.nonzero()[0]
            raise InputError(f"logits of member {int(at[0])} and example {int(at[1])} rule out every class: all are −∞")
    if name in ("mean", "variance") and (float(high) == float("inf") or float(low) == float("-inf")):
        raise InputError(f"{name} has an infinity")
    if name == "variance" and float(low) < 0:
        raise InputError(f"a variance is {float(low):.4g}: it must be at least 0 (give variances, not their logs)")
    if name == "probs" and not (float(low) >= -1e-6 and float(high) <= 1 + 1e-6):
        raise InputError(
            f"probs has {float(low if low < 0 else high):.4g}, and a probability is between 0 and 1: are these logits=?"
        )
    if name == "probs" and task == "classes":
        sums = value.sum(2)
        off = (sums - 1).abs() > 1e-3
        if bool(off.any()):
            at = off.nonzero()[0]
            raise InputError(
                f"probs of member {int(at[0])} and example {int(at[1])} sum to {float(sums[tuple(at)]):.4g} and not to 1: "
                "divide them by their sums, or are they scores of several labels, task='multilabel'?"
            )


def flatten_examples(value: Tensor, task: str) -> Tensor:
    """A piece with pixels and labels as examples: ``[M, n, K]`` for classes, else ``[M, n]``"""
    if task == "classes":
        return value.movedim(2, -1).flatten(1, -2)
    return value.flatten(1)


def log_probs_of(values: Mapping[str, Tensor]) -> Tensor:
    """Members' log probabilities of a piece, ``[M, n, K]``; no and yes are two classes."""
    if "logits" in values:
        logits = values["logits"]
        if logits.ndim == 3:
            return logits.log_softmax(-1)
        return torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], -1)
    probs = values["probs"]
    return (probs if probs.ndim == 3 else torch.stack([1 - probs, probs], -1)).clamp(0, 1).log()


def pooled(values: Mapping[str, Tensor], temperature: float) -> Tensor:
    """The mixture's probabilities of a piece, ``[n, K]``."""
    logs = log_probs_of(values)
    return uncertainty.mixture(logs.exp()) if temperature == 1.0 else sharpened(logs, temperature).exp()


def pooled_logs(values: Mapping[str, Tensor], temperature: float) -> Tensor:
    """The logs of the mixture's probabilities of a piece, ``[n, K]``."""
    logs = log_probs_of(values).double()
    return uncertainty.pooled_log_probs(logs) if temperature == 1.0 else sharpened(logs, temperature)


def sharpened(logs: Tensor, temperature: float) -> Tensor:
    """The logs of a calibrated mixture, p ∝ p̄^(1/T): ``[M, n, K]`` → ``[n, K]``"""
    return (uncertainty.pooled_log_probs(logs) / temperature).log_softmax(-1)


def describe(values: Mapping[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """What is said of each example of a piece, ``[n]`` each, in double precision: in single, whoever is surer than
    1 − 6e-8 is as sure as anybody, and small mutual information is rounding.
    """
    values = {name: value.double() for name, value in values.items()}
    logs = log_probs_of(values)
    probs, labels = logs.exp(), logs.argmax(-1)
    mean = uncertainty.mixture(probs)
    shown = None if temperature == 1.0 else sharpened(logs, temperature).exp()
    found = uncertainty.of_probs(probs, mean, labels, shown)
    first = (mean if shown is None else shown).topk(min(2, mean.shape[1])).values
    found["margin"] = first[:, 0] - first[:, 1] if first.shape[1] > 1 else first[:, 0]
    if "logits" in values:
        found.update(uncertainty.of_logits(as_two_classes(values["logits"]), logs, labels))
    return found


def as_two_classes(logits: Tensor) -> Tensor:
    """Scores of classes, ``[M, n, K]``; one logit z of yes against no is −z/2 and z/2."""
    return logits if logits.ndim == 3 else torch.stack([-logits / 2, logits / 2], -1)
