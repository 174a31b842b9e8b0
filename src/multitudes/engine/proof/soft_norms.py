"""Soft norms: BatchNorm layers whose `eps` is so large that they do not amplify rounding errors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import batch_norms
from multitudes.engine.proof.outcome import run_plain

SOFT = 4
"""Times the variance of what a norm gets: its `eps` where rounding errors would grow."""


def soft_eps(network: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Runs a plain network in training, with each BatchNorm layer's `eps` at `SOFT` times the variance of what it gets.

    Returns these. Layers behind a softened one get smaller numbers, and their own `eps` follows: signals keep their size.
    """

    def soften(norm: Any, x: torch.Tensor) -> None:
        variance = float(x.detach().var([axis for axis in range(x.ndim) if axis != 1], correction=0).mean())
        norm.eps = max(norm.eps, SOFT * variance)

    norms = batch_norms(network)
    for norm in norms.values():
        norm.register_forward_pre_hook(lambda norm, args: soften(norm, args[0]) if args else None)
    run_plain(network, inputs, "train", backward=False)
    return {name: float(norm.eps) for name, norm in norms.items()}
