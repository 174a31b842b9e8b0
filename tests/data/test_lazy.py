"""Lazy inputs: only those of a batch are read, in its order."""

from __future__ import annotations

import pytest
import torch

from multitudes.data.lazy import Lazy
from multitudes.errors import InputError


def counting(sizes: tuple[int, ...] = (2, 2, 2, 2)) -> tuple[Lazy, list[int]]:
    """Inputs of these sizes filled with their index, and the list of indices read."""
    read: list[int] = []

    def one(number: int) -> torch.Tensor:
        read.append(number)
        return torch.full((sizes[number],), float(number))

    return Lazy(one, torch.arange(4), (4, 2)), read


def test_only_the_rows_of_a_batch_are_read() -> None:
    lazy, read = counting()
    assert len(lazy) == 4
    assert read == []
    assert lazy.take(torch.tensor([3, 1])).tolist() == [[3, 3], [1, 1]]
    assert read == [3, 1]


def test_a_part_of_a_part_keeps_its_numbers() -> None:
    lazy, read = counting()
    part = lazy.subset(torch.tensor([3, 2, 0])).subset(slice(1, 3))
    assert read == []
    assert part.shape == (2, 2)
    assert part.take(slice(None)).tolist() == [[2, 2], [0, 0]]


def test_inputs_of_another_size_are_named() -> None:
    lazy, _ = counting((2, 2, 3, 2))
    with pytest.raises(InputError, match=r"input 2 .*\[3\].*\[2\]"):
        lazy.take(slice(None))
