"""Functions on the plain tensors of all members: those that know their arguments run, all others leave them to vmap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels import Members
from multitudes.engine.kernels.direct import DIRECT
from multitudes.engine.kernels.places import BESIDE, FIRST

M, B, C = 3, 2, 4


def image(members: Members) -> Tensor:
    return members.put(torch.randn(B, M * C, 5, 5), BESIDE)


def of_each(x: Tensor) -> list[Tensor]:
    return list(x.unflatten(1, (M, C)).unbind(1))


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "relu": (F.relu, (), {}), "leaky": (F.leaky_relu, (0.3,), {}), "half": (Tensor.__mul__, (0.5,), {}),
    "clamp": (torch.clamp, (), {"min": 0.1}), "flatten": (torch.flatten, (1,), {}), "method": (Tensor.flatten, (1, -1), {}),
    "view": (Tensor.view, (B, -1), {}), "reshape": (Tensor.reshape, ((B, -1),), {}), "mean": (Tensor.mean, ((2, 3),), {}),
    "mean of rows": (torch.mean, (), {"dim": -1, "keepdim": True}), "pool": (F.adaptive_avg_pool2d, ((2, 1),), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_each_member(name: str) -> None:
    func, args, kwargs = CALLS[name]
    own = Members(M, 1, [])
    x = image(own)
    y = DIRECT[func](own, func, (x, *args), kwargs)
    assert own.place(y) == BESIDE
    wanted = torch.stack([func(part.contiguous(), *args, **kwargs) for part in of_each(x)], 1)
    torch.testing.assert_close(y.unflatten(1, (M, -1)), wanted)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.flatten, ()), (torch.flatten, (2,)), (Tensor.view, (-1, 5)), (Tensor.view, (B, M * C, -1)),
        (Tensor.mean, ()), (Tensor.mean, (1,)), (Tensor.mean, ((0, 2),)), (Tensor.mean, ((-3, -1),)),
        (torch.add, (torch.ones(5),)), (torch.add, (torch.ones(B, M * C, 5, 5),)),
    ],
)  # fmt: skip
def test_arguments_that_mix_channels_are_left_to_vmap(func: Any, args: tuple[Any, ...]) -> None:
    own = Members(M, 1, [])
    assert DIRECT[func](own, func, (image(own), *args), {}) is None


def test_members_must_lie_alike() -> None:
    """The same numbers of entries along all axes are not enough."""
    weight = torch.randn(M, M, 5, 5)
    own = Members(M, 1, [weight])
    x = own.put(torch.randn(M, M, 5, 5), BESIDE)
    assert DIRECT[torch.add](own, torch.add, (x, weight), {}) is None
    assert DIRECT[torch.add](own, torch.add, (x, own.put(torch.ones(M, M, 5, 5, dtype=torch.float32), BESIDE)), {}) is None
    assert own.place(DIRECT[torch.add](own, torch.add, (weight, weight), {})) == FIRST


def test_in_place_the_tensor_itself_is_returned() -> None:
    own = Members(M, 1, [])
    x = image(own)
    assert DIRECT[Tensor.add_](own, Tensor.add_, (x, 1), {}) is x and own.place(x) == BESIDE
    assert DIRECT[F.relu](own, F.relu, (x,), {"inplace": True}) is x and bool((x >= 0).all())
