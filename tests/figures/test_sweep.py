"""Figures of scores over a setting."""

from __future__ import annotations

import pytest

from multitudes import figures
from multitudes.errors import InputError


def test_a_run_has_one_style_in_all_panels() -> None:
    runs = {"packed": ([1, 2, 4], [0.7, 0.8, 0.9]), "deep": ([1, 2], [0.8, 0.85])}
    figure = figures.sweep({"accuracy": runs, "NLL": {"deep": ([1, 2], [0.5, 0.4])}}, lines={"NLL": {"single": 0.6}}, log=True)
    first, second = figure.axes
    assert first.lines[0].get_xydata().tolist() == [[1, 0.7], [2, 0.8], [4, 0.9]]
    assert first.lines[1].get_color() == second.lines[0].get_color() != second.lines[1].get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["packed", "deep", "single"]
    assert first.get_xscale() == "log"


def test_a_run_without_its_setting_is_refused() -> None:
    with pytest.raises(InputError, match="must be a dict of runs"):
        figures.sweep({"accuracy": [0.1, 0.2]})  # type: ignore[dict-item]
