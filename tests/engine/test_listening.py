"""Operations without values: what is remembered of them is what torch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from multitudes.engine import listening
from multitudes.engine.listening import Listening, result_of

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "a convolution": lambda x: torch.conv2d(x, torch.empty(5, 3, 3, 3, device="meta"), padding=1),
    "channels last": lambda x: x.to(memory_format=torch.channels_last).relu() + 1,
    "two results": lambda x: x.max(1),
    "a list": lambda x: torch.unbind(torch.cat([x, x], 1), 1),
    "another dtype": lambda x: (x > 0).sum((1, 2)),
    "an argument that is none": lambda x: torch.layer_norm(x, (8,), None, None),
    "written in place": lambda x: x.clone().add_(1).mul_(2).sigmoid_(),
    "views": lambda x: x.flatten(1).unflatten(1, (3, -1)).transpose(1, 2).softmax(-1),
    "norms": lambda x: nn.BatchNorm2d(3, device="meta")(x),
}


class Remembering(Listening):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return result_of(func, args, kwargs or {})


class Counting(TorchDispatchMode):
    """Counts the operations that torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def described(output: Any) -> list[Any]:
    every = list(output) if isinstance(output, (tuple, list)) else [output]
    return [(t.shape, t.stride(), t.dtype, t.device) for t in every]


@pytest.mark.parametrize("name", CALLS)
def test_results_that_are_remembered_are_those_of_torch(name: str) -> None:
    """The first time and the second, for two shapes."""
    for side in (8, 6):
        x = torch.empty(2, 3, side, 8, device="meta")
        expected = CALLS[name](x)
        for _ in range(2):
            with Remembering():
                assert described(CALLS[name](x)) == described(expected)


def test_operations_are_computed_once_without_values_and_always_with_them() -> None:
    """Results depend on values everywhere but on the meta device."""
    listening._RESULTS.clear()
    x = torch.empty(4, 4, device="meta")
    with Counting() as count, Remembering():
        for _ in range(3):
            x.softmax(-1)
    assert [name for name in count.names if "softmax" in name] == ["aten._softmax.default"]
    with Remembering():
        assert [float(torch.full((1,), value).exp().log()) for value in (1.0, 2.0)] == pytest.approx([1.0, 2.0])
