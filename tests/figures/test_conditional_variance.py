"""The figure of conditional variances: shares in a histogram, units between the inputs they depend on."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from multitudes.errors import InputError
from multitudes.figures import conditional_variance

TWO = np.array([[4.0, 0.0, 1.0, 0.0], [0.0, 9.0, 1.0, 0.0]])


def test_the_histogram_has_the_shares() -> None:
    """The last unit never varies and is left out; the others have the shares 1, 0 and 0.5 of the first input."""
    left = conditional_variance(TWO).axes[0]
    first, second = (patch.get_data() for patch in left.patches if isinstance(patch, StepPatch))
    assert first.values.sum() == second.values.sum() == 3
    assert first.values.nonzero()[0].tolist() == [0, 10, 19]
    np.testing.assert_allclose(first.edges, np.linspace(0, 1, 21))


def test_two_inputs_have_an_axis_each() -> None:
    right = conditional_variance(TWO).axes[1]
    points = [points.get_offsets().tolist() for points in right.collections]  # type: ignore[union-attr]
    assert points == [[[4, 0], [1, 1]], [[0, 9]]]
    assert right.get_xlabel().endswith("input 0")


def test_three_inputs_are_corners() -> None:
    """A unit of one input lies at its corner, a unit of all in the middle."""
    right = conditional_variance([[2.0, 0.0, 0.0, 1.0], [0.0, 3.0, 0.0, 1.0], [0.0, 0.0, 5.0, 1.0]]).axes[1]
    corners = np.array(right.lines[0].get_xydata())[:3]
    places = [points.get_offsets() for points in right.collections]
    np.testing.assert_allclose(np.concatenate([p[:1] for p in places]), corners, atol=1e-12)  # type: ignore[index]
    np.testing.assert_allclose(places[0][1], [0, 0], atol=1e-12)  # type: ignore[index]
    assert [text.get_text() for text in right.texts] == ["input 0", "input 1", "input 2"]
    np.testing.assert_allclose(np.linalg.norm(corners, axis=1), 1)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="one input"):
        conditional_variance(TWO[:1])
    with pytest.raises(InputError, match="negative in 2 places"):
        conditional_variance([[-1.0, -2.0], [1.0, 1.0]])
    with pytest.raises(InputError, match="no unit varies"):
        conditional_variance(np.zeros((2, 3)))
