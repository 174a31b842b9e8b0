"""Networks that end in probabilities, or in positive variances, are told so."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt

X = torch.randn(4, 3)


class Gaussian(nn.Module):
    def __init__(self, positive: bool) -> None:
        super().__init__()
        self.mean, self.variance, self.positive = nn.Linear(3, 1), nn.Linear(3, 1), positive

    def forward(self, x: Tensor) -> Tensor:
        variance = self.variance(x)
        return torch.cat([self.mean(x), nn.functional.softplus(variance) if self.positive else variance], 1)


@pytest.mark.parametrize(
    ("net", "task", "text"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(1)), "classes", "ends in a softmax.*logits"),
        (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), "binary", "ends in a sigmoid.*logits"),
        (Gaussian(True), "gaussian", "softplus.*must be raw"),
    ],
)
def test_what_is_applied_twice(net: nn.Module, task: str, text: str) -> None:
    with pytest.warns(UserWarning, match=text):
        mt.ensemble(net, mt.Deep(members=2), X, task=task)


@pytest.mark.parametrize(
    ("net", "task"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(1)), "classes"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(1)), "regression"),
        (Gaussian(False), "gaussian"),
    ],
)
def test_what_is_right(net: nn.Module, task: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mt.ensemble(net, mt.Deep(members=2), X, task=task)
    assert [str(warning.message) for warning in told] == []
