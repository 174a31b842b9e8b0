"""Inputs that are read when they are asked for: image files, and the items of other datasets; and how inputs are joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from multitudes.errors import InputError


@dataclass(frozen=True)
class Lazy:
    """Inputs that stay where they are until a batch takes them."""

    read: Callable[[int], Tensor]
    """Gives one input by its number there."""

    rows: Tensor
    """Which inputs, by their numbers there."""

    shape: tuple[int, ...]
    """The shape of all: N, and then that of one input."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor | slice) -> Tensor:
        """These inputs, read now, ``[B, ...]``."""
        found = [self.read(row) for row in self.rows[index].tolist()]
        for row, one in zip(self.rows[index].tolist(), found, strict=True):
            if tuple(one.shape) != self.shape[1:]:
                raise InputError(
                    f"input {row} is {list(one.shape)}, and the first one {list(self.shape[1:])}: make all one size"
                )
        return torch.stack(found) if found else torch.empty(0, *self.shape[1:])

    def only(self, index: Tensor | slice) -> Lazy:
        """These inputs, still unread."""
        rows = self.rows[index]
        return replace(self, rows=rows, shape=(len(rows), *self.shape[1:]))


@dataclass(frozen=True)
class Joined:
    """Reads from some inputs, and beyond their end from others."""

    first: Lazy
    second: Lazy

    def __call__(self, number: int) -> Tensor:
        """One input, by its number in both."""
        beyond = number - len(self.first)
        return self.first.take(slice(number, number + 1))[0] if beyond < 0 else self.second.take(slice(beyond, beyond + 1))[0]


def joined(first: Tensor | Lazy, second: Tensor | Lazy) -> Tensor | Lazy:
    """Inputs and then others of the same shape, in memory if both are and unread if both are."""
    if isinstance(first, Lazy) and isinstance(second, Lazy):
        count = len(first) + len(second)
        return Lazy(Joined(first, second), torch.arange(count), (count, *first.shape[1:]))
    if isinstance(first, Lazy) or isinstance(second, Lazy):
        raise InputError("one set is in memory and the other is read when asked for: in_memory() reads all of it")
    if first.dtype != second.dtype:
        raise InputError(f"inputs of type {first.dtype} and {second.dtype} cannot be joined: make them one type")
    return torch.cat([first, second])
