"""Constants of a network: tensors and arrays in plain attributes, such as random features or a permutation.

No state dict holds them, so another instance of the class may have drawn others. A file has those that the ensemble computes
with; what forward keeps there from call to call is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multitudes.engine.modules import EVERY_MODULES, copy_with, join_name, named_parts, named_tensors
from multitudes.ensemble import Ensemble

CONSTANT = "constant/"
"""Begins the names of constants in a file."""


def constants_of(ensemble: Ensemble) -> dict[str, Tensor]:
    """Returns the constants of the given model that the members' network still has, by name in a file."""
    ours = dict(_constants(ensemble.template))
    found = {}
    for name, value in _constants(ensemble.base):
        if name in ours and _same(value, ours[name]):
            found[name] = _tensor(value).detach().to("cpu", copy=True).contiguous()
    return found


def with_constants(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Returns a copy of a model with these constants where it has others of the same shapes; else the model itself."""
    here = dict(_constants(model))
    differ = {n: t for n, t in tensors.items() if n in here and _replaces(t, here[n])}
    if not differ:
        return model
    copy = copy_with(model, {})
    for module, part in named_parts(copy):
        for key, value in vars(part).items():
            name = CONSTANT + join_name(module, key)
            if key not in EVERY_MODULES and any(f"{each}.".startswith(f"{name}.") for each in differ):
                vars(part)[key] = _filled(value, name, differ)
    return copy


def _constants(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields tensors and arrays in plain attributes of modules, also inside lists, queues, tuples and dicts."""
    registered = {id(tensor) for _, tensor in named_tensors(model)}
    for name, part in named_parts(model):
        for key, value in vars(part).items():
            if key not in EVERY_MODULES:
                yield from ((n, v) for n, v in _leaves(value, CONSTANT + join_name(name, key)) if id(v) not in registered)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if type(value) is tuple or isinstance(value, (list, deque, dict)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, f"{name}.{key}")
    elif (isinstance(value, np.ndarray) and value.dtype.kind in "biufc") or (type(value) is Tensor and not _is_special(value)):
        yield name, value


def _is_special(tensor: Tensor) -> bool:
    """Whether a tensor has no plain numbers: sparse, quantised, without memory, or kept from a call of several members."""
    plain = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized
    return not plain or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _filled(value: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """Returns a value with these tensors in their places; lists, queues and dicts are filled in place."""
    if type(value) is tuple:
        return tuple(_filled(part, f"{name}.{index}", tensors) for index, part in enumerate(value))
    if isinstance(value, (list, deque, dict)):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[key] = _filled(part, f"{name}.{key}", tensors)
        return value
    if name not in tensors:
        return value
    if isinstance(value, np.ndarray):
        return tensors[name].numpy().astype(value.dtype)
    return tensors[name].to(value.device, copy=True)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and not _replaces(_tensor(one), other) and one.shape == other.shape


def _replaces(tensor: Tensor, value: Any) -> bool:
    """Whether a value has the shape and dtype of this tensor, and other numbers."""
    old = _tensor(value).detach()
    if old.shape != tensor.shape or old.dtype != tensor.dtype:
        return False
    return not torch.allclose(tensor.detach().to(old.device), old, rtol=0, atol=0, equal_nan=True)
