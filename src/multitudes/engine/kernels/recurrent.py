"""Recurrent layers step by step: torch's own run all steps in one operation, for which vmap has no rule.

Calls are as those of `torch._VF.lstm`, `gru`, `rnn_tanh` and `rnn_relu` on whole tensors; packed sequences are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

State = tuple[Tensor, ...]
"""The hidden state, and the cell state of an LSTM."""
Step = Callable[[Tensor, State, Sequence[Tensor], bool], State]


def _lstm(gates: Tensor, state: State, weights: Sequence[Tensor], biases: bool) -> State:
    h, c = state
    gates = gates + F.linear(h, weights[1], weights[3] if biases else None)
    enter, forget, cell, leave = gates.chunk(4, -1)
    c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
    h = leave.sigmoid() * c.tanh()
    return (F.linear(h, weights[-1]) if len(weights) % 2 else h), c  # with proj_size there is one weight more


def _gru(gates: Tensor, state: State, weights: Sequence[Tensor], biases: bool) -> State:
    (h,) = state
    reset, update, new = gates.chunk(3, -1)
    reset_h, update_h, new_h = F.linear(h, weights[1], weights[3] if biases else None).chunk(3, -1)
    new = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    update = (update + update_h).sigmoid()
    return (new + update * (h - new),)


def _plain(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(gates: Tensor, state: State, weights: Sequence[Tensor], biases: bool) -> State:
        return (activation(gates + F.linear(state[0], weights[1], weights[3] if biases else None)),)

    return step


STEPS: dict[str, Step] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _plain(torch.tanh), "rnn_relu": _plain(torch.relu)}
"""One step of each layer, by the name of torch's function."""


def is_recurrent(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call is one of torch's recurrent layers on a whole tensor."""
    return getattr(func, "__name__", "") in STEPS and len(args) == 9 and isinstance(args[3], bool)


def recurrent(
    name: str,
    dropout: Callable[[Tensor, float], Tensor],
    x: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    biases: bool,
    layers: int,
    rate: float,
    training: bool,
    both: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Runs a recurrent layer as its torch function would. `dropout(x, rate)` drops between layers."""
    step, ways = STEPS[name], 1 + both
    starts = list(zip(*(state.unbind(0) for state in (hx if name == "lstm" else (hx,))), strict=True))
    each = len(params) // (layers * ways)
    x, ends = x.transpose(0, 1) if batch_first else x, []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            weights, state = params[place * each : (place + 1) * each], starts[place]
            gates = F.linear(x, weights[0], weights[2] if biases else None).unbind(0)
            hidden = []
            for one in reversed(gates) if way else gates:
                state = step(one, state, weights, biases)
                hidden.append(state[0])
            outputs.append(torch.stack(hidden[::-1] if way else hidden))
            ends.append(state)
        x = torch.cat(outputs, -1) if both else outputs[0]
        x = dropout(x, rate) if rate and training and layer < layers - 1 else x
    states = [torch.stack(states) for states in zip(*ends, strict=True)]
    return x.transpose(0, 1) if batch_first else x, *states
