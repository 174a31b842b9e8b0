"""Methods and factories as the shell writes them: `packed(alpha=2, gamma=2)`, `mypackage.nets:make`."""

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
    """Every method under its name in the shell."""
    return {kind.__name__.lower(): kind for kind in Method.all()}


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """What to say of a name that is not there."""
    there = sorted(known)
    near = get_close_matches(name.lower(), there, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"there is no {kind} {name!r}: {hint}there are {', '.join(there)}")


def method(text: str, **settings: Any) -> Method:
    """The method that a text names, with its settings; those given here are what it has unless the text says otherwise.

    >>> method("packed(alpha=2, gamma=2)")
    Packed(members=4, reduction='sum', alpha=2, gamma=2, pretrained=False, of=None)
    """
    name, bracket, _ = text.strip().partition("(")
    known = methods_by_name()
    kind = known.get(name.strip().lower())
    if kind is None:
        raise unknown_name("method", name.strip(), known)
    said = _keywords(text.strip()) if bracket else {}
    try:
        return kind(**{**settings, **said})
    except TypeError as error:
        fields = list(kind.__dataclass_fields__)
        wrong = next((key for key in said if key not in fields), None)
        if wrong is None:
            raise InputError(f"{text}: {error}") from error
        raise unknown_name(f"setting of {name.strip().lower()}", wrong, fields) from error


def _keywords(text: str) -> dict[str, Any]:
    """The settings in brackets: plain values by name."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError("settings are given by name")
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise InputError(
            f"cannot read {text!r}: settings are plain values by name, as in 'packed(alpha=2, gamma=2)'"
        ) from error


def split_list(texts: str) -> list[str]:
    """The parts of a list, at its commas outside of brackets."""
    parts, depth = [""], 0
    for letter in texts:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def import_by_name(text: str) -> Any:
    """What MODULE:NAME names; the folder that the shell stands in is looked in too."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise InputError(f"{text!r}: say MODULE:NAME, as in mypackage.nets:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise InputError(f"there is no module {module!r} here or installed: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise unknown_name(f"name in {module}", part, [key for key in vars(found) if not key.startswith("_")])
        found = getattr(found, part)
    return found
