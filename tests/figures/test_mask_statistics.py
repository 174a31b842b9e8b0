"""The figure of masks: measured dots, expected curves."""

from __future__ import annotations

import numpy as np
import pytest

from multitudes.errors import InputError
from multitudes.figures import mask_statistics

RUNS = {2: ([1, 3], [1, 1.6], [1, 0.21]), 8: ([1, 5], [1, 4.2], [1, 0.1])}


def test_dots_are_measured_and_curves_expected() -> None:
    size, iou = mask_statistics(RUNS).axes  # type: ignore[arg-type]
    for (members, run), k in zip(RUNS.items(), (0, 1), strict=True):
        curve, dots = size.lines[2 * k : 2 * k + 2]
        np.testing.assert_array_equal(dots.get_xydata(), np.column_stack(run[:2]))
        s = np.asarray(curve.get_xdata())
        np.testing.assert_allclose(curve.get_ydata(), s * (1 - (1 - 1 / s) ** members))
        assert dots.get_linestyle() == "None"
        np.testing.assert_array_equal(iou.lines[k + 1].get_xydata(), np.column_stack([run[0], run[2]]))
    s = np.asarray(iou.lines[0].get_xdata())
    assert (s[0], s[-1]) == (1, 5)
    np.testing.assert_allclose(iou.lines[0].get_ydata(), 1 / (2 * s - 1))


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="dict of the number of masks"):
        mask_statistics({})
    with pytest.raises(InputError, match="scale of 4 masks must be at least 1"):
        mask_statistics({4: ([0.5], [1], [1])})
    with pytest.raises(InputError, match=r"size of 4 masks .*\[S\] with S = 2"):
        mask_statistics({4: ([1, 2], [1], [1, 1])})
