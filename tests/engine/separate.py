"""The reference of every executor: M plain networks, each called and differentiated by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import EXECUTORS

M, B = 4, 3
"""Members and rows of every comparison: different numbers, neither of them 1 or 2."""

WAYS = ("loop", "vmap", "call")
"""An executor by name, or the ensemble called as a user calls it."""


def answer(ens: mt.Ensemble, way: str, x: Any) -> Any:
    """All members' outputs, by an executor or by the call itself."""
    inputs = mt.Inputs.of(x)
    if way == "call":
        return ens(*inputs.args, **inputs.kwargs)
    return EXECUTORS[way](ens.engine, inputs)


def members(ens: mt.Ensemble) -> list[nn.Module]:
    """The ensemble as M plain networks, in its mode."""
    return [ens.member(m).train(ens.training) for m in range(ens.members)]


def leaves(output: Any) -> list[Tensor]:
    """The tensors of an output, in order; written apart from the library's own way of doing it."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [leaf for value in output.values() for leaf in leaves(value)]
    if isinstance(output, (tuple, list)):
        return [leaf for value in output for leaf in leaves(value)]
    if is_dataclass(output):
        return [leaf for field in fields(output) for leaf in leaves(getattr(output, field.name))]
    return []


def score(output: Any) -> Tensor:
    """A number in which every entry of the output has another weight, so that no gradient is zero by symmetry."""
    total = torch.zeros(())
    for leaf in leaves(output):
        if leaf.requires_grad:
            weights = torch.linspace(0.5, 1.5, leaf.numel(), device=leaf.device, dtype=torch.float64).view(leaf.shape)
            total = total + (leaf.double() * weights).sum()
    return total


def copy_of(x: Any) -> mt.Inputs:
    """The same call on tensors of its own."""
    inputs = mt.Inputs.of(x)
    return inputs.refill([tensor.detach().clone() for tensor in inputs.tensors()])


def assert_separate(ens: mt.Ensemble, x: Any, way: str = "call", *, training: bool, steps: int = 1, tol: float = 1e-9) -> None:
    """Outputs, gradients and buffers are those of M plain networks, over some forward passes."""
    ens.train(training)
    nets = members(ens)
    ens.zero_grad()
    for _ in range(steps):
        found = answer(ens, way, copy_of(x))
        score(found).backward() if any(t.requires_grad for t in leaves(found)) else None
        wanted = []
        for net in nets:
            call = copy_of(x)
            wanted.append(net(*call.args, **call.kwargs))
        assert len(leaves(found)) == len(leaves(wanted[0])) > 0
        for index, leaf in enumerate(leaves(found)):
            expected = torch.stack([leaves(one)[index] for one in wanted])
            assert leaf.dtype == expected.dtype
            torch.testing.assert_close(leaf, expected, rtol=tol, atol=tol)
        together = [torch.stack([leaves(one)[i] for one in wanted]) for i in range(len(leaves(wanted[0])))]
        score(together).backward() if any(t.requires_grad for t in together) else None
    assert_same_gradients(ens, nets, tol)
    assert_same_buffers(ens, nets, tol)


def assert_same_gradients(ens: mt.Ensemble, nets: list[nn.Module], tol: float = 1e-9) -> None:
    """A member's own gradients are its network's; those of shared parameters are the sum over the networks."""
    for name, parameter in ens.template.named_parameters():
        own = [dict(net.named_parameters())[name].grad for net in nets]
        assert (parameter.grad is None) == all(g is None for g in own), name
        if parameter.grad is None:
            continue
        own = [torch.zeros_like(nets[0].get_parameter(name)) if g is None else g for g in own]
        expected = torch.stack(own) if name in ens.engine.owned else torch.stack(own).sum(0)
        torch.testing.assert_close(
            parameter.grad, expected, rtol=tol, atol=tol, msg=lambda text, name=name: f"gradient of {name}: {text}"
        )


def assert_same_buffers(ens: mt.Ensemble, nets: list[nn.Module], tol: float = 1e-9) -> None:
    """A member's own buffers are its network's; shared ones are what every network has, having seen the same rows."""
    for name, buffer in ens.template.named_buffers():
        own = [dict(net.named_buffers())[name] for net in nets]
        expected = torch.stack(own) if name in ens.engine.owned else own[0]
        torch.testing.assert_close(buffer, expected, rtol=tol, atol=tol, msg=lambda text, name=name: f"buffer {name}: {text}")


class Own(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between: Any, training: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.between, self.only = nn.Linear(4, 6), nn.Linear(6, 3), between, training

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(self.between(h) if self.training or not self.only else h)


def images(count: int = B) -> Tensor:
    return torch.randn(count, 2, 5, 5)


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3), nn.LayerNorm(3))
