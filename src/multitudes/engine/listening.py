"""Listening: the base class of modes that watch torch's operations."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Listening(TorchDispatchMode):
    """A mode that sees every operation in a with-block, and does not load torch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler


class Quick(Listening):
    """Makes runs on the meta device faster."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_operation(func, args, kwargs or {})


def run_operation(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation that a mode sees. On the meta device BatchNorm is not decomposed, which takes 20 times as long."""
    if func is not aten.native_batch_norm.default or not args[0].is_meta:
        return func(*args, **kwargs)
    x, statistics = args[0], args[0].new_empty(args[0].shape[1], dtype=torch.promote_types(args[0].dtype, torch.float32))
    return torch.empty_like(x), statistics, torch.empty_like(statistics)
