"""Logits and labels drawn at random, and scores without warnings."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import multitudes as mt


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def members(count: int, rows: int, classes: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    """Logits ``[M, N, K]`` of members that agree in part."""
    generator = rng(seed)
    common = torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return scale * (common + torch.randn(count, rows, classes, dtype=torch.float64, generator=generator))


def drawn(classes: int, rows: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (rows,), generator=rng(seed))


def scored(pred: mt.Prediction, targets: Any = None, **options: Any) -> mt.scores.Scores:
    """Scores without the warning of collapsed members."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* have collapsed")
        return mt.score(pred, targets, **options)
