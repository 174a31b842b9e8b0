"""Frozen ensembles return what the ensemble returns, by every method, and are for prediction only."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from laws import METHODS
from torch import Tensor, nn
from zoo import FIVE, ZOO, refusal

import multitudes as mt
from multitudes.engine.kernels.fused import FUSED
from multitudes.files.export import freeze
from multitudes.files.export.constants import fold_constants
from multitudes.files.export.factors import fold_factors
from multitudes.files.export.freeze import FrozenNetwork, graph_module
from multitudes.files.export.fuse import read_all_channels
from multitudes.files.export.trace import MemberGraph, trace_member

PAIRS = [
    (name, case)
    for i, name in enumerate(METHODS)
    for case in dict.fromkeys((FIVE[i % len(FIVE)], *(("resnet",) if i % 3 == 0 else ())))
    if refusal(name, case, "member") is None
]
"""Every method with one network of the zoo or two."""


class Net(nn.Module):
    """Convolutions with BatchNorm, and a residual."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.bn_a = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.b, self.bn_b = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Returns class scores. The last norm follows a sum, so it cannot be folded."""
        x = self.bn_a(self.a(x)).relu()
        return self.head(self.norm(x + self.bn_b(self.b(x)).relu()).mean((2, 3)))


def made(method: mt.Method) -> mt.Ensemble:
    """An ensemble whose norms have seen something."""
    torch.manual_seed(0)
    ens = mt.ensemble(Net(), method, torch.randn(2, 3, 8, 8), seed=0).eval()
    for part in ens.template.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor, least in ((part.running_mean, -1.0), (part.running_var, 0.5), (part.weight, 0.5), (part.bias, -1.0)):
                nn.init.uniform_(tensor, least, 2.0)  # type: ignore[arg-type]
    return ens


@pytest.fixture(name="ens")
def _ens() -> mt.Ensemble:
    return made(mt.Packed(members=3))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), PAIRS, ids=lambda value: str(value))
def test_every_method(name: str, case: str) -> None:
    network = ZOO[case]
    ens = mt.ensemble(network.model(), METHODS[name](), network.example(), seed=0, batch_axis=network.batch_axis).eval()
    frozen = ens.freeze()
    for rows in (1, 4):
        call = network.example(rows, seed=rows)
        with torch.no_grad():
            wanted, found = (network.scores(one(*call.args, **call.kwargs)) for one in (ens, frozen))
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_norms_are_folded(ens: mt.Ensemble) -> None:
    frozen, x = ens.freeze(), torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), ens(x), rtol=1e-4, atol=1e-5)
    assert isinstance(frozen.template, FrozenNetwork)
    names = [str(node.target) for node in frozen.template.graph.graph.nodes if node.op == "call_function"]
    assert sum("norm" in name for name in names) == 1
    assert "2 BatchNorm layers are folded" in str(frozen.plan)
    assert frozen.plan.counts is not None
    assert frozen.plan.counts.parameters == sum(p.numel() for p in frozen.parameters())


def test_predictions_are_the_same(ens: mt.Ensemble) -> None:
    x, y = torch.randn(20, 3, 8, 8), torch.randint(4, (20,))
    ens.calibrator = mt.calibrate(mt.predict(ens, x), y)
    wanted, found = (mt.predict(one, x) for one in (ens, ens.freeze()))
    torch.testing.assert_close(found.probs, wanted.probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.mutual_information, wanted.mutual_information, rtol=1e-3, atol=1e-5)


def test_every_executor_runs_it(ens: mt.Ensemble) -> None:
    """The graph holds functions for which vmap has rules of our own, under autocast and in channels last too."""
    frozen, x = ens.freeze(), torch.randn(5, 3, 8, 8)
    frozen, frozen.shortcuts = frozen.to(memory_format=torch.channels_last), None
    assert "vmap" in frozen.plan.proven["eval"]
    found = []
    for executor in ("loop", "vmap"):
        frozen.engine.picked["eval"] = executor
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found.append(frozen(x.to(memory_format=torch.channels_last)))
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=0.05)


def test_what_a_frozen_ensemble_refuses(ens: mt.Ensemble, tmp_path: Path) -> None:
    frozen = ens.freeze()
    with pytest.raises(mt.InputError, match=r"frozen for inputs \[rows, 3, 8, 8\], not \[2, 3, 9, 9\]"):
        frozen(torch.randn(2, 3, 9, 9))
    with pytest.raises(mt.MultitudesError, match=r"train the original ensemble, then call freeze\(\) again"):
        frozen.train()
    with pytest.raises(mt.MultitudesError, match="cannot be saved"):
        mt.save(frozen, tmp_path / "a.safetensors")
    with pytest.raises(mt.InputError, match="frozen already"):
        frozen.freeze()
    assert not list(tmp_path.iterdir())


def test_networks_that_cannot_be_frozen() -> None:
    for case, text in (("branching", "cannot be frozen"), ("dict_output", "returns one tensor")):
        network = ZOO[case]
        ens = mt.ensemble(network.model(), mt.Deep(members=2), network.example(), seed=0).eval()
        with pytest.raises(mt.MultitudesError, match=text):
            ens.freeze()


def test_draws_are_frozen() -> None:
    ens = made(mt.MCDropout(members=3, p=0.3))
    frozen, x = ens.freeze(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), ens(x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(frozen(x)[0], frozen(x)[1])
    for call in (frozen.resample, lambda: frozen.draw(5, x)):
        with pytest.raises(mt.InputError, match="a frozen ensemble has no random draws"):
            call()


def test_the_ensemble_stays_as_it_was(ens: mt.Ensemble) -> None:
    before = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        wanted = ens(x)
    ens.train()  # its norms would learn in a call
    ens.template.get_submodule("bn_a").eval()
    torch.testing.assert_close(ens.freeze(x)(x), wanted, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ens.state_dict().items())
    assert ens.training and not ens.template.get_submodule("bn_a").training


class Timed(nn.Module):
    """Takes images and a time."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.speed = Net(), nn.Linear(1, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Returns class scores that move with time."""
        return self.net(x) + self.speed(t[:, None])


def test_inputs_are_given_as_in_a_call() -> None:
    x, t = torch.randn(5, 3, 8, 8), torch.rand(5)
    ens = mt.ensemble(Timed(), mt.Deep(members=2), (x, t), seed=0).eval()
    with torch.no_grad():
        wanted = ens(x, t)
        for frozen in (ens.freeze(x, t), ens.freeze((x, t)), ens.freeze(mt.Inputs(x, t)), ens.freeze()):
            torch.testing.assert_close(frozen(x, t), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ens.freeze(x, t=t)(x, t=t), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(mt.InputError, match="takes 2 inputs, but the data has 1"):
        ens.freeze(x)


class Difference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns a value in which the order of the inputs counts."""
        return self.layer(a) - 2 * self.layer(b)  # type: ignore[no-any-return]


def test_inputs_by_name_come_in_any_order() -> None:
    a, b = torch.randn(3, 8), torch.randn(3, 8)
    ens = mt.ensemble(Difference(), mt.Deep(members=2), mt.Inputs(a, b), seed=0).eval()
    for example in (mt.Inputs(a, b), mt.Inputs(a, b=b), mt.Inputs(b=b, a=a)):
        frozen = ens.freeze(example)
        for found in (frozen(a, b), frozen(a, b=b), frozen(a=a, b=b), frozen(b=b, a=a)):
            torch.testing.assert_close(found, ens(a, b))


class Flat(nn.Module):
    """Pools, and a flattened image before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Returns class scores."""
        return self.head(F.adaptive_avg_pool2d(F.avg_pool2d(self.first(x).relu(), 2), 2).flatten(1))


def test_images_whose_channels_come_last() -> None:
    ens = mt.ensemble(Flat(), mt.Packed(members=4), torch.randn(2, 3, 8, 8), seed=0).eval()
    frozen, x = ens.freeze(), torch.randn(5, 3, 8, 8)
    frozen.shortcuts = None
    for executor in frozen.engine.proven["eval"]:
        frozen.engine.picked["eval"] = executor
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(frozen(x.to(memory_format=torch.channels_last)), ens(x))


class Branches(nn.Module):
    """Convolutions whose results go to several places, or meet something of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(size, 4, 3, padding=1) for size in (3, 4, 4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Returns class scores."""
        a = self.a(x)  # read twice: neither ReLU nor sum belongs to it
        b = torch.relu(self.b(a.relu()) + a)  # a residual
        c = torch.relu(self.c(b) + b.mean((2, 3), keepdim=True))  # another shape: the sum stays, and so does the ReLU
        d = self.d(c)
        return self.head((d + d).mean((2, 3)))  # twice the same


def test_what_is_fused() -> None:
    """ReLU and a residual of the same shape, if nothing else reads what is between."""
    ens = mt.ensemble(Branches(), mt.Deep(members=2), torch.randn(2, 3, 8, 8), seed=0).eval()
    frozen, x = ens.freeze(), torch.randn(3, 3, 8, 8)
    graph = frozen.template.graph.graph  # type: ignore[union-attr]
    found = [(node.args[3] is not None, node.args[4]) for node in graph.nodes if node.target is FUSED]
    assert found == [(False, False), (True, True), (False, False), (False, False)]
    assert [node.target for node in graph.nodes].count(F.relu) == 2
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), ens(x))


class Bottleneck(nn.Module):
    """A 1 × 1 convolution and a 3 × 3 one beside a residual: both read selected channels of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.thin, self.wide, self.head = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 32, 1), nn.Linear(32, 4)
        self.short = nn.Conv2d(32, 32, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.mix(x).relu()
        y = x + self.wide(self.thin(x).relu())
        return self.head((y[..., ::2, ::2] + self.short(x)).mean((2, 3)))


@pytest.mark.parametrize(("strided", "count", "widths"), [(True, 1, [17, 32]), (False, 2, [32, 32])])
def test_selections_of_channels_become_zero_weights(strided: bool, count: int, widths: list[int]) -> None:
    """A 1 × 1 convolution that reads selected channels reads all of them instead; its outputs are the same.

    On a CPU those that skip pixels do so, on a GPU all.
    """
    torch.manual_seed(0)
    x = torch.randn(3, 3, 8, 8)
    ens = mt.ensemble(Bottleneck(), mt.Masksembles(members=4, scale=2.0), x, seed=0).eval().compact()
    graph = trace_member(ens, mt.Inputs(x), None)
    assert read_all_channels(graph, strided) == count
    assert [graph.tensors[f"p_module_{name}_weight"].shape[2] for name in ("thin", "short")] == widths
    with torch.no_grad():
        torch.testing.assert_close(run_members(graph_module(graph), graph, x), ens(x))


def run_members(module: nn.Module, graph: MemberGraph, x: Tensor) -> Tensor:
    """Runs a member's graph with the tensors of each member in turn."""
    every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    each = [{n: t[m] if n in graph.owned else t for n, t in every.items()} for m in range(graph.members)]
    return torch.stack([torch.func.functional_call(module, mine, (x,)) for mine in each])


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=3), mt.Masksembles(members=3, fewest=2), mt.EMP(members=3)])
def test_kernels_of_members_are_formed_once(method: mt.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: no factor, mask or scale is left between convolutions, and no operation on stored tensors alone."""
    monkeypatch.setattr(freeze, "fold_factors", lambda graph, most: fold_factors(graph, 2**32))
    ens, x = made(method), torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    frozen = ens.freeze()
    torch.testing.assert_close(frozen(x), ens(x), rtol=1e-4, atol=1e-4)
    nodes = list(frozen.template.graph.graph.nodes)
    stored = {node for node in nodes if node.op == "get_attr"}
    calls = [node for node in nodes if node.op == "call_function"]
    assert [node for node in calls if node.all_input_nodes and set(node.all_input_nodes) <= stored] == []
    convolutions = [node for node in calls if node.target is FUSED]
    assert len(convolutions) == 2
    assert [node for node in calls if node.target is torch.mul and set(node.users) & set(convolutions)] == []


def test_random_operations_on_stored_tensors_stay() -> None:
    """What is drawn in every call is not drawn once."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + 2 * self.scale * 0 + torch.bernoulli(0.5 * self.scale)

    graph = trace_member(
        mt.ensemble(Noisy(), mt.Deep(members=2), torch.randn(2, 3), check=False), mt.Inputs(torch.randn(2, 3)), None
    )
    before = [node.name for node in graph.graph.nodes if "bernoulli" in str(node.target)]
    assert before and fold_constants(graph) == 2, "the scaled tensor, and what is drawn by"
    assert [node.name for node in graph.graph.nodes if "bernoulli" in str(node.target)] == before


def test_training_of_the_ensemble_does_not_reach_a_frozen_one() -> None:
    """Some of its weights are formed and others are not: were these the ensemble's, outputs would be of no network."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    ens = mt.ensemble(net, mt.BatchEnsemble(members=2), x).eval()
    frozen = ens.freeze()
    before = frozen(x)
    with torch.no_grad():
        for tensor in (*ens.parameters(), *ens.buffers()):
            tensor.add_(1)
    assert torch.equal(frozen(x), before)


@pytest.mark.parametrize("method", [mt.SWAG(members=2), mt.Snapshot(members=2), mt.EMP(members=2)])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.GroupNorm(2, 8)])
def test_norms_that_stay(method: mt.Method, norm: nn.Module) -> None:
    """A BatchNorm behind an activation is not folded, and what members draw of its statistics has no gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), norm, nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    x = torch.randn(4, 3, 8, 8)
    ens = mt.ensemble(net, method, x).eval()
    with torch.no_grad():
        torch.testing.assert_close(ens.freeze()(x), ens(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [mt.SWAG(members=2), mt.Snapshot(members=2)])
def test_statistics_of_instance_norms_that_members_draw(method: mt.Method) -> None:
    """They have no gradient, as a parameter of the frozen network would."""
    layers = [nn.Conv1d(4, 8, 3, padding=1), nn.InstanceNorm1d(8, affine=True, track_running_stats=True), nn.Flatten()]
    x = torch.randn(4, 4, 5)
    ens = mt.ensemble(nn.Sequential(*layers, nn.Linear(40, 3)), method, x, seed=0).eval()
    torch.testing.assert_close(ens.freeze(x)(x), ens(x))
