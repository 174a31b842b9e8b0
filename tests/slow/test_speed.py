"""A guard: on one CPU thread no ensemble becomes much slower beside the single network than docs/performance.md says."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.models import resnet18

pytestmark = pytest.mark.slow

X, Y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))


def times_of_single(network: nn.Module, x: Tensor, train: bool = False, turns: int = 5) -> float:
    """The time of a call relative to that of the single network: the median of several turns, in each of which both run."""
    single = resnet18().train(train)
    network.train(train)

    def call(net: nn.Module) -> None:
        with torch.set_grad_enabled(train):
            output = net(x)
            if train:
                F.cross_entropy(output.reshape(-1, 10), Y.repeat(len(output.reshape(-1, 10)) // len(Y))).backward()

    def seconds(run: Callable[[], None]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    for net in (single, network):
        call(net)
    ratios = [seconds(lambda: call(network)) / seconds(lambda: call(single)) for _ in range(turns)]
    return statistics.median(ratios)


def test_packed_ensembles_cost_about_one_network() -> None:
    ens = mt.ensemble(lambda **arguments: resnet18(**arguments), mt.Packed(members=4, alpha=2), X[:2], seed=0)
    assert times_of_single(ens, X, train=True) < 1.8
    assert times_of_single(ens, X) < 1.6
    alone = times_of_single(ens.eval().freeze(), X[:1])
    assert alone < 1.4
    assert alone < times_of_single(ens, X[:1]) * 0.9


def test_compact_ensembles() -> None:
    mimo = mt.ensemble(resnet18(), mt.MIMO(members=3), X[:2], seed=0).eval().compact()
    assert times_of_single(mimo, X[:4], turns=3) < 1.6
    masks = mt.ensemble(resnet18(), mt.Masksembles(members=4, scale=2.0), X[:2], seed=0).eval()
    assert times_of_single(masks.compact(), X[:4], turns=3) < times_of_single(masks, X[:4], turns=3) * 1.2
