"""The table of methods in docs/methods.md, made from the docstrings of the methods.

python docs/methods_table.py            prints it
python docs/methods_table.py --write    puts it into docs/methods.md
python docs/methods_table.py --check    fails if docs/methods.md has another table
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import sections

from multitudes.method import Method


def row(kind: type[Method]) -> str:
    """Returns a method's row: settings with defaults, first sentence and first link of its file."""
    text = " ".join((sys.modules[kind.__module__].__doc__ or "").split())
    common = {field.name for field in dataclasses.fields(Method)} - {"members"}
    settings = [f"{f.name}={f.default!r}" for f in dataclasses.fields(kind) if f.name not in common]
    sentence = text.partition(". ")[0].rstrip(".")
    link = re.search(r"https?://[^\s,;]+", text)
    paper = f"[paper]({link[0].rstrip('.')})" if link else ""
    return f"| `{kind.__name__}({', '.join(settings)})` | {sentence} | {paper} |"


def table() -> str:
    """Returns the table of this package's methods; the registry may hold those of other packages too."""
    ours = [kind for kind in Method.all() if kind.__module__.startswith("multitudes.methods.")]
    return "\n".join(["| method | what it is | |", "|---|---|---|", *map(row, ours)])


if __name__ == "__main__":
    sys.exit(sections.main(Path(__file__).resolve().parent / "methods.md", {"methods": table()}, __doc__))
