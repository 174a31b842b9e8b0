"""The top of the page: its sentence, cards and warning."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from multitudes.report.groups import grouped
from multitudes.report.row import Row
from multitudes.report.summary import highlights, summary, warning
from multitudes.report.table import columns

Make = Callable[..., Row]


def plain(text: str) -> str:
    return re.sub(r"<.*?>", "", text)


def twice(size: float) -> dict[str, float]:
    return {"multiply_adds": 2.0 * size, "parameters": size**0.5}


def test_the_summary_names_data_best_method_and_cost(scored: Make) -> None:
    settings = {"data": "svhn", "network": "LeNet"}
    rows = [
        scored("deep", accuracy=0.9, settings=settings, cost=twice(4), intervals={"accuracy": (0.8, 1)}),
        scored("single", accuracy=0.7, method="Single()", settings=settings, cost=twice(1)),
        scored("packed", accuracy=0.89, settings=settings, cost=twice(1)),
    ]  # fmt: skip
    assert plain(summary(grouped(rows))) == (
        "Best of 3 methods on svhn with LeNet: deep, with accuracy 0.9000 at 4.00 × the multiply-adds and 2.00 × the "
        "parameters of the single network. packed lies within its interval at 1.00 × the multiply-adds."
    )


def test_lower_is_better_where_it_is(scored: Make) -> None:
    rows = [scored("a", task="regression", rmse=2), scored("b", task="regression", rmse=1, seconds=90.0)]
    expected = "Best of 2 methods for regression: b, with RMSE 1.0000 after 1 min 30 s of training."
    assert plain(summary(grouped(rows))) == expected


def test_seeds_are_named_and_one_row_is_not_the_best_of_anything(scored: Make) -> None:
    rows = [scored("a", seed=seed, accuracy=0.5 + seed / 10, cost={"parameters": 2e6}) for seed in (0, 1)]
    assert plain(summary(grouped(rows))) == "a for classification, 2 seeds each: accuracy 0.5500 ± 0.0707 at 2 M parameters."


def test_the_single_network_can_be_best(scored: Make) -> None:
    rows = [scored("s", accuracy=0.9, method="Single()"), scored("b", accuracy=0.8)]
    assert "s (the single network), with accuracy 0.9000." in plain(summary(grouped(rows)))


def test_nan_and_unknown_scores_are_no_best(scored: Make) -> None:
    for scores in ({"accuracy": math.nan}, {"foo": 1.0}):
        assert plain(summary(grouped([scored("a", **scores), scored("b", **scores)]))) == "2 methods for classification."


def test_strings_are_escaped(scored: Make) -> None:
    rows = [scored("<i>", accuracy=0.9, settings={"data": "<i>", "network": "<i>"}), scored("b", accuracy=0.8)]
    assert "<i>" not in summary(grouped(rows)) + highlights(grouped(rows), columns(grouped(rows))[0])


def test_highlights_have_a_card_for_each_kind_of_score(scored: Make) -> None:
    groups = grouped([scored("a", accuracy=0.9, ece=0.1, brier=0.2), scored("b", accuracy=0.8, ece=0.05, brier=0.3)])
    text = highlights(groups, columns(groups)[0])
    assert re.findall(r"<dt>(.*?)</dt>", text) == ["Accuracy, highest", "ECE, lowest"]
    assert re.findall(r'class="winner">(.*?)<', text) == ["a", "b"]
    assert highlights(groups[:1], columns(groups)[0]) == ""


def test_different_budgets_give_a_warning(scored: Make) -> None:
    a, b = scored("a", accuracy=1, settings={"budget": "x"}), scored("b", accuracy=1, settings={"budget": "<y>"})
    assert "different budgets (x, &lt;y&gt;)" in warning(grouped([a, b]))
    assert warning(grouped([a])) == ""
