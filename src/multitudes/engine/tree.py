"""Nested values: the tensors inside tuples, dicts, dataclasses and Hugging Face outputs.

A model may take and return any of these. The functions here split them into tensors and rebuild them.
Other values (None, numbers, strings) are passed through. Caches of keys and values are left out of an ensemble's outputs, and
so are objects without tensors; objects that hold tensors in a way of their own are refused.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.errors import RunError

Tree = Any
"""A tensor, or a tuple, list, mapping or dataclass of trees, or a plain constant."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def parts(tree: Tree) -> list[tuple[str, Tree]] | None:
    """Returns the named parts of a nested value, or None for a leaf."""
    if isinstance(tree, (Tensor, *PLAIN)) or is_cache(tree):
        return None
    if isinstance(tree, Mapping):
        return [(str(key), value) for key, value in tree.items()]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, (tuple, list)):
        return [(str(index), value) for index, value in enumerate(tree)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return None


def is_cache(value: Any) -> bool:
    """Whether a value is a cache of keys and values, by the name of its class, such as transformers' DynamicCache."""
    return type(value) not in (tuple, list, dict) and type(value).__name__.endswith("Cache")


def rebuild(tree: Tree, values: Sequence[Tree]) -> Tree:
    """Builds a nested value of the same type as `tree` from these parts."""
    if isinstance(tree, Mapping):
        items = zip(tree.keys(), values, strict=True)
        if dataclasses.is_dataclass(tree):  # a Hugging Face output: a dataclass and a mapping, which leaves out None
            return type(tree)(**dict(items))
        return dict(items) if type(tree) is dict else type(tree)(items)  # type: ignore[call-arg]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*values)
    if isinstance(tree, (tuple, list)):
        return type(tree)(values)
    new = copy.copy(tree)
    for field, value in zip(dataclasses.fields(tree), values, strict=True):
        object.__setattr__(new, field.name, value)
    return new


def leaves(tree: Tree, name: str = "") -> Iterable[tuple[str, Any]]:
    """Yields each leaf with its dotted name, in order."""
    inner = parts(tree)
    if inner is None:
        yield name, tree
        return
    for key, value in inner:
        yield from leaves(value, f"{name}.{key}" if name else key)


def tensors(tree: Tree) -> list[Tensor]:
    """Returns the tensors in a nested value, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in (tuple, list):
        values = tree
    elif type(tree) is dict:
        values = tree.values()
    else:
        values = [value for _, value in parts(tree) or ()]
    return [tensor for value in values for tensor in tensors(value)]


def refill(tree: Tree, values: Iterable[Tensor]) -> Tree:
    """Replaces the tensors of a nested value; `values` come in the order of `tensors(tree)`."""
    return _filled(tree, iter(values))  # a function inside this one would know itself, and keep the values until a collection


def _filled(node: Tree, source: Iterator[Tensor]) -> Tree:
    if isinstance(node, Tensor):
        return next(source)
    inner = parts(node)
    return node if inner is None else rebuild(node, [_filled(value, source) for _, value in inner])


def apply(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Applies `function` to each tensor of a nested value."""
    if isinstance(tree, Tensor):
        return function(tree)
    return refill(tree, [function(tensor) for tensor in tensors(tree)])


def stack(outputs: Sequence[Tree]) -> Tree:
    """Stacks the members' outputs: each tensor gains a leading member axis. Constants must be equal for all members."""
    first = outputs[0]
    if isinstance(first, Tensor) and all(isinstance(other, Tensor) for other in outputs):
        return torch.stack(list(outputs))
    names = [name for name, leaf in leaves(first) if isinstance(leaf, Tensor)]
    columns = [tensors(output) for output in outputs]
    constants = [plain(output) for output in outputs]
    if any(len(column) != len(names) for column in columns) or any(c != constants[0] for c in constants):
        raise RunError(
            "members return outputs of different structure, so they cannot be stacked: "
            f"member 0 returns tensors {names} and constants {constants[0]}. "
            "Make forward return the same tensors and constants for every member"
        )
    return refill(first, [torch.stack(members) for members in zip(*columns, strict=True)])


def left_out(tree: Tree) -> dict[str, str]:
    """Names the outputs that an ensemble does not return, with their types: caches, and objects without tensors."""
    others = [(name, leaf) for name, leaf in leaves(tree) if not isinstance(leaf, (Tensor, *PLAIN))]
    return {name: type(leaf).__name__ for name, leaf in others if name and (is_cache(leaf) or not _holds_tensor(leaf))}


def without_objects(tree: Tree) -> Tree:
    """Returns the value with None in place of the outputs that are left out (`left_out`)."""
    if isinstance(tree, Tensor):
        return tree
    names = left_out(tree)

    def clear(node: Tree, name: str) -> Tree:
        inner = parts(node)
        if inner is None:
            return None if name in names else node
        return rebuild(node, [clear(value, f"{name}.{key}" if name else key) for key, value in inner])

    return clear(tree, "") if names else tree


def _holds_tensor(value: Any, depth: int = 3) -> bool:
    """Whether an object has a tensor in its attributes or entries, or in those of an object inside it."""
    if isinstance(value, Tensor):
        return True
    if depth == 0 or isinstance(value, (*PLAIN, type)):
        return False
    inner = list(getattr(value, "__dict__", {}).values()) + [getattr(value, key, None) for key in _slots(value)]
    if isinstance(value, Mapping):
        inner += value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner += value
    return any(_holds_tensor(part, depth - 1) for part in inner)


def _slots(value: Any) -> list[str]:
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    return [key for keys in slots for key in ([keys] if isinstance(keys, str) else keys)]


def plain(tree: Tree) -> dict[str, Any]:
    """Returns the plain constants of a nested value, by name. Skips tensors. Raises an error for any other object."""
    constants = {}
    for name, leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            continue
        if not isinstance(leaf, PLAIN):
            raise RunError(
                f"output {name or 'of the model'} is a {type(leaf).__name__}, which cannot be stacked over members: "
                "return its tensors in a tuple, dict or dataclass, or leave this output out"
            )
        constants[name] = leaf
    return constants


def take(tree: Tree, index: int) -> Tree:
    """Takes entry `index` along the first axis of each tensor."""
    return apply(lambda tensor: tensor[index], tree)
