"""Values that are computed on access: inputs read from files or datasets (Lazy), and mappings of datasets (LazyMapping)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from multitudes.errors import InputError

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Lazy:
    """Inputs of a dataset that are read one by one whenever a batch needs them."""

    read: Callable[..., Tensor]
    """Reads one input, by its index in the source (a list of files, another dataset)."""

    rows: Tensor
    """Indices into the source, ``[N]``."""

    shape: tuple[int, ...]
    """``(N, *shape of one input)``."""

    varies: bool = False
    """Whether inputs are random, such as crops for training: `read` then takes a seed too, as in read(index, seed)."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor | slice, seed: int | None = None) -> Tensor:
        """Reads the inputs at `index` now, ``[B, ...]``. Those that vary follow from the seed and their index in the source."""
        rows = self.rows[index].tolist()
        inputs = [self.read(row, seed) if self.varies else self.read(row) for row in rows]
        for row, x in zip(rows, inputs, strict=True):
            if tuple(x.shape) != self.shape[1:]:
                raise InputError(
                    f"input {row} has shape {list(x.shape)}, but input 0 has {list(self.shape[1:])}: "
                    "resize all inputs to one shape"
                )
        return torch.stack(inputs) if inputs else torch.empty(0, *self.shape[1:])

    def subset(self, index: Tensor | slice) -> Lazy:
        """Returns the inputs at `index` without reading them."""
        rows = self.rows[index]
        return replace(self, rows=rows, shape=(len(rows), *self.shape[1:]))


@dataclass(frozen=True)
class Concatenated:
    """Reads input i of `first`, or input i − len(first) of `second`."""

    first: Lazy
    second: Lazy

    def __call__(self, index: int, seed: int | None = None) -> Tensor:
        """Returns input `index` of the concatenation."""
        part, at = (self.first, index) if index < len(self.first) else (self.second, index - len(self.first))
        return part.take(slice(at, at + 1), seed)[0]


def concatenate(first: Tensor | Lazy, second: Tensor | Lazy) -> Tensor | Lazy:
    """Concatenates inputs along the batch axis. The result is a Lazy if both are."""
    if isinstance(first, Lazy) and isinstance(second, Lazy):
        count = len(first) + len(second)
        varies = first.varies or second.varies
        return Lazy(Concatenated(first, second), torch.arange(count), (count, *first.shape[1:]), varies)
    if isinstance(first, Lazy) or isinstance(second, Lazy):
        raise InputError("one dataset is in memory and the other is lazy: call in_memory() on the lazy one before adding them")
    if first.dtype != second.dtype:  # torch.cat would convert silently, and floats are not divided by 255
        raise InputError(f"inputs have dtypes {first.dtype} and {second.dtype}: convert one of them before adding the datasets")
    return torch.cat([first, second])


class LazyMapping(Mapping[K, V]):
    """A mapping that computes a value on each access and does not keep it."""

    def __init__(self, keys: tuple[K, ...], value: Callable[[K], V]) -> None:
        self._keys, self._value = keys, value

    def __getitem__(self, key: K) -> V:
        if key not in self._keys:
            raise KeyError(f"there is no {key!r}: choose from {', '.join(map(str, self._keys))}")
        return self._value(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"LazyMapping({', '.join(map(str, self._keys))})"
