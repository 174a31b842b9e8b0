"""Inline SVG: one drawing for both themes, unique ids, and no links to the outside."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch

from multitudes import figures
from multitudes.figures.theme import LOOKS, Theme
from multitudes.report import curves, svg

PAIR = (torch.tensor([0.9, 0.6, 0.7, 0.95]), torch.tensor([1, 0, 1, 1]).bool())
RUNS = {"a": PAIR, "b": (PAIR[0] * 0.9, PAIR[1])}
DRAWINGS = {
    "reliability": lambda theme: figures.reliability(RUNS, theme=theme),
    "risk_coverage": lambda theme: figures.risk_coverage(RUNS, theme=theme),
    "ood": lambda theme: figures.ood({"a": (torch.rand(50), torch.rand(40) + 0.4)}, theme=theme),
    "corruption": lambda theme: figures.corruption({"a": {1: [0.5, 0.6, 0.7], 2: [0.4, 0.5]}}, theme=theme),
    "severities": lambda theme: curves.severities({"a": {0: 0.9, 1: 0.8}}, score="Accuracy", theme=theme),
    "coverage": lambda theme: curves.coverage({"a": {0.5: 0.4, 0.9: 0.8}}, theme=theme),
    "cost_quality": lambda theme: figures.cost_quality(
        [{"name": "a", "cost": 1, "quality": 2, "size": 3}, {"name": "b", "cost": 4, "quality": 3, "size": 1}], theme=theme
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWINGS)
def test_one_drawing_stands_for_both_themes(name: str) -> None:
    """With CSS variables in place of colours, the dark drawing equals the light one."""
    torch.manual_seed(0)
    light = svg.inline(DRAWINGS[name], "x", "a label")
    torch.manual_seed(0)
    dark = svg.inline(DRAWINGS[name], "x", "a label", theme="dark")
    without = [
        re.sub(r"(x-)?[mp][0-9a-f]{10}", "", text) for text in (light, dark)
    ]  # ids that matplotlib derives from the drawing
    assert without[0] == without[1]
    assert not re.search(r"#[0-9a-f]{6}\b", light), "every colour is a CSS variable"


def test_a_heat_map_is_drawn_once_per_theme() -> None:
    text = svg.inline_both_themes(lambda theme: figures.disagreement([[0.0, 0.2], [0.2, 0.0]], theme=theme), "d", "label")
    light, dark = re.findall(r'<div class="only-(?:light|dark)">(<svg.*?</svg>)', text)
    assert light != dark


def test_text_is_text_and_escaped() -> None:
    evil = "</svg><script>&\"' ü漢"
    text = svg.inline(lambda theme: figures.risk_coverage({evil: PAIR}, theme=theme), "x", evil)
    found = ElementTree.fromstring(text)
    assert any(evil in (part.text or "") for part in found.iter("text"))
    assert found.attrib["aria-label"] == evil
    assert "<script" not in text


def test_ids_are_unique_links_internal_and_the_text_reproducible() -> None:
    first, second = (svg.inline(DRAWINGS["reliability"], name, "label") for name in ("one", "two"))
    ids = [re.findall(r' id="([^"]*)"', text) for text in (first, second)]
    assert ids[0]
    assert first.replace("one-", "two-") == second
    assert not set(ids[0]) & set(ids[1])
    for text, own in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([\w-]+)', text)) == set(own)
        assert "http" not in text
        assert "font-family" not in text


def test_runs_keep_the_colours_that_they_are_given() -> None:
    text = svg.inline(lambda theme: figures.risk_coverage({"a": PAIR}, theme=theme), "x", "l", [4])
    assert "var(--run-4)" in text
    assert "var(--run-0)" not in text


def test_matplotlib_keeps_its_settings() -> None:
    import matplotlib

    before = dict(dict.items(matplotlib.rcParams))
    svg.inline(DRAWINGS["severities"], "x", "l")
    assert dict(dict.items(matplotlib.rcParams)) == before


def test_long_curves_take_few_points() -> None:
    sure = torch.rand(50_000)
    text = svg.inline(lambda theme: figures.risk_coverage({"a": (sure, torch.rand(50_000) < sure)}, theme=theme), "x", "l")
    assert len(text) < 60_000


def test_every_role_of_a_theme_has_a_name() -> None:
    themes: list[Theme] = ["light", "dark"]
    for theme in themes:
        assert set(svg.css_names(LOOKS[theme]).values()) == {f"var(--{role})" for role in svg.css_variables(LOOKS[theme])}
