"""Makers of small random rows of every task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import multitudes as mt
from multitudes.prediction.prediction import Prediction
from multitudes.report.row import Row
from multitudes.scores.scores import Scores

Make = Callable[..., Row]


def predicted(task: str, seed: int = 0, members: int = 3, count: int = 30) -> Prediction:
    """Returns a random prediction that is often correct, with targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 3
    if task in ("classes", "dense"):
        shape = (count,) if task == "classes" else (count, 5, 4)
        targets = targets if task == "classes" else targets.reshape(-1, 1, 1).expand(shape).contiguous()
        truth = torch.nn.functional.one_hot(targets, 3).float().movedim(-1, 1)
        return Prediction(logits=2 * truth + torch.randn(members, *truth.shape, generator=generator), targets=targets)
    noise = torch.randn(members, count, 4, generator=generator)
    if task == "binary":
        return Prediction(logits=noise[..., 0] + targets.clamp(max=1), task="binary", targets=targets.clamp(max=1))
    if task == "multilabel":
        return Prediction(logits=noise, task="multilabel", targets=(noise.mean(0) > 0.3).long())
    variance = noise[..., 1].exp() if task == "gaussian" else None
    return Prediction(mean=targets + noise[..., 0], variance=variance, targets=targets.float())


@pytest.fixture
def made() -> Make:
    """Returns a function that makes a row of a task."""

    def make(name: str = "packed", task: str = "classes", seed: int = 0, intervals: int = 0, **more: Any) -> Row:
        pred = predicted(task, seed, members=more.pop("members", 3))
        scores = mt.score(pred, intervals=intervals, shift=more.pop("shift", None))
        given = {"method": f"{name.capitalize()}(members=3)", "scores": scores, "prediction": pred}
        return Row(**{"name": name, "seed": seed, **given, **more})

    return make


@pytest.fixture
def scored() -> Make:
    """Returns a function that makes a row with scores and without predictions."""

    def make(name: str, task: str = "classes", seed: int = 0, intervals: Any = None, **scores: Any) -> Row:
        more = {
            key: scores.pop(key)
            for key in ("cost", "settings", "seconds", "method", "variants", "command", "losses")
            if key in scores
        }
        found = Scores({key.replace("__", "/"): value for key, value in scores.items()}, task=task, intervals=intervals)
        return Row(**{"name": name, "method": f"{name}()", "seed": seed, "scores": found, **more})

    return make
