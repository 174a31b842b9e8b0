"""Tells whether layers were trained, by signs that training leaves and constructors do not."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from multitudes.conversion.anatomy.initialise import is_constant
from multitudes.conversion.anatomy.structure import NORMS, own_tensors

WRITES = 20
"""A tensor that was written to more often was written by an optimizer: initialisers write a few times."""


def trained_layer(model: nn.Module, names: Collection[str]) -> str:
    """Names one of the layers `names` that looks trained, with the sign; "" if none does. Frozen tensors are left out.

    A norm of torch starts constant, and does not stay so; others may start by the first batch. One with running statistics
    must have seen data too, since some constructors draw its scale (DCGAN). In other layers the number of writes is the sign.
    Weights that were loaded from a file into a network without norms show no sign.
    """
    for name in names:
        layer = model.get_submodule(name)
        free = [p for p in own_tensors(layer).values() if isinstance(p, nn.Parameter) and p.requires_grad]
        if isinstance(layer, NORMS) and _has_seen_data(layer) and any(not is_constant(p) for p in free):
            return f"the norm {name} has learnt" if name else "the norm has learnt"
        if any(_writes(p) > WRITES for p in free):
            return f"an optimizer has changed {name}" if name else "an optimizer has changed it"
    return ""


def _has_seen_data(norm: nn.Module) -> bool:
    """Whether the running statistics have moved from 0 and 1; True for a norm without them."""
    mean, variance = (getattr(norm, key, None) for key in ("running_mean", "running_var"))
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return True
    return not mean.is_meta and bool((mean != 0).any() or (variance != 1).any())


def _writes(parameter: Tensor) -> int:
    """How often a parameter was written to in place, since it was made or copied; 0 where torch does not count."""
    return 0 if parameter.is_inference() else parameter._version
