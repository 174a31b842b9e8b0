"""What help() shows: every setting with its default and its meaning, and the public names."""

from __future__ import annotations

import dataclasses
import pydoc
import sys
from typing import Any

import pytest

import multitudes as mt
from multitudes.data import Data
from multitudes.settings import explained, field_texts
from multitudes.shell.jobs import Job

EXPLAINED: list[Any] = [
    *(kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")),
    mt.Recipe,
    Job,
    Data,
]


@pytest.mark.parametrize("kind", EXPLAINED, ids=lambda kind: kind.__name__)
def test_every_setting_is_explained(kind: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(kind))
    texts = field_texts(kind)
    for field in dataclasses.fields(kind):
        if field.init:
            assert len(texts.get(field.name, "")) > 10, f"{field.name} has no string below it"
            assert f" {field.name}" in shown and texts[field.name].split(".")[0][:60] in " ".join(
                shown.replace("|", " ").split()
            )


def test_defaults_are_those_of_the_class() -> None:
    assert "alpha = 2.0" in (mt.Packed.__doc__ or "") and "members = 4" in (mt.Packed.__doc__ or "")


def test_a_class_without_source_keeps_its_docstring() -> None:
    made = dataclasses.make_dataclass("Made", [("rate", float, 0.5)])
    made.__doc__ = "A class."
    assert explained(made).__doc__ == "A class.\n\nSettings:\n    rate = 0.5"


def test_docstrings_are_made_when_they_are_read() -> None:
    """Reading sources at import would take longer than the import."""
    made = explained(dataclasses.make_dataclass("Made", [("rate", float, 0.5)]))
    assert vars(made)["__doc__"].whole == ""
    assert "rate" in (made.__doc__ or "")
    assert vars(made)["__doc__"].whole == made.__doc__


def test_help_of_the_package_names_what_is_public() -> None:
    text = mt.__doc__ or ""
    public = [name for name in dir(mt) if not name.startswith("_")]
    assert [name for name in public if name not in text] == []
    assert not [name for name in public if isinstance(getattr(mt, name), type(sys))]
