"""Segmentation and depth from one image, as docs/dense.md has them, trained long enough to be held to their promises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes import data

pytestmark = pytest.mark.slow
RECIPE = mt.Recipe(epochs=15, batch=8, lr=0.005, optimizer="adamw")


def network(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=4, dilation=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=4, dilation=4), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, outputs, 1),
    )  # fmt: skip


def scenes(split: str, count: int) -> data.Data:
    return data.scenes(split, examples=count, size=32)


def test_segmentation() -> None:
    """Better than the ground alone, calibrated by one temperature; borders do not count; what is left out is what is wrong."""
    train, val, test = scenes("train", 120), scenes("validation", 24), scenes("test", 24)
    ens = mt.ensemble(network(5), mt.Packed(members=2, alpha=2), test.batch([0, 1])[0], seed=0)
    mt.fit(ens, train, RECIPE, progress=False)
    before = mt.score(mt.predict(ens, test))
    ens.calibrator = mt.calibrate(mt.predict(ens, val))
    pred = mt.predict(ens, test)
    after = mt.score(pred)
    labels = test.batch(slice(0, 24))[1]
    ground = float((labels == 0).sum() / (labels != 255).sum())
    assert before["accuracy"] > ground + 0.02
    assert after["accuracy"] == before["accuracy"]
    assert after["nll"] <= before["nll"] + 0.01
    least = mt.threshold(mt.predict(ens, val), coverage=0.8)
    sure, known = pred.confidence >= least, labels != 255
    right = pred.labels == labels
    assert float(right[sure & known].double().mean()) > after["accuracy"] + 0.02


def with_depth(split: str, count: int) -> data.Data:
    """Images, and the logarithms of made-up distances; -1 on borders, which have none."""
    images, labels = scenes(split, count).batch(slice(0, count))
    distance = torch.where(labels == 0, torch.linspace(6, 3, 32)[None, :, None], 1 + 0.3 * labels)
    return data.Data(images, torch.where(labels == 255, -1.0, distance.log())[:, None])


def depth_loss(output: Tensor, target: Tensor) -> Tensor:
    known = target >= 0
    mean, raw = output.chunk(2, 1)
    return mt.GaussianNLL()(torch.stack([mean[known], raw[known]], 1), target[known])


def measured(pred: mt.Prediction) -> mt.Prediction:
    assert pred.targets is not None
    known = pred.targets >= 0
    return mt.Prediction(**{name: value[:, known] for name, value in pred.members.items()}, targets=pred.targets[known])


def test_depth() -> None:
    """Better than the mean distance; intervals cover about what they promise; errors are smaller where the ensemble is sure."""
    train, val, test = with_depth("train", 120), with_depth("validation", 24), with_depth("test", 24)
    ens = mt.ensemble(network(2), mt.Packed(members=2, alpha=2), test.batch([0, 1])[0], task="gaussian", seed=0)
    mt.fit(ens, train, RECIPE, criterion=depth_loss, progress=False)
    pixels = measured(mt.predict(ens, test)).calibrated(mt.calibrate(measured(mt.predict(ens, val))))
    scores = mt.score(pixels, level=0.9)
    assert pixels.targets is not None
    assert scores["rmse"] < 0.9 * float(pixels.targets.std())
    assert 0.8 < scores["coverage"] < 0.98
    error = (pixels.targets - pixels.mean).abs()
    sure = pixels.std <= pixels.std.median()
    assert float(error[sure].mean()) < 0.9 * float(error.mean())
