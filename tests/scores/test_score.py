"""score: every score against an outside implementation, on random data and edge cases."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import warnings
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from scipy.special import logsumexp
from scores.logits import drawn, members, rng, scored
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    jaccard_score,
    log_loss,
    roc_auc_score,
    top_k_accuracy_score,
)
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

import multitudes as mt
from multitudes import figures
from multitudes.scores.meaning import CRITERIA


def slow_aurc(confidence: np.ndarray, correct: np.ndarray) -> float:
    order = np.argsort(-confidence)
    return float(np.mean([1 - correct[order][:n].mean() for n in range(1, len(order) + 1)]))


def apart(score: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """scikit-learn's AUROC and average precision; NaN if all or none are positive."""
    if positive.all() or not positive.any():
        return math.nan, math.nan
    return roc_auc_score(positive, score), average_precision_score(positive, score)


def defined_mean(values: list[float]) -> float:
    """The mean of those that are not NaN; NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def outside(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Scores by scikit-learn, torchmetrics, scipy and loops."""
    probs, wanted = logits.softmax(2).numpy(), targets.numpy()
    count, classes = len(probs), probs.shape[2]
    mean, labels = probs.mean(0), range(probs.shape[2])
    found = {
        "accuracy": accuracy_score(wanted, mean.argmax(1)),
        "nll": -np.log(mean[np.arange(len(wanted)), wanted]).mean(),
        "gibbs_nll": -np.log(probs[:, np.arange(len(wanted)), wanted]).mean(),
        "brier": ((mean - np.eye(classes)[wanted]) ** 2).sum(1).mean(),
        "aurc": slow_aurc(mean.max(1), mean.argmax(1) == wanted),
        "member_accuracy": np.mean([accuracy_score(wanted, p.argmax(1)) for p in probs]),
        "mean_mutual_information": np.mean([scipy.stats.entropy(p, mean, axis=1) for p in probs]),
    }
    found["member_nll"] = found["gibbs_nll"]
    found["f1"] = f1_score(wanted, mean.argmax(1), average="macro")
    with warnings.catch_warnings():  # of predicted classes without examples
        warnings.simplefilter("ignore")
        found["balanced_accuracy"] = balanced_accuracy_score(wanted, mean.argmax(1))
    classwise = [apart(mean[:, k], wanted == k) for k in labels]
    found["class_auroc"], found["class_aupr"] = (defined_mean([pair[i] for pair in classwise]) for i in range(2))
    for name in ("msp", "entropy", *(["mutual_information"] if count > 1 else [])):
        pair = apart(criterion(name, logits), mean.argmax(1) != wanted)
        found[f"error_auroc/{name}"], found[f"error_aupr/{name}"] = pair
    if classes > 1:
        calibration = [
            multiclass_calibration_error(torch.tensor(mean), targets, num_classes=classes, n_bins=15, norm=norm)
            for norm in ("l1", "max")
        ]
        found.update(ece=float(calibration[0]), mce=float(calibration[1]))
        found["nll"] = log_loss(wanted, mean, labels=labels)
        found["gibbs_nll"] = found["member_nll"] = np.mean([log_loss(wanted, p, labels=labels) for p in probs])
    if classes > 2:
        found["brier"] = brier_score_loss(wanted, mean, labels=labels, scale_by_half=False)
    if classes > 5:
        found["top5"] = top_k_accuracy_score(wanted, mean, k=5, labels=labels)
    if count > 1:
        pairs = list(itertools.combinations(range(count), 2))
        found["disagreement"] = np.mean([(probs[i].argmax(1) != probs[j].argmax(1)).mean() for i, j in pairs])
        both = [scipy.stats.entropy(probs[i], probs[j], axis=1).mean() for i, j in itertools.permutations(range(count), 2)]
        found["kl_diversity"] = np.mean(both)
    return found


@pytest.mark.parametrize(
    ("count", "rows", "classes"),
    [(4, 300, 10), (2, 100, 2), (3, 50, 3), (1, 80, 7), (5, 1, 6), (1, 1, 2), (3, 20, 1), (2, 40, 100), (8, 60, 4)],
)
def test_classes_as_others_score_them(count: int, rows: int, classes: int) -> None:
    """Scores agree to 1e-6, also for one member, one example and one class."""
    logits, targets = members(count, rows, classes), drawn(classes, rows)
    found = scored(mt.Prediction(logits=logits), targets)
    for name, value in outside(logits, targets).items():
        assert found[name] == pytest.approx(float(value), abs=1e-6, nan_ok=True), name
    expected = {*outside(logits, targets), "ece", "mce", "ace", "classwise_ece"}
    assert set(found) - {"disagreement"} == expected - {"disagreement"}
    assert found.examples == rows
    assert found.members["nll"] == pytest.approx([F.cross_entropy(one, targets).item() for one in logits])
    assert found.members["accuracy"] == pytest.approx([(one.argmax(1) == targets).double().mean().item() for one in logits])


def criterion(name: str, logits: Tensor) -> np.ndarray:
    """OOD criteria by numpy, larger for OOD examples."""
    probs = logits.softmax(2).numpy()
    mean, votes = probs.mean(0), probs.argmax(2)
    return {
        "msp": lambda: 1 - mean.max(1),
        "max_logit": lambda: -logits.numpy().mean(0).max(1),
        "entropy": lambda: scipy.stats.entropy(mean, axis=1),
        "mutual_information": lambda: np.mean([scipy.stats.entropy(p, mean, axis=1) for p in probs], 0),
        "variation_ratio": lambda: np.round(1 - np.stack([np.bincount(v, minlength=9).max() for v in votes.T]) / len(votes), 6),
        "energy": lambda: -logsumexp(logits.numpy(), axis=2).mean(0),
    }[name]()


def test_what_is_out_of_distribution_as_others_tell_it() -> None:
    """Every criterion is scored as by scikit-learn, with either positive class; votes have many ties."""
    inside, far = members(3, 120, 6), members(3, 70, 6, seed=1, scale=0.8)
    found = scored(mt.Prediction(logits=inside), drawn(6, 120), ood=mt.Prediction(logits=far))
    wanted = np.arange(190) >= 120
    for name in CRITERIA:
        score = np.concatenate([criterion(name, inside), criterion(name, far)])
        assert found[f"ood/auroc/{name}"] == pytest.approx(roc_auc_score(wanted, score), abs=1e-6), name
        assert found[f"ood/aupr_out/{name}"] == pytest.approx(average_precision_score(wanted, score), abs=1e-6), name
        assert found[f"ood/aupr_in/{name}"] == pytest.approx(average_precision_score(~wanted, -score), abs=1e-6), name
        by_threshold = [((score >= t)[wanted].mean(), (score >= t)[~wanted].mean()) for t in sorted(set(score), reverse=True)]
        assert found[f"ood/fpr95/{name}"] == pytest.approx(next(f for r, f in by_threshold if r >= 0.95), abs=1e-6), name
        by_threshold = [((score <= t)[~wanted].mean(), (score <= t)[wanted].mean()) for t in sorted(set(score))]
        assert found[f"ood/fpr95_in/{name}"] == pytest.approx(next(f for r, f in by_threshold if r >= 0.95), abs=1e-6), name
    assert found["mean_mutual_information"] == pytest.approx(criterion("mutual_information", inside).mean())
    assert found["ood/mean_mutual_information"] == pytest.approx(criterion("mutual_information", far).mean())


def test_sets_by_name() -> None:
    """Keys have the set's name as a prefix, for one set as for several, and each is scored as if it were the only one."""
    pred, targets = mt.Prediction(logits=members(3, 30, 6)), drawn(6, 30)
    sets = {name: mt.Prediction(logits=members(3, n, 6, seed=n)) for name, n in (("svhn", 10), ("noise", 20))}
    found = scored(pred, targets, ood=sets)
    for name, one in sets.items():
        alone = {key: value for key, value in scored(pred, targets, ood={name: one}).items() if key.startswith(f"{name}/")}
        assert alone == {key: value for key, value in found.items() if key.startswith(f"{name}/")}
        unnamed = scored(pred, targets, ood=one)
        assert alone == {f"{name}/{key.removeprefix('ood/')}": unnamed[key] for key in unnamed if key.startswith("ood/")}
        assert len(alone) == 5 * len(CRITERIA) + 1
    assert set(found) == {*scored(pred, targets), *(key for key in found if key.startswith(("svhn/", "noise/")))}


@pytest.mark.parametrize("task", ["probs", "one member", "binary", "multilabel", "dense", "gaussian", "regression", "moments"])
def test_every_task_tells_what_is_out_of_distribution(task: str) -> None:
    """Every task detects OOD examples by each criterion it has."""
    common, shape = torch.full((8, 6), 6.0), (3, 8, 6)
    near = torch.where(torch.arange(6) == 2, common, -common) + 0.1 * torch.randn(shape)
    far = 0.5 * torch.randn(shape)
    dense = near[..., None].expand(3, 8, 6, 2) + 0.01 * torch.randn(3, 8, 6, 2)
    made: dict[str, Any] = {
        "probs": lambda x: mt.Prediction(probs=x.softmax(2)),
        "one member": lambda x: mt.Prediction(logits=x[:1]),
        "binary": lambda x: mt.Prediction(logits=x[..., 2], task="binary"),
        "multilabel": lambda x: mt.Prediction(logits=x, task="multilabel"),
        "dense": lambda x: mt.Prediction(logits=dense if x is near else far[..., None].expand(3, 8, 6, 2)),
        "gaussian": lambda x: mt.Prediction(mean=x[..., 0], variance=torch.full((3, 8), 0.1 if x is near else 1.0)),
        "regression": lambda x: mt.Prediction(mean=x[..., 0]),
        "moments": lambda x: moments(mt.Prediction(logits=x)),
    }
    pred, out = made[task](near), made[task](far)
    found = scored(pred, torch.zeros(pred.shape), ood=out)
    told = {key: value for key, value in found.items() if key.startswith("ood/auroc/")}
    expected = {
        "probs": {"msp", "entropy", "mutual_information", "variation_ratio"},
        "one member": {"msp", "entropy", "max_logit", "energy"},
        "gaussian": {"variance", "epistemic"},
        "regression": {"variance", "epistemic"},
    }.get(task, set(CRITERIA))
    assert {key.split("/")[2] for key in told} == expected
    assert all(value > 0.5 for value in told.values()), told


def moments(pred: mt.Prediction) -> mt.Prediction:
    """The prediction without members' outputs."""
    return mt.Prediction.of_moments(pred.task, pred.count, {**pred.described(), "probs": pred.probs})


def test_regression_as_others_score_it() -> None:
    """Scores of a mixture of Gaussians by scipy and torch."""
    mean, variance = members(3, 200, 1)[..., 0], members(3, 200, 1, seed=1)[..., 0] ** 2 + 0.2
    targets = torch.randn(200, dtype=torch.float64) * 2
    found = scored(mt.Prediction(mean=mean, variance=variance), targets, level=0.7)
    whole = (variance + mean**2).mean(0) - mean.mean(0) ** 2
    below = scipy.stats.norm.cdf(targets, mean, variance.sqrt()).mean(0)
    expected = {
        "rmse": np.sqrt(((targets - mean.mean(0)).numpy() ** 2).mean()),
        "mae": np.abs((targets - mean.mean(0)).numpy()).mean(),
        "gaussian_nll": F.gaussian_nll_loss(mean.mean(0), targets, whole, full=True).item(),
        "lpd": np.log(scipy.stats.norm.pdf(targets, mean, variance.sqrt()).mean(0)).mean(),
        "nll": -np.log(scipy.stats.norm.pdf(targets, mean, variance.sqrt()).mean(0)).mean(),
        "coverage": ((below >= 0.15) & (below <= 0.85)).mean(),
        "member_rmse": np.mean([np.sqrt(((targets - m).numpy() ** 2).mean()) for m in mean]),
        "epistemic_std": mean.numpy().std(0).mean(),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), abs=1e-6), name
    assert set(found) == {*expected, "crps", "interval_width"}
    assert found.members["rmse"] == pytest.approx([(targets - m).pow(2).mean().sqrt().item() for m in mean])


def test_a_variance_of_zero() -> None:
    """Certain and wrong members have a log density of −∞, not NaN."""
    pred = mt.Prediction(mean=torch.tensor([[0.0, 1.0], [0.0, 3.0]]), variance=torch.zeros(2, 2))
    found = scored(pred, torch.tensor([1.0, 2.0]))
    assert found["nll"] == -found["lpd"] == math.inf
    assert found["gaussian_nll"] == math.inf
    assert found["crps"] == pytest.approx((1 + 0.5) / 2)


def test_pixels_as_others_score_them() -> None:
    """mIoU is scikit-learn's; other scores count pixels as examples; ignored pixels are left out."""
    logits = torch.randn(3, 4, 5, 6, 7, dtype=torch.float64, generator=rng()) * 2
    targets = drawn(5, 168).reshape(4, 6, 7)
    targets[1, :3] = 255
    found = scored(mt.Prediction(logits=logits), targets, ignore=255)
    kept = targets != 255
    labels = logits.softmax(2).mean(0).argmax(1)
    assert found["miou"] == pytest.approx(jaccard_score(targets[kept], labels[kept], average="macro"), abs=1e-9)
    flat = logits.movedim(2, -1)[:, kept]
    of_classes = {"classwise_ece", "class_auroc", "class_aupr"}  # these need a number for each pixel and class
    for name, value in outside(flat, targets[kept]).items():
        if name not in of_classes:
            assert found[name] == pytest.approx(float(value), abs=1e-6), name
    assert not of_classes & set(found)
    last = scored(mt.Prediction(logits=logits.movedim(2, -1), class_axis=-1), targets, ignore=255)
    assert dict(last) == pytest.approx(dict(found))


def test_the_bins_of_ensemble_model_patching() -> None:
    """20 bins, without those of at most 5 examples."""
    logits, targets = members(3, 150, 6), drawn(6, 150)
    found = scored(mt.Prediction(logits=logits), targets, bins=20, drop=5)
    confidence, labels = logits.softmax(2).mean(0).max(1)
    correct, number = (labels == targets).double(), (confidence * 20).ceil()
    sizes = {b: int((number == b).sum()) for b in range(1, 21)}
    gaps = {b: abs(float((correct - confidence)[number == b].mean())) for b, size in sizes.items() if size > 5}
    assert any(0 < size <= 5 for size in sizes.values())
    assert found["ece"] == pytest.approx(sum(gaps[b] * sizes[b] for b in gaps) / sum(sizes[b] for b in gaps))
    assert found["mce"] == pytest.approx(max(gaps.values()))
    assert found.settings.bins == 20


@settings(max_examples=25)
@given(count=st.integers(1, 4), rows=st.integers(1, 30), classes=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_orders_have_no_meaning(count: int, rows: int, classes: int, seed: int) -> None:
    """Permuted classes, rows and members have the same scores, within their bounds."""
    logits, targets, far = members(count, rows, classes, seed), drawn(classes, rows, seed), members(count, 9, classes, seed + 1)
    turn, row, order = (torch.randperm(n, generator=rng(seed)) for n in (count, rows, classes))
    found = scored(mt.Prediction(logits=logits), targets, ood=mt.Prediction(logits=far))
    moved = scored(
        mt.Prediction(logits=logits[turn][:, row][:, :, order]), order.argsort()[targets[row]],
        ood=mt.Prediction(logits=far[turn][:, :, order]),
    )  # fmt: skip
    assert dict(moved) == pytest.approx(dict(found), rel=1e-9, abs=1e-9, nan_ok=True)
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined <= {name for name in found if name.startswith(("error_", "class_"))}
    unbounded = {"nll", "gibbs_nll", "member_nll", "kl_diversity", "mean_mutual_information", "brier"}
    unbounded |= {"ood/mean_mutual_information"}
    assert all(0 <= value <= 1 + 1e-12 for name, value in found.items() if name not in unbounded | undefined)
    assert all(found[name] >= 0 for name in unbounded if name in found)
    assert found["brier"] <= 2
    assert found["nll"] <= found["gibbs_nll"] + 1e-12


@settings(max_examples=25)
@given(count=st.integers(2, 5), rows=st.integers(1, 20), classes=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_copies_of_one_member(count: int, rows: int, classes: int, seed: int) -> None:
    """Copies do not disagree, score like one member, and cause a warning."""
    one, targets = members(1, rows, classes, seed).float(), drawn(classes, rows, seed)
    with pytest.warns(UserWarning, match=f"{count} members have collapsed .*0.00%"):
        found = mt.score(mt.Prediction(logits=one.repeat(count, 1, 1)), targets)
    assert found["mean_mutual_information"] == found["disagreement"] == 0
    assert found["kl_diversity"] == pytest.approx(0, abs=1e-5)
    alone = scored(mt.Prediction(logits=one), targets)
    names = set(alone) - {"disagreement", "kl_diversity"}
    assert {n: found[n] for n in names} == pytest.approx({n: alone[n] for n in names}, abs=1e-6, nan_ok=True)


@settings(max_examples=25)
@given(count=st.integers(2, 4), rows=st.integers(1, 20), classes=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_who_knows_everything_scores_perfectly(count: int, rows: int, classes: int, seed: int) -> None:
    """A perfect prediction has perfect scores, and detects uniform OOD predictions."""
    targets = drawn(classes, rows, seed)
    probs = torch.eye(classes)[targets].repeat(count, 1, 1)
    blank = mt.Prediction(probs=torch.full((count, 5, classes), 1 / classes))
    found = scored(mt.Prediction(probs=probs), targets, ood=blank)
    best = {"accuracy": 1, "member_accuracy": 1, "top5": 1, "ood/auroc/msp": 1, "ood/aupr_out/entropy": 1}
    best |= {"ood/aupr_in/msp": 1, "ood/fpr95/msp": 0, "mean_mutual_information": 0}
    best.update(dict.fromkeys(("nll", "gibbs_nll", "brier", "ece", "mce", "ace", "classwise_ece", "aurc"), 0))
    assert {name: found[name] for name in best if name in found} == {n: v for n, v in best.items() if n in found}


def test_a_target_that_was_ruled_out() -> None:
    """A target of probability 0 has an infinite NLL and no NaN; if one member rules it out, only that member's is infinite."""
    probs = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.4, 0.6]]])
    found = scored(mt.Prediction(probs=probs), torch.tensor([1, 0]))
    assert found["nll"] == found["gibbs_nll"] == math.inf
    assert found.members["nll"] == [math.inf, math.inf]
    assert not any(math.isnan(value) for name, value in found.items() if not name.startswith("error_"))  # all are wrong
    probs[0, 0] = torch.tensor([0.0, 1.0])
    found = scored(mt.Prediction(probs=probs), torch.tensor([1, 0]))
    assert found["nll"] == pytest.approx(-(math.log(0.5) + math.log(0.45)) / 2)
    assert found["gibbs_nll"] == math.inf
    assert found.members["nll"][0] == pytest.approx(-math.log(0.5) / 2)
    assert 0 < found["kl_diversity"] < math.inf


def test_classes_that_are_ruled_out() -> None:
    """Classes masked by logits of −∞ in all members do not count, out of distribution too."""
    logits, far = members(3, 20, 4), members(3, 10, 4, seed=1)
    masked, other = (torch.cat([x, torch.full_like(x[:, :, :1], -math.inf)], 2) for x in (logits, far))
    targets = drawn(4, 20)
    found = scored(mt.Prediction(logits=masked), targets, ood=mt.Prediction(logits=other))
    expected = scored(mt.Prediction(logits=logits), targets, ood=mt.Prediction(logits=far))
    names = set(expected) - {"classwise_ece"}
    assert {name: found[name] for name in names} == pytest.approx({name: expected[name] for name in names})


def test_nobody_is_told_from_equals() -> None:
    """Equal scores detect at chance level, with either positive class."""
    pred = mt.Prediction(probs=torch.full((2, 6, 4), 0.25))
    found = scored(pred, torch.arange(6) % 4, ood=mt.Prediction(probs=torch.full((2, 3, 4), 0.25)))
    assert found["ood/auroc/msp"] == found["ood/auroc/entropy"] == 0.5
    assert found["ood/aupr_out/msp"] == pytest.approx(1 / 3)
    assert found["ood/aupr_in/msp"] == pytest.approx(2 / 3)
    assert found["ood/fpr95/msp"] == found["ood/fpr95_in/msp"] == 1
    assert found["accuracy"] == pytest.approx(2 / 6)
    assert found["aurc"] == pytest.approx(4 / 6)


def test_figures_do_not_count_what_has_no_label() -> None:
    pred, targets = mt.Prediction(logits=torch.randn(2, 3, 4, 5, 5)), torch.randint(4, (3, 5, 5))
    targets[0] = 255
    with pytest.raises(mt.InputError, match="target 255"):
        figures.reliability({"a": (pred, targets)})
    ece = mt.score(pred, targets, ignore=255)["ece"]
    labels = figures.reliability({"a": (pred, targets)}, ignore=255).axes[0].get_legend_handles_labels()[1]
    assert f"a: ECE {ece:.3f}" in labels


def test_copies_in_a_regression() -> None:
    """Copies cause a warning; members that differ, and a single member, do not."""
    mean = torch.randn(1, 20)
    with pytest.warns(UserWarning, match="3 members have collapsed"):
        mt.score(mt.Prediction(mean=mean.repeat(3, 1)), torch.randn(20))
    mt.score(mt.Prediction(mean=mean), torch.randn(20))
    mt.score(mt.Prediction(mean=torch.randn(3, 20)), torch.randn(20))
    mt.score(mt.Prediction(logits=members(3, 20, 4)), drawn(4, 20))


def test_members_that_agree_on_labels_alone_have_not_collapsed() -> None:
    """They predict the same labels with different confidence; a warning would be an error."""
    found = mt.score(mt.Prediction(logits=torch.tensor([[[4.0, 0.0]], [[1.0, 0.0]]]).repeat(1, 5, 1)), torch.zeros(5))
    assert found["disagreement"] == 0
    assert found["mean_mutual_information"] > 0.01


def test_sure_members_are_told_apart() -> None:
    """Single precision gives the scores of double precision for logits far apart, KL included."""
    inside, far = 30 * torch.randn(4, 400, 7), 20 * torch.randn(4, 300, 7)
    targets = torch.randint(7, (400,))
    single, double = (
        mt.score(mt.Prediction(logits=inside.to(d)), targets, ood=mt.Prediction(logits=far.to(d)))
        for d in (torch.float32, torch.float64)
    )
    assert dict(single) == pytest.approx(dict(double), abs=1e-6)
    logs = inside.double().log_softmax(2)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    kl = sum((logs[i].exp() * (logs[i] - logs[j])).sum(1).mean() for i, j in pairs) / 12
    assert single["kl_diversity"] == pytest.approx(float(kl))


def test_two_classes_are_ranked_alike_by_confidence_and_entropy() -> None:
    """With two classes, entropy is a function of confidence."""
    near, far = (mt.Prediction(logits=scale * torch.randn(3, 200, 2)) for scale in (25, 15))
    found = mt.score(near, torch.zeros(200), ood=far)
    assert found["ood/auroc/msp"] == pytest.approx(found["ood/auroc/entropy"], abs=1e-4)


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_yes_and_no_as_bool(task: str) -> None:
    pred, targets = mt.Prediction(logits=torch.randn(3, 20, 4), task=task), torch.rand(20, 4) < 0.5
    assert mt.score(pred, targets) == mt.score(pred, targets.long())


def test_binary_segmentation_has_an_intersection_over_union() -> None:
    targets = torch.randint(2, (3, 5, 5))
    found = mt.score(mt.Prediction(logits=torch.randn(2, 3, 1, 5, 5), task="binary"), targets)
    assert 0 <= found["miou"] <= 1


MILLION = """
import json, pathlib, resource, time
import torch
torch.set_num_threads(1)
import multitudes as mt
generator = torch.Generator().manual_seed(0)
logits = torch.empty(4, 1_000_000, 100)
for member in logits:
    member.normal_(generator=generator)
targets = torch.randint(100, (1_000_000,), generator=generator)
logits[:, torch.arange(1_000_000), targets] += 2
start = time.process_time()
found = mt.score(mt.Prediction(logits=logits), targets)
seconds = time.process_time() - start
status = pathlib.Path("/proc/self/status")  # what getrusage says may be the parent's peak
lines = status.read_text().splitlines() if status.exists() else []
held = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
peak = held[0] if held else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak": peak, "nll": found["nll"], "accuracy": found["accuracy"]}))
"""


@pytest.mark.slow
def test_a_million_predictions() -> None:
    """A million examples of 100 classes and 4 members take less than a minute and 3 GiB, 1.6 GB of logits included.

    On one core, where it takes 20 s; half of that ranks classes. The time of other processes does not count. malloc gives freed
    memory back at once; otherwise the peak differs from run to run by gigabytes.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run([sys.executable, "-c", MILLION], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seconds"] < 60
    assert found["peak"] < 3 * 2**30
    assert 0 < found["nll"] < math.log(100)
    assert 0.1 < found["accuracy"] < 1


def test_one_set_for_all_parts_is_counted_once() -> None:
    """Parts that were compared with the same OOD set merge into the whole."""
    pred, targets, other = (
        mt.Prediction(logits=members(3, 40, 6)),
        drawn(6, 40),
        mt.Prediction(logits=members(3, 25, 6, seed=9)),
    )
    whole = scored(pred, targets, ood=other)
    merged = mt.scores.Scores.merge([scored(pred[rows], targets[rows], ood=other) for rows in (slice(0, 15), slice(15, 40))])
    assert {name: merged[name] for name in whole} == pytest.approx(dict(whole))


def test_moments_of_the_very_sure() -> None:
    """Moments store log probabilities, so that the NLL is finite where a probability underflows."""
    logits = torch.zeros(2, 3, 4)
    logits[..., 0] = 400.0
    pred = mt.Prediction(logits=logits)
    held = mt.Prediction.of_moments("classes", 2, {**pred.described(), "logs": pred.logs})
    targets = torch.tensor([1, 2, 3])
    with pytest.warns(UserWarning, match="collapsed"):
        assert mt.score(held, targets)["nll"] == pytest.approx(400)
    with pytest.warns(UserWarning, match="collapsed"):
        assert mt.score(pred, targets)["nll"] == pytest.approx(400)
