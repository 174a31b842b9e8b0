"""Public functions that run a network on trial show none of torch's warnings of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

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


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Lets torch repeat warnings that it gives once in a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
def test_torch_warns_of_calls_of_the_user_only() -> None:
    net, x = EvenKernel(), torch.randn(4, 1, 12)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mt.ensemble(net, mt.Deep(members=2), x, check=False)
        undisturbed(lambda: warnings.warn_explicit("of torch", UserWarning, "rnn.py", 1, "torch.nn.modules.rnn"))()
        assert [str(warning.message) for warning in told] == []
        net(x)
    assert len(told) == 1


def test_other_warnings_are_shown() -> None:
    with pytest.warns(UserWarning, match="own"):
        undisturbed(lambda: warnings.warn("own", stacklevel=1))()
