"""Estimates BatchNorm's running statistics anew, for members that start from parts of a trained network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.engine.choose import DROPOUTS
from multitudes.engine.inputs import Inputs
from multitudes.errors import InputError


@torch.no_grad()
def estimate_norms(module: nn.Module, batches: Iterable[Any], inputs_of: Callable[[Any], Inputs] = Inputs.of) -> None:
    """Sets the running means and variances of norms to averages over the batches. Modes and weights stay unchanged.

    `inputs_of` returns the inputs of a batch; by default a batch is an input of the module or an `Inputs`.
    """
    norms = [part for part in module.modules() if isinstance(part, _NormBase) and part.track_running_stats]
    modes = {part: part.training for part in module.modules()}
    momenta = [norm.momentum for norm in norms]
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    if isinstance(batches, torch.Tensor):
        raise InputError("estimate_norms takes a list of batches, not one tensor: write ens.estimate_norms([x])")
    batch, done = None, False
    try:
        module.train()
        for part in module.modules():
            if isinstance(part, DROPOUTS):
                part.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
        for batch in batches:
            call = inputs_of(batch)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"\w+ trains by parts")
                module(*call.args, **call.kwargs)
        done = batch is not None
    finally:
        for norm, momentum, buffers in zip(norms, momenta, before, strict=True):
            norm.momentum = momentum
            for name, buffer in norm.named_buffers() if not done else ():
                buffer.copy_(buffers[name])
        for part, mode in modes.items():
            part.training = mode
    if not done:
        raise InputError("estimate_norms got no batches, so BatchNorm's statistics are unchanged: pass at least one batch")
