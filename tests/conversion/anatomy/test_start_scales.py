"""Members start at the scale at which the given model starts, tensor by tensor, whatever its initialisers would do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.initialise import reinitialised

pytestmark = pytest.mark.slow

NORMAL = "normal with the mean and deviation of the given tensor"


class Block(nn.Module):
    """Two layers around a norm, and a class to inherit from."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(24, width), nn.LayerNorm(width), nn.Linear(width, 24)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.last(self.norm(self.first(x)).relu())
        return y


class OtherArguments(Block):
    """Calls its initialiser with an argument that is not the default."""

    def __init__(self) -> None:
        super().__init__()
        self.init_weights(zero_last=False)

    def init_weights(self, zero_last: bool = True) -> None:
        nn.init.normal_(self.first.weight, std=0.3)
        nn.init.normal_(self.last.weight, std=0.0 if zero_last else 0.4)


class Inline(Block):
    """Initialises its layers in the constructor, far from their own way."""

    def __init__(self, width: int = 32) -> None:
        super().__init__(width)
        nn.init.kaiming_normal_(self.first.weight, mode="fan_out")
        nn.init.constant_(self.first.bias, 0.0)
        nn.init.normal_(self.last.weight, std=1.5)


class Uncalled(Block):
    """Has an initialiser that nobody called."""

    def init_weights(self) -> None:
        nn.init.normal_(self.first.weight, std=7.0)


class WithoutNorms(nn.Module):
    """Has nothing but layers, which the constructor initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 32), nn.Linear(32, 3)
        nn.init.normal_(self.first.weight, std=2.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x).relu())
        return y


@pytest.mark.parametrize("kind", [Block, OtherArguments, Inline, Uncalled, WithoutNorms])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_matrix_of_a_member_starts_at_the_given_scale(kind: type[nn.Module], seed: int) -> None:
    """Compared with another network of the same constructor."""
    torch.manual_seed(seed)
    base, other = kind(), kind()
    new = reinitialised(base, 100 + seed)[0]
    for name, parameter in other.named_parameters():
        if parameter.ndim > 1:
            assert new.get_parameter(name).std().item() == pytest.approx(parameter.std().item(), rel=0.15), name
            assert not torch.equal(new.get_parameter(name), base.get_parameter(name))


def test_the_plan_names_the_rule_that_does_not_fit() -> None:
    planned = mt.plan(OtherArguments(), mt.Deep(members=2), torch.randn(2, 24), seed=0)
    assert planned.init["first.weight"] == "OtherArguments.init_weights"
    assert planned.init["last.weight"] == f"{NORMAL}: Linear.reset_parameters has others"
    assert planned.init["last.bias"] == "Linear.reset_parameters"
    assert planned.init["norm.weight"] == "constant: kept from the given model"


def trained(model: nn.Module) -> nn.Module:
    """The model as long training might leave it: larger weights, and norms that have learnt."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10).add_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kind", [Block, Uncalled])
def test_a_trained_model_starts_again_by_its_initialisers(kind: type[nn.Module]) -> None:
    """Its weights say nothing about how they started. Biases and scales may become constant, matrices may not."""
    new, rules = reinitialised(trained(kind()), 0)
    own = kind is Uncalled
    assert rules["first.weight"] == ("Uncalled.init_weights" if own else "Linear.reset_parameters")
    assert new.get_parameter("first.weight").std().item() == pytest.approx(7.0 if own else 1 / math.sqrt(3 * 24), rel=0.15)
    assert torch.equal(new.get_parameter("norm.weight"), torch.ones(32))
    assert not new.get_parameter("norm.bias").any()


def test_a_trained_matrix_does_not_become_zero() -> None:
    new, rules = reinitialised(trained(OtherArguments()), 0)
    assert rules["first.weight"] == "OtherArguments.init_weights"
    assert rules["last.weight"] == "Linear.reset_parameters"
    assert new.get_parameter("last.weight").std().item() == pytest.approx(1 / math.sqrt(3 * 32), rel=0.15)


class Written(Block):
    """Has tensors that authors write and do not draw."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(32)[:, None] * torch.logspace(0, -3, 24)
        self.places = nn.Parameter(angles.sin(), requires_grad=False)
        self.learnt_places = nn.Parameter(torch.empty(32, 24))
        self.mixing = nn.Parameter(torch.eye(24))
        self.token = nn.Parameter(torch.randn(24))
        self.init_weights()

    def init_weights(self) -> None:
        with torch.no_grad():
            self.learnt_places.copy_(self.places.cos())
        self.token.data.mul_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x @ self.mixing + self.places[0] + self.learnt_places[1] + self.token)
        return y


def test_what_was_written_and_not_drawn_keeps_its_values() -> None:
    """A frozen table, an identity, and what an initialiser writes without chance; a factor alone initialises nothing."""
    base = Written()
    new, rules = reinitialised(base, 0)
    for name in ("places", "learnt_places", "mixing"):
        assert torch.equal(new.get_parameter(name), base.get_parameter(name)), name
    assert rules["places"] == "frozen: kept from the given model"
    assert rules["mixing"] == "a table that was not drawn: kept from the given model"
    assert rules["learnt_places"] == "Written.init_weights"
    assert rules["token"] == NORMAL
    assert not torch.equal(new.get_parameter("token"), base.get_parameter("token"))


def test_an_initialiser_that_fails_on_missing_values_runs_on_the_given_ones() -> None:
    class Checking(Block):
        def init_weights(self) -> None:
            if self.first.weight.isnan().any():
                raise ValueError("weights are missing")
            nn.init.normal_(self.first.weight, std=1 / math.sqrt(3 * 24))

    new, rules = reinitialised(Checking(), 0)
    assert rules["first.weight"] == "Checking.init_weights"
    assert all(bool(p.isfinite().all()) for p in new.parameters())


class Tied(nn.Module):
    """An embedding whose weight is the output's too, under a name that comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(40, 16)
        nn.init.normal_(self.shared.weight, std=0.02)
        self.inner, self.out = nn.Sequential(nn.Embedding(40, 16), nn.LayerNorm(16)), nn.Linear(16, 40, bias=False)
        self.inner[0].weight = self.out.weight = self.shared.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.inner(x))
        return y


def test_a_tied_tensor_has_one_rule() -> None:
    base = Tied()
    new, rules = reinitialised(base, 0)
    assert new.get_parameter("shared.weight") is new.get_parameter("out.weight")
    assert new.get_parameter("shared.weight").std().item() == pytest.approx(0.02, rel=0.15)
    assert set(rules) == {"shared.weight", "inner.1.weight", "inner.1.bias"}


class Fixed(nn.Module):
    """Draws all weights with one deviation, or with one that depends on the number of inputs."""

    def __init__(self, deviation: float | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 3)
        for part in (*self.layers, self.head):
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=deviation or 3 / math.sqrt(part.in_features))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.layers(x)))
        return y


@pytest.mark.parametrize("deviation", [0.5, None])
def test_a_thinner_network_starts_as_its_constructor_would(deviation: float | None) -> None:
    """The deviation grows as inputs get fewer only if the constructor makes it so. Rules are chosen at the full width."""
    thin = mt.resize(Fixed(deviation), 0.25, torch.randn(2, 8), seed=0)
    weight = thin.get_parameter("layers.2.weight")
    assert weight.shape == (32, 32)
    assert weight.std().item() == pytest.approx(deviation or 3 / math.sqrt(32), rel=0.15)
