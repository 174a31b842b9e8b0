"""Dicts in which forward keeps what it computed from a member's weights: each member has its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt


class Caching(nn.Module):
    """Attention biases by position, computed once in eval mode and kept, as LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.table, self.head = nn.Linear(4, 6), nn.Parameter(torch.randn(3, 6)), nn.Linear(6, 2)
        self.register_buffer("places", torch.tensor([0, 2, 1, 2]))
        self.kept: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> Caching:
        super().train(mode)
        self.kept = {}
        return self

    def biases(self) -> Tensor:
        if self.training:
            return self.table[self.places]
        if "cpu" not in self.kept:
            self.kept["cpu"] = self.table[self.places]
        return self.kept["cpu"]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x) + self.biases()))


def by_hand(state: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = x @ state["first.weight"].T + state["first.bias"] + state["table"][torch.tensor([0, 2, 1, 2])]
    return torch.tanh(hidden) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("ran_before", [False, True])
def test_each_member_has_its_own_cache(ran_before: bool) -> None:
    """Values by hand, after a step of training too, and also if the given model had filled its cache."""
    net = Caching().double().eval()
    x = torch.randn(2, 4, 4, dtype=torch.float64)
    if ran_before:
        net(x)
    ens: Any = mt.ensemble(net, mt.Deep(members=3), x, seed=0).eval()
    for _ in range(2):
        for m in range(3):
            state = {name: p.detach()[m] for name, p in ens.named_parameters()}
            torch.testing.assert_close(ens(x)[m], by_hand(state, x))
            torch.testing.assert_close(ens.member(m)(x), by_hand(state, x))
        with torch.no_grad():
            ens.template.table += 1.0  # what a step of an optimizer does, in eval mode
    assert bool(net.kept) is ran_before


class Merging(nn.Module):
    """The product of two factors, computed in the first call and kept for good, as code for inference does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.factor, self.head = nn.Linear(4, 6), nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 2)
        self.merged: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.merged:
            self.merged.append(self.factor @ self.factor.T)
        return self.head(torch.tanh(self.first(x) @ self.merged[0].detach()))


class MergingOnce(Merging):
    """The same in an attribute that is None before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.product: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.product is None:
            self.product = (self.factor @ self.factor.T).detach()
        return self.head(torch.tanh(self.first(x) @ self.product))


@pytest.mark.parametrize(("kind", "name"), [(Merging, "merged"), (MergingOnce, "product")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ran_before", [False, True])
def test_what_the_first_member_would_compute_for_all_is_refused(
    kind: type[nn.Module], name: str, dtype: torch.dtype, ran_before: bool
) -> None:
    """A trial in double precision had filled the cache of all copies that members were compared on, so they agreed.

    If the given model was called before, all members had what it computed from its weights.
    """
    net = kind().to(dtype).eval()
    if ran_before:
        net(torch.randn(2, 4, dtype=dtype))
    with pytest.raises(mt.errors.ConversionError, match=rf"self\.{name} in the first call, and later ones use it"):
        mt.ensemble(net, mt.Deep(members=3), torch.randn(2, 4, dtype=dtype), seed=0)


class CachingForGood(Caching):
    """The same cache, which a change of the mode does not empty."""

    def train(self, mode: bool = True) -> Caching:
        nn.Module.train(self, mode)
        return self


def test_members_do_not_start_with_what_the_given_model_computed() -> None:
    net, x = CachingForGood().double().eval(), torch.randn(2, 4, 4, dtype=torch.float64)
    net(x)
    ens: Any = mt.ensemble(net, mt.Deep(members=3), x, seed=0).eval()
    for m in range(3):
        torch.testing.assert_close(ens(x)[m], by_hand({name: p.detach()[m] for name, p in ens.named_parameters()}, x))
    assert net.kept


def test_constants_in_attributes_stay() -> None:
    """A table that the constructor made, and one that the first call made without weights."""
    net = Caching().double().eval()
    net.first.table, net.first.more = torch.ones(3), None

    def note(module: Any, args: Any) -> None:
        module.more = torch.ones(2) if module.more is None else module.more

    net.first.register_forward_pre_hook(note)
    net(torch.randn(2, 4, 4, dtype=torch.float64))
    ens: Any = mt.ensemble(net, mt.Deep(members=2), torch.randn(2, 4, 4, dtype=torch.float64), seed=0)
    assert torch.equal(ens.template.first.table, torch.ones(3)) and torch.equal(ens.template.first.more, torch.ones(2))


def test_a_configuration_that_changes_is_proved_again() -> None:
    """The proof of the first conversion was recalled, since the model held the same configuration object."""

    class Configured(Merging):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(merge=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.config.merge else self.head(self.first(x))

    net, x = Configured().eval(), torch.randn(2, 4)
    mt.ensemble(net, mt.Deep(members=3), x, seed=0)
    net.config.merge = True
    with pytest.raises(mt.errors.ConversionError, match="not independent"):
        mt.ensemble(net, mt.Deep(members=3), x, seed=0)
