"""Entropy over the plane: values and positions of the cells, classes of the points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import entropy_map

G, H = 5, 3
X, Y = np.linspace(-2, 2, G), np.array([0.0, 1.0, 4.0])
ENTROPY = np.arange(15.0).reshape(H, G) / 15


def mesh(figure: Figure, index: int = 0) -> QuadMesh:
    return next(found for found in figure.axes[index].collections if isinstance(found, QuadMesh))


def test_each_cell_has_its_value_around_its_place() -> None:
    """Also on an uneven grid."""
    found = mesh(entropy_map(X, Y, ENTROPY))
    np.testing.assert_array_equal(np.asarray(found.get_array()).reshape(H, G), ENTROPY)
    corners = found.get_coordinates()
    assert (corners[:-1, :-1, 0] < X).all() and (corners[1:, 1:, 0] > X).all()
    assert (corners[:-1, :-1, 1] < Y[:, None]).all() and (corners[1:, 1:, 1] > Y[:, None]).all()
    assert found.get_clim() == (0, ENTROPY.max())


def test_panels_have_one_scale() -> None:
    figure = entropy_map(X, Y, {"single": ENTROPY, "deep": torch.from_numpy(ENTROPY) / 2})
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == ["single", "deep"]
    assert mesh(figure, 0).get_clim() == mesh(figure, 1).get_clim() == (0, ENTROPY.max())
    np.testing.assert_array_equal(np.asarray(mesh(figure, 1).get_array()).reshape(H, G), ENTROPY / 2)
    assert figure.axes[2].get_ylabel() == "Entropy in nats"
    assert len(figure.axes) == 3
    assert mesh(entropy_map(X, Y, ENTROPY, top=2.5)).get_clim() == (0, 2.5)


def test_points_of_each_class_are_drawn_alike() -> None:
    xy, labels = torch.randn(6, 2), torch.tensor([4, 0, 4, 0, 0, 4])
    _, zero, four = entropy_map(X, Y, ENTROPY, (xy, labels)).axes[0].collections
    np.testing.assert_array_equal(zero.get_offsets(), xy[labels == 0].double())
    np.testing.assert_array_equal(four.get_offsets(), xy[labels == 4].double())
    assert zero.get_facecolor().tolist() != four.get_facecolor().tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y, ENTROPY.T), r"entropy .*\[H, G\] with H = 3.*\[5, 3\]"),
        ((X[::-1], Y, ENTROPY), "x must be strictly increasing"),
        ((X, [1.0, 1.0, 2.0], ENTROPY), "y must be strictly increasing"),
        (([0.0], Y, ENTROPY[:, :1]), "x must be strictly increasing"),
        ((X, Y, -ENTROPY), "entropy is negative"),
        ((X, Y, {}), "at least one run"),
        ((X, Y, {"a": ENTROPY * np.nan}), "entropy of 'a' is NaN"),
        ((X, Y, ENTROPY, ([[0, 1, 2]], [0])), r"xy of points .*\[P, 2\]"),
        ((X, Y, ENTROPY, ([[0, 1]], [0, 1])), r"labels of points .*\[P\] with P = 1"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        entropy_map(*arguments)
