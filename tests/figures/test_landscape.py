"""The figure of a landscape: colours over the plane, anchors with names, one colour scale."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import landscape

X, Y = np.linspace(-1, 2, 7), np.linspace(0, 1, 5)
VALUES = X[None] ** 2 + Y[:, None]
ANCHORS = np.array([[0.0, 0.2], [1.0, 0.2], [0.5, 0.8]])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_anchors_have_names_at_their_places(theme: str) -> None:
    """Names stand in the theme's ink on its background, whatever the colours below."""
    ax = landscape(X, Y, VALUES, ANCHORS, names=["a", "b", "origin"], theme=theme).axes[0]  # type: ignore[arg-type]
    np.testing.assert_array_equal([line.get_xydata()[0] for line in ax.lines], ANCHORS)  # type: ignore[index]
    assert [text.get_text() for text in ax.texts] == ["a", "b", "origin"]
    for text in ax.texts:
        box = text.get_bbox_patch()
        assert box is not None
        assert abs(sum(to_rgb(text.get_color())) - sum(box.get_facecolor()[:3])) > 1.5
    assert ax.get_aspect() == 1


def test_rows_are_y_and_columns_x() -> None:
    """The lowest contour lies around x = 0 at the bottom."""
    ax = landscape(X, Y, VALUES, ANCHORS).axes[0]
    levels = ax.collections[0].levels  # type: ignore[attr-defined]
    assert (levels[0], levels[-1]) == (pytest.approx(VALUES.min()), pytest.approx(VALUES.max()))
    lowest = ax.collections[0].get_paths()[0].vertices
    assert abs(lowest[:, 0]).max() < 1  # type: ignore[call-overload]
    assert lowest[:, 1].max() < 0.6  # type: ignore[call-overload]


def test_each_name_has_a_panel_on_one_scale() -> None:
    figure = landscape(X, Y, {"a": VALUES, "b": VALUES * 0.1}, ANCHORS, label="Disagreement")
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == ["a", "b"]
    assert len({tuple(ax.collections[0].levels) for ax in figure.axes[:2]}) == 1  # type: ignore[attr-defined]
    assert figure.axes[2].get_ylabel() == "Disagreement"


def test_a_flat_landscape_is_drawn_too() -> None:
    figure = Figure()
    assert landscape(X, Y, np.zeros((5, 7)), ANCHORS, ax=figure.subplots()) is figure


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"values .*\[H, G\]"):
        landscape(X, Y, VALUES.T, ANCHORS)
    with pytest.raises(InputError, match=r"anchors .*\[A, 2\]"):
        landscape(X, Y, VALUES, ANCHORS.T)
    with pytest.raises(InputError, match="2 names for 3 anchors"):
        landscape(X, Y, VALUES, ANCHORS, names=["a", "b"])
