"""Plates: the figures of a report, each with what it shows in a sentence; those that the rows have nothing for are left out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from multitudes import figures
from multitudes.report import curves, svg
from multitudes.report.groups import Group, corruptions, primary, ranked, ratios
from multitudes.report.row import Row
from multitudes.report.sources import confidence_and_correct, interval_coverage, member_differences, ood_scores, ood_sets
from multitudes.report.wording import cost, listed, safe, shortened, title, title_in_sentence
from multitudes.scores.meaning import meaning

RUNS = 6
"""Runs in a figure: as many as a theme has colours."""

FEW = 3
"""Runs whose histograms are shown, and whose corruptions have boxes."""

T = TypeVar("T")


class PageFigure(NamedTuple):
    """A figure of the page."""

    part: str
    """The part of the page that it stands in."""

    caption: str
    body: str
    """Its SVG."""

    def html(self) -> str:
        """The figure with its caption."""
        return f"<figure>{self.body}<figcaption>{safe(self.caption)}</figcaption></figure>"


class DrawnGroups(NamedTuple):
    """Who is drawn: the single network and the best of the others, each with a colour and a name of its own."""

    groups: tuple[Group, ...]
    names: Mapping[str, str]
    """What figures call a group, by its label."""

    said: str
    """Who that is, where it is not everyone, and which seed."""

    def who(self, found: Mapping[str, Any]) -> list[str]:
        """The names of those that have something."""
        return [self.names[label] for label in found]

    def colours(self, found: Mapping[str, Any]) -> list[int]:
        """Their colours."""
        order = [group.label for group in self.groups]
        return [order.index(label) for label in found]


def drawn_groups(groups: Sequence[Group]) -> DrawnGroups:
    """Those that are drawn."""
    key = primary(groups)
    order = ranked(groups, key)
    order = [*[group for group in order if group.is_single][:1], *[group for group in order if not group.is_single]]
    chosen = order[:RUNS]
    names: dict[str, str] = {}
    for group in groups:
        name = shortened(group.label)
        name = name if not name.startswith("_") else f" {name}"
        taken = sum(other == name or other.startswith(f"{name} #") for other in names.values())
        names[group.label] = f"{name} #{taken + 1}" if taken else name
    said = []
    if len(chosen) < len(groups):
        what = f" by {title_in_sentence(key)}" if key else ""
        said.append(
            f"the single network and the {RUNS - 1} best others{what}" if chosen[0].is_single else f"the {RUNS} best{what}"
        )
    if any(len(group.rows) > 1 for group in chosen):
        said.append("the first seed of each")
    return DrawnGroups(tuple(chosen), names, f"Drawn are {', '.join(said)}." if said else "")


def page_figures(groups: Sequence[Group]) -> list[PageFigure]:
    """All figures that the rows have something for."""
    chosen = drawn_groups(groups)
    found = [cost_quality(groups, chosen, key) for key in dict.fromkeys((primary(groups), "nll", "crps")) if key][:2]
    found += [reliability(chosen), risk_coverage(chosen), coverage(chosen)]
    found += [ood(chosen, name) for name in dict.fromkeys(n for group in chosen.groups for n in ood_sets(group.first))]
    found += [corruption(chosen, key) for key in ("accuracy", "ece", "rmse", "lpd")]
    found += [diversity(chosen, group) for group in [g for g in chosen.groups if member_differences(g.first) is not None][:FEW]]
    return [plate for plate in found if plate is not None]


def cost_quality(groups: Sequence[Group], chosen: DrawnGroups, key: str) -> PageFigure | None:
    """Every group as a disc."""
    known = [group for group in groups if (v := group.value(key)) is not None and math.isfinite(v.mean)]
    choices = [name for name in ("multiply_adds", "latency", "memory", "parameters", "seconds") if _all_cost(known, name)]
    if not choices or len(known) < 2:
        return None
    axis = choices[0]
    area = "parameters" if _all_cost(known, "parameters") else axis
    across, scale = _scaled(known, axis)
    sizes, unit = _scaled(known, area)
    discs = [
        {"name": chosen.names[g.label], "cost": across[g.label], "quality": g.value(key).mean, "size": sizes[g.label]}  # type: ignore[union-attr]
        for g in known
    ]
    better = meaning(key).better
    words: dict[str, Any] = {
        "cost": f"{title(axis).lower()}{scale}",
        "size": f"{title(area).lower()}{unit}",
        "quality": title(key),
    }
    log = max(across.values()) > 20 * min(across.values())
    body = svg.inline(
        lambda theme: figures.cost_quality(discs, **words, log=log, theme=theme), f"cost-{key}",
        f"Cost and quality of {listed([chosen.names[g.label] for g in known])}: {title(key)} over {words['cost']}",
    )  # fmt: skip
    best = {"higher": "the upper left is best", "lower": "the lower left is best"}[better]
    return PageFigure("cost", f"{title(key)} over {words['cost']}: {best}. Areas are {words['size']}.", body)


def _all_cost(groups: Sequence[Group], key: str) -> bool:
    return all((group.cost(key) or 0) > 0 for group in groups)


def _scaled(groups: Sequence[Group], key: str) -> tuple[dict[str, float], str]:
    """A cost against the single network's where all know it, else in its unit."""
    against = ratios(groups, key)
    if len(against) == len(groups):
        return dict(against), ", single network = 1"
    values = {group.label: group.cost(key) or 0.0 for group in groups}
    unit = cost(key, max(values.values())).split(" ")
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3}.get(unit[-1], 1.0)
    named = f" ({unit[-1]})" if factor != 1 else " (seconds)" if key in ("latency", "seconds") else ""
    return {label: value / factor for label, value in values.items()}, named


def _having(chosen: DrawnGroups, values: Mapping[str, T | None]) -> dict[str, T]:
    return {group.label: value for group in chosen.groups if (value := values.get(group.label)) is not None}


def _curves(
    chosen: DrawnGroups,
    read: Callable[[Row], Any],
    draw: Callable[..., Any],
    name: str,
    label: str,
    caption: str,
) -> PageFigure | None:
    """A figure of one curve for each run that has what it is drawn from."""
    found = _having(chosen, {group.label: read(group.first) for group in chosen.groups})
    if not found:
        return None
    names = chosen.who(found)
    runs = dict(zip(names, found.values(), strict=True))
    body = svg.inline(lambda theme: draw(runs, theme=theme), name, f"{label} of {listed(names)}", chosen.colours(found))
    return PageFigure("reliability", caption, body)


def reliability(chosen: DrawnGroups) -> PageFigure | None:
    """How often answers came true."""
    draw = functools.partial(figures.reliability, bins=chosen.groups[0].first.scores.settings.bins)
    text = "How often answers came true, by how sure they were; below, how many. Upright lines are the gaps that ECE sums."
    return _curves(chosen, confidence_and_correct, draw, "reliability", "Reliability diagram", text)


def risk_coverage(chosen: DrawnGroups) -> PageFigure | None:
    """Errors among those kept."""
    text = "Errors that remain if only the most confident answers are kept: the lower, the better."
    return _curves(chosen, confidence_and_correct, figures.risk_coverage, "risk-coverage", "Risk and coverage", text)


def coverage(chosen: DrawnGroups) -> PageFigure | None:
    """How often intervals of a regression hold."""
    text = "Targets inside of central intervals. Above the diagonal intervals are too wide, below it too narrow."
    return _curves(chosen, interval_coverage, curves.coverage, "coverage", "Coverage of the intervals", text)


def ood(chosen: DrawnGroups, name: str) -> PageFigure | None:
    """In and out of distribution."""
    every = _having(chosen, {group.label: ood_scores(group.first, name) for group in chosen.groups})
    if not every:
        return None
    criterion = next(iter(every.values()))[2]
    found = {label: pair[:2] for label, pair in every.items() if pair[2] == criterion}
    found = dict(list(found.items())[:FEW])
    names = chosen.who(found)
    runs = dict(zip(names, found.values(), strict=True))
    where = f"ood-{ood_index(chosen, name)}"
    label = f"{criterion.capitalize()} in distribution and on {name}, and the ROC, for {listed(names)}"
    drawings = [
        f'<div class="{kind}">'
        + svg.inline(
            lambda theme, columns=columns: figures.ood(runs, score=criterion, columns=columns, theme=theme),  # type: ignore[misc]
            f"{where}-{kind}", label, chosen.colours(found),
        )
        + "</div>"
        for kind, columns in (("wide", 2), ("narrow", 1))
    ]  # fmt: skip
    left = f" Shown are {len(found)} of {len(every)}; the table has all." if len(found) < len(every) else ""
    text = f"{criterion.capitalize()} on the test set and on {name}, and how well a threshold on it tells them apart."
    return PageFigure("ood", f"{text}{left}", "".join(drawings))


def ood_index(chosen: DrawnGroups, name: str) -> int:
    """A foreign set's number on the page: its name may be anything."""
    return list(dict.fromkeys(n for group in chosen.groups for n in ood_sets(group.first))).index(name)


def corruption(chosen: DrawnGroups, key: str) -> PageFigure | None:
    """A score by severity."""
    found = {group.label: run for group in chosen.groups if len(run := group.shifted(key)) > 1}
    if not found:
        return None
    names = chosen.who(found)
    boxes = {g.label: own for g in chosen.groups if (own := _boxes(g, key))}
    label = f"{title(key)} on corrupted inputs by severity, for {listed(names)}"
    if set(boxes) == set(found) and len(boxes) <= FEW:
        runs = dict(zip(names, boxes.values(), strict=True))
        body = svg.inline(
            lambda theme: figures.corruption(runs, score=title(key), theme=theme), f"corruption-{key}", label,
            chosen.colours(found),
        )  # fmt: skip
        return PageFigure("corruption", f"{title(key)} over corruptions, by severity: quartiles, median and extremes.", body)
    lines = dict(zip(names, found.values(), strict=True))
    body = svg.inline(
        lambda theme: curves.severities(lines, score=title(key), theme=theme), f"corruption-{key}", label, chosen.colours(found)
    )
    return PageFigure(
        "corruption", f"{title(key)} on the corrupted test set, by severity; the mean over corruptions and seeds.", body
    )


def _boxes(group: Group, key: str) -> dict[int, list[float]]:
    """A score under several corruptions, as far as it is a number."""
    found = {s: [v for v in values if math.isfinite(v)] for s, values in corruptions(group, key).items()}
    return {severity: values for severity, values in found.items() if len(values) > 1}


def diversity(chosen: DrawnGroups, group: Group) -> PageFigure | None:
    """Members two by two."""
    matrix = member_differences(group.first)
    if matrix is None:
        return None
    numbers = group.first.scores.task in ("gaussian", "regression")
    label = "Root mean square difference" if numbers else "Share of examples on which they differ"
    index = [one.label for one in chosen.groups].index(group.label)
    body = svg.inline_both_themes(
        lambda theme: figures.disagreement(matrix, label=label, theme=theme), f"diversity-{index}",
        f"Disagreement of the members of {chosen.names[group.label]}",
    )  # fmt: skip
    return PageFigure("diversity", f"{group.label}: {label[:1].lower()}{label[1:]}, members two by two.", body)
