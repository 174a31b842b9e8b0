"""Writes into watched tensors are noted, or refused before they happen."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn

from multitudes.engine.writes import Writes, Written, on_copy


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


class Clips(nn.Module):
    """Forward clips its weight, and hides what goes wrong there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.weight.data.clamp_(max=1.0)
        except Exception as error:
            raise ValueError("no weight") from error
        return x * self.weight


def test_a_copy_for_one_run_has_its_own_parameters_where_the_run_writes() -> None:
    net, x, seen = Clips(), torch.ones(2), list[int]()

    def run(copy: nn.Module) -> Tensor:
        seen.append(next(copy.parameters()).data_ptr())
        result: Tensor = copy(x)
        return result

    assert torch.equal(on_copy(net, run), x)
    assert net.weight.tolist() == [3.0, 3.0]
    plain = nn.Linear(2, 2)
    on_copy(plain, run)
    assert seen[0] == net.weight.data_ptr() != seen[1]
    assert seen[2:] == [plain.weight.data_ptr()]


def test_what_a_run_raises_on_a_copy_is_raised() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        on_copy(nn.Linear(2, 2), lambda copy: copy(torch.ones(3)))
