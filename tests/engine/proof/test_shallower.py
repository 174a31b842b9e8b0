"""Proofs on a shallower copy: blocks that are alike are left out, and the whole network agrees with the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine.separate import M
from laws import METHODS
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.proof import executors, smaller
from multitudes.engine.proof.shallower import shallower
from multitudes.engine.state import Engine


class Block(nn.Module):
    def __init__(self, width: int = 8, number: int = 0, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation)
        self.norm = nn.BatchNorm2d(width)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x)).relu()


class Dropping(Block):
    """A block that is left out at random, as in networks of stochastic depth."""

    def __init__(self, drop_prob: float, other: bool = False) -> None:
        super().__init__()
        self.drop_prob, self.other = drop_prob, other

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).relu()
        if self.training and self.drop_prob > 0:
            y = y * x.new_empty(len(x), 1, 1, 1).bernoulli_(1 - self.drop_prob)
        return x + (y.sigmoid() if self.other and self.drop_prob > 0.3 else y)


class AddsNothing(Block):
    """A block that starts as the identity, and is left out at random."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return x + (y * x.new_empty(len(x), 1, 1, 1).bernoulli_(0.5) if self.training else y)


class Token(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x)).tanh()


class Net(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.blocks, self.head = nn.Conv2d(3, 8, 3), nn.ModuleList(blocks), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if isinstance(block, Block) else block(x.movedim(1, -1)).movedim(-1, 1)
        return self.head(x.mean((2, 3)))


class ByNumber(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for number in range(5):
            x = self.blocks[number](x)
        return self.head(x.mean((2, 3)))


class AllStages(Net):
    def forward(self, x: Tensor) -> Any:
        stages = [self.first(x)]
        for block in self.blocks:
            stages.append(block(stages[-1]))
        return self.head(stages[-1].mean((2, 3))), stages


class ScaledByNumber(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) / (1.0 + float(block.number))
        return self.head(x.mean((2, 3)))


def x() -> Tensor:
    return torch.randn(2, 3, 10, 10)


def kept(net: nn.Module) -> list[str] | None:
    """The keys of the blocks that stay; None if the network has no shallower copy."""
    names = frozenset(name for name, _ in net.named_parameters())
    stacked = {n: nn.Parameter(torch.stack([p.detach()] * 2), requires_grad=p.requires_grad) for n, p in net.named_parameters()}
    template = mt.engine.modules.copy_with(net, stacked)  # type: ignore[attr-defined]
    part = shallower(Engine(template, 2, names), mt.Inputs(x()), net)
    return None if part is None else list(part.template.get_submodule("blocks")._modules)


def test_two_of_equal_blocks_stay() -> None:
    assert kept(Net([Block() for _ in range(5)])) == ["0", "1"]


def test_one_of_each_kind_stays() -> None:
    assert kept(Net([Block(), Token(1), Block(), Token(3), Block(), Token(5)])) == ["0", "1"]
    assert kept(Net([Block(), Block(), Block(), Block(), Block(dilation=2)])) == ["0", "1", "4"]


def test_a_block_may_know_its_number() -> None:
    assert kept(Net([Token(number) for number in range(6)])) in (["0", "1"], ["0", "1", "2"])


def test_rates_of_dropout_may_differ() -> None:
    """But for 0, with which other code runs."""
    assert kept(Net([Dropping(rate / 10) for rate in range(5)])) == ["0", "1"]
    assert kept(Net([Dropping(rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.0)])) == ["0", "1", "5"]


def test_a_block_whose_rate_decides_what_runs_is_like_no_other() -> None:
    assert kept(Net([Dropping(rate / 10, other=True) for rate in range(1, 6)])) is None


def test_layers_between_activations_in_place_stay() -> None:
    """Two activations in place, one after the other, have no backward."""
    stem = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))))
    net = Net([Block() for _ in range(5)])
    net.first = nn.Sequential(nn.Conv2d(3, 8, 3), stem)  # type: ignore[assignment]
    names = frozenset(name for name, _ in net.named_parameters())
    stacked = {n: nn.Parameter(torch.stack([p.detach()] * 2)) for n, p in net.named_parameters()}
    template = mt.engine.modules.copy_with(net, stacked)  # type: ignore[attr-defined]
    part = shallower(Engine(template, 2, names), mt.Inputs(x()), net)
    assert part is not None
    assert list(part.template.get_submodule("first.1")._modules) == [str(at) for at in range(8)]
    assert list(part.template.get_submodule("blocks")._modules) == ["0", "1"]


def test_a_block_with_a_hook_stays() -> None:
    net = Net([Block() for _ in range(6)])
    net.blocks[4].conv.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    assert kept(net) == ["0", "1", "4"]


def test_frozen_blocks_stay() -> None:
    net = Net([Block() for _ in range(6)])
    net.blocks[3].requires_grad_(False)
    assert kept(net) == ["0", "1", "3"]


@pytest.mark.parametrize("kind", [ByNumber, AllStages, ScaledByNumber])
def test_no_copy_runs_other_operations(kind: type[Net]) -> None:
    """Blocks read by their numbers, outputs of every block, numbers that forward computes with."""
    assert kept(kind([Block(number=number) for number in range(5)])) is None


def test_blocks_after_a_stride_have_other_shapes() -> None:
    stages = [nn.Sequential(Block(), Block(), nn.MaxPool2d(2)), nn.Sequential(Block(), Block(), nn.MaxPool2d(2))]
    assert kept(Net([*stages])) is None


def facts(ens: mt.Ensemble) -> dict[str, Any]:
    names = ["traits", "proven", "untried", "picked", *(["row_axes"] if "fold" in ens.plan.proven["eval"] else [])]
    return {name: getattr(ens.engine, name) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("label", METHODS)
def test_facts_are_those_of_the_whole_network(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smaller, "LARGE", 0)
    blocks = lambda: [*(Block() for _ in range(5)), *(Token(number) for number in range(5, 9))]  # noqa: E731
    net, used = Net(blocks()), []

    def noted(*args: Any) -> Engine | None:
        used.append(shallower(*args))
        return used[-1]

    monkeypatch.setattr(executors, "shallower", noted)
    part = mt.ensemble(net, METHODS[label](), x(), seed=0)
    assert used[-1] is not None and "blocks that are like others" in part.plan.proof
    monkeypatch.setattr(executors, "shallower", lambda *_: None)
    whole = mt.ensemble(Net(blocks()), METHODS[label](), x(), seed=0)
    assert facts(part) == facts(whole)
    assert mt.check(part, x()).laws


def test_noise_on_branches_that_start_at_zero_shows_in_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole network runs forward only, so it does not show what gradients of the shallower copy did (Swin V2)."""
    monkeypatch.setattr(smaller, "LARGE", 0)
    ens = mt.ensemble(
        Net([AddsNothing() for _ in range(6)]), mt.Deep(members=M), torch.randn(8, 3, 10, 10), seed=0, start="copies"
    )
    assert "blocks that are like others" in ens.plan.proof
    assert ens.engine.traits.random


class Looking(nn.Module):
    """Adds what the fourth block before it left behind: of two members with two blocks each, none does."""

    def __init__(self, store: list[Tensor]) -> None:
        super().__init__()
        self.mix, self.store = nn.Linear(8, 8), store

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x).tanh()
        y = y + self.store[-4].mean() if len(self.store) > 3 else y
        self.store.append(y.detach())
        return y


def test_a_leak_that_few_blocks_do_not_show_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smaller, "LARGE", 0)
    store: list[Tensor] = []
    blocks = nn.Sequential(*(Looking(store) for _ in range(6)))
    with pytest.raises(mt.MultitudesError, match="member"):
        mt.ensemble(nn.Sequential(nn.Linear(8, 8), blocks, nn.Linear(8, 2)), mt.Deep(members=2), torch.randn(2, 8))


def test_the_whole_network_decides_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the whole network that fails leads to the proof without a copy."""
    monkeypatch.setattr(smaller, "LARGE", 0)
    proved: list[int] = []
    real = executors._prove

    def fails(*_: Any) -> Engine:
        raise ValueError("it differs")

    def counted(engine: Engine, *rest: Any) -> Any:
        proved.append(len(list(engine.template.modules())))
        return real(engine, *rest)

    monkeypatch.setattr(executors, "run_whole", fails)
    monkeypatch.setattr(executors, "_prove", counted)
    net = Net([Block() for _ in range(6)])
    ens = mt.ensemble(net, mt.Deep(members=M), x())
    assert proved == [proved[0], len(list(net.modules()))] and proved[0] < proved[1]
    assert ens.plan.proven["eval"][0] == "loop"
