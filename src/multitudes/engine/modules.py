"""Modules: their tensors by name, and copies of them with other tensors."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from multitudes.engine.tree import PLAIN, leaves
from multitudes.errors import InputError

EVERY_MODULES = frozenset(vars(nn.Module()))
"""What every module has: its registers, hooks and mode."""


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name, one name for each tensor."""
    return [*module.named_parameters(), *module.named_buffers()]


def is_channels_last(tensor: Tensor) -> bool:
    """Whether a tensor's memory is laid out with channels last: kernels of 1 × 1 are in both orders, and have its strides."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
    if layout is None or not tensor.is_contiguous(memory_format=layout):
        return False
    return tensor.stride() != _strides(tensor.shape)


def _strides(shape: torch.Size) -> tuple[int, ...]:
    """The strides of a tensor in the ordinary order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def in_layout(tensor: Tensor, layout: torch.memory_format, owned: bool) -> Tensor:
    """A tensor in a memory format; with a member axis, each member's slice in it."""
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(layout)
    if rank is None:
        ordinary = tensor.stride() == _strides(tensor.shape)
        return tensor if ordinary else tensor.clone(memory_format=torch.contiguous_format)
    if tensor.ndim - owned != rank:
        return tensor
    flat = tensor.flatten(0, 1) if owned else tensor
    placed: Tensor = flat.to(memory_format=layout)
    return placed.unflatten(0, tensor.shape[:2]) if owned else placed


def registers_of(module: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """The registers that hold each tensor of a module, under the tensor's first name; parameters first."""
    first: dict[int, str] = {}
    found: dict[str, list[tuple[dict[str, Any], str]]] = {}
    parts = list(module.named_modules())
    for kind in ("_parameters", "_buffers"):
        for name, part in parts:
            register = getattr(part, kind)
            for key, tensor in register.items():
                if tensor is not None:
                    full = first.setdefault(id(tensor), f"{name}.{key}" if name else key)
                    found.setdefault(full, []).append((register, key))
    return found


def hooked(module: nn.Module) -> list[str]:
    """Names of modules with hooks that run in forward or backward."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [name for name, part in module.named_modules() if any(getattr(part, kind) for kind in kinds)]


def owning_module(name: str) -> str:
    """The name of the module that a tensor belongs to; for a parametrized tensor, the module that uses it."""
    head, found, _ = name.partition(".parametrizations.")
    if found:
        return head
    if name.startswith("parametrizations."):
        return ""
    return name.rpartition(".")[0]


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """All BatchNorm layers by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}


def uses_batch(norm: _BatchNorm) -> bool:
    """Whether this layer normalises by the statistics of the rows at hand."""
    return norm.training or (norm.running_mean is None and norm.running_var is None)


def copy_with(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of the module that holds these tensors themselves, and shares nothing else with it."""
    memo: dict[int, Any] = {id(value): value.detach().clone() for _, value in kept_tensors(module) if not value.is_leaf}
    for name, tensor in named_tensors(module):
        memo[id(tensor)] = tensors.get(name, tensor)
    with torch.backends.cudnn.flags(enabled=False):  # a copied recurrent layer would put stacked weights into one piece
        return copy.deepcopy(module, memo)


def kept_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Tensors that modules keep beside their registers, by name: what forward left on self, also in lists and dicts."""
    found = []
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key in EVERY_MODULES or isinstance(value, (nn.Module, *PLAIN)):
                continue
            label = f"{name}.{key}" if name else key
            found += [(label, leaf) for _, leaf in leaves(value) if isinstance(leaf, Tensor)]
    return found


def as_same_kind(model: Tensor, value: Tensor) -> Tensor:
    """A value as a parameter, if that is what the tensor it stands for is."""
    return nn.Parameter(value, requires_grad=model.requires_grad) if isinstance(model, nn.Parameter) else value


def detached_copy(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A detached copy of the module with these values as its own parameters and buffers."""
    own = named_tensors(module)
    return copy_with(module, {name: as_same_kind(tensor, tensors.get(name, tensor).detach().clone()) for name, tensor in own})


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Attention by its ordinary operations: the fused inference path reads stacked weights wrongly or not at all."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def has_attention(module: nn.Module) -> bool:
    """Whether torch's attention modules, which have a fused inference path, are inside."""
    kinds = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    return any(isinstance(part, kinds) for part in module.modules())


Factory = Callable[[float], nn.Module]
"""Makes the model at a width: factory(1.0) is the model itself."""


def names_matching(names: Sequence[str], globs: Sequence[str], what: str) -> dict[str, list[str]]:
    """For each glob the names that it matches, whole or as an enclosing module; one that matches nothing is an error."""
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    found: dict[str, list[str]] = {}
    missing = []
    for glob in globs:
        hits = [n for n in names if fnmatchcase(n, glob)]
        found[glob] = hits
        if not hits:
            near = get_close_matches(glob, names, n=1, cutoff=0.0)
            missing.append(f"{glob!r}" + (f" (nearest: {near[0]!r})" if near else ""))
    if missing:
        raise InputError(f"{what} matches nothing in the model: {', '.join(missing)}")
    return found


def inside(name: str, modules: Sequence[str] | frozenset[str]) -> bool:
    """Whether a name is one of these modules or lies in one."""
    return any(module == "" or name == module or name.startswith(f"{module}.") for module in modules)


def owned_modules(model: nn.Module, keep: Callable[[str], bool]) -> frozenset[str]:
    """The names of all modules for which `keep` holds."""
    return frozenset(name for name, _ in model.named_modules() if keep(name))


def on_meta(module: nn.Module) -> nn.Module:
    """Copies the architecture onto the meta device: enough to count and to rebuild, without memory."""
    return copy_with(module, {name: as_same_kind(tensor, tensor.detach().to("meta")) for name, tensor in named_tensors(module)})
