"""Writes the report: one self-contained HTML page without other files and without network requests."""

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
from multitudes.report.examples import Images, examples
from multitudes.report.groups import Group, by_job, grouped, primary, ranked
from multitudes.report.page_figures import diversity_note, drawn_groups, page_figures
from multitudes.report.row import Row
from multitudes.report.summary import highlights, summary, warning
from multitudes.report.table import Column, columns, glossary, halves, legend, table, variant_columns
from multitudes.report.verdict import verdict
from multitudes.report.wording import counted, duration, listed, safe
from multitudes.scores.scores import Scores
from multitudes.settings import takes_names
from multitudes.storage import write
from multitudes.version import __version__

PARTS = {
    "scores": "Scores",
    "variants": "Another epoch, or calibration",
    "cost": "Cost and quality",
    "reliability": "Reliability",
    "ood": "Out-of-distribution detection",
    "corruption": "Corrupted inputs",
    "diversity": "Diversity",
    "examples": "Examples",
    "reproduce": "Reproduce",
}
"""Sections of the page, with their headings."""


@takes_names()
def report(
    rows: Sequence[Row | Scores],
    path: str | PathLike[str],
    *,
    title: str = "multitudes: a comparison",
    images: Tensor | None = None,
    ood_images: Mapping[str, Tensor] | None = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Writes an HTML page that compares rows or plain scores, and returns its path.

    images      images of the test set in the order of the predictions, ``[N, C, H, W]``: uint8, or float from 0 to 1
    ood_images  the same for out-of-distribution sets, by name
    classes     names of the classes

    Rows that differ only in their seed become one line with mean and standard deviation. Rows of several jobs (data and task)
    have a part of the page for each job, without images. Figures whose data the rows lack are left out.
    """
    groups = grouped(rows)
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    write(target, page(groups, title, Images(images, ood_images or {}), classes).encode("utf-8", "replace"))
    return target


def page(groups: Sequence[Group], title: str, images: Images, classes: Sequence[str] | None) -> str:
    """Returns the page as text."""
    if isinstance(classes, str):
        raise InputError("classes= must be a list of names, not one str: classes=['cat', 'dog']")
    jobs = by_job(groups)
    if len(jobs) > 1:
        return _page_of_jobs(jobs, title)
    header, sections = _of_one_job(groups, images, classes)
    return framed(title, header.pop("summary"), {PARTS[name]: (name, body) for name, body in sections.items()}, **header)


def _page_of_jobs(jobs: Mapping[str, Sequence[Group]], title: str) -> str:
    """Returns the page of several jobs, a part for each: nothing is compared across jobs, whose scores say nothing together."""
    parts = {}
    for index, (name, groups) in enumerate(jobs.items(), 1):
        header, sections = _of_one_job(groups, Images(), None, f"job-{index}-")
        body = f'<p class="summary">{header["summary"]}</p>{header["details"]}{header["warning"]}{header["highlights"]}'
        body += "".join(_part(PARTS[key], f"job-{index}-{key}", own, level=3) for key, own in sections.items())
        parts[name] = (f"job-{index}", body)
    names = safe(listed(list(jobs)))
    first = f"{counted(len(jobs), 'job')}: {names}. Each has a part of its own: scores are compared within a job."
    return framed(title, first, parts)


def _of_one_job(
    groups: Sequence[Group], images: Images, classes: Sequence[str] | None, prefix: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns what stands above the sections (summary, details, warning, highlights), and the sections by their key.

    prefix    the beginning of all ids of HTML
    """
    chosen = drawn_groups(groups)
    best = ranked(groups, primary(groups))
    first, rest = columns(groups)
    drawn: dict[str, str] = {}
    for figure in page_figures(groups, prefix):
        drawn[figure.section] = drawn.get(figure.section, "") + figure.html()
    several = any(len(group.rows) > 1 for group in groups)
    notes = {"cost": "All methods, averaged over seeds." if several else ""}
    notes["diversity"] = diversity_note(groups)
    notes["corruption"] = chosen.note(over_seeds=True)
    parts = {name: _figures(body, notes.get(name, chosen.note())) for name, body in drawn.items()}
    colours = {group.label: index for index, group in enumerate(chosen.groups)} if drawn.keys() - {"diversity"} else {}
    parts["scores"] = _scores(best, first, rest, colours, prefix)
    parts["variants"] = _variants(best, prefix)
    parts["examples"] = examples(best, images, classes)
    parts["reproduce"] = "".join(_reproduce(group) for group in best)
    judged = verdict(groups)
    header = {
        "summary": shaded(summary(groups) if judged is None else judged.first, colours),
        "details": "" if judged is None else shaded(judged.details(), colours),
        "warning": warning(groups),
        "highlights": highlights(groups, first),
    }
    return header, {name: parts[name] for name in PARTS if parts.get(name)}


def shaded(text: str, colours: Mapping[str, int]) -> str:
    """Gives the names of methods in a sentence the colour that they have in figures and tables."""
    for label, index in colours.items():
        name = f"{safe(label)}</strong>"
        text = text.replace(f"<strong>{name}", f'<strong style="--shade: var(--run-{index})">{name}')
    return text


def framed(title: str, summary: str, parts: Mapping[str, tuple[str, str]], *, style: str = "", **header: str) -> str:
    """Returns a page with header, links and sections; `parts` has the id and the HTML of each section by its heading.

    style    CSS that is added to that of the report
    header   HTML for the header: details, warning, highlights
    """
    script = _file("page.js")
    return Template(_file("page.html")).substitute(
        title=safe(title),
        script=script,
        style=_style() + style,
        summary=summary,
        first=next((name for name, _ in parts.values()), ""),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        links="".join(f'<li><a href="#{name}">{safe(heading)}</a></li>' for heading, (name, _) in parts.items()),
        parts="".join(_part(heading, name, body) for heading, (name, body) in parts.items()),
        version=safe(__version__),
        **{"details": "", "warning": "", "highlights": "", **header},
    )


def _part(heading: str, name: str, body: str, level: int = 2) -> str:
    head = f'<h{level} id="{name}-title">{safe(heading)}</h{level}>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{body}</section>'


def _figures(body: str, note: str) -> str:
    above = f'<p class="note">{safe(note)}</p>' if note else ""
    return f'{above}<div class="figures">{body}</div>'


def _scores(
    groups: Sequence[Group], first: Sequence[Column], rest: Sequence[Column], colours: Mapping[str, int], prefix: str
) -> str:
    """Returns the HTML of the tables of main scores and costs, with legend and glossary, and of a collapsed one of all else."""
    main, others = halves(first)
    text = table(groups, main, f"{prefix}table", "Scores and costs, best first", primary(groups), colours)
    text += f'<p class="note">{legend(groups, first)}</p>'
    if others:
        text += table(groups, others, f"{prefix}others", "Other main scores", None, colours)
    text += f"<details><summary>What the columns mean</summary>{glossary(first)}</details>"
    if rest:
        more = table(groups, rest, f"{prefix}all", "All other scores")
        text += f"<details><summary>{counted(len(rest), 'more score')}</summary>{more}{glossary(rest)}</details>"
    return text


def _variants(groups: Sequence[Group], prefix: str) -> str:
    """Returns the HTML of the table of variants; empty if rows have none."""
    shown = variant_columns(groups)
    if not shown:
        return ""
    note = (
        "Best epoch: that of the lowest validation NLL, or the highest density. Calibrated: after temperature scaling on the "
        "validation set, in a regression after scaling of variances."
    )
    return f'<p class="note">{note}</p>{table(groups, shown, f"{prefix}variants-table", "The same runs, used otherwise")}'


def _reproduce(group: Group) -> str:
    """Returns the method, commands, seeds and settings of a group as HTML."""
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
    """Returns the HTML of a setting; nested settings as indented JSON."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        return f'<pre tabindex="0">{safe(json.dumps(value, indent=1, ensure_ascii=False))}</pre>'
    return f"<code>{safe(value if isinstance(value, str) else json.dumps(value))}</code>"


def _style() -> str:
    """Returns the CSS, with the colours of both figure themes filled in."""
    themes = {
        name: " ".join(f"--{role}: {colour};" for role, colour in svg.css_variables(look).items())
        for name, look in LOOKS.items()
    }
    return Template(_file("page.css")).substitute(themes)


def _file(name: str) -> str:
    return resources.files("multitudes.report").joinpath(name).read_text(encoding="utf-8")
