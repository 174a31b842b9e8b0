"""Names what forward keeps on modules from one call to the next: the cause of members that are not independent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.proof.outcome import restored

FORGET = "Forward must not store values for later calls"
OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def what_is_stored(make: Callable[[], nn.Module], inputs: Inputs, mode: str) -> str:
    """Says which attributes change in every call of a network made by `make`, or in the first, and what to do about it."""
    try:
        network = make()
        seen = [dict(_attributes(network))]
        with restored(network, mode), torch.no_grad():
            for _ in range(3):  # the first call may create what the others keep
                call = fresh_inputs(inputs)
                network(*call.args, **call.kwargs)
                seen.append(dict(_attributes(network)))
    except Exception:  # the network does not run alone: its own error is told elsewhere
        return FORGET
    if changed := _changed(seen[2], seen[3]):
        when, instead = "in every call", "Compute that from the input"
    elif changed := _changed(seen[0], seen[1]):
        when, instead = "in the first call, and later ones use it", "Compute that in every call"
    else:
        return FORGET
    names = ", ".join(changed[:3]) + (" and others" if len(changed) > 3 else "")
    return f"{FORGET}: it changes {names} {when}. {instead}, or leave it out in a copy of the model"


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, value in after.items() if name not in before or not _same(value, before[name])]


def _attributes(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields copies of the values that modules hold besides parameters, buffers and modules."""
    for name, module in network.named_modules():
        for key, value in vars(module).items():
            if key not in OWN:
                yield f"self.{name}.{key}" if name else f"self.{key}", _kept(value)


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return [_kept(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _kept(one) for key, one in value.items()}
    return value if isinstance(value, (int, float, complex, str, bool, type(None))) else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
