"""Figures of our numbers against printed ones."""

from __future__ import annotations

import pytest

from multitudes import figures
from multitudes.errors import InputError


def test_each_score_has_its_dots_and_the_line_of_equal_numbers() -> None:
    figure = figures.against({"Acc": [(94.0, 94.1), (95.0, 94.8)], "NLL": [(0.2, 0.3)]})
    first, second = figure.axes
    assert [panel.get_title(loc="left") for panel in (first, second)] == ["Acc", "NLL"]
    assert first.collections[0].get_offsets().tolist() == [[94.0, 94.1], [95.0, 94.8]]
    line = first.lines[0].get_xydata()
    assert (line[:, 0] == line[:, 1]).all() and first.get_xlim() == first.get_ylim() == (line[0, 0], line[1, 0])


def test_numbers_without_a_partner_are_refused() -> None:
    with pytest.raises(InputError, match="pairs of 'Acc'"):
        figures.against({"Acc": [(94.0, 94.1, 3.0)]})
