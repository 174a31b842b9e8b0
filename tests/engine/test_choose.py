"""choose: the executor that was picked, unless this call needs another."""

from __future__ import annotations

import pytest
import torch
from engine.separate import B, M
from torch import nn

import multitudes as mt
from multitudes.engine import EXECUTORS, run_fold
from multitudes.engine.choose import choose, draws_in_trunk, is_exporting, vmap_is_right
from multitudes.engine.run import FEW_BYTES


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


def test_fold_as_tuned_is_for_plain_calls() -> None:
    """With inputs of each member's own, and with hooks, vmap or the loop runs."""
    ens = headed().eval()
    ens.engine.picked["eval"] = "fold"
    assert choose(ens.engine) == "fold"
    assert choose(ens.engine, per_member=True) != "fold"
    handle = ens.template[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    assert choose(ens.engine) == "loop"
    handle.remove()
    assert choose(ens.engine) == "fold"


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=3), mt.Masksembles(members=3)])
def test_small_predictions_on_a_gpu_are_rows_of_one_network(method: mt.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless chunk= limits the members that run at once, or the ensemble was tuned."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))
    ens, x = mt.ensemble(net, method, torch.randn(2, 3, 8, 8), seed=0).eval(), torch.randn(5, 3, 8, 8)
    expected = ens(x)
    folded: list[int] = []

    def fold(*args: object, **kwargs: object) -> object:
        folded.append(1)
        return run_fold(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setitem(EXECUTORS, "fold", fold)
    monkeypatch.setattr(type(ens.engine), "device_type", "cuda")
    torch.testing.assert_close(ens(x), expected)
    assert folded
    for setting, value in (("tuned", {"cuda": {}}), ("chunk", 2), ("input_bytes", float(FEW_BYTES))):
        folded.clear()
        before = getattr(ens.engine, setting)
        setattr(ens.engine, setting, value)
        torch.testing.assert_close(ens(x), expected)
        assert not folded, setting
        setattr(ens.engine, setting, before)


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
