"""choose: the executor that was picked, unless this call needs another."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from engine.separate import B, M
from torch import nn

import multitudes as mt
from multitudes.engine import EXECUTORS, run_fold
from multitudes.engine import run as running
from multitudes.engine.choose import choose, draws_in_trunk, is_exporting, vmap_is_right
from multitudes.engine.run import FEW_BYTES, FULL_BYTES


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


def matrices() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 6, 1), nn.Flatten(), nn.LayerNorm(18), nn.Linear(18, 20), nn.GELU(), nn.Linear(20, 3))


def kernels() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 60, 3, padding=1), nn.Flatten(), nn.Linear(180, 3))


class TestMembersThatFillAGPU:
    """Networks of matrices run in turn, unless chunk= or tune says otherwise, or members share much."""

    def calls(self, ens: mt.Ensemble, monkeypatch: pytest.MonkeyPatch, per_member: bool = False) -> list[str]:
        """Returns the executors of a step, after comparing its outputs and gradients with those of both."""
        assert {"loop", "vmap"} <= set(ens.engine.proven["train"]) & set(ens.engine.proven["eval"])
        x, run = torch.randn(*([M] if per_member else []), B, 4, 3), []
        found = {}
        for name, executor in EXECUTORS.items():
            monkeypatch.setitem(EXECUTORS, name, functools.partial(self.noted, run, name, executor))
        for name in ("", "loop", "vmap"):
            ens.engine.picked = dict.fromkeys(("train", "eval"), name or "vmap")
            ens.zero_grad()
            with monkeypatch.context() as patch:
                patch.setattr(type(ens.engine), "device_type", "cpu" if name else "cuda")
                y = ens(x, per_member=per_member)
            y.square().sum().backward()
            found[name] = [y.detach(), *(p.grad.clone() for p in ens.parameters())]
        assert run[1:] == ["loop", "vmap"]
        for name in ("loop", "vmap"):
            for ours, theirs in zip(found[""], found[name], strict=True):
                torch.testing.assert_close(ours, theirs)
        return run[:1]

    @staticmethod
    def noted(run: list[str], name: str, executor: Callable[..., object], *args: object, **kwargs: object) -> object:
        run.append(name)
        return executor(*args, **kwargs)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("per_member", [True, False])
    def test_values_and_gradients(self, training: bool, per_member: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        ens = mt.ensemble(matrices(), mt.Deep(members=M), torch.randn(2, 4, 3), seed=0).train(training)
        each = FULL_BYTES["train" if training else "eval"] / (B * 12)
        ens.engine.input_bytes = 0.99 * each
        assert self.calls(ens, monkeypatch, per_member) == ["vmap"]
        ens.engine.input_bytes = 1.01 * each
        assert self.calls(ens, monkeypatch, per_member) == ["loop"]

    @pytest.mark.parametrize(
        ("net", "keep", "setting"),
        [(kernels, [], None), (matrices, ["3"], None), (matrices, [], ("tuned", {"cuda": {}})), (matrices, [], ("chunk", M))],
    )
    def test_others(
        self,
        net: Callable[[], nn.Module],
        keep: list[str],
        setting: tuple[str, object] | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ens = mt.ensemble(net(), mt.Deep(members=M), torch.randn(2, 4, 3), keep=keep, seed=0).eval()
        ens.engine.input_bytes = 2.0 * FULL_BYTES["eval"]
        if setting:
            setattr(ens.engine, *setting)
        assert self.calls(ens, monkeypatch) == ["vmap"]

    @pytest.mark.parametrize("full", [True, False])
    @pytest.mark.parametrize("method", [mt.BatchEnsemble(members=M, feed="part"), mt.MultiHead(members=M)])
    def test_predictions_of_shared_weights(self, method: mt.Method, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """In turn if each layer multiplies for each member apart: otherwise common work would be done again."""
        x, ran = torch.randn(B, 4, 3), []  # type: Tensor, list[str]
        ens = mt.ensemble(matrices(), method, x, seed=0).eval()
        ens.prove_later(["vmap"])
        wanted, apart = ens(x), isinstance(method, mt.BatchEnsemble)
        for name, executor in EXECUTORS.items():
            monkeypatch.setitem(EXECUTORS, name, functools.partial(self.noted, ran, name, executor))
        monkeypatch.setattr(type(ens.engine), "device_type", "cuda")
        monkeypatch.setattr(running, "FEW_BYTES", 0)
        ens.engine.picked = dict.fromkeys(("train", "eval"), "vmap")
        ens.engine.input_bytes = (2.0 if full else 0.5) * FULL_BYTES["eval"] / x.numel()
        torch.testing.assert_close(ens(x), wanted)
        assert ens.engine.shares_work() != apart
        assert ran == ["loop" if apart and full else "vmap"]
        ens.engine.input_bytes *= 2
        ens.train()(x)
        assert ran[1:] == ["vmap"]


@pytest.mark.parametrize(("training", "few"), [(True, 2), (False, 3)])
def test_few_members_run_in_turn_on_a_gpu(training: bool, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen ensemble has kernels for all members, and members that share something compute it once."""
    run: list[str] = []
    for name, executor in EXECUTORS.items():
        monkeypatch.setitem(EXECUTORS, name, functools.partial(TestMembersThatFillAGPU.noted, run, name, executor))

    def executor_of(ens: mt.Ensemble) -> str:
        ens.engine.picked = dict.fromkeys(("train", "eval"), "vmap")
        x, wanted = torch.randn(B, 4, 3), []
        for device in ("cpu", "cuda"):
            monkeypatch.setattr(type(ens.engine), "device_type", device)
            wanted.append(ens(x).detach())
        torch.testing.assert_close(*wanted)
        return run[-1]

    for members, executor in ((few, "loop"), (few + 1, "vmap")):
        assert executor_of(mt.ensemble(matrices(), mt.Deep(members=members), torch.randn(2, 4, 3)).train(training)) == executor
    shared = mt.ensemble(matrices(), mt.Deep(members=2), torch.randn(2, 4, 3), keep=["0"]).train(training)
    assert executor_of(shared) == "vmap"
    if not training:
        frozen = mt.ensemble(matrices(), mt.Deep(members=2), torch.randn(2, 4, 3)).eval().freeze()
        assert executor_of(frozen) == "vmap"


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
