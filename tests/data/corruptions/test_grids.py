"""Filters and resampling as matrices, against scipy and Pillow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from multitudes.data.corruptions import grids

SIZES = [(1, 1), (2, 5), (7, 4), (32, 32), (33, 70)]


def field(height: int, width: int, count: int = 2) -> grids.Array:
    return np.random.default_rng(0).random((count, 3, height, width), dtype=np.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(("edge", "padding"), [("nearest", "edge"), ("reflect", "symmetric"), ("mirror", "reflect")])
def test_beyond_the_edge_lies_what_numpy_pads(size: int, edge: grids.Edge, padding: str) -> None:
    expected = np.pad(np.arange(size), 20, mode=padding)  # type: ignore[call-overload]
    assert grids.fold(np.arange(-20, size + 20), size, edge).tolist() == expected.tolist()


@pytest.mark.parametrize("edge", ["nearest", "reflect", "mirror"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_gaussian_is_scipys(height: int, width: int, edge: grids.Edge) -> None:
    x = field(height, width)
    for sigma in (0.05, 0.4, 1.0, 6.0):
        expected = ndimage.gaussian_filter(x.astype(np.float64), (0, 0, sigma, sigma), mode=edge, truncate=4)
        np.testing.assert_allclose(grids.gaussian(x, sigma, edge), expected, atol=2e-6, err_msg=str(sigma))


def test_gaussian_is_cut_off_where_it_is_told() -> None:
    x = field(32, 32)
    expected = ndimage.gaussian_filter(x, (0, 0, 3, 3), mode="reflect", truncate=3)
    np.testing.assert_allclose(grids.gaussian(x, 3, "reflect", truncate=3), expected, atol=2e-6)
    assert abs(grids.gaussian(x, 3, "reflect", truncate=1) - expected).max() > 1e-3


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_correlation_is_scipys(height: int, width: int) -> None:
    x, kernel = field(height, width), np.random.default_rng(1).random((5, 3))
    kernel[1] = 0
    expected = ndimage.correlate(x.astype(np.float64), kernel[None, None], mode="mirror")
    np.testing.assert_allclose(grids.correlate(x, kernel, "mirror"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.06, 1.25, 1.75, 2.25, 4.5])
def test_zoom_is_the_middle_of_scipys(factor: float) -> None:
    """The middle enlarged by scipy, cut to size."""
    for size in (5, 31, 32, 64, 224):
        x = np.random.default_rng(2).random(size)
        inner = int(np.ceil(size / factor))
        first = (size - inner) // 2
        enlarged = ndimage.zoom(x[first : first + inner], factor, order=1)
        cut = (len(enlarged) - size) // 2
        np.testing.assert_allclose(
            grids.zoom_matrix(size, factor) @ x, enlarged[cut : cut + size], atol=1e-6, err_msg=str(size)
        )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_zoom_of_next_to_nothing(size: int) -> None:
    assert grids.zoom_matrix(size, 4.5).sum(1) == pytest.approx(np.ones(size))


@pytest.mark.parametrize("size", [1, 2, 5, 20, 32, 33, 64, 134, 224])
def test_boxes_are_pillows(size: int) -> None:
    """Where a pixel lies just on the border of a box, too."""
    x = np.random.default_rng(3).random((1, size), dtype=np.float32)
    for new in (1, 3, 20, 30, 32, 56, 70, 89, 224):
        expected = np.asarray(Image.fromarray(x).resize((new, 1), Image.Resampling.BOX))[0]
        np.testing.assert_allclose(grids.box_matrix(size, new) @ x[0], expected, atol=1e-6, err_msg=str(new))


@pytest.mark.parametrize("edge", ["nearest", "reflect", "mirror"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_points_between_pixels_are_scipys(height: int, width: int, edge: grids.Edge) -> None:
    x, rng = field(height, width), np.random.default_rng(4)
    rows = rng.uniform(-1.5 * height, 2.5 * height, (2, 6, 5))
    columns = rng.uniform(-1.5 * width, 2.5 * width, (2, 6, 5))
    found = grids.bilinear(x, rows, columns, edge)
    for i, channel in itertools.product(range(2), range(3)):
        expected = ndimage.map_coordinates(x[i, channel], [rows[i], columns[i]], order=1, mode=edge)
        np.testing.assert_allclose(found[i, channel], expected, atol=1e-5)


def test_pixels_are_taken_one_by_one() -> None:
    x, rng = field(4, 5), np.random.default_rng(5)
    rows, columns = rng.integers(4, size=(2, 3, 2)), rng.integers(5, size=(2, 3, 2))
    found = grids.take(x, rows, columns)
    for i, c, j, k in np.ndindex(*found.shape):
        assert found[i, c, j, k] == x[i, c, rows[i, j, k], columns[i, j, k]]


def test_an_image_comes_out_the_same_alone() -> None:
    x = field(32, 32, count=9)
    assert (grids.gaussian(x, 0.7)[4:5] == grids.gaussian(x[4:5], 0.7)).all()
