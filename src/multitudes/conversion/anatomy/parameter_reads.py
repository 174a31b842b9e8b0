"""Observes forward while it runs: parameters read outside their own module, and calls of dropout functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from multitudes.engine import tree
from multitudes.engine.modules import join_name

DROPOUT_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


class ParameterReads(TorchFunctionMode):
    """Records parameters that an operation reads while another module than their own runs, and calls of dropout functions."""

    HARMLESS = frozenset("size dim ndimension numel nelement is_floating_point is_complex stride __len__ __hash__".split())
    ATTRIBUTES = frozenset("data T mT H mH real imag".split())

    def __init__(self, probe: nn.Module) -> None:
        super().__init__()
        self.read_elsewhere: set[str] = set()
        self.functional_dropout: set[str] = set()
        self.names = {id(part): name for name, part in probe.named_modules()}
        self.running: list[nn.Module] = [probe]
        self.owners: dict[int, tuple[str, list[nn.Module]]] = {}
        for name, part in probe.named_modules():
            for key, parameter in part.named_parameters(recurse=isinstance(part, nn.MultiheadAttention)):
                self.owners.setdefault(id(parameter), (join_name(name, key), []))[1].append(part)
            part.register_forward_pre_hook(lambda module, _: self.running.append(module))
            part.register_forward_hook(self._leave)

    def _leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        running = self.running[-1]
        if func in DROPOUT_FUNCTIONS and not isinstance(running, _DropoutNd):
            rate = args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5)
            self.functional_dropout |= {self.names[id(running)]} if rate else set()
        reads = getattr(getattr(func, "__self__", None), "__name__", "") in self.ATTRIBUTES if name == "__get__" else True
        if reads and name not in self.HARMLESS:
            for tensor in tree.tensors((args, kwargs or {})):
                parameter, owners = self.owners.get(id(tensor), ("", [running]))
                if not any(part is running for part in owners):
                    self.read_elsewhere.add(parameter)
        return func(*args, **(kwargs or {}))
