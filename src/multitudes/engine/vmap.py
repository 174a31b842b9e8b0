"""vmap: calls the template once; torch.func.vmap carries the member axis.

Tensors that do not depend on member tensors stay unbatched, so a shared trunk is computed once. Dropout needs help: torch
draws its noise for every member even if the input is common, and everything after it would be computed M times. So a custom
operator draws the noise; its result has a member axis only if its input has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from multitudes.engine import tree
from multitudes.engine.coupled import CoupledNorms
from multitudes.engine.inputs import Inputs, axes, each_row, slot
from multitudes.engine.loop import output_axes
from multitudes.engine.modules import plain_attention, under_autocast
from multitudes.engine.state import Engine, call
from multitudes.engine.tree import Tree
from multitudes.errors import RunError

MEMORY = {"cpu": 2**29}
"""Memory limit, in bytes, for the members that run at once in eval mode; chunk= overrides it. On a CPU more would be slower."""
DEVICE_MEMORY = 4 * 2**30
"""The same limit for devices that are not in `MEMORY`."""

SLOW = "There is a performance drop because we have not yet implemented the batching rule"
"""torch's warning of an operation that vmap runs member by member."""


def run_vmap(engine: Engine, inputs: Inputs, per_member: bool = False) -> Tree:
    """Runs all members at once, or a chunk at a time. Shape: ``[M, B, ...]``."""
    guard = plain_attention() if engine.has_attention else contextlib.nullcontext()
    slots = bool(engine.summed) and per_member  # one network behind all slots: vmap itself draws its noise once
    noise = SharedNoise() if engine.shares and engine.template.training and not slots else contextlib.nullcontext()
    coupled_names = engine.shared_norms if per_member and not slots else engine.traits.coupled
    if slots:
        coupled_names = coupled_names.union(engine.traits.slot_norms)  # `|=` of frozensets does not compile in torch 2.11
    norms = [engine.template.get_submodule(name) for name in sorted(coupled_names)] if engine.template.training else []
    coupled = CoupledNorms(norms) if norms else contextlib.nullcontext()
    attention = sdpa_kernel(SDPBackend.MATH) if norms else contextlib.nullcontext()  # vmap must run: fused kernels have no rule
    padding = PaddedRows() if per_member and _has_padding(engine.template) else contextlib.nullcontext()
    with guard, coupled, attention, noise, padding, _with_autocast(inputs):
        whole = norms or slots  # sums over all members cannot be computed in chunks
        size = engine.members if whole else chunk_of(engine, slot(inputs, engine.batch_axis, 0) if per_member else inputs)
        parts = [_run_chunk(engine, inputs, per_member, at, size) for at in range(0, engine.members, size)]
    output, counts = parts[0]
    buffers = engine.buffers()
    with torch.no_grad():
        for name, value in counts.items():  # in place, so that all members get them
            buffers[name].copy_(value.expand_as(buffers[name]))
    if len(parts) == 1:
        return output
    columns = zip(*(tree.tensors(part) for part, _ in parts), strict=True)
    return tree.refill(output, [torch.cat(column) for column in columns])


def _with_autocast(inputs: Inputs) -> Any:
    """Returns the mode that casts operands of matrix products and convolutions; a null context without autocast."""
    device = next((tensor.device.type for tensor in inputs.tensors()), "cpu")
    if not under_autocast(device):
        return contextlib.nullcontext()
    return AutocastProducts(torch.get_autocast_dtype(device))


def chunk_of(engine: Engine, inputs: Inputs) -> int:
    """Returns how many members to run at once: chunk=, or in eval mode as many as fit into `MEMORY`."""
    if engine.chunk is not None:
        return min(engine.chunk, engine.members)
    tensors = inputs.tensors()
    needed = engine.input_bytes * sum(tensor.numel() for tensor in tensors)
    if engine.template.training or not needed or torch.compiler.is_compiling():
        return engine.members
    return max(1, min(engine.members, int(MEMORY.get(tensors[0].device.type, DEVICE_MEMORY) / needed)))


def run_vmap_rows(engine: Engine, inputs: Inputs) -> Tree:
    """Runs row b by member b, with vmap over rows. Shape: ``[B, ...]``."""
    single_rows = each_row(inputs, engine.batch_axis, lambda t, axis: t.movedim(axis, 0).unsqueeze(axis % t.ndim + 1))
    device = next((t.device.type for t in inputs.tensors()), "cpu")
    with torch.autocast(device, enabled=False):  # under vmap, autocast casts only some operands
        output = run_vmap(engine, single_rows, per_member=True)
    joined = []
    for tensor, axis in zip(tree.tensors(output), output_axes(engine, output), strict=True):
        if axis is None:
            raise RunError(
                "rows= needs every output to have a batch axis, but this model returns an output without one: "
                "remove that output, or call without rows="
            )
        joined.append(tensor.squeeze(1 + axis).movedim(0, axis))
    return tree.refill(output, joined)


def _run_chunk(engine: Engine, inputs: Inputs, per_member: bool, at: int, size: int) -> tuple[Tree, dict[str, Tensor]]:
    """Runs `size` members from `at` on. Returns their outputs, and the new values of counters common to all members."""
    chunk = slice(at, at + size)
    buffers = engine.buffers()
    counts = engine.common_counts()
    before = {name: value.clone() for name, value in counts.items()}
    split = engine.owned | engine.summed if per_member else engine.owned
    owned = [(n, t) for n, t in [*engine.parameters().items(), *buffers.items()] if n in split and n not in counts]
    stacked = {name: tensor if size == engine.members else tensor[chunk] for name, tensor in owned}
    stacked.update({name: stacked[name].clone() for name in stacked if name in engine.traits.written_buffers})
    dims = [0 if per_member and axis is not None else None for axis in axes(inputs, engine.batch_axis)]
    values = [t.clone() if engine.traits.mutates else t for t in inputs.tensors()]
    values = [t[chunk] if dim == 0 else t for t, dim in zip(values, dims, strict=True)]
    split_values = [t for t, dim in zip(values, dims, strict=True) if dim == 0]
    structure: list[Tree] = []
    names: list[str] = []

    def run_member(*tensors: Tensor) -> tuple[Tensor, ...]:  # a flat tuple: torch takes long for nested arguments
        mine, slots = dict(zip(stacked, tensors, strict=False)), iter(tensors[len(stacked) :])
        own = [t if dim is None else next(slots) for t, dim in zip(values, dims, strict=True)]
        output, changed = call(engine, {**mine, **counts}, inputs.refill(own))
        structure[:], names[:] = [output], list(changed)
        return *tree.tensors(output), *changed.values()

    alike = size == 1 or (engine.summed and per_member)  # one member, or one trunk after summed inputs: noise is drawn once
    noise = "same" if alike else "different"
    results = over_members(run_member, size, noise, [*stacked.values(), *split_values])
    tree.plain(structure[0])
    outputs, changed = results[: len(results) - len(names)], results[len(results) - len(names) :]
    shared = [name for name in names if name not in engine.owned]
    if shared:
        raise RunError(
            f"forward changes the shared buffer {', '.join(shared)}, so vmap cannot run it: "
            "let each member own its layer (leave it out of keep=)"
        )
    with torch.no_grad():
        for name, value in zip(names, changed, strict=True):
            buffers[name][chunk].copy_(value)
    traced = torch.compiler.is_compiling()
    moved = {n: v for n, v in counts.items() if n not in names and (traced or not torch.equal(v, before[n]))}
    return tree.refill(structure[0], outputs), moved


def over_members(
    run: Callable[..., tuple[Tensor, ...]], size: int, randomness: str, tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Runs a function of tensors ``[size, ...]`` under vmap, like torch.func.vmap.

    That looks through nested arguments and results, which takes as long as a small network. Here they are flat.
    """
    if torch.compiler.is_compiling():
        return torch.func.vmap(run, randomness=randomness)(*tensors)
    lazy_load_decompositions()
    level = functorch._vmap_increment_nesting(size, randomness)
    try:
        outputs = run(*[functorch._add_batch_dim(tensor, 0, level) for tensor in tensors])
        return tuple(functorch._remove_batch_dim(tensor, level, size, 0) for tensor in outputs)
    finally:
        functorch._vmap_decrement_nesting()


DROPOUTS: dict[Callable[..., Any], int | None] = {F.dropout: 0, F.dropout1d: 1, F.dropout2d: None, F.dropout3d: 3}
"""Dropout functions, and the number of trailing axes that share one noise value (None: all but the first two)."""


class SharedNoise(TorchFunctionMode):
    """Draws dropout noise once where its input is common to all members."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in DROPOUTS:
            return _dropout(DROPOUTS[func], *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class PaddedRows(TorchFunctionMode):
    """Keeps gradients from the padding rows of embeddings: with other ids for each member, torch does so for member 0 only."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.embedding:
            return _embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    rows = F.embedding(input, weight, None, *args, **kwargs)
    if padding_idx is None:
        return rows
    return torch.where((input == padding_idx % weight.shape[0])[..., None], rows.detach(), rows)


def _has_padding(template: nn.Module) -> bool:
    return any(getattr(part, "padding_idx", None) is not None for part in template.modules())


PRODUCTS = (
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear, torch.matmul, torch.bmm,
    Tensor.matmul, Tensor.__matmul__, F.scaled_dot_product_attention,
)  # fmt: skip
"""Functions that autocast runs in lower precision. Under vmap it casts only some of their operands."""


class AutocastProducts(TorchFunctionMode):
    """Casts all operands of products to autocast's dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS:
            args = tuple(self._cast(value) for value in args)
            kwargs = {name: self._cast(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _cast(self, value: Any) -> Any:
        single = isinstance(value, Tensor) and value.dtype == torch.float32
        return value.to(self.dtype) if single else value


def _dropout(trailing: int | None, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    trailing = max(input.ndim - 2, 0) if trailing is None else trailing
    noise = torch.ops.multitudes.noise(input.detach(), p, trailing)
    return input.mul_(noise) if inplace else input * noise


_library = torch.library.Library("multitudes", "FRAGMENT")  # custom_op would import the compiler at its first call
_library.define("noise(Tensor x, float p, int trailing) -> Tensor")


@torch.library.impl(_library, "noise", "CompositeExplicitAutograd")
def _noise(x: Tensor, p: float, trailing: int) -> Tensor:
    """Draws factors of inverted dropout, 0 or 1/(1−p), one for all entries along the last `trailing` axes of x."""
    kept = torch.empty(_noise_shape(x, trailing), dtype=x.dtype, device=x.device).bernoulli_(1 - p)
    return kept if p == 1 else kept / (1 - p)


@torch.library.register_fake("multitudes::noise", lib=_library)  # type: ignore[untyped-decorator]
def _(x: Tensor, p: float, trailing: int) -> Tensor:
    return torch.empty(_noise_shape(x, trailing), dtype=x.dtype, device=x.device)


@torch.library.register_vmap("multitudes::noise", lib=_library)  # type: ignore[untyped-decorator]
def _(info: Any, dims: tuple[int | None, ...], x: Tensor, p: float, trailing: int) -> tuple[Tensor, int]:
    return torch.ops.multitudes.noise(x.movedim(dims[0] or 0, 0), p, trailing), 0


def _noise_shape(x: Tensor, trailing: int) -> list[int]:
    return [*x.shape[: x.ndim - trailing], *(1 for _ in range(trailing))]
