"""Labels: classes, probabilities, yes or no, and entries without a label."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from multitudes.data.labels import (
    as_classes,
    check_class_shape,
    check_classes,
    check_finite,
    check_range,
    check_yes_or_no,
    labelled,
    reshape_like,
)
from multitudes.errors import InputError

LABELS = torch.tensor([0, 2, 255, -100])


@pytest.mark.parametrize(
    ("check", "arguments", "nouns"),
    [
        (check_range, (LABELS, 3, (255,)), "target -100 of example 3 .*0 to 2"),
        (check_range, (LABELS[:3], 2), "target 2 of example 1 .*0 to 1"),
        (check_classes, (LABELS, 3), "target 255 of row 2 .*0 to 2.*ignore="),
        (check_classes, (LABELS.clamp(min=0).byte(), 3), "target 255"),
        (check_classes, (torch.tensor([[0.5, 0.6]]), 2), "probabilities"),
        (check_classes, (torch.tensor([[1.5, -0.5]]), 2), "probabilities"),
        (check_yes_or_no, (LABELS, 255), "target 2 "),
        (check_yes_or_no, (torch.tensor([0.5, torch.nan]),), "NaN or infinite, in row 1"),
        (check_finite, (torch.tensor([1.0, torch.inf]),), "NaN or infinite, in row 1"),
        (check_classes, (torch.tensor([[0.5, 0.5], [1.0, torch.nan]]), 2), "NaN or infinite, in row 1"),
        (as_classes, (torch.tensor([0.5]), 3, None), "whole numbers"),
        (as_classes, (LABELS, 3, -100), "target 255 .*ignore="),
        (reshape_like, (torch.zeros(3, 2), (2, 3), "outputs"), r"targets are \[3, 2\].*outputs are \[2, 3\]"),
        (check_class_shape, (torch.zeros(4), torch.zeros(4, 3)), r"\[4\] float32.*targets\.long\(\)"),
        (check_class_shape, (torch.zeros(4, 1).long(), torch.zeros(4, 3)), r"targets\.squeeze\(1\)"),
        (check_class_shape, (torch.zeros(4, 3).long(), torch.zeros(4, 3)), r"targets\.argmax\(1\)"),
        (check_class_shape, (torch.zeros(4, 5).long(), torch.zeros(4, 5, 3)), "class_axis=-1"),
    ],
)
def test_refusals(check: Any, arguments: tuple[Any, ...], nouns: str) -> None:
    with pytest.raises(InputError, match=nouns):
        check(*arguments)


@pytest.mark.parametrize(
    ("target", "output"),
    [
        (torch.zeros(4, 2, dtype=torch.uint8), torch.zeros(4, 3, 2)),
        (torch.zeros(4, 3, 2), torch.zeros(4, 3, 2)),
    ],
)
def test_labels_or_probabilities_fit_outputs(target: Tensor, output: Tensor) -> None:
    check_class_shape(target, output)


def test_good_labels_pass() -> None:
    check_range(LABELS, 3, (255, -100))
    check_classes(LABELS, 3, 255)
    check_classes(torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16), 2)
    check_yes_or_no(torch.tensor([0.0, 0.5, 1.0, -100.0]))
    assert as_classes(torch.tensor([0.0, 2.0, 255.0]), 3, 255).tolist() == [0, 2, -1]
    assert as_classes(torch.tensor([True, False]), 2, None).tolist() == [1, 0]
    assert labelled(LABELS).tolist() == [True, True, True, False]
    assert bool(labelled(torch.tensor([156], dtype=torch.uint8)).all())
    assert reshape_like(torch.zeros(1, 4), (4, 1), "outputs").shape == (4, 1)
