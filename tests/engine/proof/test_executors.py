"""The trial: which executors are right is found out at conversion and said in the plan; compiled and exported, it holds."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, answer, assert_same_buffers, assert_same_gradients, assert_separate, members, score
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import EXECUTORS
from multitudes.engine.modules import named_tensors
from multitudes.engine.proof.executors import first_members, prove_executors


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def cnn(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *middle, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 3)
    )


def images(count: int = B) -> Tensor:
    return torch.randn(count, 2, 5, 5)


class Branching(nn.Module):
    """Goes by a member's own values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h if h.sum() > 0 else -h)


class TestChoice:
    def test_what_is_proven_is_what_is_right(self) -> None:
        """Every executor that the plan calls proven gives what M plain networks give."""
        ens, x = mt.ensemble(cnn(), mt.Deep(members=M), images()), images()
        for mode in ("train", "eval"):
            assert ens.plan.proven[mode] == ("loop", "vmap", "fold")
            for name in ens.plan.proven[mode]:
                assert_separate(copy.deepcopy(ens), x, name, training=mode == "train")

    def test_every_other_executor_has_a_reason(self) -> None:
        for net, x, method in (
            (Branching(), torch.randn(B, 4), mt.Deep(members=M)),
            (cnn(), images(), mt.MultiHead(members=M)),
            (mlp(), torch.randn(B, 4), mt.Single()),
        ):
            planned = mt.plan(net, method, x)
            for name in EXECUTORS:
                if not all(name in names for names in planned.proven.values()):
                    assert planned.why[name]
                    assert f"not {name}" in str(planned)

    def test_the_plan_is_what_the_ensemble_does(self) -> None:
        for net, x in ((mlp(), torch.randn(B, 4)), (Branching(), torch.randn(B, 4))):
            planned = mt.plan(net, mt.Deep(members=M), x, seed=0)
            ens = mt.ensemble(net, mt.Deep(members=M), x, seed=0)
            assert planned.proven == ens.plan.proven == ens.engine.proven
            assert planned.executor == ens.engine.picked
            for mode in (True, False):
                assert ens.train(mode).executor == planned.executor["train" if mode else "eval"]

    def test_data_dependent_control_flow_is_the_loops_alone(self) -> None:
        """fold runs it on all members' rows at once, which happens to agree on some examples: it is not right."""
        for seed in range(2):
            torch.manual_seed(seed)
            ens = mt.ensemble(Branching(), mt.Deep(members=M), torch.randn(B, 4))
            assert ens.engine.proven == {"train": ("loop",), "eval": ("loop",)}

    def test_a_model_that_cannot_run_is_refused_with_its_own_words(self) -> None:
        class Strict(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                if not isinstance(self.a.weight, nn.Parameter):
                    raise TypeError("only true parameters will do")
                return self.a(x)

        try:
            ens = mt.ensemble(Strict(), mt.Deep(members=M), torch.randn(B, 4))
        except mt.MultitudesError as error:
            assert "only true parameters will do" in str(error)
        else:
            assert_separate(ens, torch.randn(B, 4), training=True)

    def test_a_mode_that_fails_is_said(self) -> None:
        """A model that cannot be trained on the example: eval works, and the plan says that training was not tried."""

        class EvalOnly(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                if self.training:
                    raise NotImplementedError("inference only")
                return self.a(x)

        ens = mt.ensemble(EvalOnly(), mt.Deep(members=M), torch.randn(B, 4))
        assert "train" in ens.plan.why["vmap"]
        assert_separate(ens, torch.randn(B, 4), training=False)
        with pytest.raises(NotImplementedError, match="inference only"):
            ens.train()(torch.randn(B, 4))

    def test_the_plan_does_not_depend_on_what_warnings_do(self) -> None:
        """A warning of torch's is no reason against an executor, whether or not warnings are errors."""
        net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.Linear(6, 3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quiet = mt.plan(net, mt.Deep(members=M), torch.randn(B, 4), seed=0).proven
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            strict = mt.plan(net, mt.Deep(members=M), torch.randn(B, 4), seed=0).proven
        assert quiet == strict

    def test_the_trial_touches_nothing(self) -> None:
        """Weights, buffers, modes and torch's randomness of the model given; the same ensemble from the same seed."""
        net = cnn(nn.Dropout(0.5)).train()
        net[1].eval()
        before, modes = copy.deepcopy(net.state_dict()), [part.training for part in net.modules()]
        torch.manual_seed(7)
        mt.ensemble(net, mt.Deep(members=M), images(2), seed=1)
        torch.manual_seed(7)
        images(2)
        after = torch.rand(1)
        torch.manual_seed(7)
        mt.ensemble(net, mt.Deep(members=M), images(2), seed=2)
        assert torch.equal(torch.rand(1), after)
        assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
        assert [part.training for part in net.modules()] == modes
        assert all(p.grad is None for p in net.parameters())

    def test_a_few_members_as_an_engine(self) -> None:
        ens = mt.ensemble(mlp(), mt.Deep(members=M), torch.randn(B, 4))
        few = first_members(ens.engine, 2)
        assert few.members == 2
        assert all(torch.equal(t, dict(named_tensors(ens.template))[n][:2]) for n, t in named_tensors(few.template))
        prove_executors(few, mt.Inputs(torch.randn(B, 4)))
        assert few.proven == ens.engine.proven


class ZeroBranch(nn.Module):
    """Adds a branch that starts at zero, times one random number for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.scale, self.head = nn.Linear(4, 4), nn.Parameter(torch.zeros(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.scale * self.branch(x)
        return self.head(x + (branch * torch.rand(()) if self.training else branch))


def test_noise_that_does_not_show_yet_must_be_right_too() -> None:
    """Fold would draw one number for all members, and no output tells while the branch is zero."""
    x = torch.randn(B, 4)
    engine = mt.ensemble(ZeroBranch(), mt.BatchEnsemble(members=M), x, seed=0).engine
    prove_executors(engine, mt.Inputs(x), names=("vmap", "fold"))
    assert engine.proven["train"] == ("loop", "vmap")
    assert engine.why["fold"] == "its noise is the same for all members, unlike the loop's"


class OtherInPrediction(nn.Module):
    """Runs other code without gradients: what vmap does not know, or what gives another value under it."""

    def __init__(self, apart: float = 0.0) -> None:
        super().__init__()
        self.conv, self.head, self.apart = nn.Conv2d(2, 4, 3), nn.Linear(4, 3), apart

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if not torch.is_grad_enabled():
            wrapped = torch._C._functorch.is_functorch_wrapped_tensor(y)
            y = y + self.apart * wrapped if self.apart else y.contiguous(memory_format=torch.channels_last)
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize(
    ("apart", "why"), [(0.0, "without gradients, .*NYI: querying is_contiguous"), (0.1, "without gradients, output differs")]
)
def test_predictions_are_proved_without_gradients(apart: float, why: str) -> None:
    """Vmap raises an error, or another value, in predictions alone: the loop predicts."""
    x = images()
    ens = mt.ensemble(OtherInPrediction(apart), mt.Deep(members=M), x, seed=0).eval()
    prove_executors(ens.engine, mt.Inputs(x), names=("vmap",))
    assert ens.engine.proven == {"train": ("loop", "vmap"), "eval": ("loop",)}
    assert re.match(why, ens.engine.why["vmap"])
    ens.engine.picked["eval"] = "vmap"
    with torch.no_grad():
        torch.testing.assert_close(ens(x), torch.stack([net(x) for net in members(ens)]))


class Graphs:
    """A compiler that runs what it is given as it is, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before counts."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("fresh_compiler")
class TestCompile:
    CASES = {
        "Deep": mt.Deep(members=M),
        "TreeNet": mt.TreeNet(members=M, branch_at="3"),
        "MultiHead": mt.MultiHead(members=M),
    }

    @pytest.mark.parametrize(
        ("case", "executor"),
        [
            ("TreeNet", "vmap"),
            pytest.param("Deep", "loop", marks=pytest.mark.slow),
            pytest.param("Deep", "vmap", marks=pytest.mark.slow),
            pytest.param("MultiHead", "loop", marks=pytest.mark.slow),
        ],
    )
    def test_one_graph_and_the_same_training_step(self, case: str, executor: str) -> None:
        """No graph break; outputs, gradients and statistics of two steps are those of M plain networks."""
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4), nn.Linear(4, 3))
        ens = mt.ensemble(net, self.CASES[case], torch.randn(B, 4)).train()
        ens.engine.picked.update(train=executor, eval=executor)
        graphs = Graphs()
        compiled = torch.compile(ens, backend=graphs, fullgraph=True)
        nets, x = members(ens), torch.randn(B, 4)
        for _ in range(2):
            found, wanted = compiled(x), torch.stack([net(x) for net in nets])
            torch.testing.assert_close(found, wanted)
            score(found).backward()
            score(wanted).backward()
        assert graphs.count == 1
        assert_same_gradients(ens, nets)
        assert_same_buffers(ens, nets)

    @pytest.mark.parametrize(
        ("shares", "executor"),
        [pytest.param(False, "vmap", marks=pytest.mark.slow), (True, "loop")],
        ids=["Deep", "TreeNet"],
    )
    def test_dropout_differs_between_members(self, shares: bool, executor: str) -> None:
        """Equal members, told apart by their noise; new noise at each call."""
        net = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        method = mt.TreeNet(members=M, branch_at="1") if shares else mt.Deep(members=M)
        ens = mt.ensemble(net, method, torch.randn(B, 4), start="copies").train()
        ens.engine.picked.update(train=executor, eval=executor)
        compiled = torch.compile(ens, backend=Graphs(), fullgraph=True)
        one, other = compiled(torch.ones(B, 4)), compiled(torch.ones(B, 4))
        assert not torch.equal(one, other)
        assert all(not torch.equal(one[i], one[j]) for i in range(M) for j in range(i))

    @pytest.mark.parametrize(
        "backend", [Graphs(), pytest.param("aot_eager", marks=pytest.mark.slow)], ids=["eager", "aot_eager"]
    )
    def test_trunk_dropout_is_drawn_once(self, backend: Any) -> None:
        """By the operator of our own, whose vmap rule is followed when traced, too."""
        net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        ens = mt.ensemble(net, mt.MultiHead(members=M), torch.randn(B, 4), start="copies").train()
        compiled = torch.compile(ens, backend=backend, fullgraph=True)
        one, other = compiled(torch.ones(B, 4)), compiled(torch.ones(B, 4))
        torch.testing.assert_close(one, one[:1].expand_as(one))
        assert not torch.equal(one, other)

    @pytest.mark.slow
    def test_a_shared_norm_in_training(self) -> None:
        """By fold, compiled: right, or a clear error."""
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train()
        eager, x = copy.deepcopy(ens), torch.randn(B, 4)
        torch.testing.assert_close(torch.compile(ens, backend=Graphs())(x), eager(x))
        torch.testing.assert_close(ens.get_submodule("1").running_var, eager.get_submodule("1").running_var)

    @pytest.mark.slow
    def test_a_trunk_norm_where_vmap_is_no_way(self) -> None:
        """Traced, the loop knows nothing of what is common: its statistics still move once a step, or it is refused."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                h = self.head(self.norm(self.stem(x)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
                return h.contiguous(memory_format=torch.channels_last).mean((2, 3))

        ens = mt.ensemble(Net(), mt.MultiHead(members=M), images()).train()
        assert "vmap" not in ens.engine.proven["train"]
        nets, x = members(ens), images()
        try:
            torch.testing.assert_close(torch.compile(ens, backend=Graphs())(x), torch.stack([net(x) for net in nets]))
        except mt.MultitudesError as error:
            assert "norm" in str(error)
        else:
            assert_same_buffers(ens, nets)

    def test_a_buffer_that_forward_replaces(self) -> None:
        """It is stored when compiled too."""

        class Average(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.register_buffer("mean", torch.zeros(3))

            def forward(self, x: Tensor) -> Tensor:
                h = self.layer(x)
                self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
                return h

        for executor in ("loop", "vmap"):
            torch._dynamo.reset()
            ens = mt.ensemble(Average(), mt.Deep(members=M), torch.randn(B, 4)).train()
            ens.engine.picked.update(train=executor, eval=executor)
            nets, x = members(ens), torch.randn(B, 4)
            compiled = torch.compile(ens, backend=Graphs())
            for _ in range(2):
                torch.testing.assert_close(compiled(x), torch.stack([net(x) for net in nets]))
            torch.testing.assert_close(ens.mean, torch.stack([net.mean for net in nets]))


class TestExport:
    def test_with_a_free_batch_size(self) -> None:
        """The exported program runs at other batch sizes, though vmap, which fixes them, is picked."""
        ens = mt.ensemble(cnn(), mt.TreeNet(members=M, branch_at="3"), images()).eval()
        ens.engine.picked.update(train="vmap", eval="vmap")
        shapes = {"inputs": ({0: torch.export.Dim("batch")},)}
        program = torch.export.export(ens, (images(),), dynamic_shapes=shapes, strict=False)
        for count in (B, 7, 1):
            x = images(count)
            torch.testing.assert_close(program.module()(x), torch.stack([net(x) for net in members(ens)]))

    @pytest.mark.slow
    def test_attention(self) -> None:
        """torch's fused inference path is not exported."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.layer(x).mean(1))

        ens = mt.ensemble(Net(), mt.Deep(members=M), torch.randn(B, 4, 8)).eval()
        shapes = {"inputs": ({0: torch.export.Dim("batch")},)}
        program = torch.export.export(ens, (torch.randn(B, 4, 8),), dynamic_shapes=shapes, strict=False)
        x = torch.randn(6, 4, 8)
        torch.testing.assert_close(program.module()(x), torch.stack([net(x) for net in members(ens)]))


class TestTransforms:
    """torch.func over an ensemble."""

    def test_functional_call_and_grad(self) -> None:
        ens = mt.ensemble(mlp(), mt.Deep(members=M), torch.randn(B, 4)).eval()
        x, nets = torch.randn(B, 4), members(ens)
        parameters = {n: p.detach() for n, p in ens.named_parameters()}

        def energy(given: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(ens, given, (x,)).square().sum()

        grads = torch.func.grad(energy)(parameters)
        for net in nets:
            net(x).square().sum().backward()
        for name, grad in grads.items():
            torch.testing.assert_close(grad, torch.stack([net.get_parameter(name).grad for net in nets]))

    def test_jacobian_of_the_input(self) -> None:
        ens = mt.ensemble(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), mt.Deep(members=M), torch.randn(B, 4)).eval()
        x = torch.randn(1, 4)
        jacobian = torch.func.jacrev(lambda v: answer(ens, "loop", v))(x)
        for m, net in enumerate(members(ens)):
            torch.testing.assert_close(jacobian[m], torch.func.jacrev(lambda v, net=net: net(v))(x))

    def test_gradient_penalty(self) -> None:
        """Second-order gradients by vmap are those of the loop."""
        ens = mt.ensemble(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), mt.Deep(members=M), torch.randn(B, 4))
        found = {}
        for way in ("loop", "vmap"):
            ens.zero_grad()
            x = torch.ones(B, 4, requires_grad=True)
            F.mse_loss(torch.autograd.grad(score(answer(ens, way, x)), x, create_graph=True)[0], torch.zeros(B, 4)).backward()
            found[way] = {n: p.grad.clone() for n, p in ens.named_parameters() if p.grad is not None}
        assert found["loop"].keys() == found["vmap"].keys()
        for name, grad in found["loop"].items():
            torch.testing.assert_close(found["vmap"][name], grad)
