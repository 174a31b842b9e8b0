"""The given model is left untouched by a conversion, and by one that is refused: tensors, modes, hooks, plain attributes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt


class Plain(nn.Module):
    """A small network with a norm, and the base class of those that do something on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.register_buffer("steps", torch.zeros(()))
        self.calls, self.seen, self.kept, self.notes = 0, [0], None, {"last": "none"}

    def on_the_way(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.on_the_way(self.norm(self.first(x))).relu())
        return y


class StoresTensors(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.kept = h
        return h


class CountsCalls(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.calls += 1
        self.notes["last"] = f"call {self.calls}"
        return h


class MutatesList(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.seen.append(len(h))
        return h


class RegistersBuffer(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        if "mean" not in self._buffers:
            self.register_buffer("mean", h.detach().mean(0))
        return h


class WritesBuffer(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.steps += 1
        return h


class ChangesMode(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.norm.eval()
        self.training = False
        return h


class ChangesGradients(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.first.weight.requires_grad_(False)
        return h


class RegistersHooks(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.last.register_forward_hook(lambda *_: None)
        return h


class ReplacesLayer(Plain):
    def on_the_way(self, h: Tensor) -> Tensor:
        self.last = nn.Linear(12, 3)
        return h


class RefersToItself(Plain):
    """Its function still belongs to the given model when the model is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = nn.BatchNorm1d(12, affine=False)
        self.function = lambda h: self.bare(h)

    def on_the_way(self, h: Tensor) -> Tensor:
        y: Tensor = self.function(h)
        return y


class Fails(CountsCalls):
    def on_the_way(self, h: Tensor) -> Tensor:
        super().on_the_way(h)
        self.norm.eval()
        raise ValueError("no")


KINDS = [
    StoresTensors, CountsCalls, MutatesList, RegistersBuffer, WritesBuffer, ChangesMode, ChangesGradients, RegistersHooks,
    ReplacesLayer, RefersToItself, Fails,
]  # fmt: skip
QUICK = (CountsCalls, ChangesMode, RefersToItself, Fails)
DOES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "Deep": lambda net, x: mt.ensemble(net, mt.Deep(members=2), x, seed=0),
    "Masksembles": lambda net, x: mt.ensemble(net, mt.Masksembles(members=2, fewest=2), x, seed=0),
    "MCDropout": lambda net, x: mt.plan(net, mt.MCDropout(members=2, position="layers"), x, seed=0),
    "MIMO": lambda net, x: mt.plan(net, mt.MIMO(members=2), x, seed=0),
    "Packed": lambda net, x: mt.ensemble(net, mt.Packed(members=2), x, seed=0, check=False),
    "resize": lambda net, x: mt.resize(net, 0.5, x, seed=0),
    "from_models": lambda net, x: mt.Deep.from_models([net, net], x),
}

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def described(net: nn.Module) -> dict[str, Any]:
    """Everything of a model that a conversion could change, by name, apart from the values of tensors."""
    parts: dict[str, Any] = {}
    for name, part in net.named_modules():
        own = {k: v for k, v in vars(part).items() if not k.startswith("_") and not isinstance(v, Tensor) and not callable(v)}
        hooks = {kind: list(getattr(part, kind)) for kind in HOOKS}
        held = [*part._parameters.items(), *part._buffers.items()]
        tensors = {k: (id(t), t.requires_grad, t._version) for k, t in held if t is not None}
        parts[name] = (id(part), copy.deepcopy(own), hooks, tensors)
    return parts


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
@pytest.mark.parametrize("what", ["Deep", *(pytest.param(name, marks=pytest.mark.slow) for name in list(DOES)[1:])])
def test_the_given_model_is_untouched(kind: type[Plain], what: str, training: bool) -> None:
    """Whether the conversion succeeds or is refused."""
    net, x = kind().train(training), torch.randn(4, 6)
    net.first.register_forward_hook(lambda *_: None)
    net.kept = given = torch.ones(2)
    net.last.weight.grad = gradient = torch.ones(3, 12)
    before, values = described(net), {name: t.clone() for name, t in net.state_dict().items()}
    with contextlib.suppress(mt.MultitudesError):
        DOES[what](net, x)
    assert described(net) == before
    assert net.kept is given and net.last.weight.grad is gradient and bool((gradient == 1).all())
    torch.testing.assert_close(dict(net.state_dict()), values, rtol=0, atol=0)


def test_a_function_of_the_given_model_is_refused() -> None:
    """Members would share the norm of the given model, and move its statistics."""
    with pytest.raises(mt.InputError, match=r"calls bare of the given model.*make it a method"):
        mt.ensemble(RefersToItself(), mt.Deep(members=2), torch.randn(4, 6))


@pytest.mark.parametrize("kind", [StoresTensors, CountsCalls, WritesBuffer])
def test_models_that_do_harmless_things_convert(kind: type[Plain]) -> None:
    """So that the table above does not only see refusals: each member is the plain network with its weights."""
    x = torch.randn(4, 6)
    ens = mt.ensemble(kind(), mt.Deep(members=2), x, seed=0).eval()
    outputs = ens(x)
    for m in range(2):
        torch.testing.assert_close(outputs[m], ens.member(m)(x))
    assert not torch.equal(outputs[0], outputs[1])
