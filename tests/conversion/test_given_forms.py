"""Networks in other forms than a plain module: compiled, traced, scripted, without layers; weights that are held twice."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning")]
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("method", [mt.Packed(members=2), mt.EMP(members=2), mt.Deep(members=2)])
def test_what_is_compiled_is_converted_by_its_network(method: mt.Method, tmp_path: Path) -> None:
    """The wrapper would be compiled again under each of our modes, and its name would begin all others."""
    ens = mt.ensemble(torch.compile(mlp()), method, X).eval()  # type: ignore[arg-type]
    assert type(ens.template) is nn.Sequential and any("inside the wrapper" in note for note in ens.plan.notes)
    mt.save(ens, tmp_path / "a.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "a.multitude", torch.compile(mlp()))(X), ens(X))  # type: ignore[arg-type]


def test_a_traced_network_can_be_loaded(tmp_path: Path) -> None:
    """torch.fx names the class of a copy otherwise."""
    ens = mt.ensemble(torch.fx.symbolic_trace(mlp()), mt.Deep(members=2), X).eval()
    mt.save(ens, tmp_path / "a.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "a.multitude", torch.fx.symbolic_trace(mlp()))(X), ens(X))
    with pytest.raises(mt.FileError, match="GraphModule"):
        mt.load(tmp_path / "a.multitude", mlp())


@pytest.mark.parametrize("scripted", [torch.jit.script, lambda net: torch.jit.trace(net, X)])
def test_a_scripted_network_is_refused_in_words(scripted: object) -> None:
    with pytest.raises(mt.InputError, match="give the Python module"):
        mt.ensemble(scripted(mlp()), mt.Deep(members=2), X)  # type: ignore[operator]


def test_packed_refuses_an_exported_program_in_words() -> None:
    """None of its layers is called: the graph reads their weights."""
    with pytest.raises(mt.ConversionError, match="factory"):
        mt.ensemble(torch.export.export(mlp(), (X,)).module(), mt.Packed(members=4), X)


class Twice(nn.Module):
    """Weights in a partial function or a list, beside the layer that has them."""

    def __init__(self, partial: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.use = functools.partial(F.linear, weight=self.b.weight, bias=self.b.bias) if partial else None
        self.held = [(self.b.weight, self.b.bias)]

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return self.c((self.use(h) if self.use else F.linear(h, *self.held[0])).relu())


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.TreeNet(members=2)])
def test_weights_that_are_held_twice(method: mt.Method, partial: bool) -> None:
    """The loop runs a copy for each member, and so must what is compared with the given model."""
    ens = mt.ensemble(Twice(partial), method, X, seed=0).eval()
    for m in range(2):
        torch.testing.assert_close(ens(X)[m], ens.member(m)(X))
    ens(X)[1].sum().backward()
    gradient = ens.b.weight.grad
    assert gradient.shape == (2, 16, 16) and gradient[1].any() and not gradient[0].any()


class Averaged(nn.Module):
    """A slow copy that follows all parameters, by their place in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = mlp(), mlp().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for new, old in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
                    old.mul_(0.9).add_(new, alpha=0.1)
        with torch.no_grad():
            target = self.slow(x)
        return self.fast(x) * target  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=2), mt.EMP(members=2)])
def test_converted_networks_that_cannot_train_are_refused(method: mt.Method) -> None:
    """Methods that add parameters change what `parameters()` yields; the given network trains."""
    with pytest.raises(mt.ConversionError, match=r"could not be trained.*parameters\(\)"):
        mt.ensemble(Averaged(), method, X)


class Sparse(nn.Module):
    """A fixed sparse matrix in a plain attribute, as graph networks keep their adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.mixing = nn.Linear(6, 16), nn.Linear(16, 3), (torch.eye(6) * torch.arange(6.0)).to_sparse()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(torch.sparse.mm(self.mixing, x.t()).t()).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.BatchEnsemble(members=2), mt.MCDropout(members=2)])
def test_a_sparse_matrix_of_the_network(method: mt.Method) -> None:
    ens = mt.ensemble(Sparse(), method, X, seed=0).eval()
    for m in range(2):
        torch.testing.assert_close(ens(X)[m], ens.member(m)(X))


def test_sparse_inputs_are_refused_in_words() -> None:
    with pytest.raises(mt.InputError, match="to_dense"):
        mt.ensemble(mlp(), mt.Deep(members=2), X.relu().to_sparse())


def test_models_and_examples_without_numbers_are_refused() -> None:
    """Nothing can be moved from the meta device."""
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    with pytest.raises(mt.InputError, match="the model has no weights, since it is on the meta device: build it on cpu"):
        mt.ensemble(copy.deepcopy(net).to("meta"), mt.Deep(members=2), x)
    with pytest.raises(mt.InputError, match="the example has no numbers, since it is on the meta device: build it on cpu"):
        mt.ensemble(net, mt.Deep(members=2), x.to("meta"))


@pytest.mark.filterwarnings("ignore")
def test_quantized_networks_are_refused() -> None:
    """Their weights are no parameters."""
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), {nn.Linear})
    with pytest.raises(mt.InputError, match="is quantized, and has no parameters: convert the network before"):
        mt.ensemble(net, mt.Deep(members=2), torch.randn(2, 4))
