"""Functions on modules: look up tensors by name, and copy a module with other tensors."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CellType, FunctionType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from multitudes.engine.tree import PLAIN, leaves
from multitudes.errors import InputError, listed

F = TypeVar("F", bound=Callable[..., Any])
Paths: TypeAlias = dict[str, list[tuple[tuple[str, ...], str, str]]]
"""The places of tensors by their first name: the path of a module, "_parameters" or "_buffers", and the key there."""

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type})
"""Types whose values are never copied."""

EVERY_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every nn.Module has: its registers, hooks and mode."""
HOOKS = frozenset(key for key, value in vars(nn.Module()).items() if key.endswith("_hooks") and isinstance(value, dict))
"""Those that hold hooks."""


def join_name(module: str, key: str) -> str:
    """Returns the full name of a tensor: the module's name, a dot and the key. The root module has an empty name."""
    return f"{module}.{key}" if module else key


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Returns parameters and buffers with their names; a tied tensor appears once."""
    return tensors_of(named_parts(module))


def tensors_of(parts: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, Tensor]]:
    """Returns the parameters and buffers that these modules hold themselves, each under its first name."""
    tensors: list[tuple[str, Tensor]] = []
    for kind in ("_parameters", "_buffers"):
        seen: set[int] = set()
        for name, part in parts:
            for key, tensor in getattr(part, kind).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    tensors.append((join_name(name, key), tensor))
    return tensors


def named_parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns what `module.named_modules()` yields: each module once, with its first name. It takes a tenth of the time."""
    parts: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        name, part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            parts.append((name, part))
            inner = [(join_name(name, key), child) for key, child in part._modules.items() if child is not None]
            waiting.extend(reversed(inner))
    return parts


def is_channels_last(tensor: Tensor) -> bool:
    """Checks whether a tensor is laid out with channels last.

    A 1 × 1 kernel is contiguous in both layouts, so its strides decide.
    """
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
    if layout is None or not tensor.is_contiguous(memory_format=layout):
        return False
    return tensor.stride() != _strides(tensor.shape)


def _strides(shape: torch.Size) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor of this shape."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def in_layout(tensor: Tensor, layout: torch.memory_format, owned: bool) -> Tensor:
    """Returns the tensor in a memory format. If it has a member axis (`owned`), each member's slice gets the format."""
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(layout)
    if rank is None:
        contiguous = tensor.stride() == _strides(tensor.shape)
        return tensor if contiguous else tensor.clone(memory_format=torch.contiguous_format)
    if tensor.ndim - owned != rank:
        return tensor
    flat = tensor.flatten(0, 1) if owned else tensor
    formatted: Tensor = flat.to(memory_format=layout)
    return formatted.unflatten(0, tensor.shape[:2]) if owned else formatted


def paths_of(module: nn.Module) -> Paths:
    """Maps each tensor's first name to its places: the path of a module, "_parameters" or "_buffers", and the key there.

    A tied tensor has several places.
    """
    return paths_in(named_parts(module))


def paths_in(parts: Sequence[tuple[str, nn.Module]]) -> Paths:
    """Does what `paths_of` does, for a module's `named_parts`."""
    first: dict[int, str] = {}
    places: Paths = {}
    for kind in ("_parameters", "_buffers"):
        for name, part in parts:
            path = tuple(name.split(".")) if name else ()
            for key, tensor in getattr(part, kind).items():
                if tensor is not None:
                    full = first.setdefault(id(tensor), join_name(name, key))
                    places.setdefault(full, []).append((path, kind, key))
    return places


def registers_of(module: nn.Module, paths: Paths | None = None) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Maps each tensor's first name to its places: a module's `_parameters` or `_buffers` dict, and the key there."""
    known = paths_of(module) if paths is None else paths
    return {name: [(register_at(module, path, kind), key) for path, kind, key in places] for name, places in known.items()}


def register_at(module: nn.Module, path: Sequence[str], kind: str) -> dict[str, Any]:
    """Returns the `_parameters` or `_buffers` dict of the module at a path."""
    for key in path:
        module = module._modules[key]  # type: ignore[assignment]
    return module._parameters if kind == "_parameters" else module._buffers


def constant(method: F) -> F:
    """Marks a method whose result never changes. Dynamo calls it, and neither traces it nor guards what it reads."""
    method._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return method


def hooked(module: nn.Module) -> list[str]:
    """Returns the names of modules with forward or backward hooks that may see values."""
    names = []
    for name, part in named_parts(module):
        kinds = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        if any(kinds) and any(_sees_members(hook) for hooks in kinds for hook in hooks.values()):
            names.append(name)
    return names


CAPTURING = "transformers.utils.output_capturing"
"""The module of transformers' hooks on every block. They hand values to the output of the same call, and keep none."""


def _sees_members(hook: Any) -> bool:
    """Whether a hook may do with the values of all members what was meant for one's."""
    return getattr(hook, "sees_members", True) and getattr(hook, "__module__", "") != CAPTURING


WRAPPERS = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "_FabricModule": "module"}
"""Classes that wrap a module, by name, and the attribute that holds it: of torch.compile, of processes, of Lightning Fabric."""


def unwrapped(module: Any) -> Any:
    """Returns the module inside torch.compile's, DistributedDataParallel's and Lightning Fabric's wrappers."""
    while isinstance(module, nn.Module) and type(module).__name__ in WRAPPERS:
        module = getattr(module, WRAPPERS[type(module).__name__])
    return module


def under_autocast(device: str) -> bool:
    """Checks whether autocast is on for a type of device; the meta device has none."""
    return device != "meta" and torch.is_autocast_enabled(device)


def owning_module(name: str) -> str:
    """Returns the name of the module that holds a tensor; for a parametrized tensor, the module that uses it."""
    head, separator, _ = name.partition(".parametrizations.")
    if separator:
        return head
    if name.startswith("parametrizations."):
        return ""
    return name.rpartition(".")[0]


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """Returns all BatchNorm layers by name."""
    return {name: layer for name, layer in named_parts(module) if isinstance(layer, _BatchNorm)}


def uses_batch(norm: _BatchNorm) -> bool:
    """Checks whether this layer now normalises by the statistics of the batch, not by its running ones."""
    return norm.training or (norm.running_mean is None and norm.running_var is None)


@contextlib.contextmanager
def kept_modes(module: nn.Module) -> Iterator[None]:
    """Puts every layer back into its mode after a with-block: one may be in another than the rest."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def copy_with(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Copies a module. `tensors` replaces parameters and buffers by name, without cloning; the others stay shared."""
    memo: dict[int, Any] = {id(value): value.detach().clone() for _, value in kept_tensors(module) if not value.is_leaf}
    for name, tensor in named_tensors(module):
        memo[id(tensor)] = tensors.get(name, tensor)
    enabled = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)  # a copied recurrent layer would flatten stacked weights into one chunk
    try:
        return duplicate(module, memo)
    finally:
        torch._C._set_cudnn_enabled(enabled)


def duplicate(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copies a module as `copy.deepcopy` does, in a fifth of the time; its hooks see the copy."""
    new: nn.Module = _duplicate(module, memo)
    _turn_hooks(module, new)
    return new


def deep_copied(state: Any, module: nn.Module, memo: dict[int, Any]) -> Any:
    """Copies the state of an object that has a module in it, by `copy.deepcopy`; hooks of the module's copy see the copy."""
    memo.update({id(kept): kept.detach().clone() for _, kept in kept_tensors(module) if not kept.is_leaf})
    new = copy.deepcopy(state, memo)
    _turn_hooks(module, memo[id(module)])
    return new


def _turn_hooks(module: nn.Module, new: nn.Module) -> None:
    """Lets the hooks of a copy see the copy: functions that refer to the given module would go on writing into that one."""
    parts = [(old, part) for (_, old), (_, part) in zip(named_parts(module), named_parts(new), strict=True)]
    registers = [register for _, part in parts for key in HOOKS if (register := vars(part).get(key))]
    if not registers:
        return
    copies: dict[int, Any] = {id(old): part for old, part in parts}
    for old, part in parts:
        kept = ((value, vars(part).get(key)) for key, value in vars(old).items() if key not in EVERY_MODULES)
        copies |= {id(value): copied for value, copied in kept if isinstance(value, (dict, list, set))}
    for register in registers:
        register.update({key: _turned(hook, copies) for key, hook in register.items()})


def _turned(hook: Any, copies: dict[int, Any]) -> Any:
    """Returns a function that refers to the copies of what it refers to now; other hooks as they are."""
    cells = getattr(hook, "__closure__", None) if type(hook) is FunctionType else None
    if not cells or not any(id(_contents(cell)) in copies for cell in cells):
        return hook
    closure = tuple(CellType(copies[key]) if (key := id(_contents(cell))) in copies else cell for cell in cells)
    turned = FunctionType(hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, closure)
    turned.__kwdefaults__ = hook.__kwdefaults__
    return turned


def _contents(cell: CellType) -> Any:
    """Returns what a variable of a function refers to; None if nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _duplicate(value: Any, memo: dict[int, Any]) -> Any:
    """Copies as `copy.deepcopy` does: most attributes of a module are plain or empty, and take no time."""
    kind = type(value)
    if kind in ATOMS or (kind is tuple and ATOMS.issuperset(map(type, value))):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind is set and not value:
        return set()
    if kind is dict or (kind is OrderedDict and not vars(value)):
        new = memo[id(value)] = kind()
        if value:
            new.update({_duplicate(key, memo): _duplicate(part, memo) for key, part in value.items()})
        return new
    state = _state(value, kind) if isinstance(value, nn.Module) and _copies_by_state(kind) else None
    if type(state) is not dict:
        return copy.deepcopy(value, memo)
    memo.setdefault(id(memo), []).append(state)  # kept, as deepcopy does: another object could get its address
    new = memo[id(value)] = object.__new__(kind)
    new.__setstate__({key: part if type(part) in ATOMS else _duplicate(part, memo) for key, part in state.items()})
    return new


def _state(module: nn.Module, kind: type[nn.Module]) -> Any:
    """Returns what pickle would store of a module. A converted class has its own way: recurrent layers would store weights."""
    return dict(vars(module)) if "made_of" in vars(kind) else module.__getstate__()


def _copies_by_state(kind: type[nn.Module]) -> bool:
    """Whether `copy.deepcopy` copies a module of this class by its state, and in no way of its own.

    A converted class is pickled in a way of its own, but copied as the class that it is made of.
    """
    usual = ("__reduce_ex__", "__reduce__", "__new__")
    plain: Any = vars(kind)["made_of"][1] if "made_of" in vars(kind) else kind
    own = hasattr(plain, "__deepcopy__") or plain in copyreg.dispatch_table
    return not own and all(getattr(plain, name) is getattr(object, name) for name in usual)


def kept_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Returns (name, tensor) for tensors in plain attributes of modules, such as caches; also inside lists and dicts."""
    tensors = []
    for name, part in named_parts(module):
        for key, value in vars(part).items():
            if key in EVERY_MODULES or _holds_none(value):
                continue
            tensors += [(join_name(name, key), leaf) for _, leaf in leaves(value) if isinstance(leaf, Tensor)]
    return tensors


def _holds_none(value: Any) -> bool:
    """Whether an attribute is seen at once to hold no tensor."""
    kind = type(value)
    if kind in ATOMS or isinstance(value, (nn.Module, *PLAIN)):
        return True
    return kind in (tuple, list, dict) and ATOMS.issuperset(map(type, value.values() if kind is dict else value))


def empty_dicts(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Returns the places of empty dicts in plain attributes of modules, where forward may keep what it computed."""
    return [(vars(part), key) for _, part in named_parts(module) for key in _dicts_of(part) if not vars(part)[key]]


def without_caches(module: nn.Module) -> None:
    """Empties what modules computed from their weights and kept, in place: modules do so themselves when their mode is set."""
    modes = [(part, part.training) for part in module.modules()]
    for part in [part for part, _ in modes if any(vars(part)[key] for key in _dicts_of(part))]:
        part.train()
    for part, training in modes:
        part.training = training


def _dicts_of(part: nn.Module) -> list[str]:
    return [key for key, value in vars(part).items() if type(value) is dict and key not in EVERY_MODULES]


def as_same_kind(tensor: Tensor, value: Tensor) -> Tensor:
    """Wraps `value` as a Parameter if `tensor` is one."""
    return nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def detached_copy(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Copies a module with detached clones of all its tensors. `tensors` gives other values for some, by name."""
    values = {n: as_same_kind(tensor, tensors.get(n, tensor).detach().clone()) for n, tensor in named_tensors(module)}
    return copy_with(module, values)


def note_names(module: nn.Module) -> frozenset[str]:
    """Names the buffers that a method keeps for itself, such as moments of the weights: no forward reads them or writes them.

    They may be many times larger than the network, so copies for trial runs share their memory.
    """
    converted = ((name, part) for name, part in named_parts(module) if "made_of" in vars(type(part)))
    return frozenset(join_name(name, key) for name, part in converted for key in vars(part).get("notes", ()))


def light_copy(module: nn.Module, own: Callable[[str], bool] = lambda name: False) -> nn.Module:
    """Copies a module with its own buffers, and its own parameters where `own(name)`; the others share their memory.

    Tensors that were made in inference mode cannot have gradients, so they are not shared.
    """
    values, notes = {}, note_names(module)
    for name, tensor in named_tensors(module):
        shares = (isinstance(tensor, nn.Parameter) or name in notes) and not own(name) and not tensor.is_inference()
        values[name] = as_same_kind(tensor, tensor.detach() if shares else tensor.detach().clone())
    return copy_with(module, values)


@contextlib.contextmanager
def with_attribute(parts: Sequence[nn.Module], key: str, value: Any) -> Iterator[None]:
    """Sets an attribute of modules in a with-block, and deletes it afterwards."""
    for part in parts:
        vars(part)[key] = value
    try:
        yield
    finally:
        for part in parts:
            del vars(part)[key]


_plain: list[bool] = []
_plain_lock = threading.Lock()


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Turns off torch's fused attention in a with-block: it reads stacked weights wrongly or not at all.

    torch has one switch for all threads: the last with-block to end turns it back to what the first one found.
    """
    with _plain_lock:
        _plain.append(_plain[0] if _plain else torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _plain_lock:
            before = _plain.pop()
            if not _plain:
                torch.backends.mha.set_fastpath_enabled(before)


def has_attention(module: nn.Module) -> bool:
    """Checks whether a module contains torch's attention modules, which have a fused inference path."""
    kinds = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    return any(isinstance(part, kinds) for _, part in named_parts(module))


Factory = Callable[[float], nn.Module]
"""Makes the model at a width ratio: factory(1.0) has the original width."""


def names_matching(names: Sequence[str], globs: Sequence[str], what: str) -> dict[str, list[str]]:
    """Maps each glob to the names that it matches. Raises an error for globs without a match, with the nearest name."""
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    matches: dict[str, list[str]] = {}
    missing, unlike = [], False
    for glob in globs:
        hits = [n for n in names if fnmatchcase(n, glob)]
        matches[glob] = hits
        if not hits:
            near = get_close_matches(glob, names, n=1, cutoff=0.5)
            missing.append(f"{glob!r}" + (f" (nearest: {near[0]!r})" if near else ""))
            unlike = unlike or not near
    if missing:
        named = [name for name in names if name]
        first = (f". There are {listed(named)}" if named else ". It has no parts with names") if unlike else ""
        raise InputError(f"{what} matches nothing in the model: {', '.join(missing)}{first}")
    return matches


def inside(name: str, modules: Collection[str]) -> bool:
    """Checks whether a name is one of these modules or lies inside one."""
    while name not in modules:
        if not name:
            return False
        name = name.rpartition(".")[0]
    return True


def owned_modules(model: nn.Module, keep: Callable[[str], bool]) -> frozenset[str]:
    """Returns the names of all modules for which `keep(name)` is true."""
    return frozenset(name for name, _ in model.named_modules() if keep(name))


def on_meta(module: nn.Module) -> nn.Module:
    """Copies a module to the meta device, where tensors take no memory: enough to count costs and to rebuild it."""
    return copy_with(module, {name: as_same_kind(tensor, tensor.detach().to("meta")) for name, tensor in named_tensors(module)})
