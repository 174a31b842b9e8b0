"""Parses arguments of the shell: `packed(alpha=2, gamma=2)`, `mypackage.nets:make`, `0-4`, `2,3,32,32`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from multitudes.errors import InputError
from multitudes.method import Method


def methods_by_name() -> dict[str, type[Method]]:
    """Returns every method class under its name in the shell, which is in lower case."""
    return {kind.__name__.lower(): kind for kind in Method.all()}


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Makes the error for a name that does not exist: it lists the known names and suggests the nearest."""
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"there is no {kind} {name!r}: {hint}Known: {', '.join(names)}")


def method(text: str, **settings: Any) -> Method:
    """Makes a method from its text. `settings` are defaults, which the text may override.

    >>> method("packed(alpha=2, gamma=2)")
    Packed(members=4, reduction='sum', alpha=2, gamma=2, pretrained=False, of=None)
    """
    name, bracket, _ = text.strip().partition("(")
    known = methods_by_name()
    kind = known.get(name.strip().lower())
    if kind is None:
        raise unknown_name("method", name.strip(), known)
    typed = _keywords(text.strip()) if bracket else {}
    try:
        return kind(**{**settings, **typed})
    except TypeError as error:
        fields = list(kind.__dataclass_fields__)
        wrong = next((key for key in typed if key not in fields), None)
        if wrong is None:
            raise InputError(f"{text}: {error}") from error
        raise unknown_name(f"setting of {name.strip().lower()}", wrong, fields) from error


def _keywords(text: str) -> dict[str, Any]:
    """Reads the settings between the brackets: Python literals by keyword. No code is run."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError("not a call with keyword arguments only")
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise InputError(f"cannot read {text!r}: type settings as name=value, as in 'packed(alpha=2, gamma=2)'") from error


def split_list(text: str) -> list[str]:
    """Splits a list at its commas, except at those inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def seeds(text: str) -> list[int]:
    """Reads seeds: numbers with commas, ranges with a dash.

    >>> seeds("0,4-6")
    [0, 4, 5, 6]
    """
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            numbers += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError as error:
        raise InputError(f"--seeds {text!r} are not whole numbers: type 0,1,2 or a range, 0-4") from error
    if not numbers:
        raise InputError(f"--seeds {text!r} is an empty range: type the smaller number first, 0-4")
    return numbers


def shape(text: str) -> list[int]:
    """Reads the shape of an input, batch first.

    >>> shape("2,3,32,32")
    [2, 3, 32, 32]
    """
    try:
        sizes = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError as error:
        raise InputError(f"--example {text!r} is not a shape: type whole numbers, batch first, as in 2,3,32,32") from error
    if min(sizes) < 1:
        raise InputError(f"--example {text!r}: sizes must be at least 1, as in 2,3,32,32")
    return sizes


def import_by_name(text: str) -> Any:
    """Imports the object NAME from MODULE, given as MODULE:NAME. Modules in the current folder are found too."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise InputError(f"{text!r} is not of the form MODULE:NAME, as in mypackage.nets:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] != error.name.split(".")[0]:
            raise  # the module exists, and one that it imports does not
        raise InputError(f"there is no module {module!r}: run the command in its folder, or install it ({error})") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise unknown_name(f"name in {module}", part, [key for key in vars(value) if not key.startswith("_")])
        value = getattr(value, part)
    return value
