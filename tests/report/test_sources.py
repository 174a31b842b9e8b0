"""Data of the figures: scores of the drawn numbers equal those of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

import multitudes as mt
from multitudes.prediction.prediction import Prediction
from multitudes.report import sources
from multitudes.report.row import Row
from multitudes.scores import calibration, detection

Make = Callable[..., Row]


@pytest.mark.parametrize("task", ["classes", "binary", "multilabel", "dense"])
def test_the_calibration_error_in_the_figure_is_that_of_the_table(made: Make, task: str) -> None:
    row = made(task=task)
    for given in (row, dataclasses.replace(row, prediction=None)):
        pair = sources.confidence_and_correct(given)
        assert pair is not None
        assert calibration.ece(*pair) == pytest.approx(row.scores["ece"], abs=1e-6)


def test_targets_that_are_no_class_do_not_count(made: Make) -> None:
    row = made(task="dense")
    assert row.prediction is not None
    targets = row.prediction.targets.clone()  # type: ignore[union-attr]
    targets[:, 0] = 255
    row.prediction.targets = targets
    pair = sources.confidence_and_correct(row)
    assert pair is not None
    assert len(pair[0]) == 30 * 4 * 4


def test_rows_without_the_data_have_none(made: Make, scored: Make) -> None:
    bare = scored("a", accuracy=0.5)
    assert sources.confidence_and_correct(bare) is None
    assert sources.ood_scores(bare, "svhn") is None
    assert sources.member_differences(bare) is None
    assert sources.interval_coverage(bare) is None
    assert sources.confidence_and_correct(made(task="gaussian")) is None
    assert sources.interval_coverage(made()) is None
    assert sources.member_differences(made(members=1)) is None


@pytest.mark.parametrize("task", ["classes", "gaussian"])
def test_the_auroc_in_the_figure_is_that_of_the_table(made: Make, task: str) -> None:
    row = made(task=task)
    assert row.prediction is not None
    other = made(task=task, seed=5).prediction
    scores = mt.score(row.prediction, ood={"svhn": other})
    for given in (
        dataclasses.replace(row, ood={"svhn": other}),
        dataclasses.replace(row, prediction=None, scores=scores),
    ):
        found = sources.ood_scores(given, "svhn")
        assert found is not None
        inside, outside, criterion = found
        assert criterion == ("entropy" if task == "classes" else "variance")
        score = torch.cat([inside, outside])
        assert detection.auroc(score, torch.arange(len(score)) >= len(inside)) == pytest.approx(
            scores[f"svhn/auroc/{criterion}"]
        )
        assert sources.ood_sets(given) == ["svhn"]


def test_members_differ_by_labels_or_by_means(made: Make) -> None:
    matrix = sources.member_differences(made())
    assert matrix is not None
    assert matrix.shape == (3, 3)
    off = (matrix.sum() - matrix.trace()) / 6
    assert float(off) == pytest.approx(made().scores["disagreement"])
    pred = Prediction(mean=torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    row = dataclasses.replace(made(task="gaussian"), prediction=pred)
    found = sources.member_differences(row)
    assert found is not None
    torch.testing.assert_close(found, torch.tensor([[0.0, 12.5**0.5], [12.5**0.5, 0.0]], dtype=torch.float64))


def test_coverage_grows_with_the_level_and_meets_the_score(made: Make) -> None:
    row = made(task="gaussian")
    found = sources.interval_coverage(row)
    assert found is not None
    assert list(found.values()) == sorted(found.values())
    assert found[0.95] == pytest.approx(row.scores["coverage"])


def test_one_network_with_means_only_has_no_coverage(made: Make) -> None:
    assert sources.interval_coverage(made(task="regression", members=1)) is None


def test_thinning_keeps_the_ends() -> None:
    found = sources.thinned(torch.arange(1000), most=10)
    assert len(found) == 10
    assert (int(found[0]), int(found[-1])) == (0, 999)
    assert sources.thinned(torch.zeros(2, 1000), 1, 10).shape == (2, 10)
