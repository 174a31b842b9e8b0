"""report: runs compared on one page, with everything in it: no file beside it, and no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from torch import Tensor

from multitudes.errors import FileError, InputError
from multitudes.figures.theme import LOOKS
from multitudes.report import svg
from multitudes.report.examples import examples
from multitudes.report.groups import Group, grouped, primary, ranked
from multitudes.report.page_figures import drawn_groups, page_figures
from multitudes.report.row import Row
from multitudes.report.summary import highlights, summary, warning
from multitudes.report.table import Column, columns, glossary, legend, table
from multitudes.report.wording import counted, duration, safe
from multitudes.scores.scores import Scores

PARTS = {
    "scores": "Scores",
    "cost": "Cost and quality",
    "reliability": "Reliability",
    "ood": "Out of distribution",
    "corruption": "Corrupted inputs",
    "diversity": "Diversity",
    "examples": "Examples",
    "reproduce": "Reproduce",
}
"""The parts of the page, with their headings."""


def report(
    rows: Sequence[Row | Scores],
    path: str | PathLike[str],
    *,
    title: str = "multitudes: a comparison",
    images: Tensor | None = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Writes a page that compares these rows, or plain scores, and returns where it is.

    images    of the test set, in the order of the predictions: bytes, or floats from 0 to 1, ``[N, C, H, W]``
    classes   the classes' names

    Rows that differ by their seed alone are one line, with the mean and the standard deviation. What a row does not hold is not
    shown: plain scores are a table, and what figures their examples allow.
    """
    from multitudes.storage import write

    groups = grouped(rows)
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    write(target, page(groups, title, images, classes).encode("utf-8", "replace"))
    return target


def page(groups: Sequence[Group], title: str, images: Tensor | None, classes: Sequence[str] | None) -> str:
    """The page as text."""
    if isinstance(classes, str):
        raise InputError("classes are several names: give a list of them")
    chosen = drawn_groups(groups)
    best = ranked(groups, primary(groups))
    first, rest = columns(groups)
    drawn: dict[str, str] = {}
    for plate in page_figures(groups):
        drawn[plate.part] = drawn.get(plate.part, "") + plate.html()
    several = any(len(group.rows) > 1 for group in groups)
    said = {"cost": "Every method, the mean over its seeds." if several else ""}
    said["diversity"] = f"The best of those whose members’ answers were kept{'; the first seed of each' if several else ''}."
    parts = {name: _plates(body, said.get(name, chosen.said)) for name, body in drawn.items()}
    colours = {group.label: index for index, group in enumerate(chosen.groups)} if drawn.keys() - {"cost", "diversity"} else {}
    parts["scores"] = _scores(best, first, rest, colours)
    parts["examples"] = examples(best, images, classes)
    parts["reproduce"] = "".join(_reproduce(group) for group in best)
    kept = {name: parts[name] for name in PARTS if parts.get(name)}
    script = _file("page.js")
    return Template(_file("page.html")).substitute(
        title=safe(title), script=script, style=_style(), lead=summary(groups), warning=warning(groups),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(), highlights=highlights(groups, first),
        links="".join(f'<li><a href="#{name}">{PARTS[name]}</a></li>' for name in kept),
        parts="".join(_part(name, body) for name, body in kept.items()), version=safe(_version()),
    )  # fmt: skip


def _part(name: str, body: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{PARTS[name]}</h2>{body}</section>'


def _plates(body: str, said: str) -> str:
    note = f'<p class="note">{safe(said)}</p>' if said else ""
    return f'{note}<div class="figures">{body}</div>'


def _scores(groups: Sequence[Group], first: Sequence[Column], rest: Sequence[Column], colours: Mapping[str, int]) -> str:
    """The first table, what its columns are, and the second one for those who ask."""
    said = legend(groups, first)
    found = table(groups, first, "table", "Scores and costs, best first", primary(groups), colours)
    found += f'<p class="note">{said}</p>'
    found += f"<details><summary>What the columns are</summary>{glossary(first)}</details>"
    if rest:
        more = table(groups, rest, "all", "All other scores")
        found += f"<details><summary>{counted(len(rest), 'more score')}</summary>{more}{glossary(rest)}</details>"
    return found


def _reproduce(group: Group) -> str:
    """How to get a group's rows again: the method, the command of each seed, the settings."""
    row = group.first
    lines = [f"<dt>Method</dt><dd><code>{safe(row.method)}</code></dd>"] if row.method else []
    commands = dict.fromkeys(row.command for row in group.rows if row.command)
    shown = "".join(f'<pre class="command" tabindex="0">{safe(command)}</pre>' for command in commands)
    lines += [f"<dt>{'Commands' if len(commands) > 1 else 'Command'}</dt><dd>{shown}</dd>"] if commands else []
    seeds = ", ".join(str(row.seed) for row in group.rows)
    lines += [f"<dt>{'Seeds' if len(group.rows) > 1 else 'Seed'}</dt><dd>{seeds}</dd>"]
    times = [duration(row.seconds) for row in group.rows if row.seconds is not None]
    lines += [f"<dt>Training</dt><dd>{', '.join(times)}</dd>"] if times else []
    lines += [f"<dt>{safe(name)}</dt><dd>{_setting(value)}</dd>" for name, value in row.settings.items()]
    return f'<details class="row"><summary>{safe(group.label)}</summary><dl class="settings">{"".join(lines)}</dl></details>'


def _setting(value: Any) -> str:
    """A setting, laid out if it has parts."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        return f'<pre tabindex="0">{safe(json.dumps(value, indent=1, ensure_ascii=False))}</pre>'
    return f"<code>{safe(value if isinstance(value, str) else json.dumps(value))}</code>"


def _style() -> str:
    """The page's style, with the colours of both themes as figures have them."""
    themes = {
        name: " ".join(f"--{role}: {colour};" for role, colour in svg.css_variables(look).items())
        for name, look in LOOKS.items()
    }
    return Template(_file("page.css")).substitute(themes)


def _file(name: str) -> str:
    return resources.files("multitudes.report").joinpath(name).read_text(encoding="utf-8")


def _version() -> str:
    from multitudes.version import __version__

    return __version__
