"""The figure of the KL bound: lines are the bound and the divergence of each unit."""

from __future__ import annotations

import numpy as np
import pytest

from multitudes.errors import InputError
from multitudes.figures import kl_bound

P = [0.9, 0.1, 0.5]
BOUND = np.array([[0.1, 9.0, 1.0], [0.2, 8.0, 2.0]])


def test_lines_are_bound_and_divergence_over_p() -> None:
    """p need not be in order. The divergence is dotted and in the colour of its bound."""
    figure = kl_bound(P, BOUND, BOUND / 2, names=["a", "b"])
    (ax,) = figure.axes
    order = np.argsort(P)
    for unit in (0, 1):
        upper, exact = ax.lines[2 * unit : 2 * unit + 2]
        np.testing.assert_array_equal(upper.get_xydata(), np.column_stack([np.sort(P), BOUND[unit, order]]))
        np.testing.assert_array_equal(exact.get_ydata(), BOUND[unit, order] / 2)
        assert upper.get_color() == exact.get_color()
        assert (upper.get_linestyle(), exact.get_linestyle()) == ("-", ":")
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "divergence itself"]
    assert ax.get_yscale() == "log"


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"kl .*\[C, P\] with C = 2"):
        kl_bound(P, BOUND, BOUND[:1])
    with pytest.raises(InputError, match="1 names for 2 units"):
        kl_bound(P, BOUND, BOUND, names=["a"])
    many = np.ones((7, 3))
    with pytest.raises(InputError, match=r"7 units, too many.*weight\[:6\]"):
        kl_bound(P, many, many)
