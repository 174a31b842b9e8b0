"""A small task, and ensembles that train on it in no time."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import multitudes as mt

G = torch.Generator().manual_seed(0)


X = torch.randn(240, 6, generator=G)


Y = (X @ torch.randn(6, 3, generator=G)).argmax(1)


TRAIN, VAL = TensorDataset(X[:200], Y[:200]), TensorDataset(X[200:], Y[200:])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


@functools.cache
def converted(method: mt.Method, start: Any) -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(network(), method, X[:2], seed=0, start=start)


def made(method: mt.Method | None = None, start: str = "fresh") -> mt.Ensemble:
    """The same new ensemble each time, by default two members."""
    return copy.deepcopy(converted(method or mt.Deep(members=2), start))


def same(a: mt.Ensemble, b: mt.Ensemble) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in a.state_dict().items())
