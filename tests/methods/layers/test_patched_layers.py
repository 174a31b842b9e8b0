"""Patched layers: which layers get components, which are refused, and how each kind computes."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any

import pytest
import torch
from laws.compare import assert_same
from methods.layers.components import IMAGES, K, X, chosen, gradients, leaves, net_of, patched, perceptron
from torch import Tensor, nn
from torch.func import functional_call

import multitudes as mt
from multitudes.methods.layers.patches import patched_layers, patched_names
from multitudes.models import MLP

MIXED = (
    *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.GroupNorm(2, 6), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(96, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 4)),
)


NORMED = ["1", "4", "8", "11"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "names"),
    [
        ("norm", NORMED),
        ("output+norm", [*NORMED, "12"]),
        ("norm+input+output", ["0", *NORMED, "12"]),
        ("1?", ["10", "11", "12"]),
        (("3", "1*"), ["1", "3", "10", "11", "12"]),
        ("*", ["0", "1", "3", "4", "7", "8", "10", "11", "12"]),
    ],
)
def test_words_and_globs(patch: Any, names: list[str]) -> None:
    """The layers that are named, in the model's order, and no others; the default is "norm+output"."""
    assert patched(net_of(*MIXED), IMAGES, patch=patch) == names
    assert mt.EMP().patch == "norm+output"


def test_a_glob_of_a_block_takes_what_is_inside() -> None:
    """Every layer below what matches."""
    net = net_of(nn.Linear(5, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 3))
    assert patched(net, X, patch="1") == ["1.0", "1.1"]
    assert patched(net, X, patch=["1.1", "2"]) == ["1.1", "2"]


def test_the_default_takes_what_there_is() -> None:
    """Norms without affine parameters are none; a network may have no norm, or nothing but norms."""
    assert patched(MLP(5, (8,), 3).double(), X) == ["layers.2"]
    assert patched(net_of(nn.LayerNorm(5)), X) == ["0"]
    bare = net_of(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False), nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 3))
    assert patched(bare, X) == ["3"]


@pytest.mark.parametrize(
    ("net", "patch", "says"),
    [
        (net_of(nn.Linear(5, 3)), "norm", "norm"),
        (net_of(nn.Linear(5, 3)), "norm+input+output", "norm"),
        (net_of(nn.Linear(5, 3)), "output+norm", "norm"),
        (net_of(nn.LayerNorm(5)), "output", "output"),
        (net_of(nn.LayerNorm(5)), "norm+input", "input"),
        (net_of(nn.PReLU()), "norm+output", "norm.*output"),
        (net_of(nn.Linear(5, 3), nn.ReLU()), "1", "parameters"),
    ],
)
def test_what_matches_nothing(net: nn.Module, patch: str, says: str) -> None:
    """A word that was given and finds no layer is an error, and so is a default that finds none at all."""
    with pytest.raises(mt.ConversionError, match=says):
        mt.ensemble(net, mt.EMP(patch=patch), X)


def test_a_glob_that_matches_nothing() -> None:
    """Names what comes nearest."""
    with pytest.raises(mt.InputError, match=r"matches nothing in the model: 'layers.9' \(nearest: 'layers.\d'\)"):
        mt.ensemble(perceptron(), mt.EMP(patch=("layers.9", "layers.1")), X)


LAYERS: dict[str, tuple[nn.Module, Tensor]] = {
    "BatchNorm1d": (nn.BatchNorm1d(5), X),
    "BatchNorm2d": (nn.BatchNorm2d(3), IMAGES),
    "BatchNorm3d": (nn.BatchNorm3d(3), torch.randn(3, 3, 2, 2, 2)),
    "SyncBatchNorm": (nn.SyncBatchNorm(5), X),
    "InstanceNorm2d": (nn.InstanceNorm2d(3, affine=True), IMAGES),
    "LayerNorm": (nn.LayerNorm((8, 8)), IMAGES),
    "LayerNorm without bias": (nn.LayerNorm(5, bias=False), X),
    "GroupNorm": (nn.GroupNorm(3, 3), IMAGES),
    "RMSNorm": (nn.RMSNorm(5), X),
    "Linear": (nn.Linear(5, 4), X),
    "Linear without bias": (nn.Linear(5, 4, bias=False), X),
    "Conv1d": (nn.Conv1d(3, 4, 3), torch.randn(3, 3, 8)),
    "Conv2d": (nn.Conv2d(3, 6, 3, stride=2, groups=3, padding=1), IMAGES),
    "Conv2d, circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), IMAGES),
    "Conv3d": (nn.Conv3d(3, 4, 2), torch.randn(3, 3, 4, 4, 4)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 4, 3), torch.randn(3, 3, 8)),
    "ConvTranspose2d": (nn.ConvTranspose2d(3, 4, 3, stride=2), IMAGES),
    "ConvTranspose3d": (nn.ConvTranspose3d(3, 4, 2), torch.randn(3, 3, 4, 4, 4)),
    "Embedding": (nn.Embedding(7, 4, padding_idx=0), torch.tensor([[0, 3], [6, 2], [1, 5]])),
}


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "kind"), list(zip(LAYERS, itertools.cycle([mt.EMP, mt.ECMP]), strict=False)))
def test_every_kind_of_layer(layer: str, kind: Any) -> None:
    """Each member's output is the plain layer's with Σ_k 1[Z = k] M_k, and so are gradients of all components."""
    plain, x = LAYERS[layer]
    plain = plain.double().eval()
    x = x.double() if x.is_floating_point() else x
    ens = mt.ensemble(plain, kind(components=K, members=4, patch="*"), x, seed=0).eval()
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.normal_()
    state, draws = leaves(ens), {n: b for n, b in ens.named_buffers() if n.endswith("choice")}
    draws = {n if "." in n else f".{n}": b for n, b in draws.items()}
    formed = [{n: chosen(t, draws, n, m) for n, t in state.items()} for m in range(4)]
    expected = torch.stack([functional_call(plain, own, (x,)) for own in formed])
    assert_same(ens(x).detach(), expected.detach())
    assert not torch.equal(expected[0], expected[1]) or not torch.equal(expected[0], expected[2])
    scale = torch.arange(1.0, 5.0, dtype=torch.float64).view(4, *(1 for _ in expected.shape[1:]))
    (ens(x).square() * scale).sum().backward()
    (expected.square() * scale).sum().backward()
    assert_same(gradients(dict(ens.named_parameters())), gradients(state))
    member = ens.member(2)
    assert type(member) is type(plain)
    assert set(member.state_dict()) == set(plain.state_dict())
    assert_same(member(x).detach(), expected[2].detach())


class Tied(nn.Module):
    """A head with the weight of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 5)
        self.head.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)))


class Elsewhere(nn.Module):
    """The head's weight is used again, by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x) @ self.head.weight)


class Attending(nn.Module):
    """Attention, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.attention(x, x, x)[0]).mean(1))


class Recurrent(nn.Module):
    """Whose last layer is a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cell = nn.LayerNorm(8), nn.GRU(8, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.norm(x))[0]


SEQUENCE = torch.randn(3, 4, 8, dtype=torch.float64)


class Named(nn.Linear):
    """Holds its weight under two names."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.alias = self.weight


REFUSED: list[tuple[nn.Module, Tensor, str, str, str]] = [
    (Tied(), X, "head", "head", r"tied to body.weight.*model.head.weight = nn.Parameter"),
    (Attending(), SEQUENCE, "attention", "attention", "MultiheadAttention"),
    (Attending(), SEQUENCE, "*.out_proj", "attention.out_proj", "attention"),
    (net_of(nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))), X, "output", "0", "computes its weight"),
    (net_of(nn.Linear(5, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))), X, "1", "1", "computes its weight"),
    (net_of(Named()), X, "output", "0", "alias|weight"),
]
"""Layers that forward does not read where they stand: the network, its input, what to patch, the layer and the reason."""


@pytest.mark.parametrize(("net", "x", "patch", "layer", "named"), REFUSED)
def test_a_layer_that_cannot_have_components_is_refused(net: nn.Module, x: Tensor, patch: str, layer: str, named: str) -> None:
    """By its name, with the reason; a plan lists it, and no ensemble is made."""
    refused = {entry.name: entry.reason for entry in mt.plan(net.double(), mt.EMP(patch=patch), x).refused}
    assert re.search(named, refused[layer])
    with pytest.raises(mt.ConversionError, match=layer):
        mt.ensemble(net, mt.EMP(patch=patch), x)


@pytest.mark.parametrize("kind", [mt.EMP, mt.ECMP])
@pytest.mark.parametrize(("net", "x", "name"), [(Elsewhere(), X, "head"), (Recurrent(), SEQUENCE, "cell")])
def test_components_are_seen_wherever_they_are_read(net: nn.Module, x: Tensor, name: str, kind: type[Any]) -> None:
    """Also outside the layer's forward, and by a recurrent layer, which keeps a list of its weights: each member by hand."""
    ens = mt.ensemble(net.double(), kind(components=K, members=4, patch=name), x, seed=0).eval()
    layer: Any = ens.template.get_submodule(name)
    for m in range(4):
        plain = copy.deepcopy(net)
        part = plain.get_submodule(name)
        for key, parameter in part.named_parameters():
            stored = layer._parameters[key].detach()
            chosen_ones = getattr(layer, f"{key}_choice" if kind is mt.ECMP else "choice")[m].long()
            parameter.data = stored.gather(0, chosen_ones[None])[0] if kind is mt.ECMP else stored[chosen_ones[0]]
        torch.testing.assert_close(ens(x)[m], plain(x))
        torch.testing.assert_close(ens.member(m)(x), plain(x))
    assert not torch.allclose(ens(x).std(0), torch.zeros(()).double())


def test_a_tied_head_stays_tied_and_shared() -> None:
    """By default only norms get components, and the plan says so; a head that is named is refused, with the line to type."""
    ens = mt.ensemble(Tied().double(), mt.EMP(components=K, members=3), X, seed=0)
    assert [name for name, _ in patched_layers(ens.template)] == ["norm"]
    assert ens.template.head.weight is ens.template.body.weight
    assert "no components for head, whose weight is tied to body.weight" in ens.plan.notes[0]


@pytest.mark.parametrize("net", [Tied(), Elsewhere()])
def test_a_network_is_not_refused_for_layers_that_are_not_patched(net: nn.Module) -> None:
    assert patched(net.double(), X, patch="norm") == ["norm"]


def test_a_layer_called_twice_is_one_layer() -> None:
    """Both calls have the same component, and it counts once."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.head = nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3)
            self.again = self.norm

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.again(self.body(self.norm(x)).relu()))

    net = Twice().double()
    ens = mt.ensemble(net, mt.EMP(components=K, members=4), X, seed=0).eval()
    draws = {n: b for n, b in ens.named_buffers() if n.endswith("choice")}
    assert sorted(draws) == ["head.choice", "norm.choice"]
    assert ens.effective_size == K**2
    state = {name: p.detach() for name, p in ens.named_parameters()}
    names = patched_names(ens.template)
    for m in range(4):
        own = {n: chosen(t, draws, n, m) if n in names else t for n, t in state.items()}
        assert_same(ens(X)[m].detach(), functional_call(net, own, (X,)).detach())
