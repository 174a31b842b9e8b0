"""What commands print: lines, notes on standard error, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape


def print_line(text: str) -> None:
    """Prints a line; names of files in it are not broken."""
    Console().print(escape(text), soft_wrap=True)


def print_notes(notes: Sequence[str]) -> None:
    """Prints what a user should know beside the result, on standard error."""
    for note in notes:
        Console(stderr=True).print(f"[yellow]multitudes:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    print(json.dumps(value, indent=1))  # noqa: T201
