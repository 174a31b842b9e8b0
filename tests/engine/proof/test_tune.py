"""tune: proves executors again on a call, and takes the one that the clock prefers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine.separate import B, M, assert_separate
from laws.compare import assert_exact, assert_same
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import EXECUTORS, MODES
from multitudes.engine.modules import named_tensors
from multitudes.engine.proof import tune as tuning
from multitudes.engine.proof.tune import tune


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))


def made(method: mt.Method) -> mt.Ensemble:
    return mt.ensemble(net(), method, torch.randn(B, 4), seed=0)


METHODS = [mt.MultiHead(members=M), mt.EMP(members=M, components=3)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_nothing_but_the_choice_changes(method: mt.Method) -> None:
    """Tensors, modes, inputs, gradients, randomness and outputs are as before; what was found at conversion is found again."""
    ens, x = made(method).eval(), torch.randn(5, 4)
    state = {name: tensor.detach().clone() for name, tensor in named_tensors(ens)}
    expected, given, random = ens(x), x.clone(), torch.get_rng_state()
    proven, traits = dict(ens.engine.proven), ens.engine.traits
    tune(ens.engine, mt.Inputs(x), seconds=0.0)
    assert torch.equal(torch.get_rng_state(), random)
    assert_exact([x], [given])
    assert_exact([tensor.detach() for _, tensor in named_tensors(ens)], state.values())
    assert not ens.training
    assert all(parameter.grad is None for parameter in ens.parameters())
    assert_same(ens(x), expected)
    assert (ens.engine.proven, ens.engine.traits) == (proven, traits)
    assert ens.engine.members == M


@pytest.mark.parametrize("mode", MODES)
def test_the_shorter_time_wins(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """In each mode apart, among the proven executors; fold is not timed where it does not run each row by its member."""
    times, picked = {"loop": 2.0, "vmap": 1.0}, "vmap"
    asked = []

    def clock(_: Any, name: str, __: Any, when: str, seconds: float) -> float:
        asked.append((name, when))
        assert seconds == 0.3
        return times[name] if when == mode else 3.0 - times[name]

    monkeypatch.setattr(tuning, "_time", clock)
    ens = mt.ensemble(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), mt.Deep(members=M), torch.randn(B, 4))
    assert ens.tune(torch.randn(B, 4), seconds=0.3) is ens
    other = {"loop": "vmap", "vmap": "loop"}[picked]
    assert ens.engine.picked == {when: picked if when == mode else other for when in MODES}
    assert ens.train(mode == "train").executor == picked
    assert sorted(asked) == sorted((name, when) for name in ("loop", "vmap") for when in MODES)


def test_fold_is_timed_where_layers_take_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In eval mode alone, and not if chunk= limits the members that run at once."""
    asked: list[tuple[str, str]] = []

    def clock(_: Any, name: str, __: Any, when: str, seconds: float) -> float:
        asked.append((name, when))
        return float(name != "fold")

    monkeypatch.setattr(tuning, "_time", clock)
    net, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(B, 4)
    ens = mt.ensemble(net, mt.BatchEnsemble(members=M), x).eval()
    expected = ens(x)
    ens.tune(x)
    assert ("fold", "eval") in asked and ("fold", "train") not in asked
    assert ens.executor == "fold" and ens.engine.tuned
    assert_same(ens(x), expected)
    asked.clear()
    mt.ensemble(net, mt.BatchEnsemble(members=M), x, chunk=2).tune(x)
    assert not [name for name, _ in asked if name == "fold"]


def test_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward alone without gradients, and forward and backward in training; on a copy, in that mode, at least once."""
    seen = []

    def watch(engine: Any, inputs: mt.Inputs, per_member: bool = False) -> Tensor:
        seen.append((engine.template.training, torch.is_grad_enabled(), engine.template is ens.template))
        return EXECUTORS["loop"](engine, inputs, per_member)

    ens = made(mt.Deep(members=M)).eval()
    monkeypatch.setattr(tuning, "EXECUTORS", {"loop": watch, "vmap": watch})
    tune(ens.engine, mt.Inputs(torch.randn(B, 4)), seconds=0.0)
    assert seen == [(True, True, False)] * 2 + [(False, False, False)] * 2


def test_a_model_that_vmap_cannot_run() -> None:
    """Only what is proven is timed."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y if y.sum() > 0 else y * 2

    ens = mt.ensemble(Branching(), mt.Deep(members=M), torch.randn(B, 4), seed=0)
    assert ens.tune(torch.randn(B, 4), seconds=0.0).engine.picked == dict.fromkeys(MODES, "loop")


@pytest.mark.parametrize("rows", [1, 2])
def test_other_batches(rows: int) -> None:
    """Also as many rows as members are tried with, and one alone."""
    ens = mt.ensemble(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), mt.Deep(members=M), torch.randn(B, 4), seed=0)
    ens.tune(torch.randn(rows, 4), seconds=0.0)
    assert "vmap" in ens.engine.proven["train"]
    assert_separate(ens, torch.randn(B, 4), training=True)


def test_inside_inference_mode() -> None:
    """Executors are proved with gradients all the same."""
    ens = made(mt.MultiHead(members=M))
    proven = dict(ens.engine.proven)
    with torch.no_grad():
        ens.tune(torch.randn(B, 4), seconds=0.0)
    assert ens.engine.proven == proven


def test_equal_draws_prove_nothing() -> None:
    """Where members have drawn the same by chance, what is known of them stays known."""
    ens = made(mt.EMP(members=4, components=2))
    for seed in range(64):
        ens.resample(seed)
        if all(torch.equal(b[0], b[1]) for n, b in ens.named_buffers() if n.endswith("choice")):
            break
    else:
        pytest.fail("no seed draws alike")
    traits = ens.engine.traits
    ens.tune(torch.randn(B, 4), seconds=0.0)
    assert ens.engine.traits == traits
