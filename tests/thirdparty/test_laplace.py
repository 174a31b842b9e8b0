"""Laplace agrees with laplace-torch: Hessian, marginal likelihood and the best prior precision, on the last layer."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import multitudes as mt

laplace = pytest.importorskip("laplace")  # `make zoo` installs it


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_the_full_posterior(task: str) -> None:
    """With the same noise, in double precision."""
    torch.manual_seed(0)
    x = torch.randn(60, 4).double()
    y = x[:, :3].argmax(1) if task == "classes" else x[:, :2] + 0.1 * torch.randn(60, 2).double()
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3 if task == "classes" else 2)).double()
    ens = mt.ensemble(net, mt.Laplace(members=2, hessian="full"), x[:2], task=task, seed=0).finish(TensorDataset(x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = laplace.Laplace(
            net, "classification" if task == "classes" else "regression", subset_of_weights="last_layer",
            hessian_structure="full", sigma_noise=float(ens.get_buffer("2.laplace_noise").sqrt()),
            prior_precision=float(ens.get_buffer("2.laplace_precision")),
        )  # fmt: skip
        peer.fit(DataLoader(TensorDataset(x, y), 16))
    factor = ens.get_buffer("2.laplace_factor")
    rows, columns = net[2].weight.shape
    order = torch.arange(rows * (columns + 1)).view(rows, columns + 1)
    order = torch.cat([order[:, :columns].flatten(), order[:, columns]])  # theirs: all weights, then all biases
    torch.testing.assert_close((factor @ factor.T)[order][:, order], peer.posterior_covariance, rtol=1e-5, atol=1e-7)
    found = float(ens.get_buffer("2.laplace_evidence"))
    assert found == pytest.approx(float(peer.log_marginal_likelihood()), rel=1e-5)
    for factor_of in (0.8, 1.25):
        other = peer.log_marginal_likelihood(torch.tensor(float(ens.get_buffer("2.laplace_precision")) * factor_of))
        assert float(other) < found + 1e-6
