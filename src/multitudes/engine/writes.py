"""Watches which tensors operations write into, by the address of their memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from multitudes.engine.listening import Listening
from multitudes.engine.modules import detached_copy, light_copy

R = TypeVar("R")

_WRITTEN: dict[Any, tuple[tuple[int, str], ...]] = {}
"""For each operation the arguments that it writes into: their places and names."""


class Written(Exception):
    """Raised before an operation writes into a tensor that must stay as it is."""


class Writes(Listening):
    """Notes the names of tensors that operations write into in a with-block.

    tensors  the tensors to watch, by name
    refuse   whether to raise `Written` instead, before the operation runs
    """

    def __init__(self, tensors: Mapping[str, Tensor], refuse: bool = False) -> None:
        super().__init__()
        held = {n: t for n, t in tensors.items() if not t.is_meta and t.numel() and t.layout is torch.strided}
        self.places = {t.untyped_storage().data_ptr(): n for n, t in held.items()}
        self.refuse = refuse
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for place, name in _written(func):
            value = args[place] if place < len(args) else (kwargs or {}).get(name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor) and not tensor.is_meta and tensor.layout is torch.strided:
                    self._note(tensor)
        return func(*args, **(kwargs or {}))

    def _note(self, tensor: Tensor) -> None:
        name = self.places.get(tensor.untyped_storage().data_ptr())
        self.names |= set() if name is None else {name}
        if name is not None:
            self.check()

    def check(self) -> None:
        """Raises `Written` if a write was refused: forward may have caught the first error."""
        if self.refuse and self.names:
            raise Written(min(self.names))


def on_copy(module: nn.Module, run: Callable[[nn.Module], R]) -> R:
    """Returns `run(copy)`. The copy has the memory of the module's parameters, or its own if `run` would write into one."""
    light = light_copy(module)
    writes = Writes(dict(light.named_parameters()), refuse=True)
    try:
        with writes:
            result = run(light)
        writes.check()
        return result
    except Exception:
        if not writes.names:
            raise
    return run(detached_copy(module, {}))


def _written(func: Any) -> tuple[tuple[int, str], ...]:
    if func not in _WRITTEN:
        arguments = enumerate(func._schema.arguments)
        _WRITTEN[func] = tuple((k, a.name) for k, a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return _WRITTEN[func]
