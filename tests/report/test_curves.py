"""Curves of the report: the drawn numbers equal the arguments."""

from __future__ import annotations

import pytest

from multitudes.report import curves


def test_severities_are_lines_through_their_numbers() -> None:
    runs = {"a": {0: 0.9, 1: 0.8, 5: 0.3}, "b $x$": {1: 0.7, 2: 0.6}}
    (ax,) = curves.severities(runs, score="Accuracy").axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [  # type: ignore[union-attr]
        [[0, 0.9], [1, 0.8], [5, 0.3]],
        [[1, 0.7], [2, 0.6]],
    ]
    assert ax.get_ylabel() == "Accuracy"
    assert list(ax.get_xticks()) == [0, 1, 2, 5]


def test_coverage_has_the_diagonal_as_a_reference() -> None:
    (ax,) = curves.coverage({"a": {0.5: 0.4, 0.9: 0.8}}).axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[0, 0], [1, 1]], [[0.5, 0.4], [0.9, 0.8]]]  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 6])
def test_the_legend_is_below_the_axes_and_inside_of_the_figure(count: int) -> None:
    figure = curves.severities({f"method {index}": {0: 0.9, 1: 0.8} for index in range(count)}, score="NLL")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= figure.axes[0].get_window_extent().y0
