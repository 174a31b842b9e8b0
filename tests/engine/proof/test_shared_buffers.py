"""Buffers that members share and forward sets: to one value, or the conversion is refused."""

from __future__ import annotations

import pytest
import torch
from engine.separate import B, M
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.proof import smaller

F32 = torch.float32


@pytest.fixture(autouse=True)
def every_network_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smaller, "LARGE", 0)


class Ranges(nn.Module):
    """Keeps the range of its activations in training, in a buffer that it sets anew, as quantised networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("largest", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            self.largest = 0.9 * self.largest + 0.1 * x.detach().max()
        return self.last(x)


def test_a_shared_buffer_that_members_set_is_refused_at_conversion() -> None:
    """Not at the first step of training. If members own it, or agree on it, the network converts."""
    x = torch.randn(B, 4)
    with pytest.raises(mt.ConversionError, match="largest is shared, but each member's forward sets it"):
        mt.ensemble(Ranges(), mt.BatchEnsemble(members=M), x)
    mt.ensemble(Ranges(), mt.Deep(members=M), x).train()(x)
    mt.ensemble(Ranges(), mt.MultiHead(members=M), x).train()(x)


class NoisyRanges(Ranges):
    """The same behind dropout, and it writes where torch's modes do not see it, so that the trunk runs once for each member."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(x) * 2
        with torch._C.DisableTorchFunction():
            x.add_(0)
        return super().forward(x)


def test_a_shared_buffer_that_members_set_apart_by_dropout_is_refused_at_conversion() -> None:
    x = torch.randn(B, 4)
    with pytest.raises(mt.ConversionError, match="largest is shared, but each member's forward sets it"):
        mt.ensemble(NoisyRanges(), mt.MultiHead(members=M), x)


@pytest.mark.parametrize("method", [mt.DropConnect(members=M, p=0.5), mt.SWAG(members=M)])
def test_a_shared_buffer_has_one_value_if_a_step_runs_one_draw(method: mt.Method) -> None:
    """Members that are draws train one at a time. Members that differ are refused by name when they train together."""
    x = torch.randn(B, 4)
    ens = mt.ensemble(Ranges(), method, x).train()
    ens.loss(x, torch.zeros(B, 3), torch.nn.functional.mse_loss).backward()
    assert float(ens.template.largest) != 0
    mt.check(ens, x)
    if isinstance(method, mt.DropConnect):
        with pytest.raises(mt.RunError, match="largest is shared"):
            ens(x)


class WrittenRanges(Ranges):
    """The same, but it writes into the buffer."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            self.largest.mul_(0.9).add_(0.1 * x.detach().max())
        return self.last(x)


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        (mt.DropConnect(members=M, p=0.5), r"set a new one, self\.largest = \.\.\., and not write into it"),  # as in Ranges
        (mt.BatchEnsemble(members=M), "leave it as it is"),
    ],
)
def test_a_shared_buffer_that_forward_writes_into_may_be_set_if_members_are_draws(method: mt.Method, instead: str) -> None:
    with pytest.raises(mt.ConversionError, match=f"largest is shared.*or have forward {instead}"):
        mt.ensemble(WrittenRanges(), method, torch.randn(B, 4))
