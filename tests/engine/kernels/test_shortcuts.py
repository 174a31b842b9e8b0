"""Shortcuts of modules: which layers take them, that results are the modules' own, and that modules are left as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine.separate import B, M, answer, assert_separate
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import multitudes as mt
from multitudes.engine.kernels import counts_by_members, most_take_shortcuts


class Own(nn.Conv2d):
    """A layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


LAYERS: dict[str, tuple[Any, int]] = {
    "plain": (lambda: (nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)), 2),
    "1d": (lambda: (nn.Conv1d(4, 4, 3, dilation=2), nn.BatchNorm1d(4)), 2),
    "3d": (lambda: (nn.Conv3d(4, 4, (1, 2, 2), bias=False), nn.BatchNorm3d(4)), 2),
    "bare norm": (lambda: (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, affine=False, track_running_stats=False)), 2),
    "tracking norm": (lambda: (nn.Conv2d(4, 4, 1, padding=1), nn.BatchNorm2d(4, affine=False)), 2),
    "momentum": (lambda: (nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4, momentum=0.3, eps=0.1)), 2),
    "cumulative average": (lambda: (nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4, momentum=None)), 1),
    "groups": (lambda: (nn.Conv2d(4, 4, 2, groups=2), nn.BatchNorm2d(4)), 1),
    "padding by name": (lambda: (nn.Conv2d(4, 4, 3, padding="same"), nn.BatchNorm2d(4)), 1),
    "circular padding": (lambda: (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(4)), 1),
    "a subclass": (lambda: (Own(4, 4, 3), nn.BatchNorm2d(4)), 1),
    "instance norm": (lambda: (nn.Conv2d(4, 4, 2), nn.InstanceNorm2d(4, affine=True)), 1),
    "frozen norm": (lambda: (nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4).eval().requires_grad_(False)), 2),
}  # fmt: skip


def network(name: str) -> tuple[nn.Sequential, Tensor]:
    layers = LAYERS[name][0]()
    axes = {"1d": 1, "3d": 3}.get(name, 2)
    first = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes](2, 4, 1)
    return nn.Sequential(first, nn.ReLU(), *layers, nn.ReLU()), torch.randn(B, 2, *[6] * axes)


@pytest.mark.parametrize("name", LAYERS)
def test_results_are_those_of_modules(name: str) -> None:
    """Values, gradients, statistics and counters, over steps of training and in eval mode."""
    net, x = network(name)
    ens = mt.ensemble(net, mt.Deep(members=M), x)
    assert all("vmap" in names for names in ens.plan.proven.values()), ens.plan.why
    assert_separate(copy.deepcopy(ens), x, "vmap", training=True, steps=3)
    assert_separate(ens, x, "vmap", training=False)


@pytest.mark.parametrize("name", LAYERS)
def test_which_layers_take_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(name)
    ens = mt.ensemble(net, mt.Deep(members=M), x)
    taken: list[set[str]] = []

    def look(module: Any, args: Any) -> None:
        taken.append({n for n, part in ens.template.named_modules() if "forward" in vars(part)})

    real = type(ens.template).forward
    monkeypatch.setattr(type(ens.template), "forward", lambda self, *args: (look(self, args), real(self, *args))[1])
    answer(ens, "vmap", x)
    assert len(taken) == 1 and taken[0] >= {"0"} and len(taken[0]) == 1 + LAYERS[name][1]
    assert not [part for part in ens.template.modules() if "forward" in vars(part)]


def test_modules_are_left_as_they_were_after_an_error() -> None:
    net, x = network("plain")
    ens = mt.ensemble(net, mt.Deep(members=M), x)
    with pytest.raises(RuntimeError):
        answer(ens, "vmap", torch.randn(B, 5, 6, 6))
    assert not [part for part in ens.template.modules() if "forward" in vars(part)]


def test_a_forward_that_the_user_set_stays() -> None:
    net, x = network("plain")
    ens = mt.ensemble(net, mt.Deep(members=M), x).eval()
    before = answer(ens, "vmap", x)
    layer = ens.get_submodule("3")
    layer.forward = lambda x: torch.zeros_like(x)  # type: ignore[method-assign]
    assert not torch.equal(answer(ens, "vmap", x), before) and "forward" in vars(layer)


def test_a_mode_of_the_user_sees_every_function() -> None:
    """A mode around the call may change layers: none is hidden from it."""
    net, x = network("plain")
    ens = mt.ensemble(net, mt.Deep(members=M), x).eval()

    class Names(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    with Names() as seen:
        answer(ens, "vmap", x)
    assert seen.names.count("convolution") == 2 and seen.names.count("batch_norm") == 1


def test_one_value_per_channel_is_refused_as_torch_does() -> None:
    net, x = network("plain")
    ens = mt.ensemble(net, mt.Deep(members=M), x).train()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        answer(ens, "vmap", x[:1, :, :1, :1])


def test_networks_with_few_convolutions_do_without() -> None:
    """A patch embedding before linear layers is too little; activations and pools do not count."""
    few = nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    many = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2))
    assert [most_take_shortcuts(net.modules()) for net in (few, many, nn.ReLU())] == [False, True, False]


def test_which_counters_are_counted_at_once() -> None:
    assert counts_by_members(nn.BatchNorm2d(2)) and not counts_by_members(nn.BatchNorm2d(2, momentum=None))
    assert not counts_by_members(nn.SyncBatchNorm(2)) and not counts_by_members(nn.Conv2d(2, 2, 1))
