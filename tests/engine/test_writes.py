"""Writes into watched tensors are noted, or refused before they happen."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

from multitudes.engine.writes import Writes, Written


def test_writes_are_noted_by_name() -> None:
    a, b, c = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    with Writes({"a": a, "b": b, "c": c}) as writes:
        a[1:].add_(1)
        torch.add(a, 1, out=c)
        b.add(1)
    assert writes.names == {"a", "c"}


def test_a_refused_write_does_not_happen() -> None:
    weight = torch.zeros(3)
    with pytest.raises(Written, match="weight"), Writes({"weight": weight}, refuse=True):
        weight.data.fill_(1)
    assert not weight.any()


def test_a_refusal_that_forward_catches_is_not_lost() -> None:
    weight = torch.zeros(3)

    def forward(x: Tensor) -> Tensor:
        with contextlib.suppress(Exception):
            weight.fill_(1)
        return x + weight

    with Writes({"weight": weight}, refuse=True) as writes:
        forward(torch.zeros(3))
    with pytest.raises(Written):
        writes.check()
    assert not weight.any()
