"""Columns: the contribution of each example against scikit-learn and direct formulas, in pieces and from moments."""

from __future__ import annotations

from functools import partialmethod

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from sklearn.metrics import log_loss, multilabel_confusion_matrix
from torch import Tensor

import multitudes as mt
from multitudes.prediction.targets import checked_targets
from multitudes.prediction.temperature import Calibrator
from multitudes.scores.columns import classification_evidence, ood_criteria, regression_evidence
from multitudes.scores.evidence import Evidence, Settings
from multitudes.scores.meaning import CRITERIA

SETTINGS = Settings()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rng(seed)) * scale


def columns(pred: mt.Prediction, targets: Tensor, ignore: int | None = None) -> Evidence:
    """Evidence of a classification, with targets checked as in `score`."""
    return classification_evidence(pred, checked_targets(pred, targets, ignore), SETTINGS)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compares columns by name."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


def test_columns_of_classes() -> None:
    """Every column is numpy's, example by example."""
    logits, targets = drawn(4, 30, 8), torch.randint(8, (30,), generator=rng())
    found = columns(mt.Prediction(logits=logits), targets).columns
    probs = logits.softmax(2).numpy()
    mean, rows, wanted = probs.mean(0), np.arange(30), targets.numpy()
    np.testing.assert_allclose(found["nll"], -np.log(mean[rows, wanted]))
    np.testing.assert_allclose(found["brier"], ((mean - np.eye(8)[wanted]) ** 2).sum(1))
    np.testing.assert_array_equal(found["correct"], mean.argmax(1) == wanted)
    np.testing.assert_allclose(found["confidence"], mean.max(1))
    np.testing.assert_allclose(found["msp"], 1 - mean.max(1))
    np.testing.assert_allclose(found["entropy"], scipy.stats.entropy(mean, axis=1))
    np.testing.assert_array_equal(found["top5"], [t in np.argsort(p)[-5:] for p, t in zip(mean, wanted, strict=True)])
    np.testing.assert_allclose(found["member_nll"], -np.log(probs[:, rows, wanted]).T)
    np.testing.assert_array_equal(found["member_correct"], (probs.argmax(2) == wanted).T)
    np.testing.assert_allclose(found["max_logit"], -logits.numpy().mean(0).max(1))
    np.testing.assert_allclose(found["energy"], -scipy.special.logsumexp(logits.numpy(), axis=2).mean(0))
    pairs = [[scipy.stats.entropy(p, q, axis=1) for q in probs] for p in probs]
    np.testing.assert_allclose(found["kl"], np.sum(pairs, (0, 1)) / 12)


def test_probabilities_give_what_logits_give() -> None:
    """Only energy and the largest logit need logits."""
    logits, targets = drawn(3, 20, 7), torch.randint(7, (20,), generator=rng())
    of_logits = columns(mt.Prediction(logits=logits), targets)
    of_probs = columns(mt.Prediction(probs=logits.softmax(2)), targets)
    kept = {name: value for name, value in of_logits.columns.items() if name not in ("energy", "max_logit")}
    assert_same(of_probs.columns, kept)
    assert_same(of_probs.sums, of_logits.sums)


@pytest.mark.parametrize("task", ["classes", "dense", "binary", "multilabel"])
@pytest.mark.parametrize("size", [1, 50, 97])
def test_pieces_are_the_whole(task: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any size give the whole, with some targets ignored, and all targets of a piece."""
    shape = {"classes": (3, 11, 7), "dense": (3, 5, 7, 2, 2), "binary": (3, 11), "multilabel": (3, 11, 4)}[task]
    logits = drawn(*shape)
    pred = mt.Prediction(logits=logits, task="classes" if task == "dense" else task)
    targets = torch.randint(pred.classes, pred.shape, generator=rng())
    targets[:2] = 255
    targets[-1:] = 255
    whole = columns(pred, targets, 255)
    monkeypatch.setattr(mt.Prediction, "pieces", partialmethod(mt.Prediction.pieces, size))
    parts = columns(pred, targets, 255)
    assert_same(parts.columns, whole.columns)
    assert_same(parts.sums, whole.sums)
    assert len(whole) == int((targets != 255).sum())


def test_ignored_is_as_if_it_were_not_there() -> None:
    """Ignored pixels change nothing, whatever was predicted there."""
    logits, targets = drawn(2, 3, 4, 5), torch.randint(4, (3, 5), generator=rng())
    targets[0, 1:3] = 255
    found = columns(mt.Prediction(logits=logits), targets, 255)
    kept = (targets != 255).flatten()
    flat = logits.movedim(2, -1).flatten(1, 2)[:, kept]
    expected = columns(mt.Prediction(logits=flat), targets.flatten()[kept])
    assert found.columns.pop("example").tolist() == [0] * 3 + [1] * 5 + [2] * 5
    assert_same(found.columns, expected.columns)
    assert set(found.sums) == {"confusion"}


@pytest.mark.parametrize("pred", [
    mt.Prediction(logits=torch.zeros(2, 3, 4)), mt.Prediction(logits=torch.zeros(2, 3, 4, 2)),
    mt.Prediction(logits=torch.zeros(2, 3), task="binary"), mt.Prediction(logits=torch.zeros(2, 3, 2), task="multilabel"),
], ids=str)  # fmt: skip
def test_all_is_ignored(pred: mt.Prediction) -> None:
    """If all targets are ignored, there is nothing to score, from members or moments."""
    for given in (pred, moments(pred)):
        with pytest.raises(mt.InputError, match="at least one example"):
            classification_evidence(given, torch.full(pred.shape, -1), SETTINGS)


def moments(pred: mt.Prediction) -> mt.Prediction:
    """The prediction without members' outputs."""
    if pred.task in ("gaussian", "regression"):
        made = {"mean": pred.mean, "aleatoric": pred.aleatoric, "epistemic": pred.epistemic}
    else:
        made = {**pred.described(), "probs": pred.probs}
    return mt.Prediction.of_moments(pred.task, pred.count, made)


@pytest.mark.parametrize("shape", [(4, 20, 7), (1, 20, 7), (3, 4, 6, 2, 3)])
def test_moments_give_what_members_give(shape: tuple[int, ...]) -> None:
    """Moments give the same columns, but for those that need members."""
    pred = mt.Prediction(logits=drawn(*shape))
    targets = torch.randint(pred.classes, pred.shape, generator=rng())
    targets[0] = 255
    found, expected = columns(moments(pred), targets, 255), columns(pred, targets, 255)
    lost = {"member_correct", "member_nll", "kl"}
    names = set(expected.columns) - lost - ({"mutual_information", "variation_ratio"} if shape[0] == 1 else set())
    assert_same({n: v for n, v in found.columns.items() if n in names}, {n: expected.columns[n] for n in names})
    assert set(found.columns) <= names | {"disagreement", "mutual_information"}


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_yes_and_no(task: str) -> None:
    """Each label is scored alone, against scikit-learn; the Brier score sums over no and yes."""
    logits = drawn(3, 25, 4) if task == "multilabel" else drawn(3, 25)
    pred = mt.Prediction(logits=logits, task=task)
    targets = torch.randint(2, pred.shape, generator=rng())
    found = columns(pred, targets)
    yes, wanted = logits.sigmoid().mean(0).flatten().numpy(), targets.flatten().numpy()
    assert float(found.columns["nll"].mean()) == pytest.approx(log_loss(wanted, yes), abs=1e-9)
    np.testing.assert_allclose(found.columns["brier"], 2 * (yes - wanted) ** 2, atol=1e-12)
    np.testing.assert_array_equal(found.columns["correct"], (yes > 0.5) == wanted)
    if task == "multilabel":
        labels = (yes > 0.5).reshape(25, 4)
        wrong = multilabel_confusion_matrix(targets.numpy(), labels, samplewise=True)[:, [0, 1], [1, 0]].sum(1)
        assert found.sums["exact"].tolist() == [int((wrong == 0).sum()), 25]
        assert found.columns["example"].tolist() == np.repeat(np.arange(25), 4).tolist()
        assert_same(columns(moments(pred), targets).sums, {"exact": found.sums["exact"]})


def test_one_logit_is_two_classes() -> None:
    """A binary logit z gives the columns of two classes with logits −z/2 and z/2."""
    one, targets = drawn(3, 15), torch.randint(2, (15,), generator=rng())
    found = columns(mt.Prediction(logits=one, task="binary"), targets)
    two = columns(mt.Prediction(logits=torch.stack([-one / 2, one / 2], 2)), targets)
    assert_same(found.columns, two.columns)
    assert_same(found.sums, two.sums)


def test_five_of_equal_classes() -> None:
    """Of ten equal probabilities five count as top 5: ties go to the lower class, as in argmax."""
    found = columns(mt.Prediction(probs=torch.full((2, 10, 10), 0.1)), torch.arange(10)).columns
    assert float(found["top5"].mean()) == 0.5
    assert found["correct"].tolist() == [1.0] + [0.0] * 9
    assert bool((found["top5"] >= found["correct"]).all())


def test_zeros_beyond_the_first_five() -> None:
    """If all but one class have probability 0, the lower four of them are in the top 5."""
    probs = torch.zeros(2, 8, 8)
    probs[:, :, 0] = 1
    found = columns(mt.Prediction(probs=probs), torch.arange(8)).columns
    assert found["top5"].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


def test_a_calibrated_mixture() -> None:
    """The calibrated probabilities are scored; the members' columns do not change."""
    logits, targets = drawn(3, 20, 7), torch.randint(7, (20,), generator=rng())
    plain = mt.Prediction(logits=logits)
    found = columns(plain.calibrated(Calibrator(mixture=2.0)), targets).columns
    shown = (logits.softmax(2).mean(0).log() / 2).softmax(1)
    single = columns(mt.Prediction(probs=shown[None]), targets).columns
    for name in ("nll", "brier", "confidence", "correct", "top5", "entropy", "msp"):
        torch.testing.assert_close(found[name], single[name])
    before = columns(plain, targets).columns
    for name in ("mutual_information", "variation_ratio", "disagreement", "kl", "member_nll", "member_correct", "energy"):
        torch.testing.assert_close(found[name], before[name])


def test_criteria_are_larger_for_what_is_unknown() -> None:
    """Every criterion is larger for members that are unsure and disagree."""
    sure, unsure = drawn(4, 50, 6, scale=0.1), drawn(4, 50, 6, scale=0.5)
    sure[:, :, 2] += 9
    known, unknown = ood_criteria(mt.Prediction(logits=sure)), ood_criteria(mt.Prediction(logits=unsure))
    assert set(known) == set(CRITERIA)
    for name in CRITERIA:
        assert float(known[name].mean()) < float(unknown[name].mean()), name


def test_criteria_of_one_member() -> None:
    """A single network has no criteria of disagreement."""
    assert set(ood_criteria(mt.Prediction(logits=drawn(1, 5, 3)))) == {"msp", "max_logit", "entropy", "energy"}
    assert set(ood_criteria(mt.Prediction(probs=drawn(1, 5, 3).softmax(2)))) == {"msp", "entropy"}
    assert set(ood_criteria(mt.Prediction(mean=drawn(1, 5), variance=torch.ones(1, 5)))) == {"variance"}
    assert set(ood_criteria(mt.Prediction(mean=drawn(2, 5)))) == {"variance", "epistemic"}


def test_criteria_of_several_labels() -> None:
    """An example has the mean of each criterion over its labels, and the sum for the energy."""
    pred = mt.Prediction(logits=drawn(3, 6, 4), task="multilabel")
    found = ood_criteria(pred)
    torch.testing.assert_close(found["entropy"], pred.entropy.mean(1))
    torch.testing.assert_close(found["msp"], 1 - pred.confidence.mean(1))
    torch.testing.assert_close(found["energy"], pred.energy.sum(1))


def test_columns_of_a_regression() -> None:
    """Densities and intervals are those of the mixture, by scipy, not of one Gaussian."""
    mean, variance, targets = drawn(3, 12), drawn(3, 12, seed=1) ** 2 + 0.1, drawn(12, seed=2)
    found = regression_evidence(mt.Prediction(mean=mean, variance=variance), targets, Settings(level=0.8)).columns
    centre = mean.mean(0)
    whole = (variance + mean**2).mean(0) - centre**2
    np.testing.assert_allclose(found["squares"], (targets - centre) ** 2)
    np.testing.assert_allclose(found["variance"], whole)
    np.testing.assert_allclose(found["gaussian_nll"], -scipy.stats.norm.logpdf(targets, centre, whole.sqrt()))
    density = scipy.stats.norm.pdf(targets, mean, variance.sqrt()).mean(0)
    np.testing.assert_allclose(found["log_density"], np.log(density))
    np.testing.assert_allclose(found["member_squares"], ((targets - mean) ** 2).T)
    below = scipy.stats.norm.cdf(targets, mean, variance.sqrt()).mean(0)
    np.testing.assert_array_equal(found["covered"], (below >= 0.1) & (below <= 0.9))
    assert 0 < float(found["covered"].mean()) < 1
    low, high = mt.Prediction(mean=mean, variance=variance).interval(0.8)
    np.testing.assert_allclose(found["width"], high - low)
    for end, share in ((low, 0.1), (high, 0.9)):
        np.testing.assert_allclose(scipy.stats.norm.cdf(end, mean, variance.sqrt()).mean(0), share)


def test_columns_of_a_regression_without_variances() -> None:
    """Without variances there is no density and no coverage."""
    found = regression_evidence(mt.Prediction(mean=drawn(3, 12)), drawn(12), SETTINGS).columns
    assert set(found) == {"squares", "variance", "epistemic", "crps", "member_squares"}
    assert set(regression_evidence(mt.Prediction(mean=drawn(1, 12)), drawn(12), SETTINGS).columns) == set(found) - {"epistemic"}


def test_moments_of_a_regression() -> None:
    """Moments give squared errors and the Gaussian of the same moments, but no score of the mixture."""
    pred, targets = mt.Prediction(mean=drawn(3, 12), variance=drawn(3, 12) ** 2 + 1), drawn(12, seed=2)
    found, expected = (
        regression_evidence(moments(pred), targets, SETTINGS).columns,
        regression_evidence(pred, targets, SETTINGS).columns,
    )
    assert set(expected) - set(found) == {"crps", "log_density", "member_squares"}
    for name in ("squares", "variance", "epistemic", "gaussian_nll"):
        torch.testing.assert_close(found[name], expected[name])
    torch.testing.assert_close(found["width"], 2 * 1.959963984540054 * pred.std)
    plain = moments(mt.Prediction(mean=drawn(3, 12), variance=drawn(3, 12) ** 2 + 1, task="regression"))
    assert set(regression_evidence(plain, targets, SETTINGS).columns) == set(found)
