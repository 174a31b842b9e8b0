"""Figures of the page: which figures a row has, which groups they show, and their captions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

from multitudes.report import svg
from multitudes.report.groups import grouped
from multitudes.report.page_figures import (
    RUNS,
    corruption,
    cost_quality,
    diversity,
    diversity_note,
    drawn_groups,
    ood,
    page_figures,
)
from multitudes.report.row import Row

Make = Callable[..., Row]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the drawing: these tests ask which figures there are. The tests of the page draw them."""
    monkeypatch.setattr(svg, "inline", lambda draw, name, label, *rest, **more: "<svg></svg>")


def parts(rows: list[Row]) -> list[str]:
    return [figure.section for figure in page_figures(grouped(rows))]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("classes", ["reliability", "reliability", "diversity"]),
        ("multilabel", ["reliability", "reliability", "diversity"]),
        ("gaussian", ["reliability", "diversity"]),
        ("regression", ["reliability", "diversity"]),
    ],
)
def test_a_task_has_the_figures_that_fit_it(made: Make, task: str, expected: list[str]) -> None:
    assert parts([made(task=task)]) == expected


def test_scores_alone_have_no_figure(scored: Make) -> None:
    assert parts([scored("a", accuracy=0.9), scored("b", accuracy=0.8)]) == []


def test_scores_with_their_examples_have_figures(made: Make) -> None:
    assert parts([dataclasses.replace(made(), prediction=None)]) == ["reliability", "reliability"]


def test_figures_show_the_single_network_and_the_best(scored: Make) -> None:
    rows = [scored(f"m{index}", accuracy=index / 100) for index in range(20)]
    rows.insert(3, scored("single", accuracy=0.0, method="Single(members=1)"))
    found = drawn_groups(grouped(rows))
    assert [group.label for group in found.groups] == ["single", "m19", "m18", "m17", "m16", "m15"]
    assert len(found.groups) == RUNS
    assert found.note() == "Shown: the single network and the 5 best other methods by accuracy."
    few = [scored("a", seed=seed, accuracy=0.5) for seed in (0, 1)]
    assert drawn_groups(grouped(few)).note() == "Shown: first seed of each method."
    assert drawn_groups(grouped(few)).note(over_seeds=True) == drawn_groups(grouped(rows[:2])).note() == ""


def test_names_in_figures_are_short_and_different(scored: Make) -> None:
    rows = [scored(name, accuracy=0.5) for name in ("x" * 80, "x" * 81, "x" * 82, "_hidden", "$a$")]
    names = list(drawn_groups(grouped(rows)).names.values())
    assert len(set(names)) == 5
    assert max(map(len, names)) < 36
    assert not any(name.startswith("_") for name in names)


def test_cost_is_drawn_against_the_single_network_or_in_its_unit(scored: Make) -> None:
    rows = [
        scored(name, accuracy=0.9, cost={"parameters": size * 1e6, "multiply_adds": size * 1e9})
        for name, size in (("a", 1), ("b", 4))
    ]
    groups = grouped(rows)
    figure = cost_quality(groups, drawn_groups(groups), "accuracy")
    assert figure is not None
    assert "multiply-adds (G); the upper left is best" in figure.caption
    assert "parameters (M)" in figure.caption
    groups = grouped([dataclasses.replace(row, method="Single()") if row.name == "a" else row for row in rows])
    figure = cost_quality(groups, drawn_groups(groups), "accuracy")
    assert figure is not None
    assert "multiply-adds, single network = 1" in figure.caption


def test_an_unknown_cost_is_not_drawn(scored: Make) -> None:
    for second in (
        {"accuracy": math.nan, "cost": {"parameters": 1}},
        {"accuracy": 0.5},
        {"accuracy": 0.5, "cost": {"parameters": 0}},
    ):
        groups = grouped([scored("a", accuracy=0.9, cost={"parameters": 1}), scored("b", **second)])
        assert cost_quality(groups, drawn_groups(groups), "accuracy") is None


def test_corruptions_of_few_runs_are_boxes(scored: Make) -> None:
    by_name = {f"c{index}__{severity}__accuracy": 0.5 + index / 10 for index in range(3) for severity in (1, 2)}
    few, many = ([scored(f"m{i}", accuracy=0.9, **by_name) for i in range(count)] for count in (2, 5))
    captions = [figure.caption for rows in (few, many) if (figure := corruption(drawn_groups(grouped(rows)), "accuracy"))]
    assert "quartiles" in captions[0]
    assert "averaged over corruptions" in captions[1]
    assert corruption(drawn_groups(grouped(few)), "nll") is None


def test_severities_are_lines(scored: Make) -> None:
    corrupted = {
        f"fog__{s}__{key}": value for s in range(1, 6) for key, value in (("accuracy", 0.9 - s / 10), ("ece", math.nan))
    }
    rows = [scored("a", accuracy=0.9, ece=0.1, **corrupted)]
    assert parts(rows) == ["corruption"]


def test_ood_sets_have_a_figure_each_in_two_widths(made: Make) -> None:
    others = {"<svhn>": made(seed=3).prediction, "textures": made(seed=4).prediction}
    chosen = drawn_groups(grouped([made(ood=others)]))
    first, second = (ood(chosen, name) for name in others)
    assert first is not None
    assert second is not None
    assert first.html().count("<svg") == 2
    assert "&lt;svhn&gt;" in first.html()
    assert "<svhn>" not in first.html()
    assert ood(chosen, "nothing") is None


def test_the_caption_of_diversity_names_the_group(made: Make) -> None:
    chosen = drawn_groups(grouped([made("a"), made("b", task="gaussian")]))
    captions = [figure.caption for group in chosen.groups if (figure := diversity(chosen, group))]
    assert captions[0].startswith("a: share of examples")
    assert captions[1].startswith("b: root mean square")


def test_the_note_of_diversity_says_how_many_are_shown(made: Make) -> None:
    rows = [made(f"m{index}", seed=index) for index in range(5)]
    assert diversity_note(grouped(rows)) == "Shown: the 3 best of 5 methods that have members' predictions."
    assert diversity_note(grouped(rows[:3])) == ""
    assert diversity_note(grouped([made("a", seed=0), made("a", seed=1)])) == "Shown: first seed of each method."


def test_a_figure_of_diversity_has_its_method_as_title(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "inline_both_themes", lambda draw, name, label: draw("light").axes[0].get_title("left"))
    chosen = drawn_groups(grouped([made("packed")]))
    found = diversity(chosen, chosen.groups[0])
    assert found is not None
    assert found.body == "Members of packed"
