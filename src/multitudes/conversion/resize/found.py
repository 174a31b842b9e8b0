"""What a search for widths found, as text: a file keeps it, so that `load` builds a member's network without a search.

A search is limited in time, so another one may find something else. The text is a Python literal: the arguments that were found
by trying, and the numbers that were scaled, by their places among the arguments and in code. Values are numbers and flags only:
a text could be a path, and a constructor that reads it would read what a file's author chose.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import nn

from multitudes.conversion.resize.constants import Path, Place
from multitudes.conversion.resize.constructors import first_recipe
from multitudes.conversion.resize.recipe import Recipe
from multitudes.errors import ConversionError


def text_of(recipe: Recipe, changes: Mapping[Path, Any]) -> str:
    """Writes how a recipe was fitted and which numbers changed; "" if that cannot be written."""
    known = {
        "fitted": recipe.fitted,
        "bare": recipe.bare,
        "arguments": {path: value for path, value in changes.items() if not isinstance(path, Place)},
        "code": {tuple(path): value for path, value in changes.items() if isinstance(path, Place)},
    }
    text = repr(known)
    try:
        return text if _is_plain(known) and ast.literal_eval(text) == known else ""
    except (ValueError, SyntaxError):  # a number that is not finite
        return ""


def _is_plain(known: Mapping[str, Any]) -> bool:
    """Whether all values of a description are numbers, flags or None, or collections of these."""

    def plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        return value is None or isinstance(value, (bool, int, float))

    return all(plain(value) for key in ("fitted", "arguments", "code") for value in known[key].values())


def recipe_from(text: str, model: nn.Module, factory: Any) -> tuple[Recipe, dict[Path, Any]]:
    """Returns the recipe of a model like the one that `text_of` was written for, and the numbers to change.

    Raises ConversionError where the constructor is another one now.
    """
    known = ast.literal_eval(text)
    if not _is_plain(known):
        raise ConversionError("its description has other values than numbers")
    recipe = first_recipe(model, factory)
    if recipe is None:
        raise ConversionError("what it was built with is not known")
    recipe = (recipe.without_defaults() if known["bare"] else recipe).with_values(known["fitted"])
    recipe = recipe.with_code() if known["code"] else recipe
    changes = {**known["arguments"], **{Place(*place): value for place, value in known["code"].items()}}
    if not changes.keys() <= recipe.numbers().keys():
        raise ConversionError("its constructor has other arguments now")
    return recipe, changes
