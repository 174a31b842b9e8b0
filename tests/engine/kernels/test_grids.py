"""Samples of members at points of a grid, against torch's own for each member: members may lie along any axes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.kernels import Together

M, B = 3, 4
AXES = [axes for axes in itertools.product((0, 1, -1, None), repeat=2) if axes != (None, None)]


def sample(x: Tensor, grid: Tensor, mode: str, border: str) -> Tensor:
    return F.grid_sample(x, grid, mode, border, align_corners=mode != "nearest")


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(
    ("sides", "mode", "border"), [(2, "bilinear", "zeros"), (2, "bicubic", "border"), (3, "nearest", "reflection")]
)
def test_values_and_gradients(axes: tuple[Any, Any], sides: int, mode: str, border: str) -> None:
    x = torch.randn(M, B, 2, *[5] * sides, dtype=torch.float64, requires_grad=True)
    grid = (torch.rand(M, B, *[4] * sides, sides, dtype=torch.float64) * 2.4 - 1.2).requires_grad_()
    given = [t[0] if axis is None else t.movedim(0, axis) for t, axis in zip((x, grid), axes, strict=True)]
    with Together():
        found = torch.func.vmap(lambda a, b: sample(a, b, mode, border), in_dims=axes)(*given)
    wanted = torch.stack(
        [
            sample(*(t[0 if axis is None else m] for t, axis in zip((x, grid), axes, strict=True)), mode, border)
            for m in range(M)
        ]
    )
    torch.testing.assert_close(found, wanted)
    noise = torch.randn_like(wanted)
    grads = [torch.autograd.grad((y * noise).sum(), (x, grid)) for y in (found, wanted)]
    torch.testing.assert_close(*grads)


class Moving(nn.Module):
    """Samples its features where they say."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.offset, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).relu()
        y: Tensor = self.head(F.grid_sample(h, self.offset(h).permute(0, 2, 3, 1).tanh(), align_corners=True).mean((2, 3)))
        return y


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=M), mt.Deep(members=M), mt.Masksembles(members=M, fewest=2)])
def test_compiled_calls(method: mt.Method) -> None:
    """There members lay along other axes than in plain calls, and rows were taken for members."""
    ens = mt.ensemble(Moving(), method, torch.randn(2, 1, 7, 7), seed=0).eval()
    ens.prove_later(["vmap"])
    ens.engine.picked.update(eval="vmap")
    x = torch.randn(B, 1, 7, 7)
    with torch.no_grad():
        wanted = torch.stack([ens.member(m)(x) for m in range(M)])
        torch.testing.assert_close(ens(x), wanted)
        torch.testing.assert_close(torch.compile(ens, backend="aot_eager")(x), wanted)
