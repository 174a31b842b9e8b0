"""Trajectories: what is recorded, when, and the two planes: PCA against numpy, t-SNE by what it keeps together."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.analysis import Trajectories
from multitudes.data.dataset import Data
from multitudes.errors import InputError

pytestmark = pytest.mark.slow

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def made(method: mt.Method | None = None, **options: object) -> mt.Ensemble:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    method = method or mt.Deep(members=3)
    return mt.ensemble(net, method, X[:3], seed=0, check=False, **options)  # type: ignore[arg-type]


def wander(ens: mt.Ensemble, times: int) -> Trajectories:
    """Records predictions while all weights drift."""
    paths, generator = Trajectories(ens, X), torch.Generator().manual_seed(1)
    for _ in range(times):
        paths.record()
        with torch.no_grad():
            for parameter in ens.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return paths


def test_predictions_are_recorded_in_order() -> None:
    """Probabilities of all members in eval mode; the ensemble's mode stays."""
    ens = made().train()
    paths = Trajectories(ens, X)
    seen = []
    for _ in range(3):
        paths.record()
        seen.append(ens.eval()(X).detach().softmax(-1))
        ens.train()
        with torch.no_grad():
            next(iter(ens.parameters())).add_(1.0)
    paths.record()
    assert ens.training
    assert paths.predictions.shape == (4, 3, 18)
    np.testing.assert_allclose(paths.predictions[:3], torch.stack(seen).flatten(2), rtol=1e-6)


def test_a_regression_is_recorded_as_it_is() -> None:
    ens = made(task="regression")
    paths = Trajectories(ens, Data(X, torch.zeros(6, 3)))
    paths.record()
    np.testing.assert_allclose(paths.predictions[0], ens.eval()(X).detach().flatten(1), rtol=1e-6)


def test_pca_is_that_of_numpy() -> None:
    """Up to the sign of each axis, which is fixed: the largest entry of an axis is positive."""
    paths = wander(made(), 5)
    found = paths.embedding("pca")
    assert found.shape == (5, 3, 2)
    points = paths.predictions.flatten(0, 1).double().numpy()
    u, s, vt = np.linalg.svd(points - points.mean(0), full_matrices=False)
    signs = np.sign(vt[np.arange(2), np.abs(vt[:2]).argmax(1)])
    np.testing.assert_allclose(found.flatten(0, 1), (u[:, :2] * s[:2]) * signs, atol=1e-9)


def test_equal_members_coincide() -> None:
    paths = wander(made(mt.Deep(members=2), start="copies"), 1)
    for _ in range(4):
        with torch.no_grad():
            for parameter in paths.ensemble.parameters():
                parameter.copy_(0.7 * parameter[:1] + 0.1)
        paths.record()
    for way in ("pca", "tsne"):
        found = paths.embedding(way)  # type: ignore[arg-type]
        later, spread = found[1:], float(found.std())
        assert float((later[:, 0] - later[:, 1]).abs().max()) < 0.2 * spread, way
    assert torch.equal(paths.embedding("pca")[1:, 0], paths.embedding("pca")[1:, 1])


def test_tsne_keeps_neighbours_and_repeats() -> None:
    """Three members in three corners of function space: their points are three groups."""
    ens = made()
    paths, generator = Trajectories(ens, X), torch.Generator().manual_seed(0)
    with torch.no_grad():
        bias = dict(ens.named_parameters())["2.bias"]
        bias.copy_(8 * torch.eye(3))
        for _ in range(8):
            bias.add_(0.3 * torch.rand(bias.shape, generator=generator))
            paths.record()
    found = paths.embedding(perplexity=4.0)
    assert found.shape == (8, 3, 2)
    assert torch.equal(found, paths.embedding("tsne", perplexity=4.0))
    centres = found.mean(0)
    nearest = torch.cdist(found.flatten(0, 1), centres).argmin(1).view(8, 3)
    assert torch.equal(nearest, torch.arange(3).expand(8, 3))


def test_fit_records_after_each_epoch() -> None:
    """The recorder is a logger of fit: what it saw last is the trained ensemble."""
    ens = made(mt.MultiHead(members=2))
    paths = Trajectories(ens, X)
    paths.record()
    mt.fit(ens, Data(X, torch.arange(6) % 3), mt.Recipe(epochs=2, batch=3, lr=0.1), loggers=paths, progress=False)
    assert paths.predictions.shape == (3, 2, 18)
    np.testing.assert_allclose(paths.predictions[-1], ens.eval()(X).detach().softmax(-1).flatten(1), rtol=1e-6)
    assert not torch.equal(paths.predictions[0], paths.predictions[1])


def test_the_figure_has_a_path_for_each_member() -> None:
    paths = wander(made(), 4)
    ax = paths.figure("pca", theme="dark").axes[0]
    np.testing.assert_allclose(ax.lines[3].get_xydata(), paths.embedding("pca")[:, 1])


def test_scikit_learn_is_needed_for_tsne_only(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = wander(made(), 3)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(InputError, match=r"pip install 'multitudes\[analysis\]'.*pca"):
        paths.embedding()
    assert paths.embedding("pca").shape == (3, 3, 2)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="takes an ensemble, not a Linear"):
        Trajectories(nn.Linear(2, 2), X)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"nothing is recorded.*loggers=recorder"):
        Trajectories(made(), X).embedding("pca")
    with pytest.raises(InputError, match="2 points cannot show a path"):
        wander(made(mt.Deep(members=2)), 1).embedding("pca")
    with pytest.raises(InputError, match="method must be 'tsne' or 'pca'"):
        wander(made(), 2).embedding("umap")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"perplexity=9.* below the number of points, 6"):
        wander(made(), 2).embedding(perplexity=9.0)
