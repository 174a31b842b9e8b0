"""Trials of large networks: few runs in single precision find what many in double precision find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine.proof.test_independence import KINDS, Memory, Mixing, remembering, remembering_in
from engine.separate import B, M, assert_separate
from laws import METHODS
from laws.compare import convert
from torch import Tensor, nn
from zoo import ZOO, refusal

import multitudes as mt
from multitudes.engine import EXECUTORS, run_vmap, tree
from multitudes.engine.draws import run_with
from multitudes.engine.proof import executors, slots, smaller, trial
from multitudes.engine.proof.executors import ALL, LATER, TOGETHER, first_members
from multitudes.engine.proof.outcome import run_plain, without_backward
from multitudes.methods.dropconnect import Connected

PAIRS = [
    (label, name)
    for label in METHODS
    for name in ("resnet", "transformer_encoder", "functional_dropout", "reassigning", "cumulative_batchnorm", "branching")
    if refusal(label, name, "member") is None
]


F32 = torch.float32


@pytest.fixture(autouse=True)
def every_network_is_large(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(smaller, "LARGE", 0)
    Memory.kept_by_the_class = None
    yield
    Memory.kept_by_the_class = None


@pytest.mark.slow
@pytest.mark.parametrize(("label", "name"), PAIRS)
def test_what_is_converted_obeys_the_laws(label: str, name: str) -> None:
    """mt.check proves it in double precision, and on the whole example."""
    case = ZOO[name]
    ens = convert(METHODS[label](), case)
    assert mt.check(ens, case.example()).laws
    assert all("loop" in names for names in ens.engine.proven.values())


@pytest.mark.parametrize("how", [how for how in KINDS if how not in ("a class attribute", "a buffer")])
def test_leaks_are_refused(how: str) -> None:
    with pytest.raises(mt.MultitudesError, match="member"):
        mt.ensemble(remembering(how, True), mt.Deep(members=M), torch.randn(B, 4))


@pytest.mark.parametrize("training", [True, False], ids=["in training", "in eval"])
def test_a_leak_in_one_mode_only(training: bool) -> None:
    with pytest.raises(mt.MultitudesError, match="member"):
        mt.ensemble(remembering_in(training), mt.Deep(members=M), torch.randn(B, 4))


def test_a_wrong_rule_of_vmap_is_found() -> None:
    """A share of a thousandth of another member: single precision sees it, double precision decides."""
    net = nn.Sequential(nn.Linear(4, 6), Mixing(1e-3), nn.Linear(6, 3))
    ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).tune(torch.randn(B, 4), seconds=0.0)
    assert all("vmap" not in names for names in ens.engine.proven.values())


class TestLater:
    """Executors that this device would not choose are tried before they are used."""

    def test_the_plan_says_so(self) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4))
        assert ens.engine.untried == ALL - {TOGETHER}
        assert ens.plan.why == {"vmap": LATER, "fold": LATER}
        assert ens.plan.proven == {"train": ("loop",), "eval": ("loop",)}

    def test_tune_tries_all(self) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4)).tune(torch.randn(B, 4), seconds=0.0)
        assert not ens.engine.untried
        assert "vmap" in ens.engine.proven["train"]

    def test_calls_per_member_try_vmap_for_them(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.MultiHead(members=M), torch.randn(B, 4))
        assert "per member" in ens.engine.untried
        x = torch.randn(M, B, 4)
        out = ens.eval()(x, per_member=True)
        assert "per member" not in ens.engine.untried
        assert ens.engine.traits.vmap_per_member
        torch.testing.assert_close(out, torch.stack([ens.member(m)(x[m]) for m in range(M)]))

    def test_a_loaded_ensemble_tries_on_an_example_of_its_shape(self, tmp_path: Any) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4))
        mt.save(ens, tmp_path / "a.safetensors")
        loaded = mt.load(tmp_path / "a.safetensors", nn.Linear(4, 3))
        assert loaded.engine.untried == ens.engine.untried
        loaded.prove_later(["vmap"])
        assert "vmap" in loaded.engine.proven["eval"]
        assert_separate(loaded, torch.randn(B, 4), "vmap", training=True)


class Dropping(nn.Module):
    """Drops a branch at random in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.head(y + self.branch(y) * (torch.rand(len(y), 1, device=y.device).to(y) if self.training else 1.0))


def test_calls_per_member_of_a_random_network_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors draw other noise than the loop, so none could agree: the loop runs these calls."""
    calls: list[str] = []
    run = executors._run_per_member
    monkeypatch.setattr(executors, "_run_per_member", lambda *args, **kw: (calls.append(args[1]), run(*args, **kw))[1])
    ens = mt.ensemble(Dropping(), mt.Masksembles(members=M, scale=2.0, fewest=2), torch.randn(B, 8), seed=0)
    assert ens.engine.traits.random
    assert "per member" not in ens.engine.untried
    assert not ens.engine.traits.vmap_per_member
    assert not calls
    ens.train().loss(torch.randn(B, 8), torch.randn(B, 3), nn.MSELoss()).backward()


class TestKeptProofs:
    def count(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        from multitudes.conversion import prove

        calls: list[int] = []
        original = prove.prove_executors

        def counted(*args: Any, **options: Any) -> None:
            calls.append(1)
            original(*args, **options)

        monkeypatch.setattr(prove, "prove_executors", counted)
        return calls

    def test_ensemble_after_plan_proves_nothing_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls, net, x = self.count(monkeypatch), nn.Linear(4, 3), torch.randn(B, 4)
        planned = mt.plan(net, mt.Deep(members=M), x)
        ens = mt.ensemble(net, mt.Deep(members=M), x)
        assert len(calls) == 1
        assert ens.plan.proven == planned.proven
        mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4), seed=7)
        assert len(calls) == 1

    @pytest.mark.parametrize("change", ["weights", "module", "attribute", "forward", "settings", "shape"])
    def test_a_change_is_proved_again(self, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.sign = nn.Linear(4, 3), 1.0

            def forward(self, x: Tensor) -> Tensor:
                return self.sign * self.layer(x)

        calls, net, x, members = self.count(monkeypatch), Net(), torch.randn(B, 4), M
        mt.ensemble(net, mt.MultiHead(members=M), x)
        if change == "weights":
            with torch.no_grad():
                net.layer.weight.add_(1)
        elif change == "module":
            net.layer = nn.Linear(4, 3)
        elif change == "attribute":
            net.sign = -1.0
        elif change == "forward":
            monkeypatch.setattr(Net, "forward", lambda self, x: self.layer(x))
        elif change == "shape":
            x = torch.randn(B, 5, 4)
        else:
            members = M + 1
        mt.ensemble(net, mt.MultiHead(members=members), x)
        assert len(calls) == 2


def rough(run: Any) -> Any:
    """An executor with large rounding errors in single precision, and none in double."""

    def rounding(*args: Any, **options: Any) -> Any:
        return tree.apply(lambda t: t * 1.01 if t.dtype == torch.float32 else t, run(*args, **options))

    return rounding


@pytest.mark.slow
@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.MIMO(members=2)], ids=["Deep", "MIMO"])
def test_double_precision_decides_where_rounding_errors_are_large(method: mt.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversion and check: what differs in single precision alone is right, and what differs in both is refused."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).float(), torch.randn(3, 4).float()
    monkeypatch.setitem(EXECUTORS, "vmap", rough(run_vmap))
    for name in ("run_vmap", "run_slots_in_turn"):
        monkeypatch.setattr(slots, name, rough(getattr(slots, name)))
    ens = mt.ensemble(model, method, x, seed=0)
    ens.tune(x)
    assert "vmap" in ens.plan.proven["eval"]
    mt.check(ens, x)
    monkeypatch.setitem(EXECUTORS, "vmap", lambda *args: tree.apply(lambda t: 1.01 * t, run_vmap(*args)))
    with pytest.raises(mt.CheckError, match=r"vmap, eval: output differs"):
        mt.check(ens, x)


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class TestSharedNorms:
    """In training, vmap and fold of a large network with shared norms are compared with each other."""

    def test_both_are_proven(self) -> None:
        ens = mt.ensemble(normed(), mt.BatchEnsemble(members=2), torch.randn(8, 4))
        assert ens.engine.traits.coupled
        assert ens.plan.proven == {"train": ("loop", "vmap", "fold"), "eval": ("loop", "vmap", "fold")}

    @pytest.mark.parametrize(("wrong", "right"), [("vmap", "fold"), ("fold", "vmap")])
    @pytest.mark.parametrize("gradients_only", [False, True])
    def test_a_wrong_one_is_found(self, wrong: str, right: str, gradients_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        run = trial.RUNS[wrong]

        def spoilt(engine: Any, *args: Any, **options: Any) -> Any:
            factor = 1.05 if engine.template.training else 1.0
            return tree.apply(
                lambda t: factor * t + (1 - factor) * t.detach() if gradients_only else factor * t,
                run(engine, *args, **options),
            )

        monkeypatch.setitem(trial.RUNS, wrong, spoilt)
        ens = mt.ensemble(normed(), mt.BatchEnsemble(members=2), torch.randn(8, 4))
        assert wrong in ens.plan.proven["eval"]
        assert wrong not in ens.plan.proven["train"]
        assert right in ens.plan.proven["train"]

    @pytest.mark.parametrize("wrong", [None, "vmap", "fold"])
    @pytest.mark.parametrize("gradients_only", [False, True])
    def test_a_wrong_one_is_found_in_calls_per_member(
        self, wrong: str | None, gradients_only: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They agree with each other, or the loop decides on the network without these norms."""

        def spoilt(engine: Any, *args: Any, per_member: bool = False, **options: Any) -> Any:
            factor = 1.05 if engine.template.training and per_member else 1.0
            outputs = run(engine, *args, per_member=per_member, **options)
            return tree.apply(lambda t: factor * t + (1 - factor) * t.detach() if gradients_only else factor * t, outputs)

        if wrong:
            run = trial.RUNS[wrong]
            monkeypatch.setitem(trial.RUNS, wrong, spoilt)
        layers = nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
        ens = mt.ensemble(nn.Sequential(*layers), mt.Masksembles(members=2), torch.randn(8, 4))
        assert ens.engine.traits.coupled
        assert (ens.engine.traits.vmap_per_member, ens.engine.traits.fold_per_member) == (wrong != "vmap", wrong != "fold")

    def test_gradients_of_fold_in_eval_mode_are_proved_if_it_cannot_train(self, monkeypatch: pytest.MonkeyPatch) -> None:

        def spoilt(engine: Any, *args: Any, **options: Any) -> Any:
            if engine.template.training:
                raise RuntimeError("it does not train")
            return tree.apply(Tensor.detach, fold(engine, *args, **options))

        fold = trial.RUNS["fold"]
        monkeypatch.setitem(trial.RUNS, "fold", spoilt)
        ens = mt.ensemble(normed(), mt.MultiHead(members=2), torch.randn(8, 4))
        assert ens.plan.proven == {"train": ("loop", "vmap"), "eval": ("loop", "vmap")}


class TestMemory:
    """Trials of a few members share the memory of parameters that no forward writes into."""

    class Bounded(nn.Module):
        """An embedding that forward writes into."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(7, 4, max_norm=0.1), nn.Linear(4, 3)

        def forward(self, ids: Tensor) -> Tensor:
            y: Tensor = self.out(self.table(ids).mean(1))
            return y

    def test_what_forward_writes_does_not_reach_the_model(self) -> None:
        net, ids = self.Bounded(), torch.randint(7, (B, 5))
        before = net.table.weight.detach().clone()
        ens = mt.ensemble(net, mt.MultiHead(members=2), ids)
        assert torch.equal(net.table.weight, before)
        assert torch.equal(ens.state_dict()["table.weight"], before)

    def test_shared_parameters_are_not_copied(self) -> None:
        ens = mt.ensemble(normed(), mt.MultiHead(members=M), torch.randn(8, 4))
        light, whole = (first_members(ens.engine, 2, light=light).parameters() for light in (True, False))
        shared, own = "0.weight", "3.weight"
        stored = ens.engine.parameters()
        assert light[shared].data_ptr() == stored[shared].data_ptr() != whole[shared].data_ptr()
        assert light[own].data_ptr() != stored[own].data_ptr()
        assert torch.equal(light[own], stored[own][:2])


class DropsPaths(nn.Module):
    """Drops a whole residual of some rows in training, as stochastic depth does, without a dropout module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        kept = torch.rand_like(x[:, :1]).round() if self.training else 1.0
        return self.head(x + kept * self.inner(x).tanh())


def test_noise_of_training_says_nothing_of_eval_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training step of slots is not compared with outputs in eval mode, so that double precision need not decide."""
    doubled: list[Any] = []
    monkeypatch.setattr(slots, "doubled", lambda *given: doubled.append(given))
    ens = mt.ensemble(DropsPaths().float(), mt.MIMO(members=3), torch.randn(4, 6).float(), seed=0)
    assert ens.engine.traits.vmap_per_member and not doubled


@pytest.mark.parametrize("written", ["in place", "replaced"])
def test_a_forward_that_writes_into_draws_is_refused(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trial runs share the memory of draws, so what one run writes would be the next one's."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if written == "in place":
            self.weight_mask.logical_not_()
        else:
            self.weight_mask = ~self.weight_mask
        return run_with(self, self.weights(), super(Connected, self).forward, x)

    net, x = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(B, 5)
    monkeypatch.setattr(Connected, "forward", forward)
    with pytest.raises(mt.ConversionError, match="which holds draws"):
        mt.ensemble(net, mt.DropConnect(members=M), x)


class Forces(nn.Module):
    """Returns gradients of an energy, which forward computes, and counts its calls."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        Forces.calls += 1
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


def test_a_network_that_computes_gradients_runs_again_if_nothing_was_kept() -> None:
    """Runs without backward keep nothing for one; the outputs are those of a run that keeps all."""
    net, x = Forces(), mt.Inputs(torch.randn(B, 5))
    expected = run_plain(net, x).values[0]
    Forces.calls = 0
    assert torch.equal(run_plain(net, x, backward=False).values[0], expected)
    assert Forces.calls == 2
    ens = mt.ensemble(net, mt.Deep(members=M), x, task="regression")
    assert_separate(ens, x.args[0], training=False)


def test_nothing_is_kept_for_a_backward_that_does_not_run() -> None:
    """An error of the network itself is no reason to run it again."""
    kept: list[Any] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            kept.append(ctx)
            return x * 2

    def run() -> Tensor:
        return Keeps.apply(torch.ones(3, requires_grad=True))

    without_backward(run)
    with pytest.raises(RuntimeError, match="computes gradients"):
        _ = kept[0].saved_tensors

    def fail() -> None:
        kept.append(None)
        raise ValueError("of the network")

    with pytest.raises(ValueError, match="of the network"):
        without_backward(fail)
    assert len(kept) == 2


class OnlyInTraining(torch.autograd.Function):
    """Has a backward in training mode alone, as reversible layers of Reformer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, training: bool) -> Tensor:
        ctx.training = training
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        assert ctx.training, "call model.train() before"
        return 2 * gradients[0], None


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(OnlyInTraining.apply(self.first(x), self.training))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("method", [mt.Deep(members=M), mt.BatchEnsemble(members=M), mt.MIMO(members=M)])
def test_a_network_may_have_a_backward_in_training_mode_alone(
    method: mt.Method, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reversible layers do. Gradients are compared in training mode."""
    monkeypatch.setattr(smaller, "LARGE", 0 if large else 1e9)
    ens = mt.ensemble(Reversible(), method, torch.randn(B, 4))
    assert not ens.engine.traits.backward_in_eval
    mt.check(ens, torch.randn(B, 4))
    x, y = torch.randn(B, 4), torch.randn(B, 3)
    ens.train().loss(x, y, torch.nn.functional.mse_loss).backward()
    assert all(p.grad is not None for p in ens.parameters())


def test_gradients_that_are_wrong_in_training_alone_are_found() -> None:
    """Although none are compared in eval mode: one member's gradients reach another's."""

    class Mixing(Reversible):
        kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if self.training:
                y, self.kept = y if self.kept is None else y + self.kept - self.kept.detach(), y
            return y

    with pytest.raises(mt.ConversionError):
        mt.ensemble(Mixing(), mt.Deep(members=M), torch.randn(B, 4))


def test_a_network_without_a_backward_is_refused() -> None:
    class Overwritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).exp()
            return self.last(y + y.mul_(2))

    with pytest.raises(mt.ConversionError, match=r"runs in eval mode, but gradients cannot be computed.* inplace operation"):
        mt.ensemble(Overwritten(), mt.Deep(members=M), torch.randn(B, 4))


def test_a_backward_of_plain_networks_must_run_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the loop's own in eval mode is not taken for a network without a backward."""
    from multitudes.engine.proof import trial

    monkeypatch.setattr(trial.Trial, "_try_ways", lambda self, mode, written: self.failed.update({mode: ValueError("no")}))
    with pytest.raises(mt.ConversionError, match=r"gradients cannot be computed.* no"):
        mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4))
