"""Public functions that run a network on trial show none of torch's warnings of it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.undisturbed import undisturbed


class EvenKernel(nn.Module):
    """An even kernel with padding="same" makes torch warn from C++."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 4, 4, padding="same"), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().flatten(1))  # type: ignore[no-any-return]


def test_torch_warns_of_calls_of_the_user_only() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.ensemble(EvenKernel(), mt.Deep(members=2), torch.randn(4, 1, 12), check=False)
        undisturbed(lambda: warnings.warn_explicit("of torch", UserWarning, "rnn.py", 1, "torch.nn.modules.rnn"))()


def test_other_warnings_are_shown() -> None:
    with pytest.warns(UserWarning, match="own"):
        undisturbed(lambda: warnings.warn("own", stacklevel=1))()
