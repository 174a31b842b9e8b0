"""Targets: matched by shape and meaning, never broadcast, and refused with what is wrong with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.prediction.targets import checked_targets

CLASSES = mt.Prediction(logits=torch.zeros(2, 4, 3))
DENSE = mt.Prediction(logits=torch.zeros(2, 4, 3, 2, 2))
NUMBERS = mt.Prediction(mean=torch.zeros(2, 4), variance=torch.ones(2, 4))
SEVERAL = mt.Prediction(mean=torch.zeros(2, 4, 3))
BINARY = mt.Prediction(logits=torch.zeros(2, 4), task="binary")
ONE = mt.Prediction(logits=torch.zeros(2, 1, 3))


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([0, 1, 2, 0]), torch.tensor([0.0, 1.0, 2.0, 0.0]), torch.tensor([[0], [1], [2], [0]]), [0, 1, 2, 0],
        np.array([0, 1, 2, 0], dtype=np.uint8), torch.tensor([[0, 1, 2, 0]]), torch.tensor([0, 1, 2, 0], dtype=torch.int16),
    ],
)  # fmt: skip
def test_classes_of_any_kind_of_number(given: Any) -> None:
    """As whole numbers in the shape of the prediction; axes of length one are no others."""
    found = checked_targets(CLASSES, given)
    assert found.tolist() == [0, 1, 2, 0]
    assert found.dtype == torch.int64


def test_one_example() -> None:
    """A number by itself too."""
    assert checked_targets(ONE, torch.tensor(2)).tolist() == [2]
    assert checked_targets(ONE, torch.tensor([[2]])).tolist() == [2]


def test_columns_are_never_broadcast() -> None:
    """[N, 1] against [N] is N targets, not N × N: the error of each example is its own."""
    pred = mt.Prediction(mean=torch.arange(4.0).repeat(2, 1), variance=torch.ones(2, 4))
    found = checked_targets(pred, torch.arange(4.0)[:, None])
    assert found.shape == (4,)
    with pytest.warns(UserWarning, match="collapsed"):
        assert mt.score(pred, torch.arange(4.0)[:, None])["rmse"] == 0


@pytest.mark.parametrize(
    ("pred", "given", "says"),
    [
        (CLASSES, torch.zeros(5), r"targets are \[5\].* \[4\]"),
        (CLASSES, torch.zeros(0), r"targets are \[0\]"),
        (CLASSES, torch.tensor(1), r"targets are \[\]"),
        (CLASSES, torch.eye(3)[[0, 1, 2, 0]], r"targets are \[4, 3\].*\[4\].*targets.argmax\(1\)"),
        (DENSE, torch.zeros(4), r"targets are \[4\].* \[4, 2, 2\]"),
        (DENSE, torch.zeros(4, 3, 2, 2), r"targets.argmax\(1\)"),
        (DENSE, torch.zeros(4, 4), r"targets are \[4, 4\]"),
        (NUMBERS, torch.zeros(4, 4), r"targets are \[4, 4\].* \[4\]"),
        (SEVERAL, torch.zeros(4), r"targets are \[4\].* \[4, 3\]"),
        (SEVERAL, torch.zeros(3, 4), r"targets are \[3, 4\]"),
    ],
)
def test_shapes_that_do_not_fit(pred: mt.Prediction, given: Tensor, says: str) -> None:
    """Both are shown."""
    with pytest.raises(mt.InputError, match=says):
        checked_targets(pred, given)


@pytest.mark.parametrize(
    ("pred", "given", "ignore", "says"),
    [
        (CLASSES, [0, 1, 3, 0], None, "target 3 of example 2 is not a class: classes are 0 to 2.*ignore="),
        (CLASSES, [0, -1, 2, 0], None, "target -1 of example 1 is not a class"),
        (CLASSES, [0, 1, 255, 7], 255, "target 7 of example 3 is not a class: classes are 0 to 2$"),
        (CLASSES, [0, 1, 255, -2], 255, "target -2 of example 3 is not a class"),
        (CLASSES, [0, 1, 255, -1], 255, "target -1 of example 3 is not a class"),
        (BINARY, [0, 1, 2, 0], None, "target 2 of example 2 is not a class: classes are 0 to 1"),
        (CLASSES, [0, 0.5, 1, 2], None, "whole numbers"),
        (CLASSES, [0, math.nan, 1, 2], None, "whole numbers"),
        (CLASSES, [0, math.inf, 1, 2], None, "whole numbers|is not a class"),
        (CLASSES, torch.zeros(4, dtype=torch.complex64), None, "whole numbers"),
        (NUMBERS, [0, math.nan, 1, 2], None, "NaN or infinite"),
        (NUMBERS, [0, -math.inf, 1, 2], None, "NaN or infinite"),
    ],
)  # fmt: skip
def test_targets_that_mean_nothing(pred: mt.Prediction, given: Any, ignore: int | None, says: str) -> None:
    """With the place, and what may be."""
    with pytest.raises(mt.InputError, match=says):
        checked_targets(pred, given, ignore)


def test_a_pixel_out_of_range() -> None:
    """Is found, and its image named."""
    given = torch.zeros(4, 2, 2)
    given[2, 1, 0] = 9
    with pytest.raises(mt.InputError, match="target 9 of example 2"):
        checked_targets(DENSE, given)


@pytest.mark.parametrize("ignore", [255, -1, -100, 3])
def test_what_stands_for_no_label(ignore: int) -> None:
    """Any number, and −1 afterwards; a class that is to be ignored is too."""
    assert checked_targets(CLASSES, [0, ignore, 2, ignore], ignore).tolist() == [0, -1, 2, -1]
    assert checked_targets(CLASSES, [0, 1, 2, 0], 0).tolist() == [-1, 1, 2, -1]


def test_no_label_of_the_prediction(tmp_path: Path) -> None:
    """−100 is always none, as in training; a number of the dataset goes along, also through a file and parts."""
    assert checked_targets(CLASSES, [0, -100, 2, 1]).tolist() == [0, -1, 2, 1]
    pred = mt.Prediction(logits=torch.zeros(2, 4, 3), targets=torch.tensor([0, 255, -100, 1]), ignore=255)
    pred.save(tmp_path / "p.safetensors")
    for one in (
        pred,
        mt.Prediction.load(tmp_path / "p.safetensors"),
        pred.subset([1]),
        mt.Prediction.cat([pred[:2], pred[2:]]),
    ):
        assert checked_targets(one).tolist() == [0, -1, -1, 1]
    with pytest.raises(mt.InputError, match="ignored label"):
        mt.Prediction.cat([pred, mt.Prediction(logits=torch.zeros(2, 4, 3))])


def test_those_that_travelled_along() -> None:
    """Are taken; without any, the error says where they come from."""
    pred = mt.Prediction(logits=torch.zeros(2, 4, 3), targets=torch.tensor([0, 1, 2, 0]))
    assert checked_targets(pred).tolist() == [0, 1, 2, 0]
    assert checked_targets(pred, [0, 1, 2, 0]).tolist() == [0, 1, 2, 0]
    with pytest.raises(mt.InputError, match="no targets"):
        checked_targets(CLASSES)


def test_those_of_another_order() -> None:
    """Are refused: a shuffled loader gave others; and what to do if they are meant."""
    pred = mt.Prediction(logits=torch.zeros(2, 4, 3), targets=torch.tensor([0, 1, 2, 0]))
    with pytest.raises(mt.InputError, match=r"pred\.targets = None"):
        checked_targets(pred, [1, 0, 2, 0])
    pred.targets = None
    assert checked_targets(pred, [1, 0, 2, 0]).tolist() == [1, 0, 2, 0]


def test_numbers_keep_their_precision() -> None:
    """Double stays, and whole numbers become single."""
    assert checked_targets(NUMBERS, torch.rand(4, dtype=torch.float64)).dtype == torch.float64
    assert checked_targets(NUMBERS, [1, 2, 3, 4]).dtype == torch.float32
