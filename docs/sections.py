"""Sections of a page that a script makes, between `<!-- name -->` and `<!-- /name -->`: print, write or check them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def replaced(text: str, sections: Mapping[str, str]) -> str:
    """Returns the text of a page with these sections."""
    for name, content in sections.items():
        before, begin, rest = text.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise SystemExit(f"the page has no section <!-- {name} --> ... <!-- /{name} -->")
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text


def main(page: Path, sections: Mapping[str, str], usage: str | None) -> int:
    """Prints the sections; with --write puts them into the page; with --check returns 1 if the page has others."""
    option = next(iter(sys.argv[1:]), None)
    if option is None:
        print("\n\n".join(sections.values()))
        return 0
    text = page.read_text(encoding="utf-8")
    new = replaced(text, sections)
    if option == "--write":
        page.write_text(new, encoding="utf-8")
    elif option != "--check":
        print(usage)
        return 2
    elif text != new:
        print(f"{page.name} is not current: python {sys.argv[0]} --write")
        return 1
    return 0
