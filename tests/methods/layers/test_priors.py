"""Priors: the ELBO of a regression by numpy, and the KL of dropped weights as the mean over all masks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same
from torch import Tensor, nn

import multitudes as mt
from multitudes import models
from multitudes.models import MLP

pytestmark = pytest.mark.slow

X = torch.randn(6, 5, dtype=torch.float64)
TAU, RHO, EXAMPLES, PRECISION = 0.7, 1.9, 100, 0.1
ELBO: dict[str, Any] = {"prior": "elbo", "tau": TAU, "rho": RHO, "examples": EXAMPLES, "tau_output": PRECISION}


def outputs_of(ens: mt.Ensemble, batch: Any) -> np.ndarray:
    """Each draw's outputs, ``[S, B, D]``; with a draw for each row, one of all rows."""
    found = ens(*batch.inputs, **batch.kwargs).detach().numpy()
    return found[None] if "rows" in batch.kwargs else found


def kl_of_patches(ens: mt.Ensemble, components: int) -> float:
    """Eq. 6, divided by N: components of norms and of the last layer count 1/K, shared parameters 1."""
    total = 0.0
    for name, parameter in ens.named_parameters():
        shared = name.startswith("layers.1.")
        squares = float((parameter.detach().numpy() ** 2).sum()) / (1 if shared else components)
        total += (RHO if name.endswith("bias") else TAU) / 2 * squares
    return total / EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    ("kind", "draw", "more"),
    [(mt.EMP, "step", {}), (mt.ECMP, "step", {"global_batch": 60}), (mt.EMP, "row", {}), (mt.ECMP, "row", {})],
)
def test_the_elbo_of_a_regression(kind: Any, draw: str, more: dict[str, int], targets: int) -> None:
    """Eq. 9 over N, for a mean over rows: τ/2 ‖y − f‖², summed over the targets of a row, and eq. 6."""
    net = MLP(5, (8,), targets, norm="all").double()
    ens = mt.ensemble(net, kind(components=3, members=4, draw=draw, **ELBO), X, seed=0, task="regression").train()
    y = torch.randn(6, targets, dtype=torch.float64)
    batch = ens.batch(X, y)
    found = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, nn.MSELoss(), **more)
    outputs = outputs_of(ens, batch)
    data = np.mean([PRECISION / 2 * ((y.numpy() - one) ** 2).sum(1).mean() for one in outputs])
    assert found.item() == pytest.approx(data + kl_of_patches(ens, 3), rel=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_elbo_of_several_draws(reduction: str) -> None:
    """Eq. 9 takes the mean over S draws of the squared errors."""
    net, y = MLP(5, (8,), 2, norm="all").double(), torch.randn(6, 2, dtype=torch.float64)
    method = mt.EMP(components=3, reduction=reduction, **ELBO)
    ens = mt.ensemble(net, method, X, seed=0, task="regression").train()
    batch = ens.batch(X, y)
    draws = {
        name: torch.cat([one.kwargs["draws"][name] for one in (batch, ens.batch(X, y), ens.batch(X, y))])
        for name in batch.kwargs["draws"]
    }
    outputs = ens(X, draws=draws)
    found = ens.reduce(outputs, batch, F.mse_loss)
    each = PRECISION / 2 * ((y.numpy() - outputs.detach().numpy()) ** 2).sum(2).mean(1)
    assert each.shape == (3,)
    assert found.item() == pytest.approx(getattr(each, reduction)() + kl_of_patches(ens, 3), rel=1e-12)


def test_the_elbo_of_separate_data() -> None:
    """With data of its own for each member, each member's term is that of its rows."""
    net = MLP(5, (8,), 2, norm="all").double()
    ens = mt.ensemble(net, mt.EMP(components=3, members=4, **ELBO), X, seed=0, task="regression").train()
    x, y = torch.randn(4, 6, 5, dtype=torch.float64), torch.randn(4, 6, 2, dtype=torch.float64)
    batch = ens.batch(x, y, per_member=True)
    outputs = ens(*batch.inputs, **batch.kwargs)
    each = PRECISION / 2 * ((y - outputs).detach().numpy() ** 2).sum(2).mean(1)
    assert ens.reduce(outputs, batch, nn.MSELoss()).item() == pytest.approx(each.mean() + kl_of_patches(ens, 3), rel=1e-12)


def test_the_elbo_of_a_gaussian_head() -> None:
    """Its NLL is a log likelihood already; torch's mean over targets becomes their sum."""
    net, y = MLP(5, (8,), 4, norm="all").double(), torch.randn(6, 2, dtype=torch.float64)
    ens = mt.ensemble(net, mt.EMP(components=3, **ELBO), X, seed=0, task="gaussian").train()
    batch = ens.batch(X, y)
    outputs = ens(*batch.inputs, **batch.kwargs)
    mean, raw = outputs.detach()[0].chunk(2, 1)
    normal = torch.distributions.Normal(mean, F.softplus(raw).sqrt())
    expected = -normal.log_prob(y).sum(1).mean().item() + kl_of_patches(ens, 3)
    assert ens.reduce(outputs, batch, mt.GaussianNLL()).item() == pytest.approx(expected, rel=1e-12)


def test_fit_minimises_the_elbo() -> None:
    """The loss that a run reports for its first step is that of the ELBO."""
    net = MLP(5, (8,), 2, norm="all")
    x, y = X.float(), torch.randn(6, 2)
    method = mt.EMP(components=3, **ELBO)
    twin = mt.ensemble(net, method, x, seed=0, task="regression").train()
    ens = mt.ensemble(net, method, x, seed=0, task="regression")
    data = torch.utils.data.TensorDataset(x, y)
    run = mt.fit(ens, data, mt.Recipe(epochs=1, batch=6, lr=0.0, optimizer="sgd"), progress=False)
    scale = run.metrics[0]["loss"] - kl_of_patches(twin, 3)
    plain = mt.fit(
        mt.ensemble(net, mt.EMP(components=3, prior="none"), x, seed=0, task="regression"),
        data,
        mt.Recipe(epochs=1, batch=6, lr=0.0, optimizer="sgd"),
        progress=False,
    )
    assert scale == pytest.approx(PRECISION / 2 * 2 * plain.metrics[0]["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [mt.EMP, mt.ECMP, mt.MCDropout, mt.DropConnect])
def test_a_regression_needs_a_precision_and_squares(kind: Any) -> None:
    """Without τ_output the two terms have no common scale; with another criterion the data term is no Gaussian's."""
    net, y = MLP(5, (8,), 1).double(), 10 * torch.arange(6, dtype=torch.float64).view(6, 1)
    bare = mt.ensemble(net, kind(members=2, prior="elbo", examples=10), X, seed=0, task="regression").train()
    with pytest.raises(mt.InputError, match=rf"{kind.__name__}.*tau_output=\.\.\."):
        bare.loss(X, y, nn.MSELoss())
    ens = mt.ensemble(net, kind(members=2, **ELBO), X, seed=0, task="regression").train()
    with pytest.raises(mt.InputError, match=r"MSELoss\(\)"):
        ens.loss(X, y, nn.L1Loss())
    assert ens.loss(X, y, nn.MSELoss()).isfinite()
    with pytest.raises(mt.InputError, match="examples=50_000"):
        kind(prior="elbo")


def all_masks(weight: Tensor, p: float) -> list[tuple[float, Tensor]]:
    """Each weight that DropConnect may draw, with its probability."""
    found = []
    for bits in itertools.product((0.0, 1.0), repeat=weight.numel()):
        mask = torch.tensor(bits, dtype=weight.dtype).view_as(weight)
        chance = float(np.prod([1 - p if bit else p for bit in bits]))
        found.append((chance, weight * mask / (1 - p)))
    return found


def all_columns(weight: Tensor, p: float) -> list[tuple[float, Tensor]]:
    """Each weight that dropout of its inputs may draw, with its probability."""
    found = []
    for bits in itertools.product((0.0, 1.0), repeat=weight.shape[1]):
        chance = float(np.prod([1 - p if bit else p for bit in bits]))
        found.append((chance, weight * torch.tensor(bits, dtype=weight.dtype) / (1 - p)))
    return found


def mean_square(drawn: list[tuple[float, Tensor]]) -> float:
    """E ‖W‖² over all draws."""
    assert sum(chance for chance, _ in drawn) == pytest.approx(1.0)
    return sum(chance * float(weight.square().sum()) for chance, weight in drawn)


def test_the_prior_of_dropconnect() -> None:
    """Eq. 2: the mean of τ/2 ‖W‖² over all masks of every weight, and ρ/2 ‖b‖² for biases, over N."""
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    ens = mt.ensemble(net, mt.DropConnect(p=0.3, prior="elbo", tau=TAU, rho=RHO, examples=EXAMPLES), torch.randn(4, 3).double())
    squares = sum(mean_square(all_masks(net[i].weight.detach(), 0.3)) for i in (0, 2))
    biases = sum(float(net[i].bias.detach().square().sum()) for i in (0, 2))
    penalty = ens.method.penalty(ens, 4)
    assert penalty is not None
    assert penalty.item() == pytest.approx((TAU / 2 * squares + RHO / 2 * biases) / EXAMPLES, rel=1e-12)
    centroid = net[0].weight.detach() / 0.7  # the formula of the paper: p_keep τ/2 ‖M‖²
    assert 0.7 * float(centroid.square().sum()) == pytest.approx(mean_square(all_masks(net[0].weight.detach(), 0.3)))


def test_the_prior_of_dropout() -> None:
    """The mean over masks of the inputs; a layer without dropout before it has τ/2 ‖W‖², and BatchNorm too."""
    net = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 2), nn.Dropout(0.4), nn.Linear(2, 2)
    ).double()
    method = mt.MCDropout(prior="elbo", tau=TAU, rho=RHO, examples=EXAMPLES)
    ens = mt.ensemble(net, method, torch.randn(4, 3).double())
    weights = {i: net[i].weight.detach() for i in (0, 1, 4, 6)}
    squares = sum(float(weights[i].square().sum()) for i in (0, 1))
    squares += mean_square(all_columns(weights[4], 0.2)) + mean_square(all_columns(weights[6], 0.4))
    biases = sum(float(net[i].bias.detach().square().sum()) for i in (0, 1, 4, 6))
    penalty = method.penalty(ens, 4)
    assert penalty is not None
    assert penalty.item() == pytest.approx((TAU / 2 * squares + RHO / 2 * biases) / EXAMPLES, rel=1e-12)
    added = mt.MCDropout(p=0.25, position="layers", prior="elbo", tau=1.0, rho=0.0, examples=1)
    bare = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    expected = float(bare[0].weight.detach().square().sum()) + mean_square(all_columns(bare[2].weight.detach(), 0.25))
    penalty = added.penalty(mt.ensemble(bare, added, torch.randn(4, 3).double()), 4)
    assert penalty is not None
    assert penalty.item() == pytest.approx(expected / 2, rel=1e-12)


@pytest.mark.parametrize("kind", [mt.MCDropout, mt.DropConnect])
def test_by_default_there_is_no_prior(kind: Any) -> None:
    """The loss is the criterion's, and the prior's settings change nothing; with it, the loss has the penalty."""
    net = models.emp_regression(5, norm="none", dropout=0.3).double()
    y, losses = torch.randn(6, 1, dtype=torch.float64), []
    for settings in ({}, {"tau": 9.0, "examples": 3}, ELBO):
        ens = mt.ensemble(net, kind(p=0.3, **settings), X, seed=0, task="regression").train()
        torch.manual_seed(0)
        losses.append(ens.loss(X, y, nn.MSELoss()).item())
    assert losses[0] == losses[1]
    penalty = ens.method.penalty(ens, 6)
    assert penalty is not None
    assert_same(losses[2], PRECISION / 2 * losses[0] + penalty.item())


class Twice(nn.Module):
    """Uses one dropout module before two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(5, 4), nn.Linear(4, 2), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(self.drop(x))))


@pytest.mark.parametrize(
    ("net", "site", "position"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "1", "norm"),
        (nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.2), nn.BatchNorm1d(4), nn.Linear(4, 2)), "1", "auto"),
        (nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.2)), "1", "auto"),
        (Twice(), "drop", "auto"),
    ],
    ids=["before a norm", "a norm next", "last", "twice"],
)
def test_dropout_without_a_weight_behind_it(net: nn.Module, site: str, position: str) -> None:
    """Has no mixture of weights: it is refused by name with the prior, and taken without."""
    with pytest.raises(mt.ConversionError, match=rf"prior='elbo'.* {site} .*position="):
        mt.ensemble(net, mt.MCDropout(position=position, prior="elbo", examples=10), X.float())
    assert mt.ensemble(net, mt.MCDropout(position=position, members=2), X.float()).members == 2
