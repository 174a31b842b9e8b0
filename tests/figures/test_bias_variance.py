"""The figure of bias and variance: three panels with a line for each run."""

from __future__ import annotations

import numpy as np
import pytest

from multitudes.errors import InputError
from multitudes.figures import bias_variance

RUNS = {
    "ensemble": {"bias": [1, 2, 3], "variance": [6, 4, 2], "error": [7, 6, 5]},
    "member": {"bias": [2, 3, 4], "variance": [7, 8, 9], "error": [9, 11, 13]},
}


def test_each_part_has_a_panel() -> None:
    figure = bias_variance([1, 3, 5], RUNS)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Squared bias", "Variance", "Error"]
    for ax, part in zip(figure.axes, ("bias", "variance", "error"), strict=True):
        for line, run in zip(ax.lines, RUNS.values(), strict=True):
            np.testing.assert_array_equal(line.get_xydata(), np.column_stack([[1, 3, 5], run[part]]))
        assert ax.get_ylim()[0] == 0
        assert ax.get_xticks().tolist() == [1, 3, 5]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ensemble", "member"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="'a' must be a dict with bias, variance and error"):
        bias_variance([1], {"a": {"bias": [1]}})
    with pytest.raises(InputError, match=r"bias of 'ensemble' .*\[K\] with K = 2"):
        bias_variance([1, 2], RUNS)
