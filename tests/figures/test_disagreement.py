"""The heat map of disagreement: its colours and numbers are those of the matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from multitudes.errors import InputError
from multitudes.figures import disagreement
from multitudes.figures.disagreement import READABLE

MATRIX = torch.tensor([[0.0, 0.12, 0.3], [0.12, 0.0, 0.25], [0.31, 0.25, 0.0]])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_cells_have_the_matrix_as_colours_and_numbers(theme: str) -> None:
    """Rows go downwards, and each number contrasts with its cell."""
    ax = disagreement(MATRIX, theme=theme).axes[0]  # type: ignore[arg-type]
    image = ax.images[0]
    np.testing.assert_array_equal(image.get_array(), MATRIX.double())
    assert image.get_clim() == (0, pytest.approx(0.31))
    assert len(ax.texts) == 9
    for text in ax.texts:
        column, row = text.get_position()
        value = float(MATRIX[int(row), int(column)])
        assert text.get_text() == f"{value:.2f}"
        cell = image.cmap(image.norm(value))[:3]  # type: ignore[union-attr]
        grey = np.array([0.299, 0.587, 0.114])
        assert abs(grey @ np.array(to_rgb(text.get_color())) - grey @ np.array(cell)) > 0.35
    assert ax.yaxis_inverted()


def test_members_have_names() -> None:
    figure = disagreement(MATRIX, names=["a", "b", "c"], label="KL")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b", "c"]
    assert figure.axes[0].child_axes[0].get_ylabel() == "KL"
    assert [text.get_text() for text in disagreement(MATRIX).axes[0].get_xticklabels()] == ["0", "1", "2"]


def test_many_members_have_no_numbers() -> None:
    for members, shown in ((READABLE, True), (READABLE + 1, False)):
        ax = disagreement(np.full((members, members), 0.5)).axes[0]
        assert bool(ax.texts) == shown
        assert len(ax.get_xticklabels()) <= READABLE


def test_members_that_all_agree_are_drawn_too() -> None:
    assert disagreement(np.zeros((2, 2))).axes[0].images[0].get_clim() == (0, 1)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"matrix .*\[M, M\] with M = 2.*\[2, 3\]"):
        disagreement(MATRIX[:2])
    with pytest.raises(InputError, match="2 names for 3 members"):
        disagreement(MATRIX, names=["a", "b"])
    with pytest.raises(InputError, match="matrix is NaN"):
        disagreement(MATRIX * float("nan"))
