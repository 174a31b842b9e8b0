"""Figures of the report with their captions. Figures whose data the rows lack are left out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from multitudes import figures
from multitudes.report import curves, svg
from multitudes.report.groups import Group, corruptions, primary, ranked, ratios
from multitudes.report.row import Row
from multitudes.report.sources import confidence_and_correct, interval_coverage, member_differences, ood_scores, ood_sets
from multitudes.report.wording import cost, listed, safe, shortened, title, title_in_sentence
from multitudes.scores.meaning import meaning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = 6
"""Largest number of runs in a figure: one per colour of a theme."""

FEW = 3
"""Largest number of runs in figures with histograms or box plots."""

T = TypeVar("T")


class PageFigure(NamedTuple):
    """A figure with its caption."""

    section: str
    """Section of the page, a key of `page.PARTS`."""

    caption: str
    body: str
    """SVG."""

    def html(self) -> str:
        """Returns the figure and its caption as HTML."""
        return f"<figure>{self.body}<figcaption>{safe(self.caption)}</figcaption></figure>"


class DrawnGroups(NamedTuple):
    """The groups that figures show: the single network and the best others, each with a colour and a short name."""

    groups: tuple[Group, ...]
    names: Mapping[str, str]
    """Short name of a group in figures, by label."""

    choice: str
    """Which groups are shown, in words; empty if all are."""

    prefix: str = ""
    """The beginning of the figures' ids, which differs between the jobs of a page."""

    def note(self, over_seeds: bool = False) -> str:
        """Says which groups and seeds are shown, if not all. `over_seeds`: the figure averages over seeds."""
        seeds = "first seed of each method" if any(len(g.rows) > 1 for g in self.groups) and not over_seeds else ""
        shown = "; ".join(text for text in (self.choice, seeds) if text)
        return f"Shown: {shown}." if shown else ""

    def short_names(self, labels: Iterable[str]) -> list[str]:
        """Returns the short names of groups by their labels."""
        return [self.names[label] for label in labels]

    def colours(self, labels: Iterable[str]) -> list[int]:
        """Returns the colour indices of groups by their labels."""
        order = [group.label for group in self.groups]
        return [order.index(label) for label in labels]


def drawn_groups(groups: Sequence[Group], prefix: str = "") -> DrawnGroups:
    """Chooses the groups that figures show."""
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
    choice = ""
    if len(chosen) < len(groups):
        by = f" by {title_in_sentence(key)}" if key else ""
        best = (
            f"the single network and the {RUNS - 1} best other methods" if chosen[0].is_single else f"the {RUNS} best methods"
        )
        choice = f"{best}{by}"
    return DrawnGroups(tuple(chosen), names, choice, prefix)


def page_figures(groups: Sequence[Group], prefix: str = "") -> list[PageFigure]:
    """Returns all figures that can be drawn from the rows. Their ids begin with `prefix`."""
    chosen = drawn_groups(groups, prefix)
    drawn = [cost_quality(groups, chosen, key) for key in dict.fromkeys((primary(groups), "accuracy", "crps")) if key][:2]
    drawn += [reliability(chosen), risk_coverage(chosen), coverage(chosen)]
    drawn += [ood(chosen, name) for name in dict.fromkeys(n for group in chosen.groups for n in ood_sets(group.first))]
    drawn += [corruption(chosen, key) for key in ("accuracy", "ece", "rmse")]
    drawn += [diversity(chosen, group) for group in _with_members(chosen.groups)[:FEW]]
    return [figure for figure in drawn if figure is not None]


def _with_members(groups: Iterable[Group]) -> list[Group]:
    """Returns the groups whose rows have the predictions of several members."""
    return [group for group in groups if member_differences(group.first) is not None]


def diversity_note(groups: Sequence[Group]) -> str:
    """Says how many of the ensembles with members' predictions have a figure of their diversity, if not all."""
    count = len(_with_members(groups))
    shown = f"the {FEW} best of {count} methods that have members' predictions" if count > FEW else ""
    seeds = "first seed of each method" if any(len(group.rows) > 1 for group in groups) else ""
    text = "; ".join(part for part in (shown, seeds) if part)
    return f"Shown: {text}." if text else ""


def cost_quality(groups: Sequence[Group], chosen: DrawnGroups, key: str) -> PageFigure | None:
    """Draws every group as a disc at its cost and score."""
    known = [group for group in groups if (v := group.value(key)) is not None and math.isfinite(v.mean)]
    choices = [name for name in ("latency", "multiply_adds", "memory", "parameters", "seconds") if _all_cost(known, name)]
    if not choices or len(known) < 2:
        return None
    axis = choices[0]
    area = "parameters" if _all_cost(known, "parameters") else axis
    across, scale = _scaled(known, axis)
    sizes, unit = _scaled(known, area)
    shades = {label: index for index, label in enumerate(group.label for group in chosen.groups)}
    discs = [
        {
            "name": chosen.names[group.label],
            "cost": across[group.label],
            "quality": group.value(key).mean,  # type: ignore[union-attr]
            "size": sizes[group.label],
            "style": shades.get(group.label),
        }
        for group in known
    ]
    better = meaning(key).better
    words: dict[str, Any] = {
        "cost": f"{title(axis).lower()}{scale}",
        "size": f"{title(area).lower()}{unit}",
        "quality": title(key),
    }
    log = max(across.values()) > 20 * min(across.values())
    body = svg.inline(
        lambda theme: figures.cost_quality(discs, **words, log=log, theme=theme),
        f"{chosen.prefix}cost-{key}",
        f"Cost and quality of {listed([chosen.names[g.label] for g in known])}: {title(key)} over {words['cost']}",
    )
    best = {"higher": "the upper left is best", "lower": "the lower left is best"}[better]
    grey = " Grey: methods that the other figures leave out." if len(known) > len(shades) else ""
    return PageFigure("cost", f"{title(key)} over {words['cost']}; {best}. Disc areas show {words['size']}.{grey}", body)


def _all_cost(groups: Sequence[Group], key: str) -> bool:
    return all((group.cost(key) or 0) > 0 for group in groups)


def _scaled(groups: Sequence[Group], key: str) -> tuple[dict[str, float], str]:
    """Returns a cost by label, with its unit: relative to the single network if known for all groups, else in units."""
    relative = ratios(groups, key)
    if len(relative) == len(groups):
        return dict(relative), ", single network = 1"
    values = {group.label: group.cost(key) or 0.0 for group in groups}
    unit = cost(key, max(values.values())).split(" ")
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3}.get(unit[-1], 1.0)
    suffix = f" ({unit[-1]})" if factor != 1 else " (seconds)" if key in ("latency", "seconds") else ""
    return {label: value / factor for label, value in values.items()}, suffix


def _by_label(chosen: DrawnGroups, read: Callable[[Row], T | None]) -> dict[str, T]:
    """Reads a value from the first row of each group; groups without it are left out."""
    return {group.label: value for group in chosen.groups if (value := read(group.first)) is not None}


def _curves(
    chosen: DrawnGroups,
    read: Callable[[Row], Any],
    draw: Callable[..., Figure],
    name: str,
    label: str,
    caption: str,
) -> PageFigure | None:
    """Draws one curve per run from the values that `read` returns, or no figure if there are none."""
    values = _by_label(chosen, read)
    if not values:
        return None
    names = chosen.short_names(values)
    runs = dict(zip(names, values.values(), strict=True))
    body = svg.inline(
        lambda theme: draw(runs, theme=theme), f"{chosen.prefix}{name}", f"{label} of {listed(names)}", chosen.colours(values)
    )
    return PageFigure("reliability", caption, body)


def reliability(chosen: DrawnGroups) -> PageFigure | None:
    """Draws accuracy by confidence."""
    draw = functools.partial(figures.reliability, bins=chosen.groups[0].first.scores.settings.bins)
    text = "Accuracy by confidence. Vertical lines are the gaps that the calibration error averages. Below: examples per bin."
    return _curves(chosen, confidence_and_correct, draw, "reliability", "Reliability diagram", text)


def risk_coverage(chosen: DrawnGroups) -> PageFigure | None:
    """Draws the error rate among the most confident predictions."""
    text = "Error rate (risk) if only the most confident predictions are accepted. Lower is better."
    return _curves(chosen, confidence_and_correct, figures.risk_coverage, "risk-coverage", "Risk and coverage", text)


def coverage(chosen: DrawnGroups) -> PageFigure | None:
    """Draws the coverage of prediction intervals of a regression."""
    text = "Share of targets inside central prediction intervals. Above the diagonal intervals are too wide, below too narrow."
    return _curves(chosen, interval_coverage, curves.coverage, "coverage", "Coverage of the intervals", text)


def ood(chosen: DrawnGroups, name: str) -> PageFigure | None:
    """Draws histograms of the OOD score on the test set and on the OOD set `name`, and the ROC."""
    every = _by_label(chosen, lambda row: ood_scores(row, name))
    if not every:
        return None
    criterion = next(iter(every.values()))[2]
    alike = {label: pair[:2] for label, pair in every.items() if pair[2] == criterion}
    names = chosen.short_names(alike)
    runs = dict(zip(names, alike.values(), strict=True))
    where = f"{chosen.prefix}ood-{ood_index(chosen, name)}"
    label = f"{criterion.capitalize()} on the test set and on {name}, and the ROC, for {listed(names)}"

    def draw(kind: str, columns: int) -> str:
        body = svg.inline(
            lambda theme: figures.ood(
                runs, score=criterion, name=shortened(name, 20), histograms=FEW, columns=columns, theme=theme
            ),
            f"{where}-{kind}",
            label,
            chosen.colours(alike),
        )
        return f'<div class="{kind}">{body}</div>'

    rest = f" Histograms of the first {FEW} methods." if len(alike) > FEW else ""
    text = f"{criterion.capitalize()} on the test set and on {name}, and the ROC of detecting {name} by a threshold on it."
    return PageFigure("ood", f"{text}{rest}", draw("wide", 2) + draw("narrow", 1))


def ood_index(chosen: DrawnGroups, name: str) -> int:
    """Returns the index of an OOD set, for HTML ids: its name may hold characters that ids may not."""
    return list(dict.fromkeys(n for group in chosen.groups for n in ood_sets(group.first))).index(name)


def corruption(chosen: DrawnGroups, key: str) -> PageFigure | None:
    """Draws a score on corrupted inputs by severity: box plots for few runs with several corruptions, else lines."""
    by_severity = {group.label: run for group in chosen.groups if len(run := group.shifted(key)) > 1}
    if not by_severity:
        return None
    names = chosen.short_names(by_severity)
    boxes = {g.label: values for g in chosen.groups if (values := _boxes(g, key))}
    label = f"{title(key)} on corrupted inputs by severity, for {listed(names)}"
    draw: Callable[..., Figure] = curves.severities
    runs: Mapping[str, Any] = by_severity
    caption = f"{title(key)} on the corrupted test set by severity, averaged over corruptions and seeds."
    if set(boxes) == set(by_severity) and len(boxes) <= FEW:
        draw, runs = figures.corruption, boxes
        caption = (
            f"{title(key)} by severity: median, quartiles (box) and extremes (whiskers) over corruptions, for the first seed."
        )
    by_name = dict(zip(names, runs.values(), strict=True))
    body = svg.inline(
        lambda theme: draw(by_name, score=title(key), theme=theme),
        f"{chosen.prefix}corruption-{key}",
        label,
        chosen.colours(runs),
    )
    return PageFigure("corruption", caption, body)


def _boxes(group: Group, key: str) -> dict[int, list[float]]:
    """Returns a score of several corruptions by severity, without values that are not finite."""
    finite = {s: [v for v in values if math.isfinite(v)] for s, values in corruptions(group, key).items()}
    return {severity: values for severity, values in finite.items() if len(values) > 1}


def diversity(chosen: DrawnGroups, group: Group) -> PageFigure | None:
    """Draws the disagreement of each pair of members."""
    matrix = member_differences(group.first)
    if matrix is None:
        return None
    numbers = group.first.scores.task in ("gaussian", "regression")
    label = "Root mean square difference" if numbers else "Share of examples on which they differ"
    name = chosen.names[group.label]
    index = [one.label for one in chosen.groups].index(group.label)
    body = svg.inline_both_themes(
        lambda theme: figures.disagreement(matrix, label=label, title=f"Members of {name}", theme=theme),
        f"{chosen.prefix}diversity-{index}",
        f"Disagreement of the members of {name}",
    )
    return PageFigure("diversity", f"{group.label}: {label[:1].lower()}{label[1:]}, for each pair of members.", body)
