"""Segmentation scores against scikit-learn and torchmetrics."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.metrics import confusion_matrix, jaccard_score
from torchmetrics.functional.classification import multiclass_jaccard_index

from multitudes.scores.segmentation import confusion, miou


@pytest.mark.parametrize(("count", "classes", "used"), [(500, 5, 5), (40, 2, 2), (60, 8, 4), (1, 3, 3), (30, 1, 1)])
def test_as_others_have_it(count: int, classes: int, used: int) -> None:
    """The mean is over the classes that occur among targets or predictions."""
    labels, targets = torch.randint(used, (count,)), torch.randint(used, (count,))
    found = confusion(labels, targets, classes)
    seen = sorted({*labels.tolist(), *targets.tolist()})
    assert miou(found) == pytest.approx(jaccard_score(targets, labels, labels=seen, average="macro"), abs=1e-9)
    if classes > 1:
        np.testing.assert_array_equal(found, confusion_matrix(targets, labels, labels=range(classes)))
        assert miou(found) == pytest.approx(float(multiclass_jaccard_index(labels, targets, num_classes=classes)), abs=1e-6)


def test_true_classes_are_in_rows() -> None:
    """A pixel of class 0 predicted as class 2 is in row 0 and column 2."""
    assert confusion(torch.tensor([2]), torch.tensor([0]), 3).nonzero().tolist() == [[0, 2]]


def test_the_ends() -> None:
    """All correct is 1, all wrong is 0, and no pixel at all is NaN."""
    targets = torch.tensor([0, 1, 1, 3])
    assert miou(confusion(targets, targets, 5)) == 1
    assert miou(confusion((targets + 1) % 4, targets, 5)) == 0
    assert math.isnan(miou(torch.zeros(3, 3)))


def test_a_class_that_is_only_predicted_counts() -> None:
    """Class 2 is predicted once and never true: its overlap is 0, as scikit-learn has it. Class 1 does not occur."""
    labels, targets = torch.tensor([0, 0, 2]), torch.tensor([0, 0, 0])
    found = miou(confusion(labels, targets, 3))
    assert found == pytest.approx((2 / 3 + 0) / 2) == jaccard_score(targets, labels, average="macro")
    assert miou(confusion(targets, labels, 3)) == pytest.approx(1 / 3)


@settings(max_examples=30)
@given(count=st.integers(1, 50), classes=st.integers(1, 6), cut=st.integers(0, 50), seed=st.integers(0, 2**31))
def test_parts_add_up_and_classes_have_no_order(count: int, classes: int, cut: int, seed: int) -> None:
    """Matrices of parts add up, and the numbering of classes does not matter."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    targets = torch.randint(classes, (count,), generator=generator)
    whole = confusion(labels, targets, classes)
    assert torch.equal(confusion(labels[:cut], targets[:cut], classes) + confusion(labels[cut:], targets[cut:], classes), whole)
    order = torch.randperm(classes, generator=generator)
    assert miou(confusion(order[labels], order[targets], classes)) == pytest.approx(miou(whole))
    assert 0 <= miou(whole) <= 1
