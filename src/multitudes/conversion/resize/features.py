"""Finds fixed features that layers read: the units of a reservoir, random Fourier features. Their number is a width."""

from __future__ import annotations

from torch import nn

from multitudes.conversion.resize.audit import width_of
from multitudes.conversion.resize.dims import Dims, output_axis
from multitudes.engine.modules import owning_module


def makes_features(dims: Dims, full: nn.Module) -> bool:
    """Whether a change of sizes doubles those of buffers, some of them matrices, and the inputs of layers; nothing else.

    Rows of tables are no inputs, and whole numbers no features: positions have both.
    """
    tensors = {**dict(full.named_parameters()), **dict(full.named_buffers())}
    buffers = inputs = False
    for (name, axis), (before, after) in dims.items():
        layer, tensor = full.get_submodule(owning_module(name)), tensors[name]
        if after != 2 * before or isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or not tensor.is_floating_point():
            return False
        if isinstance(tensor, nn.Parameter):
            if not width_of(layer) or tensor.ndim < 2 or axis != 1 - output_axis(layer, "weight"):
                return False
            inputs = True
        else:
            buffers = buffers or tensor.ndim > 1
    return buffers and inputs
