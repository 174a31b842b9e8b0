"""Losses: against torch's own, values and gradients; and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.data.labels import UNLABELLED
from multitudes.prediction.tasks import FLOOR
from multitudes.training.losses import CRITERIA


def reference(output: Tensor, target: Tensor, reduction: str) -> Tensor:
    """torch's loss, with its constant, on softplus variances."""
    mean, raw = output.chunk(2, 1)
    return nn.GaussianNLLLoss(full=True, eps=FLOOR, reduction=reduction)(mean, target, F.softplus(raw))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7, 2), (7, 6), (3, 4, 5), (2, 2, 3, 3)])
def test_against_torch(shape: tuple[int, ...], reduction: Any) -> None:
    """At every shape and reduction, with gradients."""
    output = (2 * torch.randn(shape, dtype=torch.float64)).requires_grad_(True)
    target = torch.randn(shape[0], shape[1] // 2, *shape[2:], dtype=torch.float64)
    ours, theirs = mt.GaussianNLL(reduction)(output, target), reference(output, target, reduction)
    torch.testing.assert_close(ours, theirs)
    weights = torch.rand_like(ours)
    grads = [torch.autograd.grad((loss * weights).sum(), output)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_gradients_are_those_of_differences() -> None:
    """gradcheck, in double precision."""
    output = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mt.GaussianNLL(), (output, torch.randn(3, 2, dtype=torch.float64)))


def test_it_is_the_density() -> None:
    """−log N(y; μ, softplus(raw)), constant included: comparable with what `mt.score` calls NLL."""
    output, target = torch.randn(5, 2), torch.randn(5, 1)
    density = torch.distributions.Normal(output[:, :1], F.softplus(output[:, 1:]).sqrt()).log_prob(target)
    torch.testing.assert_close(mt.GaussianNLL("none")(output, target), -density)
    zero = torch.tensor([[0.0, math.log(math.e - 1)]])  # N(0, 1)
    assert float(mt.GaussianNLL()(zero, torch.zeros(1, 1))) == pytest.approx(0.5 * math.log(2 * math.pi))


def test_it_is_what_a_prediction_says() -> None:
    """A single network's NLL is minus the log density of its prediction."""
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    ens = mt.ensemble(nn.Linear(3, 4), mt.Single(), x, task="gaussian", seed=0).eval()
    pred = mt.predict(ens, x)
    torch.testing.assert_close(-pred.log_density(y).mean(), mt.GaussianNLL()(ens(x)[0], y).detach())


def test_targets_without_an_axis() -> None:
    """[B] for one number each, [B, T] for one at each step: never broadcast against each other."""
    output, target = torch.randn(7, 2), torch.randn(7)
    torch.testing.assert_close(mt.GaussianNLL()(output, target), reference(output, target[:, None], "mean"))
    steps, each = torch.randn(3, 2, 5), torch.randn(3, 5)
    torch.testing.assert_close(mt.GaussianNLL()(steps, each), reference(steps, each[:, None], "mean"))


@pytest.mark.parametrize(
    ("output", "target", "says"),
    [
        ((7, 3), (7, 1), r"\[7, 3\].*side by side"),
        ((7,), (7,), r"side by side"),
        ((7, 4), (7,), r"targets .*\[7\].*means.* \[7, 2\]"),
        ((7, 2), (1, 7), r"targets .*\[1, 7\].*means.* \[7, 1\]"),
        ((7, 2), (7, 2), r"targets .*\[7, 2\].*means.* \[7, 1\]"),
        ((7, 2), (6, 1), r"targets .*\[6, 1\]"),
        ((7, 4), (7, 1), r"targets .*\[7, 1\].*means.* \[7, 2\]"),
        ((7, 2), (), r"targets .*\[\]"),
    ],
)
def test_shapes_that_do_not_fit(output: tuple[int, ...], target: tuple[int, ...], says: str) -> None:
    """Are errors, and nothing is broadcast."""
    with pytest.raises(mt.InputError, match=says):
        mt.GaussianNLL()(torch.zeros(output), torch.zeros(target))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_weights_entries(beta: float) -> None:
    """β-NLL: the value is σ^2β times the likelihood's; its gradient is that of the likelihood, times the same weight."""
    output = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randn(5, 2, dtype=torch.float64)
    weights = F.softplus(output.detach()[:, 2:]) ** beta
    loss = reference(output, target, "none")
    assert_close = torch.testing.assert_close
    assert_close(mt.GaussianNLL("none", beta)(output, target), weights * loss)
    assert_close(mt.GaussianNLL(beta=beta)(output, target), (weights * loss).mean())
    (ours,) = torch.autograd.grad(mt.GaussianNLL("sum", beta)(output, target), output)
    (plain,) = torch.autograd.grad(loss.sum(), output)
    assert_close(ours, plain * weights.repeat(1, 2))


def test_beta_of_one_is_squared_error_to_the_means() -> None:
    output, target = torch.randn(5, 2, requires_grad=True), torch.randn(5, 1)
    (found,) = torch.autograd.grad(mt.GaussianNLL("sum", 1.0)(output, target), output)
    torch.testing.assert_close(found[:, :1], (output[:, :1] - target).detach())
    for beta in (-0.1, 1.1, True):
        with pytest.raises(mt.InputError, match=f"beta={beta}"):
            mt.GaussianNLL(beta=beta)


def test_a_reduction_that_is_none() -> None:
    """Is refused when the loss is made."""
    with pytest.raises(mt.InputError, match="reduction='median'"):
        mt.GaussianNLL("median")


@pytest.mark.parametrize("raw", [-1000.0, -40.0, 0.0, 1000.0])
def test_variances_of_any_size(raw: float) -> None:
    """What is surer than single precision can say has a floor: loss and gradients are finite."""
    output = torch.tensor([[0.5, raw]], requires_grad=True)
    loss = mt.GaussianNLL()(output, torch.zeros(1, 1))
    loss.backward()
    assert loss.isfinite()
    assert output.grad.isfinite().all()
    assert float(loss.detach()) <= 0.5 * 0.25 / FLOOR


def test_training_lowers_it() -> None:
    """Through `ens.loss`: a tiny network finds the mean, and how much noise there is where."""
    torch.manual_seed(0)
    x = torch.rand(256, 1) * 2 - 1
    y = x + (0.05 + 0.5 * (x > 0)) * torch.randn_like(x)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
    ens = mt.ensemble(net, mt.Deep(members=2), x[:2], task="gaussian", seed=0).train()
    criterion = mt.GaussianNLL()
    optimizer = torch.optim.Adam(ens.param_groups(lr=0.02))
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = ens.loss(x, y, criterion)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()) / ens.members)
    assert losses[-1] < losses[0] - 0.8
    pred = mt.predict(ens, torch.tensor([[-0.7], [0.7]]))
    assert float(pred.aleatoric[0]) < 0.05 < float(pred.aleatoric[1])
    torch.testing.assert_close(pred.mean, torch.tensor([[-0.7], [0.7]]), atol=0.2, rtol=0)


@pytest.mark.parametrize("task", ["binary", "multilabel"])
@pytest.mark.parametrize("labels", [[1, 2], [0, 255], [-1, 1], [0.5, 1.5]])
def test_labels_that_are_neither(task: str, labels: list[float]) -> None:
    """A loss of them would fall without end."""
    with pytest.raises(mt.InputError, match="0, 1 or a probability"):
        CRITERIA[task](torch.zeros(1, 2), torch.tensor([labels]))
    assert CRITERIA[task](torch.zeros(1, 2), torch.tensor([[0.5, 1]])) == pytest.approx(math.log(2))


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_targets_of_another_layout(task: str) -> None:
    """Only axes of length one may differ: entries of another order are other entries."""
    output = torch.zeros(4, 2, 3, 3)
    with pytest.raises(mt.InputError, match=r"\[4, 3, 3, 2\].*\[4, 2, 3, 3\].*movedim\(-1, 1\)"):
        CRITERIA[task](output, torch.zeros(4, 3, 3, 2))
    with pytest.raises(mt.InputError, match="targets"):
        CRITERIA[task](torch.zeros(6, 2), torch.zeros(4, 3))
    for shape in ((4, 1), (4,), (4, 1, 1)):
        assert CRITERIA[task](torch.zeros(4, 1), torch.zeros(shape)).shape == ()


@pytest.mark.parametrize("target", [[[0.5, 0.6]], [[-0.5, 1.5]], [[3.0, -2.0]], [[0.0, 0.0]]])
def test_probabilities_that_are_none(target: list[list[float]]) -> None:
    with pytest.raises(mt.InputError, match="class probabilities"):
        CRITERIA["classes"](torch.zeros(1, 2), torch.tensor(target))


@pytest.mark.parametrize("task", ["classes", "binary", "multilabel"])
def test_targets_that_are_not_finite_are_said_to_be_so(task: str) -> None:
    """And not taken for labels or probabilities of the wrong size."""
    for value in (math.nan, math.inf):
        with pytest.raises(mt.InputError, match="a target is NaN or infinite, in row 1"):
            CRITERIA[task](torch.zeros(2, 2), torch.tensor([[0.5, 0.5], [value, 1.0]]))


def test_cross_entropy_is_torchs() -> None:
    """With and without entries that have no label, and probabilities."""
    output, target = torch.randn(6, 3, 4), torch.randint(3, (6, 4))
    target[1], target[2, 2] = UNLABELLED, UNLABELLED
    for given in (target, torch.randn(6, 3, 4).softmax(1)):
        torch.testing.assert_close(CRITERIA["classes"](output, given), F.cross_entropy(output, given))
    none = output.clone().requires_grad_()
    loss = CRITERIA["classes"](none, torch.full_like(target, UNLABELLED))
    loss.backward()
    assert loss == 0
    assert none.grad is not None
    assert bool((none.grad == 0).all())
