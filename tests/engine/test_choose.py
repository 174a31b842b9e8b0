"""choose: the executor that was picked, unless this call needs another."""

from __future__ import annotations

import pytest
import torch
from engine.separate import B, M
from torch import nn

import multitudes as mt
from multitudes.engine.choose import choose, draws_in_trunk, is_exporting, vmap_is_right


def headed() -> mt.Ensemble:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    return mt.ensemble(net, mt.MultiHead(members=M), torch.randn(B, 4))


def test_what_was_picked() -> None:
    """Of the proven ones, in each mode."""
    engine = headed().engine
    for name in ("loop", "vmap", "fold"):
        engine.picked["eval"] = name
        engine.template.eval()
        assert choose(engine) == name


def test_vmap_gives_way() -> None:
    """To hooks, and to chunks of members that would count a trunk's batches; not to autocast."""
    ens = headed().eval()
    ens.engine.picked["eval"] = "vmap"
    with torch.autocast("cpu", torch.bfloat16):
        assert choose(ens.engine) == "vmap"
    handle = ens.template[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    assert not vmap_is_right(ens.engine, per_member=False)
    handle.remove()
    assert vmap_is_right(ens.engine, per_member=False)
    ens.engine.chunk = 2
    assert vmap_is_right(ens.engine, per_member=False)
    assert not vmap_is_right(ens.train().engine, per_member=False)
    assert not is_exporting()


def test_noise_in_a_trunk() -> None:
    """Only where members share something, in training."""
    ens = headed()
    assert draws_in_trunk(ens.train().engine)
    assert not draws_in_trunk(ens.eval().engine)
    assert not draws_in_trunk(mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4)).train().engine)


def test_shared_norms_need_all_rows() -> None:
    """By vmap or fold; one member alone needs neither; what no executor can do is refused by name."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    engine = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train().engine
    assert choose(engine) == "vmap"
    engine.picked["train"] = "loop"
    assert choose(engine) == "fold"
    engine.proven["train"] = ("loop",)
    with pytest.raises(mt.RunError, match="BatchNorm 1"):
        choose(engine)
    engine.members = 1
    assert choose(engine) == "loop"
