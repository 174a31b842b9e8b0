"""Errors: one tree, drawn in its docstring, and what a caller may catch them as."""

from __future__ import annotations

import multitudes as mt
from multitudes import errors


def test_the_drawing_shows_the_tree() -> None:
    """Every error stands in the drawing, and every line of the drawing is an error."""
    drawn = {word for line in (errors.__doc__ or "").splitlines() for word in line.split() if word.endswith("Error")}
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert drawn - {"ValueError)", "RuntimeError)"} == kinds


def test_all_are_public_and_have_one_parent() -> None:
    """So that one except clause catches what multitudes raises on purpose."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert getattr(mt, name) is kind
            assert issubclass(kind, mt.MultitudesError)


def test_the_familiar_kinds() -> None:
    """Bad arguments are also ValueErrors, calls that cannot be answered RuntimeErrors."""
    assert issubclass(mt.InputError, ValueError)
    assert issubclass(mt.RunError, RuntimeError)
