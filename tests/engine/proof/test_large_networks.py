"""Trials of large networks: draws that first run together later, and gradients compared with soft norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine.separate import B, M
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import multitudes as mt
from multitudes.engine import EXECUTORS, run_vmap
from multitudes.engine.loop import run_loop
from multitudes.engine.proof import executors, smaller, trial
from multitudes.engine.proof.executors import ALL, LATER_TOGETHER, TOGETHER

F32 = torch.float32


@pytest.fixture(autouse=True)
def every_network_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smaller, "LARGE", 0)


def blocks(depth: int = 1) -> nn.Sequential:
    """Linear layers and BatchNorm: the deeper, the more norms over few rows blow up rounding errors."""
    layers = [part for _ in range(depth) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(8, 3)).float()


class TestDrawsTogether:
    """A training step of members that are draws runs one of them: training calls of several are proved when they come."""

    @pytest.mark.parametrize("method", [mt.MCDropout(members=M, position="layers"), mt.DropConnect(members=M)], ids=str)
    def test_the_first_call_proves(self, method: mt.Method) -> None:
        x = torch.randn(B, 8, dtype=F32)
        ens = mt.ensemble(blocks(), method, x, seed=0)
        assert ens.plan.proven["train"] == ("loop",)
        assert "vmap" in ens.plan.proven["eval"]
        assert ens.plan.why["vmap"] == LATER_TOGETHER
        ens.train().loss(x, torch.randn(B, 3, dtype=F32), nn.MSELoss())
        assert TOGETHER in ens.engine.untried
        assert ens(x).shape == (M, B, 3)
        assert TOGETHER not in ens.engine.untried
        assert ens.engine.proven["train"] == ("loop", "vmap", "fold")

    def test_several_draws_and_inputs_of_each_member(self) -> None:
        x = torch.randn(B, 8, dtype=F32)
        for call in ("draws", "per member"):
            ens = mt.ensemble(blocks(), mt.DropConnect(members=M), x, seed=0).train()
            if call == "draws":
                ens(x, draws=next(ens.draw(1, x)))
                assert TOGETHER in ens.engine.untried
                assert ens(x, draws=next(ens.draw(2, x))).shape == (2, B, 3)
            else:
                assert ens(torch.randn(M, B, 8, dtype=F32), per_member=True).shape == (M, B, 3)
                assert ens.engine.traits.fold_per_member
            assert "fold" in ens.engine.proven["train"]

    def test_rows_with_draws_of_their_own_are_proved_at_once(self) -> None:
        ens = mt.ensemble(blocks(), mt.EMP(members=M, draw="row"), torch.randn(B, 8, dtype=F32), seed=0)
        assert TOGETHER not in ens.engine.untried
        assert ens.plan.proven["train"] != ("loop",)


class TestSoftNorms:
    """In training with shared norms vmap and fold are compared with each other."""

    def trial(self, depth: int) -> trial.Trial:
        x = torch.randn(2, 8, dtype=F32)
        engine = mt.ensemble(blocks(depth), mt.BatchEnsemble(members=M, feed="all"), x, seed=0).engine
        tried = trial.Trial(engine, mt.Inputs(x), large=True, pair=True)
        tried.engine.row_axes |= tried.learned_rows()
        return tried

    @pytest.mark.parametrize("anywhere", [False, True], ids=["of these norms", "of any"])
    def test_gradients_that_norms_blow_up_need_no_double_precision(
        self, anywhere: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error in gradients that is gone with soft norms is one of rounding; double precision decides of one that stays."""
        tried = self.trial(1)

        def run(engine: Any, call: Any) -> Tensor:
            output = run_vmap(engine, call)
            if anywhere or engine.template[1].eps == 1e-5:
                output.register_hook(lambda gradient: 1.01 * gradient)
            return output

        doubles: list[bool] = []
        in_double = trial.Trial.in_double
        monkeypatch.setattr(trial.Trial, "in_double", lambda self: (doubles.append(True), in_double(self))[1])
        monkeypatch.setitem(trial.RUNS, "vmap", run)
        differs = tried.difference("vmap", "fold", "train")
        assert bool(differs) == bool(doubles) == anywhere

    def test_statistics_of_each_member_alone_are_found_with_soft_norms(self) -> None:
        tried = self.trial(20)
        apart, together = (trial.run_executor(run, tried.softened(), tried.inputs, "train") for run in (run_loop, run_vmap))
        assert trial.difference(apart, together, 10 * trial.SINGLE)

    def test_wrong_outputs_are_not_softened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.trial(1)
        assert tried.agree_softened("vmap", "fold")
        monkeypatch.setitem(trial.RUNS, "vmap", lambda engine, call: 1.1 * run_vmap(engine, call))
        other = self.trial(1)
        assert not other.agree_softened("vmap", "fold")
        assert other.difference("vmap", "fold", "train")

    @pytest.mark.parametrize("scale", [1.0, 1.01])
    def test_gradients_of_deep_networks_are_compared_with_soft_norms_alone(
        self, scale: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With norms as they are, both executors run forward; a wrong gradient is found all the same."""
        eps: list[float] = []

        def run(engine: Any, call: Any) -> Tensor:
            output = run_vmap(engine, call)
            if output.requires_grad:
                output.register_hook(lambda gradient: eps.append(engine.template[1].eps) or scale * gradient)
            return output

        tried = self.trial(2)
        monkeypatch.setattr(executors, "DEEP", 1)
        monkeypatch.setitem(trial.RUNS, "vmap", run)
        tried.engine.proven["eval"] = ("loop", "vmap", "fold")
        assert executors._agree_in_training(tried, ALL) == (scale == 1)
        assert eps[0] > 1e-5
        assert (len(eps) == 1) == (scale == 1)

    def test_the_loop_runs_forward_until_its_gradients_are_needed(self) -> None:
        tried = self.trial(1)
        loop = tried.loop("train")
        assert loop is not None
        assert not loop.gradients
        tried.learn_backward()
        assert tried.outcome("loop", "train").gradients

    def test_layers_that_training_alone_runs_again_in_backward(self) -> None:
        """The gradients of a converted network are right, or its first training step fails: none is silently wrong."""
        x, grads = torch.randn(B, 8, dtype=F32), []
        for again in (True, False):
            ens = mt.ensemble(Again(again).float(), mt.BatchEnsemble(members=M, feed="all"), x, seed=0).train()
            with torch.no_grad():
                for parameter in ens.parameters():
                    parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
            ens(x).square().sum().backward()
            grads.append([parameter.grad for parameter in ens.parameters()])
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


class Again(nn.Module):
    """In training, backward runs the second layer `again`."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.head, self.again = nn.Linear(8, 3), again

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x)).relu()
        again = self.again and self.training
        return self.head(checkpoint(self.second, y, use_reentrant=False) if again else self.second(y))


@pytest.mark.parametrize("name", ["vmap", "fold"])
def test_an_executor_that_carries_nan_to_other_members_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All values are right, but for those that are no numbers."""
    run = EXECUTORS[name]
    monkeypatch.setitem(trial.RUNS, name, lambda engine, call: (out := run(engine, call)) + 0 * out[:1].detach())
    ens = mt.ensemble(blocks(), mt.BatchEnsemble(members=M, feed="all"), torch.randn(B, 8, dtype=F32), seed=0)
    assert name not in ens.plan.proven["eval"]
    assert "changes the output of another member" in ens.plan.why[name]
