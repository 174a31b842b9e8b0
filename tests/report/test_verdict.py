"""The first sentences: gain, cost, whether the gain lasts, and where ensembles fail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from multitudes.report.groups import grouped
from multitudes.report.row import Row
from multitudes.report.verdict import Verdict, compared, verdict
from multitudes.scores import Scores

Make = Callable[..., Row]


def plain(judged: Verdict | None) -> str:
    """The sentences of a verdict as plain text."""
    assert judged is not None
    return re.sub(r"<.*?>", "", " ".join([judged.first, *judged.rest]))


def first_of(judged: Verdict | None) -> str:
    assert judged is not None
    return re.sub(r"<.*?>", "", judged.first)


def around(**scores: float) -> dict[str, Any]:
    """Scores, each with an interval of ± 0.02."""
    return {**scores, "intervals": {key.replace("__", "/"): (v - 0.02, v + 0.02) for key, v in scores.items()}}


def used_otherwise(**nll: float) -> dict[str, Scores]:
    """Variants by name with these NLLs, each with an interval of ± 0.02."""
    return {
        name.replace("_", " "): Scores({"nll": value}, task="classes", intervals={"nll": (value - 0.02, value + 0.02)})
        for name, value in nll.items()
    }


EARLY = {"single": 0.6, "good": 0.4, "poor": 0.6}
CALIBRATED = {"single": 0.7, "good": 0.3, "poor": 0.7}


def rows(scored: Make, calibrated: Mapping[str, float] = CALIBRATED, early: Mapping[str, float] = EARLY) -> list[Row]:
    """The single network with NLL 0.8, a better ensemble, and one that is no better."""
    base, cost = {"latency": 2.0, "multiply_adds": 1.0}, {"latency": 3.0, "multiply_adds": 9.0}
    made = {
        "single": around(nll=0.8, ece=0.1, accuracy=0.86, auroc__entropy=0.8),
        "good": around(nll=0.4, ece=0.02, accuracy=0.85, auroc__entropy=0.9),
        "poor": around(nll=0.79, ece=0.1, accuracy=0.80, auroc__entropy=0.7),
    }
    return [
        scored(
            name,
            method="Single()" if name == "single" else f"{name}()",
            cost=base if name == "single" else cost,
            variants=used_otherwise(best_epoch=early[name], calibrated=calibrated[name]),
            **scores,
        )
        for name, scores in made.items()
    ]


def test_gain_cost_and_failures_are_said(scored: Make) -> None:
    assert plain(verdict(grouped(rows(scored)))) == (
        "good is better calibrated than the single network, NLL 0.4000 instead of 0.8000 and ECE 0.0200 instead of 0.1000, at "
        "1.50 × its prediction time and 9.00 × its multiply-adds. At the epoch of the lowest validation NLL good is best: NLL "
        "0.4000 instead of 0.6000, at 1.50 × its prediction time and 9.00 × its multiply-adds. After temperature scaling good "
        "is best: NLL 0.3000 instead of 0.7000, at 1.50 × its prediction time and 9.00 × its multiply-adds. "
        "By NLL, 1 of 2 ensembles is clearly better than the single network, and none is clearly worse. At the epoch of the "
        "lowest validation NLL: 1 better, none worse. After temperature scaling: 1 better, none worse. "
        "Other scores against the single network: by accuracy 1 is clearly worse; "
        "by AUROC (entropy) 1 is clearly better and 1 clearly worse."
    )


def test_a_gain_that_vanishes_is_said_in_the_first_sentence(scored: Make) -> None:
    same = {"single": 0.4, "good": 0.4, "poor": 0.6}
    first = first_of(verdict(grouped(rows(scored, calibrated=same))))
    assert first.endswith("9.00 × its multiply-adds, but after temperature scaling it is no better.")
    first = first_of(verdict(grouped(rows(scored, calibrated=same, early=same))))
    assert first.endswith(", but at the epoch of the lowest validation NLL and after temperature scaling it is no better.")


def test_a_gain_of_the_best_that_another_ensemble_keeps_is_said_to_vanish(scored: Make) -> None:
    """The first sentence is about the best ensemble; another one names the ensemble that is better there, with its cost."""
    judged = verdict(grouped(rows(scored, calibrated={"single": 0.4, "good": 0.5, "poor": 0.3})))
    assert first_of(judged).endswith("9.00 × its multiply-adds, but after temperature scaling it is worse.")
    assert "After temperature scaling poor is best: NLL 0.3000 instead of 0.4000, at 1.50 × its prediction" in plain(judged)


def test_a_variant_that_was_not_measured_is_not_mentioned(scored: Make) -> None:
    made = rows(scored)
    made[1] = replace(made[1], variants={})
    assert "but" not in first_of(verdict(grouped(made)))


def test_better_calibrated_is_said_only_if_the_calibration_error_is_lower(scored: Make) -> None:
    pair = [scored("s", method="Single()", nll=0.8, ece=0.02), scored("deep", nll=0.6, ece=0.15)]
    assert plain(verdict(grouped(pair))).startswith(
        "deep has a better NLL than the single network, NLL 0.6000 instead of 0.8000"
    )


def test_scores_that_are_no_numbers(scored: Make) -> None:
    """A single network without a score is no baseline; an infinite one is worse than any ensemble; a NaN does not count."""
    deep, broken = scored("deep", nll=0.6, losses={"": torch.ones(4)}), scored("broken", nll=math.nan)
    assert verdict(grouped([scored("s", method="Single()", nll=math.nan), deep])) is None
    infinite = torch.tensor([1.0, math.inf, 1.0, 1.0])
    single = scored("s", method="Single()", nll=math.inf, losses={"": infinite})
    text = plain(verdict(grouped([single, deep, broken])))
    assert text.startswith("deep has a better NLL than the single network, NLL 0.6000 instead of ∞")
    first, *others = grouped([single, deep, broken])
    assert compared(first, others, "nll").of == 1


def test_no_gain_is_said(scored: Make) -> None:
    few = [row for row in rows(scored) if row.name != "good"]
    assert plain(verdict(grouped(few))).startswith(
        "No ensemble is clearly better than the single network, whose NLL is 0.8000. By NLL, the only "
        "ensemble is neither clearly better nor worse than the single network. At the epoch"
    )


def test_examples_decide_where_they_are_known(scored: Make) -> None:
    """Wide intervals overlap, but the ensemble is better on nearly every example; in the variant it is not."""
    torch.manual_seed(0)
    hard = torch.rand(500)
    wide = {"nll": (0.0, 1.0)}
    single = scored("s", method="Single()", nll=0.5, intervals=wide, losses={"": hard, "calibrated": hard})
    losses = {"": hard - 0.01 - 0.01 * torch.rand(500), "calibrated": hard + 0.1 * torch.randn(500)}
    other = scored("a", nll=0.49, intervals=wide, losses=losses)
    made = {name: Scores({"nll": 0.5}, task="classes", intervals=wide) for name in ("calibrated",)}
    first, second = grouped([replace(row, variants=made) for row in (single, other)])
    assert compared(first, [second], "nll").better == [second]
    assert compared(second, [first], "nll").worse == [first]
    assert compared(first, [second], "nll", "calibrated") == ([], [], 1)
    assert compared(first, grouped([replace(other, losses={})]), "nll") == ([], [], 1)


def test_touching_intervals_are_no_clear_difference(scored: Make) -> None:
    single = scored("s", method="Single()", nll=0.5, intervals={"nll": (0.4, 0.6)})
    near, far = scored("a", nll=0.35, intervals={"nll": (0.3, 0.4)}), scored("b", nll=0.7, intervals={"nll": (0.61, 0.8)})
    first, *others = grouped([single, near, far])
    result = compared(first, others, "nll")
    assert ([g.label for g in result.better], [g.label for g in result.worse], result.of) == ([], ["b"], 2)


def test_numbers_are_judged_by_nll_too(scored: Make) -> None:
    single = scored("s", task="gaussian", method="Single()", nll=1.0, rmse=2.0)
    better = scored("deep", task="gaussian", nll=0.5, rmse=1.0)
    assert plain(verdict(grouped([single, better]))).startswith(
        "deep has a better NLL than the single network, NLL 0.5000 instead of 1.0000 and RMSE 1.0000 instead "
        "of 2.0000, at a cost that was not measured."
    )


def test_without_a_single_network_or_a_proper_score_there_is_none(scored: Make) -> None:
    assert verdict(grouped([scored("a", nll=1.0), scored("b", nll=2.0)])) is None
    assert verdict(grouped([scored("s", method="Single()", accuracy=0.5), scored("b", accuracy=0.6)])) is None
    assert verdict(grouped([scored("s", method="Single()", nll=0.5)])) is None


def test_names_are_escaped(scored: Make) -> None:
    judged = verdict(grouped([scored("s", method="Single()", nll=2.0), scored("<i>", nll=1.0)]))
    assert judged is not None
    text = judged.first + judged.details()
    assert "&lt;i&gt;" in text
    assert "<i>" not in text
