"""Tasks: what a model's outputs mean, and so how members' outputs become one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes import tree
from multitudes.errors import InputError

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

TASKS = ("classes", "binary", "multilabel", "gaussian", "regression")


def checked(task: str) -> str:
    """The task, if it is one."""
    if task not in TASKS:
        raise InputError(f"task={task!r}: say one of {', '.join(TASKS)}")
    return task


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
        if members.ndim < 3 or members.shape[2] % 2:
            raise InputError(f"task='gaussian' needs means and variances side by side [M, B, 2 D, ...]: {list(members.shape)}")
        mean, raw = members.chunk(2, 2)
        variance = F.softplus(raw).mean(0) + mean.var(0, correction=0)
        return torch.cat([mean.mean(0), variance + torch.log(-torch.expm1(-variance))], 1)
    return members.mean(0)


class Average(nn.Module):
    """The members' mixture in the form of one network's output."""

    def __init__(self, ensemble: Ensemble, output: str | None) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.output = output

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """One network's output, ``[B, ...]``."""
        found = {n: t for n, t in tree.leaves(self.ensemble(*inputs, **kwargs)) if isinstance(t, Tensor)}
        name = self.output if self.output is not None or len(found) != 1 else next(iter(found))
        if name not in found:
            raise InputError(f"the model returns {', '.join(found)}: say which is meant, ens.average(output=...)")
        return combine(found[name], self.ensemble.task)
