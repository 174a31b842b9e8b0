"""Laplace: Hessian, posterior and marginal likelihood against closed forms by automatic differentiation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian

import multitudes as mt
from multitudes.data import Data
from multitudes.methods.laplace import best_precision, log_prior_terms
from multitudes.prediction.tasks import variance_of

pytestmark = pytest.mark.slow

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 4, generator=GENERATOR, dtype=torch.float64)
LABELS = {
    "classes": X[:, :3].argmax(1),
    "binary": (X[:, :1] > 0).double(),
    "multilabel": (X[:, :2] > 0).double(),
    "regression": X[:, :2] * 2 + 0.3 * torch.randn(40, 2, generator=GENERATOR, dtype=torch.float64),
    "gaussian": X[:, :1] + 0.3 * torch.randn(40, 1, generator=GENERATOR, dtype=torch.float64),
}
SIZES = {"classes": 3, "binary": 1, "multilabel": 2, "regression": 2, "gaussian": 2}


def made(task: str, bias: bool = True, **settings: Any) -> mt.Ensemble:
    """A small network in double precision, converted."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, SIZES[task], bias=bias)).double()
    return mt.ensemble(net, mt.Laplace(members=4, **settings), X[:2], seed=0, task=task)


def head_of(ens: mt.Ensemble, name: str) -> Tensor:
    """A buffer of the posterior."""
    return ens.get_buffer(f"2.laplace_{name}")


def covariance(ens: mt.Ensemble) -> Tensor:
    """The posterior covariance of the last layer's weights, with a bias as the last column of each row."""
    if ens.method.hessian == "full":
        return head_of(ens, "factor") @ head_of(ens, "factor").T
    basis = torch.kron(head_of(ens, "outputs"), head_of(ens, "inputs"))
    return basis @ torch.diag(head_of(ens, "spread").flatten() ** 2) @ basis.T


def by_autograd(ens: mt.Ensemble, task: str, bias: bool, noise: float) -> Tensor:
    """H of the sum of losses in the last layer's weights: a linear layer's Gauss-Newton matrix is its Hessian.

    The Fisher matrix of a Gaussian's raw variance is computed by hand, as the Hessian depends on the target there.
    """
    head: Any = ens.base[2]
    plain = made(task, bias).member(0)
    features = plain[:2](X).detach()
    theta = torch.cat([plain[2].weight, plain[2].bias[:, None]], 1) if bias else plain[2].weight
    assert head.out_features == SIZES[task]
    whole = torch.cat([features, torch.ones(40, 1).double()], 1) if bias else features

    def loss(weights: Tensor) -> Tensor:
        outputs, y = whole @ weights.T, LABELS[task]
        if task == "classes":
            return F.cross_entropy(outputs, y, reduction="sum")
        if task == "regression":
            return 0.5 * (outputs - y).square().sum() / noise
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="sum")

    if task == "gaussian":
        raw = (whole @ theta.detach().T)[:, 1]
        variance = variance_of(raw)
        of_mean = torch.einsum("n,nd,ne->de", 1 / variance, whole, whole)
        of_raw = torch.einsum("n,nd,ne->de", 0.5 * (raw.sigmoid() / variance) ** 2, whole, whole)
        return torch.block_diag(of_mean, of_raw)
    return hessian(loss, theta.detach()).reshape(theta.numel(), theta.numel())


@pytest.mark.parametrize("task", list(SIZES))
@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_full_posterior_is_the_closed_form(task: str, bias: bool) -> None:
    """(H + δ I)⁻¹, with H by automatic differentiation."""
    ens = made(task, bias, hessian="full", precision=0.7)
    ens.finish(Data(X, LABELS[task]))
    wanted = by_autograd(ens, task, bias, float(head_of(ens, "noise")))
    wanted = (wanted + 0.7 * torch.eye(len(wanted)).double()).inverse()
    torch.testing.assert_close(covariance(ens), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_the_factored_posterior(task: str) -> None:
    """Σ Λ ⊗ mean of φ φᵀ; of a regression, whose Λ is the same everywhere, that is H itself."""
    factored, full = made(task, precision=0.7), made(task, precision=0.7, hessian="full")
    for ens in (factored, full):
        ens.finish(Data(X, LABELS[task]))
    if task == "regression":
        torch.testing.assert_close(covariance(factored), covariance(full))
        return
    plain = made(task).member(0)
    features = torch.cat([plain[:2](X), torch.ones(40, 1).double()], 1).detach()
    probs = plain(X).softmax(1).detach()
    middle = torch.diag(probs.sum(0)) - probs.T @ probs
    wanted = torch.kron(middle, features.T @ features / 40) + 0.7 * torch.eye(18).double()
    torch.testing.assert_close(covariance(factored), wanted.inverse(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", ["kron", "full"])
def test_the_precision_maximises_the_marginal_likelihood(form: str) -> None:
    """At the maximum δ ‖θ‖² = Σ λ / (λ + δ), MacKay's rule; the evidence is the formula's, by determinants."""
    ens = made("classes", hessian=form)
    ens.finish(Data(X, LABELS["classes"]))
    delta, plain = float(head_of(ens, "precision")), made("classes").member(0)
    square = sum(float(p.detach().square().sum()) for p in plain[2].parameters())
    precision = covariance(ens).inverse()
    values = torch.linalg.eigvalsh(precision) - delta
    assert delta * square == pytest.approx(float((values / (values + delta)).sum()), rel=1e-3)
    likelihood = -float(F.cross_entropy(plain(X).detach(), LABELS["classes"], reduction="sum"))
    wanted = likelihood - 0.5 * delta * square + 0.5 * len(values) * math.log(delta) - 0.5 * float(precision.logdet())
    assert float(head_of(ens, "evidence")) == pytest.approx(wanted)
    for other in (delta / 1.1, delta * 1.1):
        assert log_prior_terms(values, square, other) < log_prior_terms(values, square, delta)


def test_the_precision_of_a_flat_likelihood_is_finite() -> None:
    assert math.isfinite(best_precision(torch.zeros(3).double(), 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["kron", "full"])
def test_members_are_draws_of_the_posterior(form: str) -> None:
    """Mean and covariance of many draws; the rest of the network is as it was."""
    ens = made("classes", hessian=form)
    ens.finish(Data(X, LABELS["classes"]))
    pieces = [torch.cat([d["2.shift_weight"], d["2.shift_bias"][..., None]], 2) for d in ens.draw(4000, X[:2])]
    drawn = torch.cat(pieces).flatten(1)
    wanted = covariance(ens)
    assert float((drawn.T.cov() - wanted).abs().max() / wanted.max()) < 0.12
    outputs, plain = ens(X), made("classes").member(0)
    assert float(outputs.detach().var(0).min()) > 0
    torch.testing.assert_close(ens.member(1)[0].weight, plain[0].weight)
    torch.testing.assert_close(outputs[1], ens.member(1)(X))


def test_fit_trains_the_network_and_fits_the_posterior(tmp_path: Path) -> None:
    """By one run as the single network's; a file has the same members; a second pass of its own changes nothing."""
    data, runs = Data(X.float(), LABELS["classes"]), []
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    for method in (mt.Single(), mt.Laplace(members=4)):
        ens = mt.ensemble(net, method, X[:2].float(), seed=0)
        runs.append(mt.fit(ens, data, mt.Recipe(epochs=2, batch=8, lr=0.1), progress=False))
    assert runs[0].metrics[-1]["loss"] == pytest.approx(runs[1].metrics[-1]["loss"])
    out = ens.eval()(X.float())
    assert float(out.detach().var(0).min()) > 0
    mt.save(ens, tmp_path / "a.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "a.multitude", net).eval()(X.float()), out)
    torch.testing.assert_close(ens.finish(torch.utils.data.DataLoader(data, 7)).eval()(X.float()), out, atol=1e-4, rtol=1e-4)


class Scaled(nn.Module):
    """A network that changes the last layer's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.head(x)


def test_what_it_cannot_do_is_refused() -> None:
    data = Data(X.float(), LABELS["classes"])
    changed = mt.ensemble(Scaled(), mt.Laplace(), X[:2].float(), seed=0)
    with pytest.raises(mt.InputError, match="changed after it"):
        changed.finish(data)
    plain = mt.ensemble(nn.Linear(4, 3), mt.Laplace(), X[:2].float(), seed=0)
    with pytest.raises(mt.InputError, match="needs inputs and targets"):
        plain.finish(X.float())
    with pytest.raises(mt.InputError, match="needs targets"):
        plain.finish(mt.Inputs(X.float()))
    with pytest.raises((mt.InputError, mt.ConversionError), match="at most 20000 weights"):
        mt.ensemble(nn.Linear(300, 100), mt.Laplace(hessian="full"), torch.randn(2, 300))


def test_labels_that_are_ignored_do_not_count() -> None:
    found = []
    for x, y in ((X[:30], LABELS["classes"][:30]), (X, torch.cat([LABELS["classes"][:30], torch.full((10,), -100)]))):
        ens = made("classes", precision=1.0)
        ens.finish(Data(x, y))
        found.append(covariance(ens))
    torch.testing.assert_close(found[0], found[1])
