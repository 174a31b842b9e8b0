"""Values that forward computed from the given weights in an earlier call, kept on modules and uses again.

Members have other weights: they start without these values, as a network does that was never called.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.modules import EVERY_MODULES, detached_copy, named_parts
from multitudes.engine.seeds import seeded
from multitudes.engine.tree import tensors

Place = tuple[str, str]
"""The name of a module, and of an attribute that is no parameter, buffer or module."""


def stale_values(model: nn.Module, inputs: Inputs) -> list[Place]:
    """Finds attributes that keep their values under other weights, and that forward computes from the weights if empty."""
    places = [place for place, value in _kept(model).items() if value]
    if not places or any(tensor.is_meta for tensor in model.parameters()):
        return []
    before, after = _kept(model), _after_a_call(model, inputs, ())
    places = [place for place in places if _same(after.get(place, []), before[place])]
    return _made_again(model, inputs, places, before)


def empty(network: nn.Module, places: Collection[Place]) -> None:
    """Empties attributes of a network in place, where it has them."""
    parts = dict(named_parts(network))
    for name, key in places:
        if name in parts and key in vars(parts[name]):
            value = vars(parts[name])[key]
            vars(parts[name])[key] = type(value)() if type(value) in (dict, list) else None


def _made_again(model: nn.Module, inputs: Inputs, places: list[Place], before: dict[Place, list[Tensor]]) -> list[Place]:
    """Returns the places that forward fills with other values; each alone if it does not run without all of them."""
    if not places:
        return []
    try:
        after = _after_a_call(model, inputs, places)
    except Exception:  # a value that the constructor made
        return [] if len(places) == 1 else [found for place in places for found in _made_again(model, inputs, [place], before)]
    return [place for place in places if after.get(place) and not _same(after[place], before[place])]


def _after_a_call(model: nn.Module, inputs: Inputs, places: Collection[Place]) -> dict[Place, list[Tensor]]:
    """Returns what a copy with other weights keeps after a call in eval mode, if these places were empty."""
    copy, call = detached_copy(model, {}), fresh_inputs(inputs)
    empty(copy, places)
    for part in copy.modules():
        part.training = False  # not by eval(), with which a module may empty them
    with seeded(0), torch.no_grad():
        for parameter in copy.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.mul_(1.1).add_(0.01)
        copy(*call.args, **call.kwargs)
    return _kept(copy)


def _kept(model: nn.Module) -> dict[Place, list[Tensor]]:
    found: dict[Place, list[Tensor]] = {}
    for name, part in named_parts(model):
        for key, value in vars(part).items():
            if key not in EVERY_MODULES and (type(value) in (dict, list, tuple) or isinstance(value, Tensor)):
                found[name, key] = tensors(value)
    return found


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.layout is not other.layout or one.is_nested or other.is_nested or one.shape != other.shape:
        return one is other
    dense = one.layout is torch.strided
    return torch.equal(one, other) if dense else torch.equal(one.to_dense(), other.to_dense())
