"""Recurrent layers step by step are torch's own; with a shared BatchNorm they can be trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.kernels.rules import Together

LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True),
    "lstm_projected": lambda: nn.LSTM(5, 4, proj_size=3, batch_first=True),
    "gru": lambda: nn.GRU(5, 4, num_layers=2, batch_first=True),
    "gru_both": lambda: nn.GRU(5, 4, bidirectional=True, bias=False),
    "tanh": lambda: nn.RNN(5, 4, num_layers=2),
    "relu": lambda: nn.RNN(5, 4, nonlinearity="relu", bidirectional=True),
}


def run(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The outputs, the last states, and the gradients of all weights and of the input."""
    output, states = layer(x)
    found = [output, *(states if isinstance(states, tuple) else (states,))]
    total = sum(value.square().sum() for value in found)
    return [*found, *torch.autograd.grad(total, [x, *layer.parameters()])]


@pytest.mark.parametrize("kind", LAYERS)
def test_steps_are_the_layer(kind: str) -> None:
    torch.manual_seed(0)
    layer, x = LAYERS[kind]().double(), torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    expected = run(layer, x)
    with Together(steps=True):
        found = run(layer, x)
    torch.testing.assert_close(found, expected)


class CRNN(nn.Module):
    """Convolution, BatchNorm, GRU: as in recognition of speech and of text in images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 12, 3, padding=1), nn.BatchNorm1d(12)
        self.gru, self.head = nn.GRU(12, 12, batch_first=True, bidirectional=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.norm(self.conv(x)).relu().transpose(1, 2))[0].mean(1))


def test_a_shared_norm_before_a_recurrent_layer_trains() -> None:
    """It sees the rows of all members at once, which neither the loop nor fold can give: EMP refused such networks."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 7), torch.tensor([0, 1, 2, 3])
    ens = mt.ensemble(CRNN(), mt.EMP(members=3), x, seed=0).train()
    assert ens.executor == "vmap"
    before = ens.get_buffer("norm.running_mean").clone()
    ens.loss(x, y, nn.functional.cross_entropy).backward()
    assert not torch.equal(ens.get_buffer("norm.running_mean"), before)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ens.parameters())
    ens.eval()
    torch.testing.assert_close(ens(x), torch.stack([ens.member(m).eval()(x) for m in range(3)]))
