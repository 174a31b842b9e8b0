"""The figure of trajectories: a path for each member, its start and its end."""

from __future__ import annotations

import numpy as np
import pytest

from multitudes.errors import InputError
from multitudes.figures import trajectories

POINTS = np.random.default_rng(0).normal(size=(5, 3, 2))


def test_paths_are_those_of_the_members() -> None:
    """For each member a line, a ring at the start and a mark at the end."""
    figure = trajectories(POINTS, names=["a", "b", "c"], label="pca")
    (ax,) = figure.axes
    for member in range(3):
        path, start, end = ax.lines[3 * member : 3 * member + 3]
        np.testing.assert_array_equal(path.get_xydata(), POINTS[:, member])
        np.testing.assert_array_equal(start.get_xydata(), POINTS[:1, member])
        np.testing.assert_array_equal(end.get_xydata(), POINTS[-1:, member])
        assert start.get_markerfacecolor() == "none"
        assert path.get_color() == end.get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert ax.get_xlabel() == "First principal axis"


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"points .*\[T, M, 2\]"):
        trajectories(POINTS[..., :1])
    with pytest.raises(InputError, match="2 names for 3 members"):
        trajectories(POINTS, names=["a", "b"])
    with pytest.raises(InputError, match="label='umap' must be 'tsne' or 'pca'"):
        trajectories(POINTS, label="umap")
