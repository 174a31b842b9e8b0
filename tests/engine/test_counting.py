"""Counts of one call: recurrent layers count on every device, as their matrices tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multitudes.engine.counting import RECURRENT, formula_of, multiply_adds


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"proj_size": 3}),
        (nn.GRU, {}),
        (nn.RNN, {}),
    ],
)
def test_every_matrix_of_a_recurrent_layer_counts_once_per_step(kind: type[nn.RNNBase], options: dict[str, int]) -> None:
    """On a CPU an LSTM runs by one operator, for which torch has no formula."""
    layer = kind(4, 5, batch_first=True, **options)
    matrices = sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim == 2)
    assert multiply_adds(lambda: layer(torch.randn(2, 7, 4))) == 2 * 7 * matrices


def test_the_operator_of_a_gpu_counts_all_layers() -> None:
    """Its weights come as one list, with biases among them; packed sequences have one axis of steps."""
    formula = formula_of(torch.ops.aten._cudnn_rnn.default)
    assert formula is not None and "_cudnn_rnn" in RECURRENT
    weights = [torch.zeros(20, 4), torch.zeros(20, 5), torch.zeros(20), torch.zeros(20)]
    assert formula(torch.zeros(7, 2, 4), weights, 4) == 2 * 14 * 180
    assert formula(torch.zeros(11, 4), weights, 4) == 2 * 11 * 180
