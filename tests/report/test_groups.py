"""Groups: rows that differ only in their seed become one line; others stay apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from multitudes.errors import InputError
from multitudes.report.groups import by_job, grouped, leaders, primary, ranked, ratios
from multitudes.report.row import Row
from multitudes.scores.scores import Scores

Make = Callable[..., Row]


def test_seeds_are_one_line_with_mean_and_deviation(scored: Make) -> None:
    given = [
        scored("a", seed=seed, accuracy=value, settings={"recipe": {"seed": seed}}) for seed, value in ((2, 0.8), (0, 0.6))
    ]
    (group,) = grouped(given)
    value = group.value("accuracy")
    assert value is not None
    assert value.mean == pytest.approx(0.7)
    assert value.spread == pytest.approx(math.sqrt(0.02))
    assert value.error == pytest.approx(math.sqrt(0.02) / math.sqrt(2))
    assert [row.seed for row in group.rows] == [0, 2]


def test_rows_that_differ_in_more_than_their_seed_stay_apart(scored: Make) -> None:
    rows = [
        scored("a", accuracy=0.1),
        scored("a", seed=1, accuracy=0.1, method="b()"),
        scored("a", seed=2, accuracy=0.1, settings={"epochs": 3}),
        scored("a", accuracy=0.1),
        scored("a", seed=3, accuracy=0.1),
    ]
    assert [(group.label, len(group.rows)) for group in grouped(rows)] == [("a", 2), ("a (2)", 1), ("a (3)", 1), ("a (4)", 1)]


def test_plain_scores_have_a_name() -> None:
    found = grouped([Scores({"nll": 1.0}, task="classes"), Scores({"nll": 1.0}, task="classes")])
    assert [group.label for group in found] == ["run 1", "run 2"]


@pytest.mark.parametrize("given", [[], Scores({}, task="classes"), [3], "x", None])
def test_only_lists_of_rows_or_scores_are_accepted(given: object) -> None:
    with pytest.raises(InputError):
        grouped(given)  # type: ignore[arg-type]


def test_the_primary_score_is_the_one_most_groups_have(scored: Make) -> None:
    assert primary(grouped([scored("a", accuracy=0.1, nll=1), scored("b", rmse=0.1)])) == "nll"
    assert primary(grouped([scored("a", rmse=1, nll=2, lpd=-2)])) == "nll"
    assert primary(grouped([scored("a", miou=1, accuracy=2)])) == "miou"
    assert primary(grouped([scored("a", foo=1)])) is None


def test_ranks_follow_the_direction_and_nan_is_last(scored: Make) -> None:
    groups = grouped([scored("a", rmse=math.nan), scored("b", rmse=2), scored("c", rmse=1), scored("d", nll=0)])
    assert [group.label for group in ranked(groups, "rmse")] == ["c", "b", "a", "d"]
    groups = grouped([scored("a", accuracy=math.nan), scored("b", accuracy=0.2), scored("c", accuracy=0.1)])
    assert [group.label for group in ranked(groups, "accuracy")] == ["b", "c", "a"]


def test_leaders_are_the_best_and_those_within_its_interval(scored: Make) -> None:
    near = scored("near", accuracy=0.89, intervals={"accuracy": (0.8, 0.9)})
    best = scored("best", accuracy=0.9, intervals={"accuracy": (0.88, 0.92)})
    far = scored("far", accuracy=0.87, intervals={"accuracy": (0.8, 0.95)})
    groups = grouped([far, near, best, scored("none", accuracy=math.nan)])
    assert [group.label for group in leaders(groups, "accuracy")] == ["best", "near"]
    assert leaders(groups, "nll") == []
    assert leaders(grouped([best]), "accuracy") == [], "a single group is not the best"


def test_the_best_leads_even_outside_its_interval(scored: Make) -> None:
    """The bootstrap interval of a calibration error may lie above it, and an interval may be NaN."""
    for interval in ((0.02, 0.05), (math.nan, math.nan)):
        best = scored("best", ece=0.01, intervals={"ece": interval})
        assert leaders(grouped([best, scored("b", ece=0.1)]), "ece")[0].label == "best"


def test_no_direction_has_no_leader(scored: Make) -> None:
    assert leaders(grouped([scored("a", disagreement=0.1), scored("b", disagreement=0.2)]), "disagreement") == []


def test_ratios_are_the_rows_own_or_against_single(scored: Make) -> None:
    own = scored("a", cost={"parameters": 6.0, "single_parameters": 3.0})
    single, other = scored("s", method="Single()", cost={"parameters": 2.0}), scored("b", cost={"parameters": 5.0})
    assert ratios(grouped([own, other]), "parameters") == {"a": 2.0}
    assert ratios(grouped([own, other, single]), "parameters") == {"a": 2.0, "b": 2.5, "s": 1.0}
    assert ratios(grouped([own]), "latency") == {}


def test_the_single_row_is_the_baseline_of_the_page(scored: Make) -> None:
    """Each run times a single network of its own; the page has one row of it, whose ratio is 1."""
    size = {"parameters": 2.0, "single_parameters": 2.0}
    single = scored("s", method="Single()", cost={**size, "step": 4.0, "single_step": 2.8})
    packed = scored("p", cost={**size, "step": 6.0, "single_step": 5.0})
    other = scored("o", cost={"parameters": 9.0, "single_parameters": 9.0, "step": 6.0, "single_step": 3.0})
    assert ratios(grouped([packed, single, other]), "step") == {"p": 1.5, "s": 1.0, "o": 2.0}, "o is of another network"
    assert ratios(grouped([packed]), "step") == {"p": 1.2}


def test_a_score_of_a_severity_is_the_mean_over_corruptions(scored: Make) -> None:
    (group,) = grouped([scored("a", accuracy=0.9, fog__1__accuracy=0.6, snow__1__accuracy=0.8)])
    assert group.shifted("accuracy") == {0: 0.9, 1: pytest.approx(0.7)}
    assert group.shifted("nll") == {}


def test_infinite_scores_have_a_mean(scored: Make) -> None:
    (group,) = grouped([scored("a", seed=0, nll=math.inf), scored("a", seed=1, nll=1.0)])
    value = group.value("nll")
    assert value is not None
    assert value.mean == math.inf


def test_jobs_differ_in_task_data_or_name(scored: Make) -> None:
    a, b = scored("a", accuracy=1, settings={"data": "x"}), scored("a", accuracy=1, settings={"data": "y"})
    jobs = by_job(grouped([a, b]))
    assert {name: [group.label for group in groups] for name, groups in jobs.items()} == {"x": ["a"], "y": ["a"]}
    number = scored("c", task="gaussian", rmse=1, settings={"data": "x"})
    assert list(by_job(grouped([a, number]))) == ["x (classes)", "x (gaussian)"]
    assert len(by_job(grouped([a, scored("b", accuracy=1)]))) == 1, "a row that does not say its data is compared"
