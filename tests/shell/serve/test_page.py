"""The page has the looks of the report."""

from __future__ import annotations

from multitudes.figures.theme import LOOKS
from multitudes.report import svg
from multitudes.shell.serve.page import COLOURS, page


def test_colours_are_those_of_the_report() -> None:
    for name, look in LOOKS.items():
        assert COLOURS[name] == " ".join(f"--{role}: {colour};" for role, colour in svg.css_variables(look).items())


def test_nothing_is_left_to_fill_in() -> None:
    text = page()
    assert "$light" not in text
    assert "$style" not in text
    assert text.count("<script>") == 1
