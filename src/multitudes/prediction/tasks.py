"""Tasks: what a network's outputs mean, and how members' outputs are combined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.engine.selected_output import output_of
from multitudes.errors import InputError
from multitudes.prediction.values import Remap, with_classes_second

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

TASKS = ("classes", "binary", "multilabel", "gaussian", "regression")
ELSEWHERE = {
    "classes": "classification multiclass multi_class class segmentation", "multilabel": "multi_label multi-label",
    "gaussian": "normal heteroscedastic probabilistic_regression", "regression": "reg mse continuous",
}  # fmt: skip
"""Names that other libraries have for a task, separated by spaces."""


def checked_task(task: str) -> str:
    """Returns the task if it is known."""
    if task not in TASKS:
        meant = next((own for own, names in ELSEWHERE.items() if str(task).lower() in names.split()), None)
        hint = f"type task={meant!r}, or another" if meant else "choose one"
        raise InputError(f"task={task!r} is unknown: {hint} of {', '.join(TASKS)}")
    return task


def unlike_task(task: str, shapes: Mapping[str, Sequence[int]]) -> str:
    """Says why a network's outputs, shapes by name, cannot be those of the task. Else "".

    A Gaussian head returns means, then raw variances; a network of yes or no returns one logit.
    """
    if task == "binary" and list(shapes) == [""] and list(shapes[""][1:]) == [2]:
        return (
            f"task='binary' takes one logit per example, [B] or [B, 1], but the model returns {list(shapes[''])}: two logits "
            "of two classes are task='classes', two labels of yes or no task='multilabel'"
        )
    if task != "gaussian":
        return ""
    head = "return torch.cat([mean, raw_variance], 1), whose second half becomes variances by softplus"
    if list(shapes) == ["0", "1"] and shapes["0"] == shapes["1"]:
        return (
            f"task='gaussian' takes one output [B, 2 D], but the model returns two of {list(shapes['0'])}: {head}; or choose "
            "one with output="
        )
    if list(shapes) == [""] and (len(shapes[""]) < 2 or shapes[""][1] % 2):
        return (
            f"task='gaussian' needs a mean and a variance of each target, outputs [B, 2 D], but the model returns "
            f"{list(shapes[''])}: {head}, or end it with nn.Linear(..., 2) for one target"
        )
    return ""


FLOOR = 1e-6
"""The smallest variance of a Gaussian head: smaller ones lead to infinite losses."""


def variance_of(raw: Tensor) -> Tensor:
    """Returns a Gaussian head's variance: softplus of the raw output, at least `FLOOR`."""
    return F.softplus(raw).clamp(min=FLOOR)


def values_of(members: Tensor, task: str, noise: Tensor | float | None = None) -> dict[str, Tensor]:
    """Converts members' outputs ``[M, B, ...]`` into named values: logits, or means and variances.

    noise   in task 'regression' the variance of an observation, which every member gets; None for no variance
    """
    members = members.detach()
    members = members.float() if members.dtype in (torch.float16, torch.bfloat16) else members
    if task == "gaussian":
        mean, raw = mean_and_raw_variance(members)
        return {"mean": mean, "variance": variance_of(raw)}
    if task == "regression":
        if noise is None:
            return {"mean": members}
        return {"mean": members, "variance": torch.as_tensor(noise).to(members).expand_as(members)}
    return {"logits": members}


def mean_and_raw_variance(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Splits a Gaussian head's output into means and raw variances: ``[M, B, 2 D, ...]`` → ``[M, B, D, ...]`` each"""
    if outputs.ndim < 3 or outputs.shape[2] % 2:
        raise InputError(f"task='gaussian' needs outputs [M, B, 2 D, ...], D means and D variances, not {list(outputs.shape)}")
    mean, raw = outputs.chunk(2, 2)
    return mean, raw


def combine(members: Tensor, task: str, factor: float = 1.0) -> Tensor:
    """Combines members' outputs into the mixture, in the form of one network's output. Shape: ``[M, B, ...]`` → ``[B, ...]``

    classes               log of the mean probability, over the class axis of ``[M, B, K, ...]``
    binary, multilabel    logit of the mean probability
    gaussian              mean and raw variance of the mixture, from ``[M, B, 2 D, ...]``; softplus gives the variance.
                          `factor` scales the members' variances
    regression            mean
    """
    if task == "classes":
        return torch.logsumexp(members.log_softmax(2), 0) - math.log(members.shape[0])
    if task in ("binary", "multilabel"):
        return torch.logsumexp(F.logsigmoid(members), 0) - torch.logsumexp(F.logsigmoid(-members), 0)
    if task == "gaussian":
        mean, raw = mean_and_raw_variance(members)
        variance = factor * variance_of(raw).mean(0) + mean.var(0, correction=0)
        return torch.cat([mean.mean(0), variance + torch.log(-torch.expm1(-variance))], 1)
    return members.mean(0)


def remapped(joined: Tensor, task: str, remap: Remap) -> Tensor:
    """Calibrates the mixture in the form of one network's output: log probabilities ``[B, K, ...]``, or logits of yes."""
    if task == "classes":
        return remap(joined.movedim(1, -1)).movedim(-1, 1)
    no, yes = remap(torch.stack([F.logsigmoid(-joined), F.logsigmoid(joined)], -1)).unbind(-1)
    return yes - no


class Average(nn.Module):
    """A module that returns the mixture of an ensemble's members in the form of one network's output."""

    def __init__(self, ensemble: Ensemble, output: str | None, class_axis: int) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.output = output
        self.class_axis = class_axis

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Returns the calibrated mixture, ``[B, ...]``; see `combine`."""
        return self.mixture(output_of(self.ensemble(*inputs, **kwargs), self.output))

    def mixture(self, members: Tensor) -> Tensor:
        """Returns the calibrated mixture of members' outputs: ``[M, B, ...]`` → ``[B, ...]``"""
        calibrator, task = self.ensemble.calibrator, self.ensemble.task
        members = with_classes_second(members, self.class_axis) if task == "classes" else members
        temperature, factor = 1.0, 1.0
        if calibrator is not None and task in ("gaussian", "regression") and calibrator.variance is not None:
            factor = calibrator.variance
        elif calibrator is not None:
            values, temperature = calibrator.applied({"logits": members}, task)
            members = values["logits"]
        joined = combine(members, task, factor)
        if temperature != 1.0:
            joined = (joined / temperature).log_softmax(1) if task == "classes" else joined / temperature
        if calibrator is not None and calibrator.mapping is not None:
            joined = remapped(joined, task, calibrator.mapping)
        return joined.movedim(1, self.class_axis) if task == "classes" else joined
