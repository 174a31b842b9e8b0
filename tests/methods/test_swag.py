"""SWAG: moments along training against numpy, draws of the paper's covariance, BatchNorm, runs and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.data import Data

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
TRAIN = Data(X, X[:, 0].gt(0).long())


def made(method: mt.Method, *parts: nn.Module) -> mt.Ensemble:
    """A small network, converted."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), *parts, nn.Tanh(), nn.Linear(6, 2))
    return mt.ensemble(net, method, X[:2], seed=0)


def weights_of(net: nn.Module) -> np.ndarray:
    """All parameters of a plain network as one vector."""
    return torch.cat([p.detach().flatten() for p in net.parameters()]).double().numpy()


def course(ens: mt.Ensemble, epochs: int) -> np.ndarray:
    """Moves the weights at random, and reports each epoch. Returns the weights of all epochs."""
    seen, generator = [], torch.Generator().manual_seed(3)
    for epoch in range(1, epochs + 1):
        with torch.no_grad():
            for p in ens.parameters():
                p += 0.3 * torch.randn(p.shape, generator=generator)
        ens.method.after_epoch(ens, epoch / epochs)
        seen.append(torch.cat([p.detach().flatten() for p in ens.parameters()]).double().numpy())
    return np.stack(seen)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [3, 20])
def test_draws_have_the_covariance_of_the_paper(columns: int) -> None:
    """Mean and covariance of many draws against the formula, computed apart from the weights of each epoch."""
    ens = made(mt.SWAG(members=2, begin=0.0, columns=columns))
    seen = course(ens, 8)
    ens.finish(TRAIN)
    mean = seen.mean(0)
    running = np.stack([seen[: i + 1].mean(0) for i in range(len(seen))])
    deviations = (seen - running)[-columns:]
    diagonal = (seen**2).mean(0) - mean**2
    wanted = 0.5 * np.diag(diagonal) + 0.5 / (len(deviations) - 1) * deviations.T @ deviations
    names = [name for name, _ in ens.named_parameters()]
    pieces = [torch.cat([shifts[_shift(name)].flatten(1) for name in names], 1) for shifts in ens.draw(2500, X[:2])]
    found = torch.cat(pieces).double().numpy()
    np.testing.assert_allclose(weights_of(_plain(ens)), mean, atol=1e-5)
    np.testing.assert_allclose(found.mean(0), 0, atol=0.1 * wanted.max() ** 0.5)
    assert np.abs(np.cov(found.T) - wanted).max() < 0.12 * wanted.max()
    apart = ~np.eye(len(mean), dtype=bool)  # weights of different layers, too
    assert np.corrcoef(wanted[apart], np.cov(found.T)[apart])[0, 1] > 0.95


def _shift(name: str) -> str:
    module, _, key = name.rpartition(".")
    return f"{module}.shift_{key}"


def _plain(ens: mt.Ensemble) -> nn.Module:
    """The network without shifts."""
    for buffer in ens.named_buffers():
        if ".shift_" in buffer[0]:
            buffer[1].zero_()
    return ens.member(0)


def test_fit_collects_the_last_epochs(tmp_path: Path) -> None:
    """One set of weights for each epoch after `begin`; members differ, survive a file, and are plain networks."""
    ens = made(mt.SWAG(members=3, begin=0.5))
    mt.fit(ens, TRAIN, mt.Recipe(epochs=6, batch=16, lr=0.1), progress=False)
    assert int(ens.get_buffer("0.swag_count")) == 3
    out = ens.eval()(X)
    assert not torch.allclose(out[0], out[1])
    torch.testing.assert_close(out[2], ens.member(2).eval()(X))
    mt.save(ens, tmp_path / "a.multitude")
    back = mt.load(tmp_path / "a.multitude", made(mt.Single()).member(0))
    torch.testing.assert_close(back.eval()(X), out)


@pytest.mark.filterwarnings("ignore:SWAG has collected")
def test_one_network_is_trained() -> None:
    """Until the first weights are collected, a run is that of the single network, step by step."""
    runs = []
    for method in (mt.Single(), mt.SWAG(begin=0.75)):
        ens = made(method, nn.BatchNorm1d(6))
        run = mt.fit(ens, TRAIN, mt.Recipe(epochs=4, batch=16, lr=0.1), val=TRAIN, callbacks=lambda run: run.done == 2)
        runs.append([line[key] for line in run.metrics for key in ("loss", "val_nll")])
    assert runs[0] == pytest.approx(runs[1])


def test_statistics_of_batchnorm_are_those_of_each_member() -> None:
    """A pass over the training data, by each drawn network: its mean and variance there are the member's."""
    ens = made(mt.SWAG(members=3, begin=0.0), nn.BatchNorm1d(6))
    course(ens, 4)
    ens.finish(TRAIN)
    for m in range(3):
        member = ens.member(m)
        hidden = member[0](X).detach()
        torch.testing.assert_close(member[1].running_mean, hidden.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(member[1].running_var, hidden.var(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ens.eval()(X)[m], member.eval()(X), atol=1e-5, rtol=1e-4)


def test_without_scale_all_members_are_the_average() -> None:
    ens = made(mt.SWAG(members=2, begin=0.0, scale=0.0))
    seen = course(ens, 4)
    ens.finish(TRAIN)
    for m in range(2):
        np.testing.assert_allclose(weights_of(ens.member(m)), seen.mean(0), atol=1e-5)


def test_too_few_epochs_are_told() -> None:
    ens = made(mt.SWAG())
    with pytest.warns(UserWarning, match=r"fewer than two epochs.*after_epoch"):
        mt.fit(ens, TRAIN, mt.Recipe(epochs=2, batch=16), progress=False)


@pytest.mark.slow
def test_a_new_run_forgets_the_old_one() -> None:
    ens = made(mt.SWAG(members=2, begin=0.0), nn.BatchNorm1d(6))
    mt.fit(ens, TRAIN, mt.Recipe(epochs=2, batch=16, lr=0.1), progress=False)
    mt.fit(ens, TRAIN, mt.Recipe(epochs=3, batch=16, lr=0.1), progress=False)
    assert int(ens.get_buffer("0.swag_count")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_is_the_whole_run(tmp_path: Path, stop: int) -> None:
    """Moments are part of the checkpoint."""
    outputs: list[Tensor] = []
    for name, ends in (("whole", None), ("parts", stop)):
        ens = made(mt.SWAG(members=2, begin=0.25))
        recipe = mt.Recipe(epochs=4, batch=16, lr=0.1)
        if ends is not None:
            with pytest.raises(KeyboardInterrupt):
                mt.fit(ens, TRAIN, recipe, out=tmp_path / name, callbacks=lambda run: _interrupt(run.done == stop))
            ens = made(mt.SWAG(members=2, begin=0.25))
        mt.fit(ens, TRAIN, recipe, out=tmp_path / name, resume=ends is not None)
        outputs.append(ens.eval()(X))
    torch.testing.assert_close(outputs[0], outputs[1])


def _interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt
