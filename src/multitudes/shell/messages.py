"""What the command says besides its results: warnings in one line, and where an unknown option belongs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.markup import escape

from multitudes.settings import ALIASES


def show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
    """Prints a warning of this package as one line, without the line of code that a Python user would see."""
    if category is UserWarning:
        Console(stderr=True).print(f"[yellow]multitudes:[/yellow] {escape(str(message))}", highlight=False, soft_wrap=True)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def recipe_hint(words: Sequence[str], options: Sequence[str]) -> str:
    """Says that an option is a setting of the recipe, if the command does not have it: `--batch-size` is `Recipe(batch=...)`.

    words    the words of the command line
    options  the options of its command; none if there is no such command
    """
    from multitudes.training.recipe import Recipe

    settings = {field.name: field.name for field in fields(Recipe)}
    settings |= {other: own for own, others in ALIASES.items() if own in settings for other in others.split()}
    for option in (word.partition("=")[0] for word in words if options and word.startswith("--")):
        name = settings.get(option[2:].replace("-", "_"))
        if option not in options and name is not None:
            typed = f"type --{name}" if f"--{name}" in options else f"set it in the recipe of your job, mt.Recipe({name}=...)"
            return f"{option}: {typed}"
    return ""
