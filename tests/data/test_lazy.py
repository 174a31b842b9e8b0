"""Inputs that are read when they are asked for: only those, in the order asked."""

from __future__ import annotations

import pytest
import torch

import multitudes as mt
from multitudes.data.lazy import Lazy


def counting(sizes: tuple[int, ...] = (2, 2, 2, 2)) -> tuple[Lazy, list[int]]:
    """Inputs of so many entries that hold their number, and a list of what was read."""
    read: list[int] = []

    def one(number: int) -> torch.Tensor:
        read.append(number)
        return torch.full((sizes[number],), float(number))

    return Lazy(one, torch.arange(4), (4, 2)), read


def test_only_what_is_asked_for_is_read() -> None:
    lazy, read = counting()
    assert len(lazy) == 4
    assert read == []
    assert lazy.take(torch.tensor([3, 1])).tolist() == [[3, 3], [1, 1]]
    assert read == [3, 1]


def test_a_part_of_a_part_keeps_its_numbers() -> None:
    lazy, read = counting()
    part = lazy.only(torch.tensor([3, 2, 0])).only(slice(1, 3))
    assert read == []
    assert part.shape == (2, 2)
    assert part.take(slice(None)).tolist() == [[2, 2], [0, 0]]


def test_inputs_of_another_size_are_named() -> None:
    lazy, _ = counting((2, 2, 3, 2))
    with pytest.raises(mt.InputError, match=r"input 2 is \[3\], and the first one \[2\]"):
        lazy.take(slice(None))
