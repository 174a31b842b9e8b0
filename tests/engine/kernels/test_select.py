"""Selections of channels by members' own indices, against torch's own for each member."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multitudes.engine.kernels import Together

M = 3


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (2, 1), (None, 0), (0, None)], ids=str)
def test_values_and_gradients(axis: int, dims: tuple[int | None, int | None]) -> None:
    """For every place of the member axis, in tensors and in the index."""
    plain = torch.randn(M, 4, 5, 6, dtype=torch.float64)
    index = torch.randint(4, (M, 7))
    x = plain[0] if dims[0] is None else plain.movedim(0, dims[0])
    own = index[0] if dims[1] is None else index.movedim(0, dims[1])
    x = x.clone().requires_grad_()

    def select(x: Tensor, own: Tensor) -> Tensor:
        return torch.index_select(x, axis, own) + x.index_select(axis, own)

    with Together():
        found = torch.func.vmap(select, in_dims=dims)(x, own)
    rows = [x if dims[0] is None else x.select(dims[0], m) for m in range(M)]
    wanted = torch.stack([select(row, own if dims[1] is None else index[m]) for m, row in enumerate(rows)])
    torch.testing.assert_close(found, wanted)
    noise = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad((y * noise).sum(), x)[0] for y in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def test_channels_last_stays() -> None:
    x = torch.randn(M, 2, 4, 5, 5).movedim(2, -1).contiguous().movedim(-1, 2)
    with Together():
        found = torch.func.vmap(lambda x, own: x.index_select(1, own))(x, torch.randint(4, (M, 6)))
    assert found.shape == (M, 2, 6, 5, 5) and found.stride(2) == 1
