"""threshold against trying every threshold, and select against torch's own loss of each member."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from laws.compare import convert
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import ZOO

import multitudes as mt
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator


def sure(confidence: list[float], right: list[int]) -> tuple[Prediction, Tensor]:
    """A prediction of two classes with these confidences in class 0, and targets by which it is right or wrong."""
    first = torch.tensor(confidence, dtype=torch.float64)
    return Prediction(probs=torch.stack([first, 1 - first], 1)[None]), 1 - torch.tensor(right)


def answered(pred: Prediction, targets: Tensor, threshold: float) -> tuple[float, float]:
    """The share of answered examples, and of errors among them (0 if none is answered)."""
    kept = pred.confidence >= threshold
    wrong = (pred.labels != targets)[kept]
    return float(kept.double().mean()), float(wrong.double().mean()) if len(wrong) else 0.0


PRED, TARGETS = sure([0.99, 0.95, 0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("error", "threshold"),
    [(0.0, 0.95), (0.1, 0.95), (0.2, 0.7), (0.25, 0.7), (0.34, 0.6), (1.0, 0.6)],
)
def test_an_error_that_is_allowed(error: float, threshold: float) -> None:
    """The threshold is the lowest that keeps the error."""
    assert mt.threshold(PRED, TARGETS, error=error) == pytest.approx(threshold)
    assert answered(PRED, TARGETS, mt.threshold(PRED, TARGETS, error=error))[1] <= error


@pytest.mark.parametrize(
    ("coverage", "threshold"), [(0.0, 0.99), (0.1, 0.99), (1 / 6, 0.99), (0.5, 0.9), (0.51, 0.8), (1.0, 0.6)]
)
def test_a_coverage_that_is_wanted(coverage: float, threshold: float) -> None:
    """The threshold is the highest that answers at least this share."""
    assert mt.threshold(PRED, TARGETS, coverage=coverage) == pytest.approx(threshold)


def brute(pred: Prediction, targets: Tensor, error: float | None, coverage: float | None) -> float:
    """Tries every threshold."""
    tried = [*pred.confidence.unique().tolist(), math.inf]
    shares = {t: answered(pred, targets, t) for t in tried}
    if error is not None:
        return min(t for t in tried if shares[t][1] <= error + 1e-12)
    return max(t for t in tried if shares[t][0] >= coverage - 1e-12 and t < math.inf)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 10), st.booleans())
def test_against_trying_them_all(seed: int, count: int, tenths: int, by_error: bool) -> None:
    """With many ties, since confidences are tenths."""
    generator = torch.Generator().manual_seed(seed)
    confidence = (torch.randint(5, 11, (count,), generator=generator) / 10).tolist()
    pred, targets = sure(confidence, torch.randint(2, (count,), generator=generator).tolist())
    limit: dict[str, Any] = {"error": tenths / 10, "coverage": None} if by_error else {"error": None, "coverage": tenths / 10}
    assert mt.threshold(pred, targets, **limit) == brute(pred, targets, **limit)


@pytest.mark.parametrize("task", ["classes", "binary", "multilabel"])
def test_every_task_with_a_confidence(task: str) -> None:
    """Each label counts as an example; thresholds of single-precision confidences select the same examples."""
    shape = {"classes": (3, 50, 4), "binary": (3, 50), "multilabel": (3, 50, 2)}[task]
    pred = Prediction(logits=torch.randn(shape), task=task)
    targets = torch.randint(pred.classes, pred.shape)
    threshold = mt.threshold(pred, targets, coverage=0.3)
    share = float((pred.confidence >= threshold).double().mean())
    assert 0.3 <= share <= 0.3 + 2 / targets.numel()
    assert mt.threshold(pred, targets, error=1.0) == float(pred.confidence.min())


def test_moments_are_enough() -> None:
    """Moments with targets of their own are enough."""
    held = Prediction.of_moments("classes", 1, {**PRED.described(), "probs": PRED.probs}, TARGETS)
    assert mt.threshold(held, error=0.2) == mt.threshold(PRED, TARGETS, error=0.2)


def test_pixels_without_a_label_do_not_count() -> None:
    """Ignored entries do not count."""
    pred, targets = sure([0.9, 0.8, 0.7], [1, 0, 1])
    targets[1] = 255
    assert mt.threshold(pred, targets, error=0.0, ignore=255) == pytest.approx(0.7)


X = ZOO["mlp"].example(30).args[0]
OUTPUTS = {"classes": 5, "binary": 1, "multilabel": 3, "gaussian": 4, "regression": 2}


@functools.cache
def network(task: str) -> tuple[mt.Ensemble, Tensor, list[float]]:
    """An ensemble of four members, targets, and each member's loss by torch."""
    net = nn.Sequential(nn.Linear(4, OUTPUTS[task])).double()
    ens = mt.ensemble(net, mt.Deep(members=4), X[:2], task=task, seed=3).eval()
    with torch.no_grad():
        outputs = ens(X)
    generator = torch.Generator().manual_seed(1)
    if task == "classes":
        y, loss = torch.randint(5, (30,), generator=generator), nn.functional.cross_entropy
    elif task in ("binary", "multilabel"):
        y, loss = torch.randint(2, outputs.shape[1:], generator=generator).double(), nn.BCEWithLogitsLoss()
    else:
        y = torch.randn(30, 2, dtype=torch.float64, generator=generator)
        loss = mt.GaussianNLL() if task == "gaussian" else nn.functional.mse_loss
    losses = [float(loss(out, y)) for out in outputs]
    assert len(set(losses)) == 4
    return ens, y.squeeze(1) if task == "binary" else y, losses


def best_of(losses: list[float], k: int) -> list[int]:
    """The k members of lowest loss, in their order."""
    return sorted(sorted(range(len(losses)), key=lambda m: losses[m])[:k])


@pytest.mark.parametrize("task", OUTPUTS)
def test_the_best_members_are_selected(task: str) -> None:
    """The k members of lowest loss by torch, in their order; the ensemble does not change."""
    ens, y, losses = network(task)
    for k in (1, 3):
        few = mt.select(ens, TensorDataset(X, y), k, batch_size=7)
        assert isinstance(few, mt.Ensemble)
        assert (few.members, few.task, ens.members) == (k, task, 4)
        torch.testing.assert_close(few(X), ens(X)[best_of(losses, k)])


def test_targets_and_options_of_predict() -> None:
    """Targets can be passed apart from the data, and `split` is predict's."""
    ens, y, losses = network("classes")
    for few in (
        mt.select(ens, X, 1, targets=y),
        mt.select(ens, DataLoader(TensorDataset(X, y), 4, shuffle=True), 1),
        mt.select(ens, [{"x": x, "y": t} for x, t in zip(X, y, strict=True)], 1, unpack=lambda b: (b["x"], b["y"])),
    ):
        torch.testing.assert_close(few(X), ens(X)[best_of(losses, 1)])


def test_pixels() -> None:
    """All pixels of an image count."""
    case = ZOO["unet"]
    ens, x = convert(mt.Deep(members=2), case), case.example(4).args[0]
    y = torch.randint(5, (4, 8, 8))
    losses = [float(nn.functional.cross_entropy(out, y)) for out in ens(x).detach()]
    torch.testing.assert_close(mt.select(ens, TensorDataset(x, y), 1)(x), ens(x)[best_of(losses, 1)])


@pytest.mark.parametrize("method", [mt.EMP(members=4), mt.MIMO()], ids=lambda m: type(m).__name__)
def test_members_that_are_drawn_or_share_an_input(method: mt.Method) -> None:
    """Members keep their draws; MIMO's are compacted."""
    ens = convert(method, ZOO["mlp"])
    y = torch.randint(5, (30,))
    losses = [float(nn.functional.cross_entropy(out, y)) for out in ens(X).detach()]
    torch.testing.assert_close(mt.select(ens, X, 2, targets=y)(X), ens(X)[best_of(losses, 2)])


def test_the_known_noise_of_an_observation_changes_nothing() -> None:
    """With one variance for all, the lowest NLL is the lowest squared error."""
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)).double()
    y = torch.randn(30, 1, dtype=torch.float64)
    ens = mt.ensemble(net, mt.EMP(members=4, tau_output=0.1), X[:2], task="regression", seed=0).eval()
    losses = [float(nn.functional.mse_loss(out, y)) for out in ens(X).detach()]
    assert len(set(losses)) == 4
    torch.testing.assert_close(mt.select(ens, X, 1, targets=y)(X), ens(X)[best_of(losses, 1)])


def test_temperatures_of_members_count() -> None:
    """A calibrated member is judged as calibrated, and keeps its temperature."""
    ens, y, losses = network("classes")
    best, second = sorted(range(4), key=lambda m: losses[m])[:2]
    ens = copy.deepcopy(ens)
    ens.calibrator = Calibrator(members=tuple(0.01 if m == best else 1.0 for m in range(4)))
    few = mt.select(ens, X, 1, targets=y)
    torch.testing.assert_close(few(X)[0], ens(X)[second])
    assert few.calibrator == Calibrator(members=(1.0,))


def selected(k: Any = 1, **options: Any) -> mt.Ensemble:
    """The best members of the classification."""
    ens, y, _ = network("classes")
    return mt.select(ens, X, k, **{"targets": y, **options})


NUMBERS = Prediction(mean=torch.zeros(2, 3))
REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "neither": (lambda: mt.threshold(PRED, TARGETS), mt.InputError, "error= or coverage="),
    "both": (lambda: mt.threshold(PRED, TARGETS, error=0.1, coverage=0.9), mt.InputError, "error= or coverage="),
    "error": (lambda: mt.threshold(PRED, TARGETS, error=-0.1), mt.InputError, "error=-0.1"),
    "coverage": (lambda: mt.threshold(PRED, TARGETS, coverage=1.5), mt.InputError, "coverage=1.5"),
    "NaN": (lambda: mt.threshold(PRED, TARGETS, coverage=math.nan), mt.InputError, "coverage=nan"),
    "numbers": (lambda: mt.threshold(NUMBERS, torch.zeros(3), error=0.1), mt.InputError, r"pred\.std"),
    "no examples": (lambda: mt.threshold(PRED[:0], TARGETS[:0], error=0.1), mt.InputError, "at least one example"),
    "no labels": (lambda: mt.threshold(PRED, TARGETS * 0 + 9, error=0.1, ignore=9), mt.InputError, "at least one example"),
    "no targets": (lambda: mt.threshold(PRED, error=0.1), mt.InputError, "no targets"),
    **{f"k={k}": (lambda k=k: selected(k), mt.InputError, f"k={k}") for k in (0, 5, -1)},
    **{f"k={k!r}": (lambda k=k: selected(k), TypeError, "int") for k in (2.0, "2", None)},
    "a network": (lambda: mt.select(nn.Linear(4, 5), X, 1), mt.InputError, "Linear"),
    "moments": (lambda: selected(moments_only=True), mt.InputError, "moments_only"),
    "untargeted": (lambda: selected(targets=None), mt.InputError, "no targets"),
    "lengths": (lambda: selected(targets=torch.zeros(7)), mt.InputError, "targets"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    """Limits, numbers of members and predictions that cannot be used."""
    call, error, noun = REFUSALS[name]
    with pytest.raises(error, match=noun):
        call()
