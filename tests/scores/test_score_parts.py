"""Scores.merge: scores of parts make those of the whole, and orders have no meaning."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from scores.logits import drawn, members, scored

import multitudes as mt


def chunks(rows: int, cuts: list[int]) -> list[slice]:
    ends = sorted({0, rows, *(c % rows for c in cuts)})
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


@settings(max_examples=12)
@given(
    count=st.integers(1, 4), rows=st.integers(4, 20), classes=st.integers(1, 7), seed=st.integers(0, 2**31),
    cuts=st.lists(st.integers(0, 100), min_size=1, max_size=3), pixels=st.booleans(),
)  # fmt: skip
def test_parts_make_the_whole(count: int, rows: int, classes: int, seed: int, cuts: list[int], pixels: bool) -> None:
    """Merged parts of the dataset, OOD sets and shifted sets have the scores of the whole."""
    logits, far, other = (members(count, rows * 2, classes, seed + n) for n in range(3))
    if pixels:
        logits, far, other = (x.unflatten(1, (rows, 2)).movedim(2, 3) for x in (logits, far, other))
    targets = drawn(classes, rows * 2, seed).reshape(rows, 2) if pixels else drawn(classes, rows * 2, seed)

    def part(chosen: slice) -> mt.scores.Scores:
        pred, out, shifted = (mt.Prediction(logits=x[:, chosen]) for x in (logits, far, other))
        shift = {"fog": {3: (shifted, targets[chosen])}, "sketches": (shifted, targets[chosen])}
        return scored(pred, targets[chosen], ood={"far": out, "near": shifted}, shift=shift)

    size = len(targets)
    whole, merged = part(slice(size)), mt.scores.Scores.merge([part(chosen) for chosen in chunks(size, cuts)])
    assert list(merged) == list(whole)
    assert dict(merged) == pytest.approx(dict(whole), rel=1e-9, abs=1e-9, nan_ok=True)
    assert merged.examples == whole.examples
    assert merged.members["nll"] == pytest.approx(whole.members["nll"])


@pytest.mark.parametrize("task", ["binary", "multilabel", "gaussian", "regression"])
def test_parts_of_other_tasks_make_the_whole(task: str) -> None:
    """Merged parts have the scores of the whole, for tasks with several labels or numbers per example too."""
    values = torch.randn(3, 17, 4, dtype=torch.float64)
    made: dict[str, Any] = {
        "binary": lambda rows: mt.Prediction(logits=values[:, rows, 0], task="binary"),
        "multilabel": lambda rows: mt.Prediction(logits=values[:, rows], task="multilabel"),
        "gaussian": lambda rows: mt.Prediction(mean=values[:, rows], variance=values[:, rows].exp()),
        "regression": lambda rows: mt.Prediction(mean=values[:, rows]),
    }
    whole = made[task](slice(None))
    targets = (torch.rand(whole.shape) < 0.5).double()
    far = made[task](torch.arange(16, -1, -1))
    parts = [scored(made[task](rows), targets[rows], ood=far[rows]) for rows in chunks(17, [5, 6])]
    assert dict(mt.scores.Scores.merge(parts)) == pytest.approx(dict(scored(whole, targets, ood=far)))
