"""Cost and quality: position and area of the discs, and labels that do not overlap."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from multitudes.errors import InputError
from multitudes.figures import cost_quality
from multitudes.figures.cost_quality import _round_numbers
from multitudes.figures.theme import look

ROWS = [
    {"name": "single", "cost": 1, "quality": 94.1, "size": 11.2},
    {"name": "deep", "cost": 4, "quality": 95.2, "size": 44.8},
    {"name": "packed", "cost": 1.1, "quality": 94.1, "size": 8.2},
]


def areas(ax: Axes) -> np.ndarray:
    return np.asarray(ax.collections[0].get_sizes())  # type: ignore[attr-defined]


def test_discs_have_the_right_position_and_area() -> None:
    ax = cost_quality(ROWS).axes[0]
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), [[r["cost"], r["quality"]] for r in ROWS])
    np.testing.assert_allclose(areas(ax) / areas(ax)[0], [1, 4, 8.2 / 11.2])


def test_a_method_has_its_own_colour_or_grey() -> None:
    """The colours are those of the method's curves in other figures."""
    shades = (
        cost_quality([{**row, "style": style} for row, style in zip(ROWS, (0, 3, None), strict=True)]).axes[0].collections[0]
    )
    light = look("light")
    wanted = [to_rgb(colour) for colour in (light.style(0).colour, light.style(3).colour, light.muted)]
    np.testing.assert_allclose(np.asarray(shades.get_facecolor())[:, :3], wanted)


def test_the_legend_has_discs_of_the_same_scale() -> None:
    ax = cost_quality(ROWS, size="million parameters").axes[0]
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "Area: million parameters"
    numbers = [float(text.get_text()) for text in legend.get_texts()]
    assert numbers == [10, 20, 40]
    sizes = [float(handle.get_sizes()[0]) for handle in legend.legend_handles]  # type: ignore[union-attr]
    np.testing.assert_allclose(np.array(sizes) / numbers, areas(ax)[0] / 11.2)


@pytest.mark.parametrize(
    ("sizes", "expected"), [([3.0, 3.0], [3]), ([7.1, 7.9], [7.9]), ([0.02, 2.2], [0.02, 0.2, 2]), ([1, 1e6], [1, 1e3, 1e6])]
)
def test_the_legends_numbers_are_round(sizes: list[float], expected: list[float]) -> None:
    assert _round_numbers(np.array(sizes)) == pytest.approx(expected)


@pytest.mark.parametrize("log", [False, True])
def test_names_overlap_neither_names_nor_discs(log: bool) -> None:
    """Every name lies within the axes too."""
    rng = np.random.default_rng(1)
    rows = [
        {"name": f"method {i}", "cost": c, "quality": q, "size": s} for i, (c, q, s) in enumerate(rng.uniform(1, 9, (12, 3)))
    ]
    figure = cost_quality(rows, log=log)
    figure.draw_without_rendering()
    ax = figure.axes[0]
    assert ax.get_xscale() == ("log" if log else "linear")
    assert [text.get_text() for text in ax.texts] == [row["name"] for row in rows]
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # without the line to the disc
    room = ax.get_window_extent()
    assert all(room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1 for box in boxes)
    assert [pair for pair in combinations(range(12), 2) if boxes[pair[0]].overlaps(boxes[pair[1]])] == []
    middles = ax.transData.transform(np.asarray(ax.collections[0].get_offsets()))
    radii = np.sqrt(areas(ax) / np.pi) * figure.dpi / 72
    for box in boxes:
        nearest = np.column_stack([middles[:, 0].clip(box.x0, box.x1), middles[:, 1].clip(box.y0, box.y1)])
        assert (np.linalg.norm(nearest - middles, axis=1) >= radii).all()


def test_it_draws_into_the_axes_of_the_caller() -> None:
    figure = Figure(layout="constrained")
    _, second = figure.subplots(1, 2)
    assert cost_quality(ROWS, cost="seconds", quality="ECE", ax=second) is figure
    assert (second.get_xlabel(), second.get_ylabel()) == ("Seconds", "ECE")
    assert len(second.texts) == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one method"),
        ([{"name": "a", "cost": 1, "quality": 1}], "name, cost, quality, size"),
        ([("a", 1, 1, 1)], "name, cost, quality, size"),
        ([{"name": "a", "cost": float("nan"), "quality": 1, "size": 1}], "cost is NaN"),
        ([{"name": "a", "cost": 1, "quality": 1, "size": 0}], "above 0"),
        ([{"name": "a", "cost": 0, "quality": 1, "size": 1}], "cost with log=True"),
    ],
)
def test_bad_input_is_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cost_quality(rows, log=True)
