"""Box plots by severity: the drawn quartiles, medians and extremes are those of the values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from multitudes.errors import InputError
from multitudes.figures import corruption


def lines(ax: Axes) -> list[list[float]]:
    """Returns the lower and upper end of every line."""
    found = [c.get_segments() for c in ax.collections if isinstance(c, LineCollection)]
    return [sorted(float(y) for y in segment[:, 1]) for segments in found for segment in segments]


def test_boxes_are_those_of_the_values() -> None:
    """Quartiles, median, smallest and largest; the marker is on the median."""
    runs = {name: {severity: torch.rand(9) for severity in (1, 2, 3)} for name in ("single", "deep")}
    ax = corruption(runs).axes[0]
    flat = [values.double().numpy() for run in runs.values() for values in run.values()]
    medians = np.concatenate([np.asarray(line.get_ydata()) for line in ax.lines])
    boxes = [box for box in ax.patches if isinstance(box, Rectangle)]
    for values, box, median in zip(flat, boxes, medians, strict=True):
        ordered = sorted(values.tolist())
        least, first, middle, third, most = ordered[::2]  # nine values have these quartiles
        assert [box.get_y(), box.get_y() + box.get_height()] == pytest.approx([first, third])
        assert median == middle
        for line in ([least, first], [third, most], [least, least], [most, most], [middle, middle]):
            assert line in lines(ax)


def test_runs_stand_side_by_side_at_each_severity() -> None:
    """Also if a run lacks a severity, and for any order of severities."""
    ax = corruption({"a": {5: [0.1, 0.2], 1: [0.3, 0.4], 3: [0.5]}, "b": {3: [0.6], 5: [0.7]}}).axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "3", "5"]
    a, b = (np.asarray(line.get_xdata()) for line in ax.lines)
    assert np.round(a).tolist() == [0, 1, 2]
    assert np.round(b).tolist() == [1, 2]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.35, 0.5, 0.15])
    assert (a[1:] < b).all()
    boxes = sorted((box.get_x(), box.get_x() + box.get_width()) for box in ax.patches if isinstance(box, Rectangle))
    assert all(right <= left for (_, right), (left, _) in pairwise(boxes))
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_the_score_names_the_axis() -> None:
    ax = corruption({"a": {1: [0.5]}}, score="ECE of the mixture").axes[0]
    assert ax.get_ylabel() == "ECE of the mixture"
    assert ax.get_title(loc="left") == "ECE of the mixture on corrupted inputs"


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"'a'.*severity"):
        corruption({"a": [0.5, 0.6]})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="severity 2 of 'a' is empty"):
        corruption({"a": {1: [0.5], 2: []}})
    with pytest.raises(InputError, match="at least one run"):
        corruption({})
