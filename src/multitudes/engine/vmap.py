"""vmap: the template called once, with the member axis carried by torch.func.

What does not depend on member tensors stays unbatched, so a shared trunk is computed once by itself. One thing has to be
helped: torch draws dropout noise for every member even where the input is common, and everything behind it would be
computed M times. The noise is drawn by an operator of our own, which follows its input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from multitudes import tree
from multitudes.engine.state import Engine, call, has_attention, plain_attention, write_back
from multitudes.errors import RunError
from multitudes.inputs import Inputs, axes
from multitudes.tree import Tree


def run_vmap(engine: Engine, inputs: Inputs, per_member: bool = False) -> Tree:
    """All members at once. Shape: ``[M, B, ...]``."""
    buffers = engine.buffers()
    uniform = {name: buffers[name][0].clone() for name in sorted(engine.uniform)}
    stacked = {n: t for n, t in [*engine.parameters().items(), *buffers.items()] if n in engine.owned and n not in uniform}
    dims = [0 if per_member and axis is not None else None for axis in axes(inputs, engine.batch_axis)]
    structure: list[Tree] = []
    names: list[str] = []

    def one(tensors: dict[str, Tensor], values: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        output, changed = call(engine, {**tensors, **uniform}, inputs.refill(values))
        structure[:], names[:] = [output], list(changed)
        return tree.tensors(output), list(changed.values())

    guard = plain_attention() if has_attention(engine.template) else contextlib.nullcontext()
    noise = SharedNoise() if engine.shares and engine.template.training else contextlib.nullcontext()
    with guard, noise:
        batched = torch.func.vmap(one, in_dims=(0, dims), randomness="different", chunk_size=engine.chunk)
        outputs, changed = batched(stacked, inputs.tensors())
    tree.plain(structure[0])
    _write_counts(buffers, uniform)
    _write_changed(engine, names, changed)
    return tree.refill(structure[0], outputs)


def _write_counts(buffers: dict[str, Tensor], uniform: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in uniform.items():
            buffers[name].copy_(value.expand_as(buffers[name]))


def _write_changed(engine: Engine, names: list[str], changed: list[Tensor]) -> None:
    shared = [name for name in names if name not in engine.owned]
    if shared:
        raise RunError(f"forward replaces the shared buffers {shared}")
    write_back(engine, [{n: t[m] for n, t in zip(names, changed, strict=True)} for m in range(engine.members)])


DROPOUTS: dict[Callable[..., Any], int] = {F.dropout: 0, F.dropout1d: 2, F.dropout2d: 2, F.dropout3d: 2}
"""The dropout functions, and how many leading axes of the input their noise has (0: all)."""


class SharedNoise(TorchFunctionMode):
    """Dropout on what is common to all members is drawn once."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in DROPOUTS:
            return _dropout(DROPOUTS[func], *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropout(lead: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    noise = torch.ops.multitudes.noise(input.detach(), p, lead)
    return input.mul_(noise) if inplace else input * noise


@torch.library.custom_op("multitudes::noise", mutates_args=())
def _noise(x: Tensor, p: float, lead: int) -> Tensor:
    """Inverted-dropout factors, 0 or 1/(1−p), for the first `lead` axes of x (0: all)."""
    shape = x.shape if not lead else (*x.shape[:lead], *(1 for _ in x.shape[lead:]))
    kept = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p)
    return kept if p == 1 else kept / (1 - p)


@_noise.register_fake
def _(x: Tensor, p: float, lead: int) -> Tensor:
    shape = x.shape if not lead else (*x.shape[:lead], *(1 for _ in x.shape[lead:]))
    return torch.empty(shape, dtype=x.dtype, device=x.device)


@torch.library.register_vmap("multitudes::noise")  # type: ignore[untyped-decorator]
def _(info: Any, dims: tuple[int | None, ...], x: Tensor, p: float, lead: int) -> tuple[Tensor, int]:
    return torch.ops.multitudes.noise(x.movedim(dims[0] or 0, 0), p, lead + 1 if lead else 0), 0
