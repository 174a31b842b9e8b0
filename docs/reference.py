"""The reference of the public names in docs/reference.md, made from signatures and docstrings.

python docs/reference.py            prints it
python docs/reference.py --write    writes docs/reference.md
python docs/reference.py --check    fails if docs/reference.md is another
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import multitudes as mt
from multitudes.data import Data
from multitudes.scores import Scores
from multitudes.settings import field_texts
from multitudes.shell.jobs import Job

PAGE = Path(__file__).resolve().parent / "reference.md"
ELSEWHERE = {"multitudes.data.Data": Data, "multitudes.scores.Scores": Scores, "multitudes.shell.jobs.Job": Job}
STAGE = re.compile(r"^(Convert|Train|Predict|Score|Report|Keep|Methods|Values|Errors)\b", re.MULTILINE)


def stages() -> dict[str, list[str]]:
    """Returns the public names by stage, in the order of the package's docstring, where they stand before the purpose."""
    public = [name for name in dir(mt) if not name.startswith("_")]
    named: dict[str, list[str]] = {}
    stage = ""
    for line in (mt.__doc__ or "").partition("The folders of the package")[0].splitlines():
        stage = line[:12].strip() if STAGE.match(line) else stage
        words = re.findall(r"\w+", line[12:] if stage in ("Methods", "Errors") else line[12:38])
        if stage:
            named.setdefault(stage, []).extend(words)
    return {stage: [name for name in dict.fromkeys(words) if name in public] for stage, words in named.items()}


def anchor(name: str) -> str:
    """Returns the link to a section; the second of two names that differ in their capitals has a number."""
    twins = [n for n in itertools.chain(*stages().values()) if n.lower() == name.lower()]
    return name.lower() + (f"-{twins.index(name)}" if twins.index(name) else "")


def entry(name: str, thing: Any) -> str:
    """Returns the section of one name: signature, docstring, settings, methods."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"### {name}\n\n{inspect.getdoc(thing)}"
    text = (inspect.getdoc(thing) or "").partition("\n\nSettings:")[0]
    parts = [f"### {name}", f"```text\n{name.rpartition('.')[2]}{signature(thing)}\n```", f"```text\n{text}\n```"]
    if dataclasses.is_dataclass(thing):
        parts.append(settings(thing))
    if inspect.isclass(thing) and not issubclass(thing, mt.Method):
        parts.append(methods(thing))
    return "\n\n".join(filter(None, parts))


def signature(thing: Any) -> str:
    """Returns a signature without the kinds of arguments, one argument a line if it is long."""
    given = inspect.signature(thing)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values() if p.name != "self"]
    text = str(given.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<object object at \w+>|<factory>", "...", text)
    return text if len(text) < 110 else "(\n    " + text[1:-1].replace(", ", ",\n    ") + ",\n)"


def settings(kind: Any) -> str:
    """Returns a table of a dataclass's fields."""
    texts = field_texts(kind)
    rows = [(f.name, texts.get(f.name, "")) for f in dataclasses.fields(kind) if f.init]
    return "\n".join(
        ["| setting | |", "|---|---|", *(f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows)]
    )


def methods(kind: Any) -> str:
    """Returns a table of a class's own public methods and properties, with the first sentence of each docstring."""
    own = {
        name: value
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("multitudes")
        for name, value in vars(base).items()
    }
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    rows = []
    for name, value in own.items():
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        text = inspect.getdoc(inner) if callable(inner) else None
        if not name.startswith("_") and text and name not in fields:
            call = "" if isinstance(value, property) else "()"
            rows.append(f"| `{name}{call}` | {' '.join(text.split(chr(10) * 2)[0].split()).replace('|', chr(92) + '|')} |")
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else ""


def page() -> str:
    """Returns the whole page."""
    named = stages()
    head = (
        "# Reference\n\nEvery public name of `import multitudes as mt`, by stage; then three classes of its rooms.\n"
        "`help(mt.Packed)` shows the same in Python."
    )
    contents = "\n".join(f"- {stage}: {', '.join(f'[{n}](#{anchor(n)})' for n in names)}" for stage, names in named.items())
    sections = [head, contents]
    for stage, names in named.items():
        sections += [f"## {stage}", *(entry(name, getattr(mt, name)) for name in names)]
    sections += ["## Elsewhere", *(entry(name, thing) for name, thing in ELSEWHERE.items())]
    return "\n\n".join(sections) + "\n"


def main() -> int:
    """Prints, writes or checks the page."""
    option = next(iter(sys.argv[1:]), None)
    if option == "--write":
        PAGE.write_text(page(), encoding="utf-8")
    elif option == "--check":
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            print(f"{PAGE.name} is not current: python {sys.argv[0]} --write")
            return 1
    else:
        print(page() if option is None else __doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
