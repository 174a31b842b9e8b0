"""Writes the page of a census: rates, a grid of networks and methods for each library, and every reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from statistics import median

from multitudes.report.census import LIBRARIES, OUTCOMES, UNCOUNTED, Rate, Result, counts, goal, group, rate, rates
from multitudes.report.page import framed
from multitudes.report.table import SIGN
from multitudes.report.wording import counted, duration, safe
from multitudes.storage import write
from multitudes.terminal import megabytes

SYMBOLS = {
    "ok": "✓", "refused": "–", "wrong": "✗", "timeout": "∞", "memory": "■", "error": "!", "impossible": "∅", "not built": "·",
}  # fmt: skip
"""Signs of the outcomes, beside their colours."""

TITLES = {"timm": "timm", "transformers": "transformers", "geometric": "torch-geometric", "own": "Written by hand"}
ORDER = tuple(OUTCOMES)


def write_page(results: Sequence[Result], path: Path) -> Path:
    """Writes the page of these results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, census_page(results).encode("utf-8", "replace"))
    return path


def census_page(results: Sequence[Result]) -> str:
    """Returns the page as text."""
    style = resources.files("multitudes.report").joinpath("census.css").read_text(encoding="utf-8")
    numbers = {result.key: index for index, result in enumerate(results)}
    parts = {"Rates": ("rates", _rates(results) + _key(results))}
    for library in LIBRARIES:
        own = [result for result in results if result.library == library]
        if own:
            parts[TITLES[library]] = (library, _grid(own, library, numbers))
    listed = [result for result in results if result.outcome != "ok" or result.notes]
    if listed:
        parts["Reasons"] = ("reasons", _reasons(listed, numbers))
    return framed("multitudes: census of networks and methods", _summary(results), parts, style=style)


def _summary(results: Sequence[Result]) -> str:
    """Returns one sentence: how many pairs are right, how many are silently wrong, and the seconds of a conversion."""
    total = rate(results)
    if total.share is None:
        return "No pair of network and method was tried."
    wrong = sum(result.outcome == "wrong" for result in results)
    broken = f"{counted(wrong, 'conversion')} broke a comparison" if wrong else "no conversion broke a comparison"
    times = [result.conversion for result in results if result.outcome == "ok" and result.conversion is not None]
    taken = f"; a conversion takes {duration(median(times))} at the median, {duration(max(times))} at most" if times else ""
    networks, methods = (len({key(result) for result in results}) for key in (lambda r: r.key[:2], lambda r: r.method))
    return (
        f"<strong>{total.share:.1%}</strong> of {counted(total.tried, 'pair')} ({counted(networks, 'network')}, "
        f"{counted(methods, 'method')}) are converted and right; {broken}{taken}."
    )


def _rates(results: Sequence[Result]) -> str:
    """Returns the table of rates by group of methods and library."""
    every = rates(results)
    libraries = list(next(iter(every.values()), {}))
    heads = "".join(_head(TITLES[name]) for name in libraries) + _head("All") + _head("Goal")
    lines = []
    for name, row in every.items():
        total = rate(result for result in results if group(result.method) == name)
        cells = "".join(_rate_cell(each, goal(name)) for each in (*row.values(), total))
        title = name[0].upper() + name[1:]
        lines.append(
            f'<tr><th scope="row" data-value="{safe(name)}"><span class="name">{safe(title)}</span></th>{cells}'
            f'<td data-value="{goal(name)}">{goal(name):.0%}</td></tr>'
        )
    return _table("rates-table", "Pairs that are ok, of those tried", "Methods", heads, lines)


def _rate_cell(found: Rate, wanted: float) -> str:
    if found.share is None:
        return '<td class="none">–</td>'
    mark = '<span class="reached" title="the goal is reached">✓</span> ' if found.share >= wanted else ""
    return f'<td data-value="{found.share}">{mark}{found.percent}<span class="range">{found}</span></td>'


def _key(results: Sequence[Result]) -> str:
    """Returns the meaning of signs and colours, with the number of pairs of each."""
    left_out = rate(results).left_out
    lines = [
        f'<li><span class="pair {_css(name)}">{SYMBOLS[name]}</span>{count:,} {safe(OUTCOMES[name])}</li>'
        for name, count in counts(results).items()
    ]
    note = "Numbers in the grids are the seconds of the conversion with its own checks. Click a sign for its reason."
    rest = f" {counted(left_out, 'pair')} ({', '.join(UNCOUNTED)}) are not in the rates." if left_out else ""
    return f'<ul class="key">{"".join(lines)}</ul><p class="note">{note}{rest}</p>'


def _grid(results: Sequence[Result], library: str, numbers: Mapping[tuple[str, str, str], int]) -> str:
    """Returns the grid of a library: a line for each network, a column for each method."""
    methods = sorted({result.method for result in results})
    rows: dict[str, dict[str, Result]] = {}
    for result in results:
        rows.setdefault(result.network, {})[result.method] = result
    heads = "".join(_head(name) for name in methods)
    lines = []
    for network, row in rows.items():
        family = next(iter(row.values())).family
        below = f'<span class="range" title="{safe(network)}">{safe(network)}</span>' if network != family else ""
        cells = "".join(_cell(row.get(name), numbers) for name in methods)
        name = f'<th scope="row" data-value="{safe(family)}"><span class="name">{safe(family)}</span>{below}</th>'
        lines.append(f"<tr>{name}{cells}</tr>")
    return _table(f"{library}-grid", f"Networks of {TITLES[library]} and methods", "Family", heads, lines, "grid")


def _cell(result: Result | None, numbers: Mapping[tuple[str, str, str], int]) -> str:
    if result is None:
        return '<td class="none" data-value=""></td>'
    shown = f'<span class="symbol" aria-label="{safe(result.outcome)}">{SYMBOLS[result.outcome]}</span>'
    seconds = "" if result.conversion is None else f'<span class="range">{result.conversion:.1f} s</span>'
    css, about = f"pair {_css(result.outcome)}", safe(f"{result.outcome}: {_first_line(result)}")
    if result.outcome == "ok" and not result.notes:
        body = f'<span class="{css}" title="{safe(_costs(result))}">{shown}{seconds}</span>'
    else:
        body = f'<a class="{css}" href="#pair-{numbers[result.key]}" title="{about}">{shown}{seconds}</a>'
    return f'<td data-value="{ORDER.index(result.outcome)}">{body}</td>'


def _reasons(results: Sequence[Result], numbers: Mapping[tuple[str, str, str], int]) -> str:
    """Returns the list of what is not ok, the worst first, with the whole reason."""
    severity = ("wrong", "error", "memory", "timeout", "refused", "impossible", "not built", "ok")
    lines = []
    for result in sorted(results, key=lambda each: severity.index(each.outcome)):
        symbol = f'<span class="symbol" aria-hidden="true">{SYMBOLS[result.outcome]}</span>'
        sign = f'<span class="pair {_css(result.outcome)}">{symbol} {result.outcome}</span>'
        reason = f'<pre tabindex="0">{safe(result.reason)}</pre>' if result.reason else ""
        notes = "".join(f'<p class="note">Not compared: {safe(note)}</p>' for note in result.notes)
        lines.append(
            f'<li id="pair-{numbers[result.key]}"><h3>{sign}{safe(result.network)} × {safe(result.method)} '
            f'<span class="range">{safe(TITLES[result.library])}, {safe(_costs(result))}</span></h3>{reason}{notes}</li>'
        )
    return f'<ul class="reasons">{"".join(lines)}</ul>'


def _costs(result: Result) -> str:
    parts = [] if result.conversion is None else [f"converted in {duration(result.conversion)}"]
    parts += [f"{duration(result.seconds)} in all"]
    parts += [] if result.memory is None else [f"{megabytes(result.memory)} at the peak"]
    return ", ".join(parts)


def _first_line(result: Result) -> str:
    return result.reason.splitlines()[0] if result.reason else "; ".join(result.notes)


def _css(outcome: str) -> str:
    return outcome.replace(" ", "-")


def _head(title: str) -> str:
    return f'<th scope="col"><button type="button" data-first="descending">{safe(title)}{SIGN}</button></th>'


def _table(name: str, caption: str, first: str, heads: str, lines: Sequence[str], css: str = "") -> str:
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}-caption"><table id="{name}" class="{css}">'
        f'<caption id="{name}-caption">{safe(caption)}</caption><thead><tr>'
        f'<th scope="col"><button type="button" data-first="ascending">{first}{SIGN}</button></th>'
        f"{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )
