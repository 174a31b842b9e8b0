"""DropConnect: each weight is dropped independently, biases stay; a step is that of a network with the remaining weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_exact, assert_same, run_by
from nets.convolutional import ResNet
from torch import Tensor, nn
from torch.func import functional_call
from zoo import ZOO

import multitudes as mt
from multitudes.method import Batch
from multitudes.models import MLP, ViT

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
IMAGES = torch.randn(6, 3, 8, 8, dtype=torch.float64)
P = 0.3


class Attending(nn.Module):
    """Attention with all that it may have: keys and values of other widths, their biases, an embedding, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 8), nn.LayerNorm(8)
        self.narrow = nn.Linear(8, 6)
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, add_bias_kv=True, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.embed(ids))
        small = self.narrow(h)
        return self.head((h + self.attention(h, small, small)[0]).mean(1))


def transposed() -> nn.Module:
    up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
    middle = (nn.Conv2d(3, 4, 3, groups=1), nn.ReLU(), up, nn.BatchNorm2d(6), nn.ReLU())
    return nn.Sequential(*middle, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: MLP(5, (16, 12), 3, norm="hidden").double(), X),
    "convolutions": (lambda: ResNet(classes=3).double(), IMAGES),
    "transposed": (lambda: transposed().double(), IMAGES),
    "attention": (lambda: ViT(classes=3, image=8, patch=4, size=12, depth=1, heads=2).double(), IMAGES),
    "separate projections": (lambda: Attending().double(), torch.randint(7, (6, 4))),
}
DROPPED = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.MultiheadAttention)


def converted(kind: str, **settings: Any) -> tuple[mt.Ensemble, nn.Module, Tensor]:
    build, x = NETS[kind]
    net = build()
    return mt.ensemble(net, mt.DropConnect(**{"members": 3, "p": P, **settings}), x, seed=0).eval(), net, x


def weights_of(net: nn.Module) -> set[str]:
    """The names of all weights that are dropped."""
    layers = {name for name, part in net.named_modules() if isinstance(part, DROPPED)}
    return {name for name, _ in net.named_parameters() if name.rpartition(".")[0] in layers and name.endswith("weight")}


def masks_of(net: nn.Module, drawn: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drawn masks by the names of the weights that they are over."""
    found = {}
    for name in weights_of(net):
        owner, _, key = name.rpartition(".")
        outer = owner.removesuffix(".out_proj")
        inner = key if outer == owner else f"out_proj_{key}"
        found[name] = drawn[f"{outer}.{inner}_mask"]
    assert len(found) == len(drawn)
    return found


def stored(ens: mt.Ensemble, net: nn.Module) -> dict[str, Tensor]:
    return masks_of(net, {name: buffer for name, buffer in ens.named_buffers() if name.endswith("_mask")})


def left(net: nn.Module, masks: dict[str, Tensor], m: int, p: float = P) -> dict[str, Tensor]:
    """W ∘ Z / (1 − p) for each weight, and the rest as it is."""
    own = dict(net.named_parameters())
    return {name: own[name] * masks[name][m] / (1 - p) if name in masks else own[name] for name in own}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_members_have_weights_dropped(kind: str) -> None:
    """By hand from the masks, in eval mode; `member(m)` is a plain network with these weights, biases untouched."""
    ens, net, x = converted(kind)
    net.eval()
    masks, outputs = stored(ens, net), ens(x)
    assert all(mask.dtype == torch.bool for mask in masks.values())
    kinds = {name: type(part) for name, part in net.named_modules()}
    for m in range(3):
        expected = left(net, masks, m)
        assert_same(outputs[m], functional_call(net, expected, x))
        member = ens.member(m)
        assert {name: type(part) for name, part in member.named_modules()} == kinds
        assert_same(dict(member.named_parameters()), {name: t.detach() for name, t in expected.items()})
        pairs = [(p, net.get_parameter(n)) for n, p in member.named_parameters() if n not in masks]
        assert_exact(*zip(*pairs, strict=True))
        assert_same(member(x), outputs[m])
    assert all(not torch.equal(outputs[0], other) for other in outputs[1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_one_step_is_that_of_the_weights_that_are_left(kind: str) -> None:
    """By the draw of the step: loss, every gradient (nothing where a weight is dropped), BatchNorm's statistics."""
    ens, net, x = converted(kind)
    before = {name: mask.clone() for name, mask in stored(ens, net).items()}
    batch = ens.train().batch(x, Y)
    masks = masks_of(net, batch.kwargs["draws"])
    assert all(mask.shape == (1, *net.get_parameter(name).shape) for name, mask in masks.items())
    loss = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
    loss.backward()
    expected = F.cross_entropy(functional_call(net.train(), left(net, masks, 0), x), Y)
    expected.backward()
    assert_same(loss.detach(), expected.detach())
    found = {name: p.grad for name, p in ens.named_parameters()}
    assert_same(found, {name: p.grad for name, p in net.named_parameters()})
    assert not any(bool(found[name][~mask[0]].any()) for name, mask in masks.items())
    buffers = dict(ens.named_buffers())
    assert_same({name: buffers[name] for name, _ in net.named_buffers()}, dict(net.named_buffers()))
    assert_exact(stored(ens, net).values(), before.values())
    again = ens.batch(x, Y).kwargs["draws"]
    assert not all(torch.equal(again[name], mask) for name, mask in batch.kwargs["draws"].items())


def test_each_weight_is_dropped_by_itself() -> None:
    """At the rate p, in every member and over members; neighbours, rows, columns and members are independent."""
    members = 60
    net = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 1)).double()
    ens = mt.ensemble(net, mt.DropConnect(members=members, p=P), torch.randn(3, 40).double(), seed=0, check=False)
    masks = ens.get_buffer("0.weight_mask").double()
    deviation = math.sqrt(P * (1 - P))
    for axes, count in (((1, 2), 2000), ((0,), members), ((0, 1), members * 50), ((0, 2), members * 40)):
        assert bool(((masks.mean(axes) - (1 - P)).abs() < 5 * deviation / math.sqrt(count)).all())
    centred = (masks - (1 - P)) / deviation
    for axis in range(3):
        pairs = centred.narrow(axis, 0, masks.shape[axis] - 1) * centred.narrow(axis, 1, masks.shape[axis] - 1)
        assert abs(pairs.mean().item()) < 5 / math.sqrt(pairs.numel())


def test_the_mean_over_members_is_the_network() -> None:
    """Of a linear layer: rescaled by 1 / (1 − p), with the deviation of its terms."""
    members, p = 1000, 0.4
    net = nn.Linear(5, 2).double()
    ens = mt.ensemble(net, mt.DropConnect(members=members, p=p), X, seed=0, check=False).eval()
    found, expected = ens(X).detach(), net(X).detach()
    deviation = ((X**2) @ (net.weight.detach() ** 2).T * p / (1 - p)).sqrt()
    assert bool(((found.mean(0) - expected).abs() < 5 * deviation / math.sqrt(members)).all())
    assert torch.allclose(found.std(0), deviation, rtol=0.1)


def test_what_it_costs() -> None:
    """No parameters; each of the 64 weights may be there or not, biases and norms always are."""
    net = MLP(5, (8,), 3, norm="hidden").double()
    ens = mt.ensemble(net, mt.DropConnect(members=3), X, seed=0)
    assert ens.plan.counts is not None
    assert ens.plan.counts.parameters == ens.plan.counts.base_parameters
    assert ens.effective_size == 2 ** (5 * 8 + 8 * 3)
    assert {entry.name: entry.reason for entry in ens.plan.converted} == {
        "layers.0": "each weight dropped with probability 0.1", "layers.3": "each weight dropped with probability 0.1",
        "": "each member has its own",
    }  # fmt: skip


def test_a_layer_that_is_not_known_can_be_shared() -> None:
    """An LSTM, which is refused otherwise, drops nothing where keep= names it."""
    case = ZOO["lstm"]
    ens = mt.ensemble(case.model(), mt.DropConnect(members=3, p=P), case.example(), keep=["lstm"], seed=0)
    assert [name for name, _ in ens.named_buffers() if "mask" in name] == ["head.weight_mask"]


def test_several_draws_by_hand() -> None:
    """draws= takes any number of them, and the loss is their mean."""
    ens, net, x = converted("linear")
    draws = ens.method.drawn_for_step(ens.template, [1, 2, 3, 4, 5])
    outputs = ens(x, draws=draws)
    masks = masks_of(net, draws)
    assert_same(outputs, torch.stack([functional_call(net.eval(), left(net, masks, d), x) for d in range(5)]))
    batch = Batch((x,), {"draws": draws}, Y)
    expected = torch.stack([F.cross_entropy(output, Y) for output in outputs]).mean()
    assert_same(ens.reduce(outputs, batch, F.cross_entropy), expected)


def test_members_that_are_equal_by_chance() -> None:
    """Few weights and a low rate: draws that are given are read by every executor, whatever draws are stored."""
    net = nn.Sequential(nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 3)).double()
    equal = 0
    for seed in range(4):
        ens = mt.ensemble(net, mt.DropConnect(members=2, p=0.05), X, seed=seed, check=False).eval()
        assert "vmap" in ens.plan.proven["eval"]
        ens.resample(seed)
        equal += any(torch.equal(*mask) for mask in stored(ens, net).values())
        draws = ens.method.drawn_for_step(ens.template, list(range(9)))
        masks = masks_of(net, draws)
        expected = torch.stack([functional_call(net, left(net, masks, d, 0.05), X) for d in range(9)])
        for executor in ens.plan.proven["eval"]:
            assert_same(run_by(ens, executor)(X, draws=draws), expected)
    assert equal
