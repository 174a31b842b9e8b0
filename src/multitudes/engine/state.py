"""The template and its tensors: what every executor runs over."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from multitudes.inputs import BatchAxis, Inputs
from multitudes.tree import Tree

MODES = ("train", "eval")


@dataclass(frozen=True)
class Traits:
    """What the trial runs at conversion found out about the template."""

    copies: bool = False
    """Its forward is run again during backward (checkpointing), so each member needs a copy of its own."""
    mutates: bool = False
    """It writes into its inputs, so each member gets its own."""
    coupled: frozenset[str] = frozenset()
    """Shared BatchNorm layers that see what depends on members: in training they take statistics over all members' rows."""
    reassigned: frozenset[str] = frozenset()
    """Buffers that forward replaces by new tensors."""


@dataclass
class Engine:
    """One template module, some of whose tensors carry a leading member axis under the base model's own names."""

    template: nn.Module
    members: int
    owned: frozenset[str]
    """Names of the tensors with a member axis; the rest is shared."""
    shared_norms: frozenset[str] = frozenset()
    """Names of the BatchNorm layers that members have in common."""
    uniform: frozenset[str] = frozenset()
    """Whole-number buffers (batch counters, index tables) that carry a member axis but are equal for all members."""
    batch_axis: BatchAxis = 0
    chunk: int | None = None
    """How many members may be run at once; None is all."""
    traits: Traits = Traits()
    proven: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(MODES, ("loop",)))
    """The executors that gave the right answer in the trial, for each mode."""
    why: dict[str, str] = field(default_factory=dict)
    """For each executor that is not proven, the operation that forbids it."""
    picked: dict[str, str] = field(default_factory=lambda: dict.fromkeys(MODES, "loop"))
    """The executor in use, for each mode."""

    @property
    def shares(self) -> bool:
        """Whether some tensors are shared, so that there may be work to do once for all members."""
        return any(name not in self.owned for name, _ in named_tensors(self.template))

    def parameters(self) -> dict[str, Tensor]:
        """All parameters by name, a tied one once."""
        return dict(self.template.named_parameters())

    def buffers(self) -> dict[str, Tensor]:
        """All buffers by name, a shared one once."""
        return dict(self.template.named_buffers())

    def refresh(self) -> None:
        """Looks again at what may be passed once for all members; called whenever buffers are set from outside."""
        counts = {n: b for n, b in self.buffers().items() if n in self.owned and not (b.is_floating_point() or b.is_complex())}
        self.uniform = frozenset(n for n, b in counts.items() if not b.is_meta and bool((b == b[:1]).all()))

    def with_traits(self, **changes: Any) -> None:
        """Adds to what is known of the template."""
        self.traits = replace(self.traits, **changes)


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name, one name for each tensor."""
    return [*module.named_parameters(), *module.named_buffers()]


def owner(name: str) -> str:
    """The name of the module that a tensor belongs to; for a parametrized tensor, the module that uses it."""
    head, found, _ = name.partition(".parametrizations.")
    if found:
        return head
    if name.startswith("parametrizations."):
        return ""
    return name.rpartition(".")[0]


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """All BatchNorm layers by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}


def uses_batch(norm: _BatchNorm) -> bool:
    """Whether this layer normalises by the statistics of the rows at hand."""
    return norm.training or (norm.running_mean is None and norm.running_var is None)


class _Reporting(nn.Module):
    """Calls a module, and says which tensors stand in its buffers afterwards."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, watched: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tree, dict[str, Tensor]]:
        output = self.inner(*args, **kwargs)
        return output, {name: self.inner.get_buffer(name) for name in watched}


def call(engine: Engine, tensors: dict[str, Tensor], inputs: Inputs) -> tuple[Tree, dict[str, Tensor]]:
    """The template called with these tensors in place of its own: the output, and the buffers that forward replaced."""
    buffers = engine.buffers()
    given = {**{name: tensor for name, tensor in buffers.items() if name not in engine.owned}, **tensors}
    if torch.compiler.is_compiling():
        if not engine.traits.reassigned:
            return functional_call(engine.template, given, inputs.args, inputs.kwargs), {}
        return _functional(engine.template, given, sorted(engine.traits.reassigned), inputs)
    if engine.traits.copies:
        member = copy_with(engine.template, given)
        output = member(*inputs.args, **inputs.kwargs)
        now = {name: member.get_buffer(name) for name in buffers}
    else:
        output, now = _functional(engine.template, given, list(buffers), inputs)
    return output, {name: tensor for name, tensor in now.items() if tensor is not given[name]}


def _functional(
    template: nn.Module, given: dict[str, Tensor], watched: list[str], inputs: Inputs
) -> tuple[Tree, dict[str, Tensor]]:
    named = {f"inner.{name}": tensor for name, tensor in given.items()}
    return functional_call(_Reporting(template), named, (watched, inputs.args, inputs.kwargs))


def copy_with(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of the module that holds these tensors themselves, and shares nothing else with it."""
    memo: dict[int, Any] = {}
    for name, tensor in named_tensors(module):
        memo[id(tensor)] = tensors.get(name, tensor)
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # kept from a forward: deepcopy would refuse it
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def like(model: Tensor, value: Tensor) -> Tensor:
    """A value as a parameter, if that is what the tensor it stands for is."""
    return nn.Parameter(value, requires_grad=model.requires_grad) if isinstance(model, nn.Parameter) else value


def bake(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A detached copy of the module with these values as its own parameters and buffers."""
    own = named_tensors(module)
    return copy_with(module, {name: like(tensor, tensors.get(name, tensor).detach().clone()) for name, tensor in own})


def write_back(engine: Engine, changed: list[dict[str, Tensor]]) -> None:
    """Stores the buffers that forward replaced; `changed` has one entry for each member, in order."""
    if not any(changed):
        return
    from multitudes.errors import RunError

    buffers = engine.buffers()
    with torch.no_grad():
        for m, entries in enumerate(changed):
            for name, value in entries.items():
                if name in engine.owned:
                    buffers[name][m].copy_(value)
                elif value is changed[0].get(name):
                    buffers[name].copy_(value)
                else:
                    raise RunError(
                        f"buffer {name} is shared, but each member's forward gives it another value: "
                        "let the layer belong to the members, or put it into eval mode"
                    )


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Attention by its ordinary operations: the fused inference path reads stacked weights wrongly or not at all."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def has_attention(module: nn.Module) -> bool:
    """Whether torch's attention modules, which have a fused inference path, are inside."""
    kinds = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    return any(isinstance(part, kinds) for part in module.modules())
