"""Tasks: what a model's outputs mean, and so how members' outputs become one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.errors import InputError
from multitudes.prediction.values import with_classes_second

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

TASKS = ("classes", "binary", "multilabel", "gaussian", "regression")


def checked_task(task: str) -> str:
    """The task, if it is one."""
    if task not in TASKS:
        raise InputError(f"task={task!r}: say one of {', '.join(TASKS)}")
    return task


FLOOR = 1e-6
"""The least variance of a Gaussian head: what is surer than that is not finite."""


def variance_of(raw: Tensor) -> Tensor:
    """A Gaussian head's variance: softplus of what the network gives."""
    return F.softplus(raw).clamp(min=FLOOR)


def output_of(outputs: Any, name: str | None) -> Tensor:
    """The output tensor that is meant; with several, by its name."""
    found = {n: t for n, t in tree.leaves(outputs) if isinstance(t, Tensor)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if found.keys() == {""}:
        raise InputError(f"output={name!r}: the model returns one tensor, without a name; leave output= out")
    if name not in found:
        raise InputError(f"the model returns {', '.join(found) or 'no tensor'}: say which is meant, output=...")
    return found[name]


def values_of(members: Tensor, task: str, method: Any = None) -> dict[str, Tensor]:
    """Members' outputs ``[M, B, ...]`` as what they mean: logits, or means and variances.

    Where a method of plain regression knows the precision of an observation, that is every member's variance.
    """
    members = members.detach()
    members = members.float() if members.dtype in (torch.float16, torch.bfloat16) else members
    if task == "gaussian":
        mean, raw = mean_and_raw_variance(members)
        return {"mean": mean, "variance": variance_of(raw)}
    if task == "regression":
        tau = getattr(method, "tau_output", None)
        return {"mean": members} if tau is None else {"mean": members, "variance": torch.full_like(members, 1 / tau)}
    return {"logits": members}


def mean_and_raw_variance(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and raw variances, side by side: ``[M, B, 2 D, ...]`` → ``[M, B, D, ...]`` each"""
    if outputs.ndim < 3 or outputs.shape[2] % 2:
        raise InputError(f"task='gaussian' needs means and variances side by side [M, B, 2 D, ...]: {list(outputs.shape)}")
    mean, raw = outputs.chunk(2, 2)
    return mean, raw


def combine(members: Tensor, task: str) -> Tensor:
    """The mixture of the members in the form of one network's output. Shape: ``[M, B, ...]`` → ``[B, ...]``

    classes      log of the mean probability over classes ``[M, B, K, ...]``
    binary       the logit of the mean probability, also for each label of multilabel
    gaussian     mean and raw variance (softplus gives the variance) of the mixture ``[M, B, 2 D, ...]``
    regression   the mean
    """
    if task == "classes":
        if members.ndim < 3:
            raise InputError(f"task='classes' needs class scores [M, B, K, ...], and the outputs are {list(members.shape)}")
        return torch.logsumexp(members.log_softmax(2), 0) - math.log(members.shape[0])
    if task in ("binary", "multilabel"):
        return torch.logsumexp(F.logsigmoid(members), 0) - torch.logsumexp(F.logsigmoid(-members), 0)
    if task == "gaussian":
        mean, raw = mean_and_raw_variance(members)
        variance = variance_of(raw).mean(0) + mean.var(0, correction=0)
        return torch.cat([mean.mean(0), variance + torch.log(-torch.expm1(-variance))], 1)
    return members.mean(0)


class Average(nn.Module):
    """The members' mixture in the form of one network's output."""

    def __init__(self, ensemble: Ensemble, output: str | None, class_axis: int = 1) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.output = output
        self.class_axis = class_axis

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """One network's output, ``[B, ...]``."""
        members = output_of(self.ensemble(*inputs, **kwargs), self.output)
        calibrator, task = self.ensemble.calibrator, self.ensemble.task
        members = with_classes_second(members, self.class_axis) if task == "classes" else members
        temperature = 1.0
        if calibrator is not None:
            values, temperature = calibrator.applied({"logits": members}, task)
            members = values["logits"]
        joined = combine(members, task)
        if temperature != 1.0:
            joined = (joined / temperature).log_softmax(1) if task == "classes" else joined / temperature
        return joined.movedim(1, self.class_axis) if task == "classes" else joined
