"""Convolutions of members with what follows them: equal to plain layers, and one kernel where a GPU can run it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import vmap

from multitudes.engine.kernels import fused as module
from multitudes.engine.kernels.fused import fused_of_members

M, B, C, K = 3, 2, 4, 5
HOW = ([2, 1], [1, 0], [1, 2])


def tensors(dims: tuple[int | None, ...], groups: int) -> list[Tensor]:
    shapes = ((B, C, 7, 6), (groups * 3, C // groups, 3, 2), (groups * 3,))
    shapes += (tuple(F.conv2d(torch.zeros(shapes[0]), torch.zeros(shapes[1]), None, *HOW, groups).shape),)  # type: ignore[arg-type]
    made = []
    for shape, dim in zip(shapes, dims, strict=True):
        size = list(shape)
        if dim is not None:
            size.insert(dim, M)
        made.append(torch.randn(size, dtype=torch.float64))
    return made


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("relu", [True, False])
def test_every_place_of_the_member_axis(relu: bool, groups: int) -> None:
    """Any of input, kernel, bias and residual may belong to members or to all."""
    for dims in itertools.product((None, 0, 1), (None, 0), (None, 0), (None, 0, 1)):
        if all(dim is None for dim in dims[:3]):  # the residual alone: the operator still runs for all members
            continue
        given = tensors(dims, groups)

        def plain(x: Tensor, kernel: Tensor, bias: Tensor, other: Tensor) -> Tensor:
            y = F.conv2d(x, kernel, bias, *HOW, groups) + other  # type: ignore[call-overload]
            return y.relu() if relu else y

        y, dim = fused_of_members(M, dims, *given, relu, *HOW, groups)
        torch.testing.assert_close(y.movedim(dim, 0), vmap(plain, dims)(*given))
        by_rule = vmap(lambda *t: torch.ops.multitudes.fused(*t, relu, *HOW, groups), dims)(*given)
        torch.testing.assert_close(by_rule, vmap(plain, dims)(*given))


def runs_kernel(monkeypatch: pytest.MonkeyPatch, dims: tuple[Any, ...] = (1, 0, 0, 1), **changes: Any) -> bool:
    """Whether tensors on a GPU, which need not be there, go to the kernel."""
    called: list[Any] = []
    how = {"dtype": torch.bfloat16, "channels": 16, "groups": 1, "grad": False, "kernel_dtype": torch.bfloat16} | changes
    monkeypatch.setattr(module, "has_triton", lambda: True)
    monkeypatch.setattr(module, "_one_by_one", lambda *_: called.append("layers") or (torch.empty(0), 0))
    with FakeTensorMode():
        make = {"dtype": how["dtype"], "device": "cuda"}
        x = torch.empty(B, how["channels"], 8, 8, **make)
        if dims[0] is not None:
            x = torch.empty(B, 8, 8, M, how["channels"], **make).movedim((-2, -1), (1, 2))
        sizes = (K, how["channels"] // how["groups"], 3, 3)
        kernel = torch.empty(sizes if dims[1] is None else (M, *sizes), dtype=how["kernel_dtype"], device="cuda")
        other = torch.empty(B, 8, 8, M, K, **make).movedim((-2, -1), (1, 2))
        bias = torch.empty(M, K, **make).requires_grad_(how["grad"])
        y, dim = fused_of_members(M, dims, x, kernel, bias, other, True, [1, 1], [1, 1], [1, 1], how["groups"])
        if not called:
            assert y.shape == (B, M, K, 8, 8) and dim == 1 and y.stride(2) == 1 and y.device.type == "cuda"
    return not called


def test_the_kernel_runs_in_half_precision_for_tensors_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_kernel(monkeypatch) and runs_kernel(monkeypatch, dtype=torch.float16, kernel_dtype=torch.float16)
    assert not runs_kernel(monkeypatch, dtype=torch.float32, kernel_dtype=torch.float32)
    assert not runs_kernel(monkeypatch, kernel_dtype=torch.float32)  # mixed
    assert not runs_kernel(monkeypatch, channels=8)
    assert not runs_kernel(monkeypatch, channels=32, groups=2)
    assert not runs_kernel(monkeypatch, (None, 0, 0, 1)) and not runs_kernel(monkeypatch, (1, None, 0, 1))


def test_gradients_do_not_go_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not runs_kernel(monkeypatch, grad=True)
    with torch.no_grad():
        assert runs_kernel(monkeypatch, grad=True)
