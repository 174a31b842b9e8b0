"""The tables: columns, bold cells, and the values the script sorts by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import multitudes as mt
from multitudes.report.groups import grouped
from multitudes.report.row import Row
from multitudes.report.table import columns, glossary, halves, legend, table

Make = Callable[..., Row]
MUTUAL = ["mutual", "information"]


def cells(text: str, row: str) -> list[str]:
    """Returns the cells of a row."""
    (line,) = re.findall(rf'<tr><th scope="row" data-value="{row}">.*?</tr>', text)
    return re.findall(r"<td.*?</td>", line)


def test_main_scores_come_first_then_detection_costs_and_other_scores(made: Make) -> None:
    row = made(cost={"parameters": 3, "single_parameters": 1, "watts": 2, "latency": 1.0, "step": 2.0}, seconds=3.0)
    row = Row(**{**vars(row), "scores": mt.score(row.prediction, ood={"svhn": row.prediction})})
    first, rest = columns(grouped([row]))
    titles = (
        "NLL, ECE, Accuracy, AUROC svhn (entropy), Training step, Prediction time, Parameters, Watts, AUROC svhn (best), "
        "Training, Brier, AURC"
    ).split(", ")
    assert [column.title for column in first] == titles
    main, others = halves(first)
    assert ([column.title for column in main], [column.title for column in others]) == (titles[:-2], titles[-2:])
    assert {"MCE", "Disagreement", "AUROC svhn (MSP)"} <= {column.title for column in rest}
    assert not {column.key for column in first} & {column.key for column in rest}


def test_each_method_has_its_own_best_ood_score_beside_the_common_one(scored: Make) -> None:
    """Over seeds the best is that of the mean; its name is in the cell, and the best of all methods is bold."""
    rows = [
        scored("a", auroc__entropy=0.7, auroc__msp=0.8, auroc__mutual_information=0.75),
        scored("b", seed=0, auroc__entropy=0.7, auroc__msp=0.5, auroc__mutual_information=0.9),
        scored("b", seed=1, auroc__entropy=0.7, auroc__msp=0.99, auroc__mutual_information=0.86),
    ]
    groups = grouped(rows)
    first, _ = columns(groups)
    text = table(groups, first, "t", "all")
    assert [column.key for column in first] == ["auroc/entropy", "auroc/best"]
    assert [re.sub("<[^>]*>", " ", cells(text, row)[1]).split() for row in "ab"] == [["0.8000", "MSP"], ["0.8800", *MUTUAL]]
    assert ["<strong>" in cells(text, row)[1] for row in "ab"] == [False, True]
    assert "best for the method" in legend(groups, first)
    alone = grouped([scored("a", auroc__entropy=0.7)])
    assert [column.key for column in columns(alone)[0]] == ["auroc/entropy"], "there is nothing to choose from"


def test_many_ood_sets_leave_room_for_the_costs(scored: Make) -> None:
    sets = {f"{name}__auroc__entropy": 0.7 for name in ("svhn", "lsun", "dtd")}
    row = replace(scored("a", accuracy=0.9, brier=0.2, **sets), cost={"parameters": 3.0})
    first, _ = columns(grouped([row]))
    assert [column.key.partition("/")[0] for column in first] == ["accuracy", "brier", "svhn", "lsun", "parameters", "dtd"]
    assert halves(first) == (first, [])
    assert halves(first[:2]) == (first[:2], []), "without costs and OOD sets all scores are in one table"


def test_single_corruptions_are_no_columns(scored: Make) -> None:
    first, rest = columns(grouped([scored("a", accuracy=0.9, cAcc=0.7, fog__1__accuracy=0.6, fog__rCE=0.9)]))
    assert [column.key for column in [*first, *rest]] == ["accuracy", "cAcc"]


def test_the_best_and_those_within_its_interval_are_bold(scored: Make) -> None:
    rows = [
        scored("a", accuracy=0.9, nll=0.5, intervals={"accuracy": (0.88, 0.92)}),
        scored("b", accuracy=0.89, nll=0.3),
        scored("c", accuracy=0.87, nll=math.nan, cost={"parameters": 1.0}),
    ]
    groups = grouped(rows)
    text = table(groups, columns(groups)[0], "t", "all")
    assert [["<strong>" in cell for cell in cells(text, row)] for row in "abc"] == [
        [False, True, False],
        [True, True, False],
        [False, False, False],
    ]
    assert "0.8800 – 0.9200" in cells(text, "a")[1]
    assert 'data-value="0.9"' in cells(text, "a")[1]
    assert cells(text, "c")[0] == '<td data-value="">NaN</td>', "NaN sorts last and is not the best"
    assert cells(text, "a")[2] == '<td class="none">–</td>'


def test_seeds_show_their_deviation(scored: Make) -> None:
    groups = grouped([scored("a", seed=seed, accuracy=0.9 + seed / 100) for seed in range(3)])
    text = table(groups, columns(groups)[0], "t", "all")
    assert "0.9100" in text
    assert "± 0.0100" in text
    assert "3 seeds" in text
    assert "standard deviation over seeds" in legend(groups, [])


def test_headers_show_the_better_direction_and_the_sorted_column(scored: Make) -> None:
    groups = grouped([scored("a", accuracy=0.9, nll=math.inf), scored("b", accuracy=0.8, nll=1)])
    text = table(groups, columns(groups)[0], "t", "all", "accuracy")
    heads = re.findall(r'<th scope="col".*?</th>', text)
    assert 'aria-sort="descending"' in heads[2]
    assert 'data-first="descending"' in heads[2]
    assert "↑" in heads[2]
    assert "aria-sort" not in heads[1]
    assert 'data-first="ascending"' in heads[1]
    assert 'data-value="Infinity">∞' in cells(text, "a")[0]


def test_costs_are_ratios_with_the_number_below(scored: Make) -> None:
    groups = grouped([scored("a", accuracy=0.9, cost={"parameters": 3e6, "single_parameters": 2e6})])
    text = table(groups, columns(groups)[0], "t", "all")
    assert '1.50 ×<span class="range">3 M</span>' in text
    assert "relative to the single network" in legend(groups, columns(groups)[0])


def test_names_are_escaped_everywhere(scored: Make) -> None:
    evil = "<b>\"'&"
    groups = grouped([scored(evil, **{f"{evil}__auroc__entropy": 0.5, f"{evil}": 0.1})])
    shown = [column for part in columns(groups) for column in part]
    text = table(groups, shown, "t", "all") + glossary(shown)
    assert "<b>" not in text
    assert text.count("&lt;b&gt;&quot;&#x27;&amp;") >= 3
