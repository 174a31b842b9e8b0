"""Values: tensors, arrays and lists are read alike, and bad values are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from multitudes.errors import InputError
from multitudes.figures.values import confidence_and_correct, entropy_limit, legend_text, named_runs, pair, read, read_labels


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1.0, 2.5], requires_grad=True),
        torch.tensor([1.0, 2.5], dtype=torch.bfloat16),
        np.array([1.0, 2.5], dtype=np.float32),
        [1, 2.5],
    ],
    ids=["grad", "bf16", "numpy", "list"],
)
def test_all_kinds_of_numbers_are_read(values: Any) -> None:
    found = read(values, "x", "N")
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 2.5]


def test_arrays_are_copied() -> None:
    """A figure never changes the caller's array."""
    values = np.array([1.0, 2.0])
    read(values, "x", "N")[0] = 5
    assert values[0] == 1


@pytest.mark.parametrize(
    ("values", "axes", "message"),
    [
        ([1.0, float("nan")], "N", "x is NaN in 1 of 2 places"),
        ([1.0, float("inf"), float("-inf")], "N", "x is infinite in 2 of 3 places"),
        ([], "N", "x is empty"),
        ([[1.0]], "N", r"x .*\[N\], not \[1, 1\]"),
        ([1.0, 2.0], "M N", r"x .*\[M, N\], not \[2\]"),
        ([[1.0], [1.0, 2.0]], "M N", "x .*numbers"),
        (["a"], "N", "x .*numbers"),
        (None, "N", "x "),
    ],
)
def test_bad_values_are_refused(values: Any, axes: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(values, "x", axes)


def test_axes_of_one_letter_are_equally_long() -> None:
    sizes: dict[str, int] = {}
    read([1, 2, 3], "x", "N", sizes)
    assert sizes == {"N": 3}
    with pytest.raises(InputError, match=r"y .*\[M, N\] with N = 3, not \[1, 2\]"):
        read([[1, 2]], "y", "M N", sizes)
    with pytest.raises(InputError, match=r"z .*\[M, M\] with M = 2, not \[2, 3\]"):
        read(np.zeros((2, 3)), "z", "M M")


def test_labels_are_integers() -> None:
    assert read_labels([0.0, 2.0], "labels", "N").dtype == np.int64
    with pytest.raises(InputError, match=r"labels .*0\.5"):
        read_labels([0, 0.5], "labels", "N")


def test_runs_come_by_name() -> None:
    assert list(named_runs({"b": 1, 3: 2}, "{}")) == [("b", 1), ("3", 2)]
    with pytest.raises(InputError, match="at least one run"):
        named_runs({}, "{}")
    with pytest.raises(InputError, match="not list"):
        named_runs([1], "{}")
    with pytest.raises(InputError, match="underscore"):
        list(named_runs({"_a": 1}, "{}"))


def test_a_name_is_no_formula() -> None:
    """Text between dollar signs is not set as a formula."""
    from matplotlib.figure import Figure

    figure = Figure()
    text = figure.text(0, 0, legend_text(r"5 $ \frac{ 6 $"))
    assert text._preprocess_math(text.get_text()) == (r"5 $ \frac{ 6 $", False)  # type: ignore[attr-defined]


def test_a_pair_has_two_parts() -> None:
    assert pair([1, 2], "a", "(x, y)") == (1, 2)
    for wrong in ((1, 2, 3), torch.ones(2), "ab"):
        with pytest.raises(InputError, match=r"'a' .*\(x, y\)"):
            pair(wrong, "a", "(x, y)")


def test_a_prediction_is_compared_with_its_targets() -> None:
    """Per example and per pixel."""
    pred = SimpleNamespace(confidence=torch.tensor([[0.9, 0.8]]), labels=torch.tensor([[1, 2]]))
    confidence, correct = confidence_and_correct({"a": (pred, [[1, 0]])})["a"]
    assert confidence.tolist() == pytest.approx([0.9, 0.8])
    assert correct.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"targets of 'a' .*\[1, 2\]"):
        confidence_and_correct({"a": (pred, [1, 0])})


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (([0.5, 0.5], [1]), r"correct of 'a' .*\[N\] with N = 2"),
        (([0.5], [3]), "correct of 'a'"),
        (([float("nan")], [1]), "confidence of 'a' is NaN"),
        (([], []), "confidence of 'a' is empty"),
    ],
)
def test_confidence_and_correctness_fit(run: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        confidence_and_correct({"a": run})


def test_a_scale_of_entropies_ends_somewhere() -> None:
    low, high, nothing = np.array([0.1]), np.array([0.3]), np.zeros(1)
    assert entropy_limit([low, high], None) == 0.3
    assert entropy_limit([low, high], 0.7) == 0.7
    assert entropy_limit([nothing], None) == 1
    with pytest.raises(InputError, match="negative"):
        entropy_limit([low, -high], None)
    for top in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="top="):
            entropy_limit([low], top)
