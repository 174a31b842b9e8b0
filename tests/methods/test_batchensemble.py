"""BatchEnsemble: a step of training is that of networks with the weights W ∘ s rᵀ, formed one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same, convert, run_by
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from zoo import ZOO

import multitudes as mt
from multitudes.models import MLP, LeNet, resnet18

pytestmark = pytest.mark.slow

X, Y = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])


class Dense(nn.Module):
    """A perceptron with BatchNorm between, all in plain sight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


def by_hand(state: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The loss from the equations: members' weights formed, rows of all members normalised together."""
    hidden = []
    for m in range(4):
        weight = state["first.weight"] * torch.outer(state["first.gamma"][m], state["first.alpha"][m])
        hidden.append(x @ weight.T + state["first.bias"][m])
    rows = torch.cat(hidden)
    rows = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt() * state["norm.weight"] + state["norm.bias"]
    losses = []
    for m, mine in enumerate(rows.relu().split(len(x))):
        weight = state["last.weight"] * torch.outer(state["last.gamma"][m], state["last.alpha"][m])
        losses.append(F.cross_entropy(mine @ weight.T, y))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("executor", ["vmap", "fold"])
def test_one_step_is_that_of_the_equations(executor: str) -> None:
    """Loss and every gradient, with shared BatchNorm, in double precision."""
    ens = mt.ensemble(Dense().double(), mt.BatchEnsemble(), X, seed=0).train()
    run_by(ens, executor)
    assert ens.executor == executor
    loss = ens.loss(X, Y, F.cross_entropy)
    loss.backward()
    state = {name: p.detach().clone().requires_grad_() for name, p in ens.named_parameters()}
    expected = by_hand(state, X, Y)
    expected.backward()
    assert_same(loss.detach(), expected.detach())
    assert_same({n: p.grad for n, p in ens.named_parameters()}, {n: t.grad for n, t in state.items()})


LAYERS: dict[str, tuple[nn.Module, Tensor]] = {
    "linear": (nn.Linear(6, 4), torch.randn(3, 6)),
    "tokens": (nn.Linear(6, 4), torch.randn(3, 5, 6)),
    "conv1d": (nn.Conv1d(6, 4, 3), torch.randn(3, 6, 8)),
    "conv2d": (nn.Conv2d(6, 4, 3, 2, 1, bias=False), torch.randn(3, 6, 8, 8)),
    "conv3d": (nn.Conv3d(6, 4, 2), torch.randn(3, 6, 4, 4, 4)),
    "reflecting": (nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), torch.randn(3, 6, 8, 8)),
    "depthwise": (nn.Conv2d(6, 12, 3, groups=6), torch.randn(3, 6, 8, 8)),
    "transposed1d": (nn.ConvTranspose1d(6, 4, 3, 2), torch.randn(3, 6, 8)),
    "transposed2d": (nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2), torch.randn(3, 6, 8, 8)),
    "transposed3d": (nn.ConvTranspose3d(6, 4, 2), torch.randn(3, 6, 4, 4, 4)),
}


def formed(layer: Any, alpha: Tensor, gamma: Tensor) -> Tensor:
    """W ∘ s rᵀ, in the layer's own shape."""
    weight, groups = layer.weight.detach(), getattr(layer, "groups", 1)
    trailing = [1] * (weight.ndim - 2)
    if getattr(layer, "transposed", False):  # [C, D/G, ...]
        out = gamma.view(groups, -1).repeat_interleave(len(alpha) // groups, 0)
        return weight * alpha.view(-1, 1, *trailing) * out.view(*weight.shape[:2], *trailing)
    read = alpha.view(groups, -1).repeat_interleave(len(gamma) // groups, 0)  # [D, C/G]
    return weight * gamma.view(-1, 1, *trailing) * read.view(*weight.shape[:2], *trailing)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_each_kind_of_layer_is_one_with_its_weight_formed(name: str) -> None:
    """The same layer with W ∘ s rᵀ and the member's bias gives the same."""
    layer, x = LAYERS[name][0].double(), LAYERS[name][1].double()
    ens = mt.ensemble(layer, mt.BatchEnsemble(), x, seed=0)
    with torch.no_grad():
        if layer.bias is not None:
            ens.get_parameter("bias").normal_()
        for m in range(4):
            plain = type(layer).__new__(type(layer))
            plain.__dict__ = {**layer.__dict__, "_parameters": dict(layer._parameters)}
            plain.weight = nn.Parameter(formed(layer, ens.get_parameter("alpha")[m], ens.get_parameter("gamma")[m]))
            if layer.bias is not None:
                plain.bias = nn.Parameter(ens.get_parameter("bias")[m])
            assert_same(ens(x)[m], plain(x))
    assert ("bias" in dict(ens.named_parameters())) == (layer.bias is not None)


def test_factors_start_by_init() -> None:
    """Around one, as signs, or at one; each member its own, by the seed; weights stay the given ones."""
    net = MLP(4, (400,), 3).double()
    for init, values in (("normal", None), ("signs", {-1.0, 1.0}), ("ones", {1.0})):
        ens = mt.ensemble(net, mt.BatchEnsemble(init=init), torch.randn(2, 4, dtype=torch.float64), seed=0)  # type: ignore[arg-type]
        factors = ens.get_parameter("layers.0.gamma").detach()
        if values:
            assert set(factors.unique().tolist()) == values
        else:
            assert factors.mean().item() == pytest.approx(1, abs=0.1)
            assert factors.std().item() == pytest.approx(0.5, abs=0.05)
        assert torch.equal(ens.get_parameter("layers.0.weight"), net.layers[0].weight)
        assert all(torch.equal(bias, net.layers[0].bias) for bias in ens.get_parameter("layers.0.bias"))


def test_parameter_groups() -> None:
    """Factors without decay, and with biases of members at a learning rate of their own; nothing is left out."""
    ens = convert(mt.BatchEnsemble(lr_factor=0.5), ZOO["transformer_encoder"])
    shared, factors, biases = ens.param_groups(lr=0.1, weight_decay=0.01)
    assert (shared["lr"], shared["weight_decay"]) == (0.1, 0.01)
    assert (factors["lr"], factors["weight_decay"]) == (0.05, 0.0)
    assert (biases["lr"], biases["weight_decay"]) == (0.05, 0.01)
    assert all(name.rpartition(".")[2].startswith(("alpha", "gamma")) for name in factors["names"])
    assert all("bias" in name for name in biases["names"])
    assert sum(len(g["params"]) for g in (shared, factors, biases)) == len(list(ens.parameters()))


@pytest.mark.slow
def test_split_rows() -> None:
    """Each row by one member, blocks as even as they can be; the loss is the mean over rows."""
    net = resnet18(width=0.0625).double()
    ens = mt.ensemble(net, mt.BatchEnsemble(feed="part"), torch.randn(2, 3, 8, 8).double(), seed=0).eval()
    for count in (10, 7, 4, 3, 1):
        x, y = torch.randn(count, 3, 8, 8).double(), torch.randint(10, (count,))
        batch = ens.batch(x, y)
        rows = batch.kwargs["rows"]
        rows = rows.flatten().repeat_interleave(count // len(rows))
        sizes = torch.bincount(rows, minlength=4)
        assert sizes.max() - sizes.min() <= 1
        everything = ens(x)
        expected = torch.stack([everything[m, b] for b, m in enumerate(rows.tolist())])
        assert_same(ens(*batch.inputs, **batch.kwargs), expected)
        assert_same(ens.reduce(expected, batch, F.cross_entropy), F.cross_entropy(expected, y))


def test_the_first_layer_needs_no_gradient_of_its_inputs() -> None:
    """A training step of one member has the operations of the network's own: no gradient with respect to the images."""
    model, x, y = LeNet(), torch.randn(4, 1, 28, 28), torch.arange(4)

    def operations(step: Callable[[], Tensor]) -> int:
        counter = FlopCounterMode(display=False)
        with counter:
            step().backward()
        return counter.get_total_flops()

    ens = mt.ensemble(model, mt.BatchEnsemble(members=1), x, seed=0).train()
    plain = operations(lambda: F.cross_entropy(model(x), y))
    assert operations(lambda: ens.loss(x, y, F.cross_entropy)) == plain
    assert operations(lambda: ens.loss(x.clone().requires_grad_(), y, F.cross_entropy)) > plain
