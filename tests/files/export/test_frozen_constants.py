"""A plain tensor in a linear layer's place of a weight: frozen ensembles count it as any other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.fixed = nn.Linear(6, 8), nn.Linear(8, 3), torch.randn(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.linear(self.a(x).relu(), self.fixed).relu())  # type: ignore[no-any-return]


def test_plain_tensors_as_weights() -> None:
    x = torch.randn(4, 6)
    ens = mt.ensemble(Projected(), mt.BatchEnsemble(members=2), x).eval()
    with torch.no_grad():
        torch.testing.assert_close(ens.freeze()(x), ens(x))
