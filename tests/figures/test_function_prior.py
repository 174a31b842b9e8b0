"""The figure of functions: the first curves, and bands over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import function_prior

X = np.array([2.0, 0.0, 1.0])
VALUES = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [5.0, 5.0, 5.0], [3.0, 3.0, 3.0]])


def test_curves_and_bands() -> None:
    """x need not be in order."""
    figure = function_prior(X, VALUES, curves=2)
    (ax,) = figure.axes
    order = X.argsort()
    assert len(ax.lines) == 2
    for line, row in zip(ax.lines, VALUES, strict=False):
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([X, row])[order])
    for band, times in zip(ax.collections, (2, 1), strict=True):
        edge = band.get_paths()[0].vertices
        top = [edge[edge[:, 0] == x, 1].max() for x in X]  # type: ignore[call-overload, index]
        np.testing.assert_allclose(top, VALUES.mean(0) + times * VALUES.std(0))
    assert "of all 4" in figure.legends[0].get_texts()[0].get_text()


def test_each_name_has_a_panel() -> None:
    """Runs may have different numbers of functions."""
    figure = function_prior(X, {"dropout": VALUES, "EMP": VALUES[:2]}, curves=9)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["dropout", "EMP"]
    assert [len(ax.lines) for ax in figure.axes] == [4, 2]
    own = Figure()
    assert function_prior(X, VALUES, ax=own.subplots()) is own


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"values of 'a' .*\[D, N\] with N = 3"):
        function_prior(X, {"a": VALUES[:, :2]})
    with pytest.raises(InputError, match="curves=-1"):
        function_prior(X, VALUES, curves=-1)
