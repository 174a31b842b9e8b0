"""Scores of classes and of errors against scikit-learn: classes without examples, one class, ties, ignored labels, pixels."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, recall_score, roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_auroc,
    multiclass_average_precision,
    multiclass_f1_score,
    multilabel_auroc,
)

import multitudes as mt
from multitudes.prediction.temperature import Calibrator
from multitudes.scores import by_class, detection
from multitudes.scores.evidence import RESAMPLED

NAMES = ("class_auroc", "class_aupr", "f1", "balanced_accuracy")


def scored(pred: mt.Prediction, targets: Tensor, **options: Any) -> mt.scores.Scores:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* have collapsed")
        return mt.score(pred, targets, **options)


def logits_of(targets: Tensor, classes: int, members: int = 3, strength: float = 1.5) -> Tensor:
    """Logits ``[M, N, K]``, larger for the target."""
    return torch.randn(members, len(targets), classes, dtype=torch.float64) + strength * torch.eye(classes)[targets]


@pytest.mark.parametrize("kind", ["members", "moments", "calibrated"])
def test_many_classes_as_others_score_them(kind: str) -> None:
    """Macro one-vs-rest AUROC, average precision, F1 and balanced accuracy, with classes of different sizes."""
    targets = torch.multinomial(torch.tensor([8.0, 4, 2, 1, 1]), 300, replacement=True)
    pred = mt.Prediction(logits=logits_of(targets, 5))
    if kind == "calibrated":
        pred = pred.calibrated(Calibrator(mixture=1.7))
    probs, labels, wanted = pred.probs, pred.labels.numpy(), targets.numpy()
    if kind == "moments":
        pred = mt.Prediction.of_moments("classes", 3, {**pred.described(), "probs": pred.probs})
    found = scored(pred, targets)
    each = [average_precision_score(wanted == k, probs[:, k]) for k in range(5)]
    expected = (
        roc_auc_score(wanted, probs.numpy(), multi_class="ovr", average="macro"), np.mean(each),
        f1_score(wanted, labels, average="macro"), balanced_accuracy_score(wanted, labels),
    )  # fmt: skip
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=1e-9)
    assert found["f1"] != pytest.approx(f1_score(wanted, labels, average="weighted"), abs=1e-3)
    assert found["class_auroc"] == pytest.approx(float(multiclass_auroc(probs, targets, 5)), abs=1e-6)
    assert found["class_aupr"] == pytest.approx(float(multiclass_average_precision(probs, targets, 5)), abs=1e-6)
    assert found["f1"] == pytest.approx(float(multiclass_f1_score(torch.tensor(labels), targets, 5)), abs=1e-6)


def test_a_class_without_examples_does_not_count() -> None:
    """Class 3 has no examples, class 4 no predictions either: they are left out where a score is undefined for them."""
    targets = torch.arange(60) % 3
    logits = logits_of(targets, 5)
    logits[..., 4] = -50
    logits[:, :5, 3] += 20  # five wrong predictions of class 3
    pred = mt.Prediction(logits=logits)
    found, wanted, labels = scored(pred, targets), targets.numpy(), pred.labels.numpy()
    aurocs = [roc_auc_score(wanted == k, pred.probs[:, k]) for k in range(3)]
    assert found["class_auroc"] == pytest.approx(np.mean(aurocs), abs=1e-9)
    assert found["class_aupr"] == pytest.approx(
        np.mean([average_precision_score(wanted == k, pred.probs[:, k]) for k in range(3)]), abs=1e-9
    )
    assert found["f1"] == pytest.approx(f1_score(wanted, labels, labels=[0, 1, 2, 3], average="macro"), abs=1e-9)
    recalls = [recall_score(wanted, labels, labels=[k], average="macro") for k in range(3)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls), abs=1e-9)


def test_one_class_cannot_be_ranked() -> None:
    """With one class among the targets there is nothing to tell it from: NaN. F1 and balanced accuracy are defined."""
    pred = mt.Prediction(probs=torch.tensor([[[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.7, 0.3]]]))
    found = scored(pred, torch.zeros(4))
    assert math.isnan(found["class_auroc"])
    assert math.isnan(found["class_aupr"])
    assert found["balanced_accuracy"] == 0.75
    assert found["f1"] == pytest.approx((2 * 3 / 7 + 0) / 2)


def test_binary_scores_are_those_of_yes() -> None:
    """scikit-learn's binary scores; F1 is that of yes, not the mean of both."""
    targets = (torch.rand(200) < 0.3).long()
    pred = mt.Prediction(logits=torch.randn(3, 200, dtype=torch.float64) + 2 * targets - 1, task="binary")
    found, wanted, labels = scored(pred, targets), targets.numpy(), pred.labels.numpy()
    expected = (
        roc_auc_score(wanted, pred.probs), average_precision_score(wanted, pred.probs),
        f1_score(wanted, labels), balanced_accuracy_score(wanted, labels),
    )  # fmt: skip
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=1e-9)
    assert expected[2] != pytest.approx(f1_score(wanted, labels, average="macro"), abs=0.01)
    assert average_precision_score(1 - wanted, 1 - pred.probs) != pytest.approx(expected[1], abs=0.01)
    none = scored(mt.Prediction(logits=-torch.ones(2, 5), task="binary"), torch.zeros(5))
    assert [math.isnan(none[name]) for name in NAMES] == [True, True, True, False]


def test_multilabel_scores_are_means_over_labels() -> None:
    """Macro over labels as scikit-learn has it; ignored entries and labels without examples do not count."""
    wanted = (torch.rand(120, 5) < torch.tensor([0.5, 0.2, 0.7, 0.4, 0.4])).long()
    logits = torch.randn(3, 120, 5, dtype=torch.float64) + 2 * wanted - 1
    pred = mt.Prediction(logits=logits, task="multilabel")
    found, yes, labels = scored(pred, wanted), pred.probs.numpy(), pred.labels.numpy()
    balanced = [balanced_accuracy_score(wanted[:, k], labels[:, k]) for k in range(5)]
    expected = (
        roc_auc_score(wanted, yes, average="macro"), average_precision_score(wanted, yes, average="macro"),
        f1_score(wanted, labels, average="macro"), np.mean(balanced),
    )  # fmt: skip
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=1e-9)
    assert found["class_auroc"] == pytest.approx(float(multilabel_auroc(pred.probs, wanted, 5)), abs=1e-6)
    wanted[:, 2] = 255
    wanted[:70, 1] = 255
    kept = {k: wanted[:, k] != 255 for k in (0, 1, 3, 4)}
    rows = [(wanted[:, k][one].numpy(), yes[one.numpy(), k], labels[one.numpy(), k]) for k, one in kept.items()]
    found = scored(pred, wanted, ignore=255)
    assert found["class_auroc"] == pytest.approx(np.mean([roc_auc_score(w, p) for w, p, _ in rows]), abs=1e-9)
    assert found["f1"] == pytest.approx(np.mean([f1_score(w, given) for w, _, given in rows]), abs=1e-9)
    assert found["balanced_accuracy"] == pytest.approx(np.mean([balanced_accuracy_score(w, g) for w, _, g in rows]), abs=1e-9)


@pytest.mark.parametrize("task", ["classes", "binary"])
def test_pixels_are_counted_not_kept(task: str) -> None:
    """F1 and balanced accuracy of pixels are scikit-learn's. No column holds a number for each pixel and class."""
    targets = torch.randint(2, (3, 6, 6))
    targets[0, :2] = 255
    shape = (2, 3, 2, 6, 6) if task == "classes" else (2, 3, 6, 6)
    pred = mt.Prediction(logits=torch.randn(shape, dtype=torch.float64), task=task)
    found, kept = scored(pred, targets, ignore=255), targets != 255
    wanted, labels = targets[kept].numpy(), pred.labels[kept].numpy()
    assert found["f1"] == pytest.approx(f1_score(wanted, labels, average="macro" if task == "classes" else "binary"), abs=1e-9)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(wanted, labels), abs=1e-9)
    assert "class_auroc" not in found
    assert found.evidence is not None
    assert not {"label", "target", "log_odds"} & set(found.evidence.columns)


def test_labels_of_pixels_have_no_class_scores() -> None:
    """Which axis of a multilabel segmentation holds labels is not known, so nothing is guessed."""
    pred = mt.Prediction(logits=torch.randn(2, 3, 4, 5), task="multilabel")
    assert not set(NAMES) & set(scored(pred, torch.randint(2, (3, 4, 5))))


def test_very_sure_predictions_are_ranked() -> None:
    """Probabilities of 1 − 1e-9 and 1 − 1e-10 are equal in single precision; their ranks are kept."""
    odds = torch.tensor([20.0, 21.0, 22.0, 23.0, 24.0, 25.0])
    targets = torch.tensor([0, 1, 0, 1, 1, 1])
    found = scored(mt.Prediction(logits=odds[None], task="binary"), targets)
    assert float(odds.sigmoid().unique().numel()) < 6
    assert found["class_auroc"] == pytest.approx(roc_auc_score(targets, odds)) == 7 / 8


@pytest.mark.parametrize("levels", [1, 3, 1000])
@pytest.mark.parametrize("positives", [1, 20, 99])
def test_ranking_is_that_of_the_curves(levels: int, positives: int) -> None:
    """AUROC and average precision from sorted positives alone, with ties and infinities, as scikit-learn has them."""
    score = (torch.randn(100, dtype=torch.float64) * levels / 3).round()
    positive = torch.randperm(100) < positives
    expected = roc_auc_score(positive, score), average_precision_score(positive, score)
    assert detection.ranking(score, positive) == pytest.approx(expected, abs=1e-12)
    score[:3], score[3:6] = math.inf, -math.inf
    finite = score.nan_to_num(posinf=1e6, neginf=-1e6)
    expected = roc_auc_score(positive, finite), average_precision_score(positive, finite)
    assert detection.ranking(score, positive) == pytest.approx(expected, abs=1e-12)


def test_errors_by_hand() -> None:
    """The one wrong prediction is less certain than two of three right ones."""
    probs = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]]])
    found = scored(mt.Prediction(probs=probs), torch.tensor([0, 0, 0, 1]))
    assert found["error_auroc/msp"] == pytest.approx(2 / 3)
    assert found["error_aupr/msp"] == pytest.approx(1 / 2)
    assert "error_auroc/mutual_information" not in found
    sure = scored(mt.Prediction(probs=probs), torch.zeros(4))
    assert math.isnan(sure["error_auroc/msp"])
    assert math.isnan(sure["error_aupr/entropy"])


def test_errors_are_ranked_by_each_criterion() -> None:
    """Members that disagree where they are wrong: mutual information ranks errors higher than confidence does."""
    logits = torch.zeros(2, 40, 3)
    logits[:, :30, 0] = 0.5  # right, unsure, and of one mind
    logits[0, 30:, 1] = logits[1, 30:, 2] = 9.0  # wrong, and each member sure of another label
    found = scored(mt.Prediction(logits=logits), torch.zeros(40))
    assert found["error_auroc/mutual_information"] == found["error_aupr/mutual_information"] == 1
    assert found["error_auroc/msp"] == 0
    moments = mt.Prediction.of_moments(
        "classes", 2, {**mt.Prediction(logits=logits).described(), "probs": logits.softmax(2).mean(0)}
    )
    again = scored(moments, torch.zeros(40))
    assert {name: again[name] for name in found if name.startswith("error_")} == pytest.approx(
        {name: value for name, value in found.items() if name.startswith("error_")}
    )


def test_intervals_of_class_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have intervals; those of AUROC and AUPR are left out for so many classes and examples that they would take long."""
    targets = torch.arange(80) % 4
    found = scored(mt.Prediction(logits=logits_of(targets, 4)), targets)
    intervals = found.with_intervals(30).intervals
    for name in (*NAMES, "error_auroc/msp", "error_aupr/entropy"):
        low, high = intervals[name]
        assert low < found[name] < high, name
    assert RESAMPLED > 80 * 4
    monkeypatch.setattr("multitudes.scores.evidence.RESAMPLED", 319)
    assert set(intervals) - set(found.with_intervals(2).intervals) == {"class_auroc", "class_aupr"}


def test_shifted_sets_keep_no_number_for_each_class() -> None:
    """75 corrupted sets of 1000 classes would not fit into memory otherwise."""
    targets = torch.arange(40) % 4
    pred = mt.Prediction(logits=logits_of(targets, 4))
    evidence = scored(pred, targets, shift={"fog": {1: (pred, targets)}}).evidence
    assert evidence is not None
    assert "log_odds" in evidence.columns
    assert "log_odds" not in evidence.shifts["fog", 1].columns


@pytest.mark.slow
def test_a_thousand_classes_are_ranked_in_seconds() -> None:
    """50,000 examples of 1000 classes take less than 10 s: about 3 s on one idle core."""
    scores, targets = torch.randn(50_000, 1000), torch.randint(1000, (50_000,))
    scores[torch.arange(50_000), targets] += 2
    start = time.process_time()
    auroc, aupr = by_class.one_vs_rest(scores, targets)
    assert time.process_time() - start < 10
    few = [roc_auc_score(targets == k, scores[:, k]) for k in range(30)]
    assert auroc == pytest.approx(np.mean(few), abs=0.02)
    assert 0.001 < aupr < auroc
