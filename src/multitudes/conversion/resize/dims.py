"""Sizes of a network's tensors, and those that change with the arguments of its constructor."""

from __future__ import annotations

import math
from collections.abc import Collection

from torch import nn

from multitudes.engine.modules import named_tensors

Shapes = dict[str, tuple[int, ...]]
Dims = dict[tuple[str, int], tuple[int, int]]
"""Sizes that a change of arguments changes: by tensor and axis, before and after."""


def shapes_of(net: nn.Module) -> Shapes:
    """Returns the shape of every tensor, by name."""
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(net)}


def changed_dims(before: Shapes, after: Shapes) -> Dims:
    """Returns the sizes that differ; a tensor with another number of axes counts as zero wide."""
    dims = {}
    for name, shape in before.items():
        other = after[name] if len(after[name]) == len(shape) else (0,) * len(shape)
        dims.update({(name, axis): (a, b) for axis, (a, b) in enumerate(zip(shape, other, strict=True)) if a != b})
    return dims


def of_tensors(dims: Dims | None, names: Collection[str]) -> Dims | None:
    """Returns the sizes of these tensors among those that change."""
    return dims and {dim: sizes for dim, sizes in dims.items() if dim[0] in names}


def output_axis(layer: nn.Module | None, key: str) -> int:
    """Returns the axis of a layer's tensor that is the layer's width."""
    if hasattr(layer, "embedding_dim") or (getattr(layer, "transposed", False) and key == "weight"):
        return 1
    if type(layer).__name__ == "Conv1D" and key == "weight":  # transformers: [inputs, outputs]
        return 1
    return 0


def primes(count: int) -> list[int]:
    """Returns as many primes, from 5 on."""
    found: list[int] = []
    number = 5
    while len(found) < count:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            found.append(number)
        number += 2
    return found
