"""Slots one after another: one network behind all slots, with one draw of its noise; a file without a proof does not train."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.engine.slots import run_slots_in_turn

X = torch.randn(2, 6, 5, dtype=torch.float64)


def made() -> mt.Ensemble:
    net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return mt.ensemble(net.double(), mt.MIMO(members=2), X[0], seed=0, check=False).train()


def test_noise_is_drawn_once() -> None:
    """Heads of equal weights give the same in training, and the next call draws anew."""
    ens = made()
    with torch.no_grad():
        for name in ("4.weight", "4.bias"):
            ens.get_parameter(name).copy_(ens.get_parameter(name)[:1].expand_as(ens.get_parameter(name)))
    first, second = (run_slots_in_turn(ens.engine, mt.Inputs(X)) for _ in range(2))
    torch.testing.assert_close(first[0], first[1])
    assert not torch.equal(first, second)


def test_slots_without_a_proof_do_not_run() -> None:
    """As those of a file that was written when vmap could not run the network."""
    ens = made()
    ens.engine.traits = replace(ens.engine.traits, vmap_per_member=False)
    with pytest.raises(mt.RunError, match=r"cannot train with different inputs per member.*Convert the model again"):
        ens(X, per_member=True)


def test_norms_that_members_own_count_a_batch_once() -> None:
    """The first slot runs to the end before its turn, to see which layers are first: that is no batch."""
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3)).double()
    ens = mt.ensemble(net, mt.MIMO(members=2), X[0], seed=0, check=False).train()
    assert "3.running_mean" in ens.engine.owned
    run_slots_in_turn(ens.engine, mt.Inputs(X))
    assert ens.template[3].num_batches_tracked.tolist() == [1, 1]
