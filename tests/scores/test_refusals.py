"""Refusals of the room: a bad call raises an error that names the argument, the set or the shape at fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import multitudes as mt
from multitudes.prediction.temperature import Calibrator
from multitudes.scores import calibration, detection, selective
from multitudes.scores.evidence import Settings

LOGITS = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
PRED, TARGETS = mt.Prediction(logits=LOGITS), torch.arange(6) % 3
NUMBERS = mt.Prediction(mean=LOGITS[..., 0])
ONE_MEAN = NUMBERS.subset([0])
OTHERS = {
    "task": (NUMBERS, "same ensemble"),
    "members": (PRED.subset([0]), "same ensemble"),
    "classes": (mt.Prediction(logits=torch.zeros(2, 6, 4)), "4 classes"),
    "calibrator": (PRED.calibrated(Calibrator(mixture=2.0)), "ens.calibrator"),
}
FOG = {"fog": {1: (PRED, TARGETS)}}
SCORES = mt.score(PRED, TARGETS)
BY_HAND = mt.scores.Scores({"nll": 1.0}, task="classes")


def score(targets: Any = TARGETS, **options: Any) -> mt.scores.Scores:
    """Scores of the prediction."""
    return mt.score(PRED, targets, **options)


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "a tensor": (lambda: mt.score(LOGITS, TARGETS), r"Tensor.*mt\.predict"),
    "no targets": (lambda: mt.score(PRED), "no targets"),
    "classes": (lambda: score(TARGETS + 1), "target 3"),
    "lengths": (lambda: score(TARGETS[:5]), "targets"),
    "one-hot": (lambda: score(F.one_hot(TARGETS)), r"argmax\(1\)"),
    "no examples": (lambda: mt.score(mt.Prediction(logits=torch.zeros(2, 0, 3)), []), "at least one example"),
    "no numbers": (lambda: mt.score(mt.Prediction(mean=torch.zeros(2, 0)), []), "at least one example"),
    "all ignored": (lambda: score(torch.full((6,), 255), ignore=255), "at least one example"),
    "bins": (lambda: score(bins=0), "bins=0"),
    "level": (lambda: score(level=95), "level=95"),
    **{f"{key}={x}": (lambda k=key, x=x: Settings(**{k: x}), f"{key}={x}")
       for key, x in (("bins", 0), ("drop", -1), ("level", 0), ("level", 1), ("level", math.nan))},
    "ood empty": (lambda: score(ood=PRED[:0]), "OOD"),
    "ood none": (lambda: score(ood={}), "ood="),
    "ood tensor": (lambda: score(ood=LOGITS), "ood="),
    "ood name": (lambda: score(ood={"a/b": PRED}), "ood= .*'a/b'"),
    "ood means": (lambda: mt.score(ONE_MEAN, TARGETS, ood=ONE_MEAN), "OOD"),
    **{f"ood {name}": (lambda o=other: score(ood=o), noun) for name, (other, noun) in OTHERS.items()},
    "shift tuple": (lambda: score(shift=(PRED, TARGETS)), "shift="),
    "shift name": (lambda: score(shift={"a/b": (PRED, TARGETS)}), "shift= .*'a/b'"),
    "shift tensor": (lambda: score(shift={"fog": TARGETS}), "shift\\['fog'\\]"),
    "shift order": (lambda: score(shift={"fog": (TARGETS, PRED)}), "shift\\['fog'\\]"),
    "shift untargeted": (lambda: score(shift={"fog": PRED}), "no targets"),
    "shift anchors": (lambda: score(shift={"fog": (PRED, TARGETS, torch.zeros(5))}), r"anchor .*\[5\]"),
    **{f"shift {name}": (lambda o=other: score(shift={"fog": {1: (o, TARGETS)}}), f"{noun}|regression")
       for name, (other, noun) in OTHERS.items()},
    "baseline name": (lambda: score(shift=FOG, baseline="vgg"), "baseline='vgg'.*alexnet"),
    "baseline corruptions": (lambda: score(shift=FOG, baseline="alexnet"), "gaussian_noise, shot"),
    "baseline alone": (lambda: score(baseline="alexnet"), "shift="),
    "baseline of numbers": (lambda: score(shift=FOG, baseline=mt.score(NUMBERS, torch.zeros(6))), "accuracies"),
    "one sample": (lambda: score(intervals=1), "2 samples"),
    **{f"intervals {s} {x}": (lambda s=s, x=x: SCORES.with_intervals(s, level=x), f"{s} and {x}")
       for s, x in ((1, 0.95), (10, 0.0), (10, 1.0), (10, 95))},
    "compare": (lambda: SCORES.compare(SCORES, 1), "2 samples"),
    "merge nothing": (lambda: mt.scores.Scores.merge([]), "merge"),
    "merge by hand": (lambda: mt.scores.Scores.merge([BY_HAND]), "merge"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    """Targets, sets, settings and baselines that do not fit."""
    call, noun = CALLS[name]
    with pytest.raises(mt.InputError, match=noun):
        call()


BINNED = (calibration.ece, calibration.mce, calibration.ace)
RANKED = (selective.aurc, selective.risk_coverage)
DETECTED = (detection.auroc, detection.aupr, detection.fpr_at, detection.roc)
COLUMNS: list[tuple[tuple[Callable[..., Any], ...], tuple[Any, ...], str]] = [
    (BINNED, (torch.rand(3), torch.ones(3), 0), "bins=0"),
    ((*BINNED, *RANKED), (torch.rand(3), torch.ones(4)), r"\[3\] and \[4\]"),
    ((*BINNED, *RANKED), (torch.rand(3, 1), torch.ones(3)), r"\[3, 1\] and \[3\]"),
    ((*BINNED, *RANKED), (torch.rand(0), torch.ones(0)), "at least one example"),
    ((*BINNED, *RANKED), (torch.tensor([0.5, math.nan]), torch.ones(2)), "confidence .*NaN"),
    (BINNED, (torch.tensor([0.5, 1.5]), torch.ones(2)), "confidence .*0 to 1"),
    (BINNED, (torch.tensor([0.5, -0.1]), torch.ones(2)), "confidence .*0 to 1"),
    (DETECTED, (torch.rand(3), torch.tensor([True, False])), r"\[3\] and \[2\]"),
    (DETECTED, (torch.rand(3, 1), torch.ones(3)), r"\[3, 1\] and \[3\]"),
    (DETECTED, (torch.tensor([1.0, math.nan]), torch.tensor([True, False])), "score .*NaN"),
    (DETECTED, (torch.rand(3), torch.zeros(3)), "0 of 3"),
    (DETECTED, (torch.rand(3), torch.ones(3)), "3 of 3"),
    (DETECTED, (torch.rand(0), torch.ones(0)), "0 of 0"),
]


@pytest.mark.parametrize(("rules", "arguments", "noun"), COLUMNS)
def test_columns(rules: tuple[Callable[..., Any], ...], arguments: tuple[Any, ...], noun: str) -> None:
    """Shapes that torch would broadcast, and values that would give a wrong number or NaN."""
    for rule in rules:
        with pytest.raises(mt.InputError, match=noun):
            rule(*arguments)
