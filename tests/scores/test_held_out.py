"""After training: thresholds that hold on the data they were found on, and the members that are best there."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
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
    """The share of examples that are answered, and of errors among them (0 where there are none)."""
    kept = pred.confidence >= threshold
    wrong = (pred.labels != targets)[kept]
    return float(kept.double().mean()), float(wrong.double().mean()) if len(wrong) else 0.0


def brute(pred: Prediction, targets: Tensor, error: float | None, coverage: float | None) -> float:
    """Every threshold tried: the most answers that an error allows, or the fewest that a coverage asks for."""
    tried = [*pred.confidence.unique().tolist(), math.inf]
    found = {t: answered(pred, targets, t) for t in tried}
    if error is not None:
        return min(t for t in tried if found[t][1] <= error + 1e-12)
    return max(t for t in tried if found[t][0] >= coverage - 1e-12 and t < math.inf)


PRED, TARGETS = sure([0.99, 0.95, 0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("error", "threshold"),
    [(0.0, 0.95), (0.1, 0.95), (0.2, 0.7), (0.25, 0.7), (0.34, 0.6), (1.0, 0.6)],
)
def test_an_error_that_is_allowed(error: float, threshold: float) -> None:
    """As many are answered as that allows."""
    assert mt.threshold(PRED, TARGETS, error=error) == pytest.approx(threshold)
    assert answered(PRED, TARGETS, mt.threshold(PRED, TARGETS, error=error))[1] <= error


@pytest.mark.parametrize(
    ("coverage", "threshold"), [(0.0, 0.99), (0.1, 0.99), (1 / 6, 0.99), (0.5, 0.9), (0.51, 0.8), (1.0, 0.6)]
)
def test_a_coverage_that_is_wanted(coverage: float, threshold: float) -> None:
    """At least so many are answered."""
    assert mt.threshold(PRED, TARGETS, coverage=coverage) == pytest.approx(threshold)


def test_equal_confidences_are_answered_together() -> None:
    """Or not at all: one of them alone cannot be told from the others."""
    pred, targets = sure([0.9, 0.8, 0.8, 0.8, 0.7], [1, 1, 1, 0, 1])
    assert mt.threshold(pred, targets, error=0.2) == pytest.approx(0.7)  # 1 of 5
    assert mt.threshold(pred, targets, error=0.1) == pytest.approx(0.9)
    assert mt.threshold(pred, targets, coverage=0.4) == pytest.approx(0.8)
    assert mt.threshold(pred, targets, coverage=0.2) == pytest.approx(0.9)


@pytest.mark.parametrize(("wrong", "count"), [(1, 9), (2, 9), (1, 10), (3, 10), (7, 100)])
def test_the_share_itself_is_allowed(wrong: int, count: int) -> None:
    """An error of exactly k in n, all of one confidence: rounding does not take it back."""
    pred, targets = sure([0.75] * count, [0] * wrong + [1] * (count - wrong))
    assert mt.threshold(pred, targets, error=wrong / count) == 0.75
    assert mt.threshold(pred, targets, error=wrong / count - 1e-6) == math.inf


def test_an_error_that_nothing_can_keep() -> None:
    """The surest answers are wrong: never answer."""
    pred, targets = sure([0.9, 0.8], [0, 0])
    assert mt.threshold(pred, targets, error=0.3) == math.inf
    assert not (pred.confidence >= math.inf).any()


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 10), st.booleans())
def test_against_trying_them_all(seed: int, count: int, tenths: int, by_error: bool) -> None:
    """With many ties, since confidences are tenths."""
    generator = torch.Generator().manual_seed(seed)
    confidence = (torch.randint(5, 11, (count,), generator=generator) / 10).tolist()
    pred, targets = sure(confidence, torch.randint(2, (count,), generator=generator).tolist())
    wanted: dict[str, Any] = {"error": tenths / 10, "coverage": None} if by_error else {"error": None, "coverage": tenths / 10}
    assert mt.threshold(pred, targets, **wanted) == brute(pred, targets, **wanted)


@pytest.mark.parametrize("task", ["classes", "binary", "multilabel"])
def test_every_task_with_a_confidence(task: str) -> None:
    """Labels count one by one; single precision in, and the same examples out."""
    shape = {"classes": (3, 50, 4), "binary": (3, 50), "multilabel": (3, 50, 2)}[task]
    pred = Prediction(logits=torch.randn(shape), task=task)
    targets = torch.randint(pred.classes, pred.shape)
    threshold = mt.threshold(pred, targets, coverage=0.3)
    share = float((pred.confidence >= threshold).double().mean())
    assert 0.3 <= share <= 0.3 + 2 / targets.numel()
    assert mt.threshold(pred, targets, error=1.0) == float(pred.confidence.min())


def test_moments_are_enough() -> None:
    """And targets that came along."""
    held = Prediction.of_moments("classes", 1, {**PRED.described(), "probs": PRED.probs}, TARGETS)
    assert mt.threshold(held, error=0.2) == mt.threshold(PRED, TARGETS, error=0.2)


def test_pixels_without_a_label_do_not_count() -> None:
    """`ignore` says what stands for them."""
    pred, targets = sure([0.9, 0.8, 0.7], [1, 0, 1])
    targets[1] = 255
    assert mt.threshold(pred, targets, error=0.0, ignore=255) == pytest.approx(0.7)
    with pytest.raises(mt.InputError, match="target 255 of example 1 is no class"):
        mt.threshold(pred, targets, error=0.0)
    with pytest.raises(mt.InputError, match="no examples to find a threshold on"):
        mt.threshold(pred, torch.full((3,), 255), error=0.0, ignore=255)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({}, r"say which error is allowed or which coverage is wanted: threshold\("),
        ({"error": 0.1, "coverage": 0.9}, "say which error"),
        ({"error": -0.1}, "error=-0.1: a share between 0 and 1"),
        ({"coverage": 1.5}, "coverage=1.5: a share"),
        ({"coverage": math.nan}, "coverage=nan: a share"),
    ],
)
def test_what_cannot_be_asked_of_a_threshold(wanted: dict[str, Any], says: str) -> None:
    """One of the two, as a share."""
    with pytest.raises(mt.InputError, match=says):
        mt.threshold(PRED, TARGETS, **wanted)


def test_numbers_have_no_confidence() -> None:
    """The error says what to abstain by."""
    with pytest.raises(mt.InputError, match=r"task='regression' has no confidence: abstain by pred\.std"):
        mt.threshold(Prediction(mean=torch.zeros(2, 3)), torch.zeros(3), error=0.1)
    with pytest.raises(mt.InputError, match="no examples to find a threshold on"):
        mt.threshold(PRED[:0], TARGETS[:0], error=0.1)
    with pytest.raises(mt.InputError, match="there are no targets"):
        mt.threshold(PRED, error=0.1)


X = ZOO["mlp"].example(30).args[0]
OUTPUTS = {"classes": 5, "binary": 1, "multilabel": 3, "gaussian": 4, "regression": 2}


def network(task: str, members: int = 5) -> tuple[mt.Ensemble, Tensor, list[float]]:
    """An ensemble, targets, and each member's own loss by torch."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, OUTPUTS[task])).double()
    ens = mt.ensemble(net, mt.Deep(members=members), X[:2], task=task, seed=3).eval()
    with torch.no_grad():
        for tensor in ens.parameters():
            tensor.mul_(2)
        outputs = ens(X)
    generator = torch.Generator().manual_seed(1)
    if task == "classes":
        y = torch.randint(5, (30,), generator=generator)
        losses = [nn.functional.cross_entropy(out, y) for out in outputs]
    elif task in ("binary", "multilabel"):
        y = torch.randint(2, outputs.shape[1:], generator=generator).double()
        losses = [nn.functional.binary_cross_entropy_with_logits(out, y) for out in outputs]
    elif task == "gaussian":
        y = torch.randn(30, 2, dtype=torch.float64, generator=generator)
        losses = [mt.GaussianNLL()(out, y) for out in outputs]
    else:
        y = torch.randn(30, 2, dtype=torch.float64, generator=generator)
        losses = [nn.functional.mse_loss(out, y) for out in outputs]
    return ens, y.squeeze(1) if task == "binary" else y, [float(loss) for loss in losses]


@pytest.mark.parametrize("k", [1, 2, 4, 5])
@pytest.mark.parametrize("task", OUTPUTS)
def test_the_best_members_are_kept(task: str, k: int) -> None:
    """By torch's own loss of each; in their order, with their outputs, and the ensemble stays as it was."""
    ens, y, losses = network(task)
    best = sorted(sorted(range(5), key=lambda m: losses[m])[:k])
    assert len(set(losses)) == 5
    few = mt.select(ens, TensorDataset(X, y), k, batch_size=7)
    assert isinstance(few, mt.Ensemble)
    assert (few.members, few.task, ens.members) == (k, task, 5)
    torch.testing.assert_close(few(X), ens(X)[best])


def test_targets_may_be_given_apart() -> None:
    """And `options` are predict's."""
    ens, y, losses = network("classes")
    best = min(range(5), key=lambda m: losses[m])
    for few in (
        mt.select(ens, X, 1, targets=y),
        mt.select(ens, DataLoader(TensorDataset(X, y), 4, shuffle=True), 1),
        mt.select(ens, [{"x": x, "y": t} for x, t in zip(X, y, strict=True)], 1, split=lambda b: (b["x"], b["y"])),
    ):
        torch.testing.assert_close(few(X)[0], ens(X)[best])
    with pytest.raises(mt.InputError, match="there are no targets"):
        mt.select(ens, X, 1)


def test_pixels() -> None:
    """All of an image count."""
    case = ZOO["unet"]
    ens, x = convert(mt.Deep(members=3), case), case.example(4).args[0]
    y = torch.randint(5, (4, 8, 8))
    losses = [float(nn.functional.cross_entropy(out, y)) for out in ens(x).detach()]
    few = mt.select(ens, TensorDataset(x, y), 1)
    torch.testing.assert_close(few(x)[0], ens(x)[min(range(3), key=lambda m: losses[m])])


@pytest.mark.parametrize("method", [mt.EMP(members=4), mt.MIMO(), mt.MCDropout(members=4)], ids=lambda m: type(m).__name__)
def test_members_that_are_drawn_or_share_an_input(method: mt.Method) -> None:
    """Keep their draws; MIMO's are compacted."""
    ens = convert(method, ZOO["mlp"])
    y = torch.randint(5, (30,))
    losses = [float(nn.functional.cross_entropy(out, y)) for out in ens(X).detach()]
    best = sorted(sorted(range(ens.members), key=lambda m: losses[m])[:2])
    torch.testing.assert_close(mt.select(ens, X, 2, targets=y)(X), ens(X)[best])


def test_the_known_noise_of_an_observation_changes_nothing() -> None:
    """With one variance for all, the least NLL is the least squared error."""
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)).double()
    y = torch.randn(30, 1, dtype=torch.float64)
    ens = mt.ensemble(net, mt.EMP(members=4, tau_output=0.1), X[:2], task="regression", seed=0).eval()
    losses = [float(nn.functional.mse_loss(out, y)) for out in ens(X).detach()]
    assert len(set(losses)) == 4
    torch.testing.assert_close(mt.select(ens, X, 1, targets=y)(X)[0], ens(X)[min(range(4), key=lambda m: losses[m])])


def test_temperatures_of_members_count() -> None:
    """A calibrated member is judged as calibrated, and takes its temperature along."""
    ens, y, losses = network("classes")
    best = min(range(5), key=lambda m: losses[m])
    ens.calibrator = Calibrator(members=tuple(0.01 if m == best else 1.0 for m in range(5)))
    few = mt.select(ens, X, 1, targets=y)
    second = sorted(range(5), key=lambda m: losses[m])[1]
    torch.testing.assert_close(few(X)[0], ens(X)[second])
    assert few.calibrator == Calibrator(members=(1.0,))


@pytest.mark.parametrize("k", [0, 6, -1, 2.0, "2", None, True])
def test_how_many_to_keep(k: Any) -> None:
    """From 1 to all."""
    ens, y, _ = network("classes")
    with pytest.raises(mt.InputError, match=r"k=.*keep 1 to 5 members"):
        mt.select(ens, X, k, targets=y)


def test_errors_of_select() -> None:
    """A plain network, moments without members, and nothing to judge by."""
    ens, y, _ = network("classes")
    with pytest.raises(mt.InputError, match=r"ensembles, not Linear"):
        mt.select(nn.Linear(4, 5), X, 1, targets=y)
    with pytest.raises(mt.InputError, match="moments"):
        mt.select(ens, X, 1, targets=y, moments_only=True)
    with pytest.raises(mt.InputError, match=r"targets are \[7\]"):
        mt.select(ens, X, 1, targets=y[:7])
