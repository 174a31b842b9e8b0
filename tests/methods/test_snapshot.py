"""Snapshot: members are the checkpoints at the ends of cycles, BatchNorm's statistics included."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.data import Data

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
TRAIN = Data(X, X[:, 0].gt(0).long())


def made(method: mt.Method) -> mt.Ensemble:
    """A small network with BatchNorm, converted."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    return mt.ensemble(net, method, X[:2], seed=0)


def test_members_are_the_checkpoints_of_a_single_run(tmp_path: Path) -> None:
    """The same run by Single, whose weights a callback copies after every second epoch; also after a file."""
    recipe, kept = mt.Recipe(epochs=6, batch=16, lr=0.1, schedule="cosine", cycles=3), []
    single = made(mt.Single())
    mt.fit(single, TRAIN, recipe, callbacks=lambda run: kept.append(copy.deepcopy(run.ensemble.member(0).eval())))
    ens = made(mt.Snapshot(members=3))
    mt.fit(ens, TRAIN, recipe, progress=False)
    expected = torch.stack([kept[epoch - 1](X) for epoch in (2, 4, 6)])
    assert not torch.allclose(expected[0], expected[1], atol=1e-2)
    torch.testing.assert_close(ens.eval()(X), expected)
    torch.testing.assert_close(ens.member(0).eval()(X), expected[0])
    torch.testing.assert_close(ens.subset([2, 0])(X), expected[[2, 0]])
    mt.save(ens, tmp_path / "a.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "a.multitude", single.member(0)).eval()(X), expected)
    deep = mt.Deep.from_models([ens.member(m) for m in range(3)], X[:2])
    torch.testing.assert_close(deep.eval()(X), expected)


@pytest.mark.slow
def test_cycles_may_begin_late() -> None:
    """Checkpoints of the last two of four epochs."""
    kept: list[nn.Module] = []
    recipe = mt.Recipe(epochs=4, batch=16, lr=0.1)
    mt.fit(made(mt.Single()), TRAIN, recipe, callbacks=lambda run: kept.append(copy.deepcopy(run.ensemble.member(0).eval())))
    ens = made(mt.Snapshot(members=2, begin=0.5))
    mt.fit(ens, TRAIN, recipe, progress=False)
    torch.testing.assert_close(ens.eval()(X), torch.stack([kept[2](X), kept[3](X)]))


@pytest.mark.slow
@pytest.mark.parametrize("method", [mt.Snapshot(members=3), mt.SWAG(members=3, begin=0.2)], ids=["snapshot", "swag"])
def test_the_last_epoch_is_the_best_one(method: mt.Method) -> None:
    """Validation gets worse from the first epoch on; but then members would be equal, and patience end the run."""
    recipe = mt.Recipe(epochs=6, batch=16, lr=0.1, patience=2)
    ens = made(method)
    run = mt.fit(ens, TRAIN, recipe, val=Data(X, 1 - TRAIN.targets), progress=False)
    assert [line["val_nll"] for line in run.metrics] == sorted(line["val_nll"] for line in run.metrics)
    assert run.best_epoch == run.done == 6
    assert float(run.use_best().eval()(X).detach().std(0).mean()) > 1e-3


def test_too_few_epochs_are_refused() -> None:
    with pytest.raises(mt.InputError, match=r"Snapshot\(members=4\).*at least as many epochs"):
        mt.fit(made(mt.Snapshot()), TRAIN, mt.Recipe(epochs=2, batch=16), progress=False)
