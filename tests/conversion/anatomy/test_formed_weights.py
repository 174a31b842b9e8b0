"""Weights of layers that are not known: each member against its network with weights formed by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.formed_weights import formed_weights, mostly_shared, shared_matrices
from multitudes.conversion.anatomy.structure import observe

pytestmark = pytest.mark.slow

MEMBERS = 3
X = torch.randn(4, 5, 6, dtype=torch.float64)
METHODS = {
    "BatchEnsemble": mt.BatchEnsemble(members=MEMBERS),
    "Masksembles": mt.Masksembles(members=MEMBERS, fewest=4),
    "DropConnect": mt.DropConnect(members=MEMBERS, p=0.4),
}


class Recurrent(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(6, 8), layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.first(x))[0][:, -1])


class Stepwise(nn.Module):
    """A cell that runs once for each step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(6, 8), cell, nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in self.first(x).unbind(1):
            state = self.body(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Borrowed(nn.Module):
    """Multiplies by the weight of a layer that it never calls, with biases of its own, as BEiT does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 7, bias=False), nn.Linear(7, 3)
        self.shift = nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(self.first(x), weight=self.body.weight, bias=self.shift)).mean(1))


class Loose(nn.Module):
    """Experts, a stack of matrices ``[E, in, out]``, that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 7))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight[0]) + torch.tanh(torch.matmul(x, self.weight[1]))


class Falcon(nn.Linear):
    """A linear layer that multiplies in its own way."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T + self.bias


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), layer, nn.Tanh(), nn.Linear(7, 3))


NETS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM(8, 7, num_layers=2, bidirectional=True, batch_first=True), 14),
    "lstm_projected": lambda: Recurrent(nn.LSTM(8, 9, proj_size=7, batch_first=True), 7),
    "gru": lambda: Recurrent(nn.GRU(8, 7, batch_first=True), 7),
    "rnn": lambda: Recurrent(nn.RNN(8, 7, batch_first=True), 7),
    "lstm_cell": lambda: Stepwise(nn.LSTMCell(8, 7)),
    "gru_cell": lambda: Stepwise(nn.GRUCell(8, 7)),
    "borrowed": Borrowed,
    "loose": lambda: between(Loose()),
    "own_forward": lambda: between(Falcon(8, 7)),
}
BODY = {"loose": "1", "own_forward": "1"}
INPUT_AXES = {"loose": {"weight": -2}, "own_forward": {"weight": -1}, "borrowed": {"weight": -1}}


def formed(ens: Any, net: nn.Module, method: str, case: str, m: int) -> nn.Module:
    """Member m: the given network with the weights of its unknown layer formed by hand, and the member's other layers."""
    name = BODY.get(case, "body")
    plain = copy.deepcopy(net)
    given = dict(net.named_parameters())
    tensors = [*ens.template.named_parameters(), *ens.template.named_buffers()]
    stored = {k: t if k in given and t.shape == given[k].shape else t[m] for k, t in tensors if t.ndim}
    own = {k.rpartition(".")[2]: t for k, t in stored.items() if k.startswith(f"{name}.")}
    inputs = INPUT_AXES.get(case, {k: -1 for k in own if k in ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")})
    layer: Any = plain.get_submodule(name)
    for key, parameter in layer.named_parameters():
        value = own[key]
        if f"{key}_alpha" in own:
            value = value * own[f"{key}_alpha"] * own[f"{key}_gamma"]
        if f"{key}_mask" in own:
            value = value * own[f"{key}_mask"] / 0.6
        if "mask" in own and key in inputs:
            value = (value.transpose(inputs[key], -1) * own["mask"]).transpose(inputs[key], -1)
        parameter.data = value.detach().clone()
    for other, part in plain.named_children():
        if other != name and list(part.parameters()):
            part.load_state_dict(ens.member(m).get_submodule(other).state_dict())
    return plain


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", NETS)
def test_members_are_networks_with_formed_weights(case: str, method: str) -> None:
    """Values, and the gradient of the shared weight, which is the sum of the plain networks' gradients by the chain rule."""
    torch.manual_seed(0)
    net = NETS[case]().double()
    ens = mt.ensemble(net, METHODS[method], X, seed=1).eval()
    assert BODY.get(case, "body") in {entry.name for entry in ens.plan.converted}
    for m in range(MEMBERS):
        plain = formed(ens, net, method, case, m)
        torch.testing.assert_close(ens(X)[m], plain(X))
        torch.testing.assert_close(ens.member(m)(X), plain(X))
        assert type(ens.member(m).get_submodule(BODY.get(case, "body"))) is type(plain.get_submodule(BODY.get(case, "body")))
    assert not torch.allclose(ens(X)[0], ens(X)[1])
    neutral = mt.ensemble(net, METHODS[method].neutral(), X, start="copies")
    torch.testing.assert_close(neutral(X)[0], net(X))


@pytest.mark.parametrize("case", ["lstm", "borrowed", "loose"])
def test_gradients_reach_what_is_shared_and_what_is_not(case: str) -> None:
    """By the chain rule from the plain networks': W gets Σ_m g_m ∘ (s rᵀ), and a member's s the row sums of g_m ∘ W ∘ r."""
    torch.manual_seed(0)
    net, name = NETS[case]().double(), BODY.get(case, "body")
    ens = mt.ensemble(net, METHODS["BatchEnsemble"], X, seed=1)
    ens(X).square().sum().backward()
    layer: Any = ens.template.get_submodule(name)
    for key in layer.formed_keys:
        weight, alpha, gamma = (layer._parameters[k] for k in (key, f"{key}_alpha", f"{key}_gamma"))
        shared = torch.zeros_like(weight)
        for m in range(MEMBERS):
            plain = formed(ens, net, "BatchEnsemble", case, m)
            plain(X).square().sum().backward()
            gradient = plain.get_submodule(name).get_parameter(key).grad
            shared += gradient * alpha[m] * gamma[m]
            expected = (gradient * weight * alpha[m]).sum(-1, keepdim=True)
            torch.testing.assert_close(gamma.grad[m], expected.detach())
        torch.testing.assert_close(weight.grad, shared.detach())


def test_parametrized_layers_are_converted_and_their_members_are_plain() -> None:
    """Each member's layer is a plain one with the weight that weight norm computes, times its factors or mask."""
    wrap = nn.utils.parametrizations.weight_norm
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), wrap(nn.Linear(8, 7)), nn.Tanh(), nn.Linear(7, 3)).double()
    computed = net[2].weight.detach()
    for name, method in METHODS.items():
        ens = mt.ensemble(net, method, X, seed=0).eval()
        own = dict(ens.template.named_parameters()) | dict(ens.template.named_buffers())
        for m in range(MEMBERS):
            member: Any = ens.member(m)
            by_hand = {
                "BatchEnsemble": lambda own=own, m=m: computed * own["2.gamma"][m][:, None] * own["2.alpha"][m],
                "Masksembles": lambda own=own, m=m: computed * own["2.mask"][m],
                "DropConnect": lambda own=own, m=m: computed * own["2.weight_mask"][m] / 0.6,
            }[name]()
            assert type(member[2]) is nn.Linear
            torch.testing.assert_close(member[2].weight.detach(), by_hand.detach())
            torch.testing.assert_close(ens(X)[m], member(X))
    assert hasattr(net[2], "parametrizations")
    torch.testing.assert_close(net[2].weight, computed)  # the class that copies share still computes it


class Normed(nn.Module):
    """Learned queries that pass through a norm before they are multiplied with: a table, and no weight."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.queries = nn.Parameter(torch.randn(size, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((F.normalize(self.queries, dim=-1) @ self.first(x).mT).softmax(-1) @ self.first(x)).mean(1)


def test_what_is_no_weight_is_shared_and_the_plan_says_so() -> None:
    ens = mt.ensemble(Normed().double(), mt.BatchEnsemble(members=2), X, seed=0)
    assert {entry.name: entry.reason for entry in ens.plan.shared}[""] == "shared: no rule is known for queries"
    assert ens.template.queries.shape == (4, 8)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_of_unknown_weights_is_refused(method: str) -> None:
    """Where most weights would be shared, members would hardly differ: refused by name, unless keep= says so."""
    net = Normed(size=40).double()
    with pytest.raises(mt.ConversionError, match=r"Normed is an unknown layer.*queries"):
        mt.ensemble(net, METHODS[method], X)


def test_what_is_formed_is_what_is_only_multiplied_with() -> None:
    """A parameter that is multiplied with and also read in another way is no weight."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only, self.also, self.turned = (nn.Parameter(torch.randn(6, 6)) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.only @ self.also + self.also.softmax(-1)[0] + F.linear(x, self.turned.T)

    structure = observe(Both(), mt.Inputs(torch.randn(2, 6)))
    assert structure.summed_axes == {"only": -2, "turned": -2}
    assert formed_weights(structure) == {"": ("only", "turned")}
    assert list(shared_matrices(structure, formed_weights(structure))) == [""]
    assert mostly_shared(structure, formed_weights(structure)) == {}
