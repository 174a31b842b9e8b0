"""Predictive bands: the drawn mean, deviations, members and data equal the arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import bands

N = 7
X = np.linspace(0, 3, N)
MEAN, VARIANCE = np.sin(X), 0.1 + X**2


def line(ax: Axes, label: str) -> np.ndarray:
    return np.stack([found.get_xydata() for found in ax.lines if found.get_label() == label])[0]


def band(ax: Axes, deviations: int) -> np.ndarray:
    """Returns the lower and upper edge of a band over X."""
    found = next(c for c in ax.collections if str(c.get_label()).startswith(f"±{deviations} "))
    points = found.get_paths()[0].vertices
    return np.array([[points[points[:, 0] == x, 1].min(), points[points[:, 0] == x, 1].max()] for x in X]).T  # type: ignore[index]


def test_bands_are_one_and_two_deviations_around_the_mean() -> None:
    ax = bands(X, MEAN, VARIANCE).axes[0]
    np.testing.assert_array_equal(line(ax, "mean"), np.column_stack([X, MEAN]))
    for deviations in (1, 2):
        spread = deviations * np.sqrt(VARIANCE)
        np.testing.assert_allclose(band(ax, deviations), [MEAN - spread, MEAN + spread])


def test_members_and_data_are_drawn() -> None:
    members, data = torch.randn(4, N), (torch.rand(3), torch.rand(3))
    ax = bands(X, MEAN, VARIANCE, members, data).axes[0]
    thin = [found for found in ax.lines if found.get_linewidth() < 1 and found.get_marker() == "None"]
    np.testing.assert_array_equal([found.get_ydata() for found in thin], members.double())
    np.testing.assert_array_equal(line(ax, "data"), torch.stack(data, 1).double())
    legend = ax.figure.figure.legends[0]  # type: ignore[union-attr]
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["mean", "±1 standard deviation", "±2 standard deviations", "members", "data"]


def test_the_order_of_x_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(N)
    ax = bands(X[order], MEAN[order], VARIANCE[order], [MEAN[order] + 1]).axes[0]
    np.testing.assert_array_equal(line(ax, "mean"), np.column_stack([X, MEAN]))
    np.testing.assert_array_equal(line(ax, "members"), np.column_stack([X, MEAN + 1]))
    np.testing.assert_allclose(band(ax, 1), [MEAN - np.sqrt(VARIANCE), MEAN + np.sqrt(VARIANCE)])


def test_each_name_has_a_panel() -> None:
    """The order of names does not matter, and runs may have different numbers of members."""
    mean = {"a": MEAN, 2: MEAN + 1}
    variance = {2: VARIANCE + 1, "a": VARIANCE}
    members = {"a": MEAN[None], 2: np.stack([MEAN, MEAN, MEAN])}
    figure = bands(X, mean, variance, members, columns=1)  # type: ignore[arg-type]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "2"]
    for index, ax in enumerate(figure.axes):
        np.testing.assert_array_equal(line(ax, "mean")[:, 1], MEAN + index)
        np.testing.assert_allclose(band(ax, 1)[1], MEAN + index + np.sqrt(VARIANCE + index))
        assert len([found for found in ax.lines if found.get_linewidth() < 1]) == (1, 3)[index]


def test_the_legend_goes_into_the_axes_of_the_caller() -> None:
    ax = Figure().subplots()
    bands(X, MEAN, VARIANCE, ax=ax)
    assert ax.get_legend() is not None
    assert ax.figure.figure.legends == []  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, MEAN[1:], VARIANCE), r"mean .*\[N\] with N = 7"),
        ((X, MEAN, -VARIANCE), "variance is negative"),
        ((X, MEAN, VARIANCE, MEAN), r"members .*\[M, N\]"),
        ((X, MEAN, VARIANCE, None, X), "'data'.*pair"),
        ((X, MEAN, VARIANCE, None, (X, X[1:])), r"y of data .*\[P\] with P = 7"),
        ((X, {"a": MEAN}, VARIANCE), "variance .*mean: 'a'"),
        ((X, {"a": MEAN}, {"b": VARIANCE}), "variance .*mean: 'a'"),
        ((X, {"a": MEAN}, {"a": VARIANCE}, {}), "members .*mean: 'a'"),
        ((X, {"a": MEAN * np.nan}, {"a": VARIANCE}), "mean of 'a' is NaN"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bands(*arguments)
