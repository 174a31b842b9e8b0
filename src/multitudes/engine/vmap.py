"""vmap: calls the template once; torch.func.vmap carries the member axis.

Tensors that do not depend on member tensors stay unbatched, so a shared trunk is computed once. Layers whose rules in torch
are slow or wrong run by rules of our own (`kernels`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch._functorch import predispatch
from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting  # type: ignore[attr-defined]
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from multitudes.engine import tree
from multitudes.engine.coupled import CoupledNorms
from multitudes.engine.inputs import Inputs, axes, each_row, slot
from multitudes.engine.kernels import Together
from multitudes.engine.loop import output_axes
from multitudes.engine.modules import plain_attention, under_autocast
from multitudes.engine.state import Engine, call, write_mark
from multitudes.engine.tree import Tree
from multitudes.errors import RunError

MEMORY = {"cpu": 2**29}
"""Memory limit, in bytes, for the members that run at once in eval mode; chunk= overrides it. On a CPU more would be slower."""
DEVICE_MEMORY = 4 * 2**30
"""The same limit for devices that are not in `MEMORY`; a GPU's is a quarter of its memory if that is more."""

KEPT_FOR_GRADIENTS = 8
"""How many times as much memory members need if gradients can be asked for: all activations are kept, and not just a few."""

SLOW = "There is a performance drop because we have not yet implemented the batching rule"
"""torch's warning of an operation that vmap runs member by member."""


def run_vmap(engine: Engine, inputs: Inputs, per_member: bool = False) -> Tree:
    """Runs all members at once, or a chunk at a time. Shape: ``[M, B, ...]``."""
    guard = plain_attention() if engine.has_attention and not torch.compiler.is_compiling() else contextlib.nullcontext()
    slots = bool(engine.summed) and per_member  # one network behind all slots: vmap itself draws its noise once
    coupled_names = engine.shared_norms if per_member and not slots else engine.traits.coupled
    if slots:
        coupled_names = coupled_names.union(engine.traits.slot_norms)  # `|=` of frozensets does not compile in torch 2.11
    norms = [engine.template.get_submodule(name) for name in sorted(coupled_names)] if engine.template.training else []
    noise = engine.shares and engine.template.training and not slots
    together = _together(inputs, noise, steps=len(norms) > 0)  # where the loop is right, it is faster for recurrent layers
    coupled = CoupledNorms(norms) if norms else contextlib.nullcontext()
    attention = sdpa_kernel(SDPBackend.MATH) if norms else contextlib.nullcontext()  # vmap must run: fused kernels have no rule
    padding = PaddedRows() if per_member and _has_padding(engine.template) else contextlib.nullcontext()
    with guard, attention, together, coupled, padding, _without_autocast(together, inputs):
        whole = norms or slots  # sums over all members cannot be computed in chunks
        size = engine.members if whole else chunk_of(engine, slot(inputs, engine.batch_axis, 0) if per_member else inputs)
        parts = [_run_chunk(engine, inputs, per_member, at, size) for at in range(0, engine.members, size)]
    output, counts = parts[0]
    if counts:  # in place, so that all members get them
        buffers = engine.buffers()
        with torch.no_grad():
            torch._foreach_copy_([buffers[n] for n in counts], [v.expand_as(buffers[n]) for n, v in counts.items()])
    if len(parts) == 1:
        return output
    columns = zip(*(tree.tensors(part) for part, _ in parts), strict=True)
    return tree.refill(output, [torch.cat(column) for column in columns])


def _together(inputs: Inputs, noise: bool, steps: bool) -> Together:
    """Returns the mode with the rules of layers; under autocast it casts as autocast does."""
    device = _device_type(inputs)
    return Together(torch.get_autocast_dtype(device) if under_autocast(device) else None, device, noise, steps)


def _without_autocast(together: Together, inputs: Inputs) -> Any:
    """Switches autocast off in a with-block if `together` does its work: under vmap it casts only some operands."""
    return contextlib.nullcontext() if together.dtype is None else torch.autocast(_device_type(inputs), enabled=False)


def _device_type(inputs: Inputs) -> str:
    return next((tensor.device.type for tensor in inputs.tensors()), "cpu")


def chunk_of(engine: Engine, inputs: Inputs) -> int:
    """Returns how many members to run at once: chunk=, or in eval mode as many as fit into `MEMORY`."""
    if engine.chunk is not None:
        return min(engine.chunk, engine.members)
    tensors = inputs.tensors()
    needed = engine.input_bytes * sum(tensor.numel() for tensor in tensors)
    if engine.template.training or not needed or torch.compiler.is_compiling():
        return engine.members
    device = tensors[0].device
    if device.type != "cpu" and not torch.is_grad_enabled():
        needed /= KEPT_FOR_GRADIENTS
    return max(1, min(engine.members, int(_memory(device) / needed)))


def _memory(device: torch.device) -> int:
    """Returns the memory limit of a device, in bytes."""
    limit = MEMORY.get(device.type, DEVICE_MEMORY)
    return max(limit, torch.cuda.get_device_properties(device).total_memory // 4) if device.type == "cuda" else limit


def run_vmap_rows(engine: Engine, inputs: Inputs, each: int = 1) -> Tree:
    """Runs block k of `each` rows by member k, with vmap over blocks. Shape: ``[B, ...]``."""
    blocks = each_row(inputs, engine.batch_axis, lambda t, axis: t.unflatten(axis, (-1, each)).movedim(axis, 0))
    output = run_vmap(engine, blocks, per_member=True)
    joined = []
    for tensor, axis in zip(tree.tensors(output), output_axes(engine, output), strict=True):
        if axis is None:
            raise RunError(
                "rows= needs every output to have a batch axis, but this model returns an output without one: "
                "remove that output, or call without rows="
            )
        joined.append(tensor.movedim(0, axis).flatten(axis, axis + 1))
    return tree.refill(output, joined)


def _run_chunk(engine: Engine, inputs: Inputs, per_member: bool, at: int, size: int) -> tuple[Tree, dict[str, Tensor]]:
    """Runs `size` members from `at` on, or those left. Returns outputs, and new values of counters common to all members."""
    size = min(size, engine.members - at)
    chunk = slice(at, at + size)
    buffers = engine.buffers()
    traced = torch.compiler.is_compiling()
    with torch._C.DisableTorchFunction():  # reads that no mode need see
        counts = engine.common_counts()
        before = {} if traced else {name: write_mark(value) for name, value in counts.items()}
    split = engine.owned | engine.summed if per_member else engine.owned
    stacked = {}
    for name, tensor in [*engine.parameters().items(), *buffers.items()]:
        if name in split and name not in counts:
            stacked[name] = tensor if size == engine.members else tensor[chunk]
    if engine.traits.written_buffers:  # a compiled call checks each look-up every time
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
        output, changed = call(engine, {**mine, **counts} if counts else mine, inputs.refill(own))
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
    with torch._C.DisableTorchFunction():
        moved = {n: v for n, v in counts.items() if n not in names and (traced or write_mark(v) != before[n])}
    return tree.refill(structure[0], _apart(outputs, engine, values)), moved


def _apart(outputs: Sequence[Tensor], engine: Engine, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies outputs that are tensors of the ensemble or of the call themselves, as stacking does in the loop."""
    if torch.compiler.is_compiling():
        return [output.clone() if isinstance(output, nn.Parameter) else output for output in outputs]
    with torch._C.DisableTorchFunction():
        held = {_place(t) for t in (*engine.parameters().values(), *engine.buffers().values(), *inputs)}
        alike = [_place(output) in held for output in outputs]
    return [output.clone() if same else output for output, same in zip(outputs, alike, strict=True)]


def _place(tensor: Tensor) -> int:
    """Returns a number that tensors with the same memory have in common. Autograd does not know of what `detach` is a view."""
    if tensor.layout is torch.strided and not functorch.is_functorch_wrapped_tensor(tensor):
        return int(tensor.untyped_storage()._cdata)
    return id(tensor if tensor._base is None else tensor._base)


def over_members(
    run: Callable[..., tuple[Tensor, ...]], size: int, randomness: str, tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Runs a function of tensors ``[size, ...]`` under vmap, like torch.func.vmap.

    That looks through nested arguments and results, which takes as long as a small network. Here they are flat.
    """
    if torch.compiler.is_compiling():
        with vmap_increment_nesting(size, randomness) as level:
            outputs = run(*[predispatch._add_batch_dim(tensor, 0, level) for tensor in tensors])
            return tuple([predispatch._remove_batch_dim(tensor, level, size, 0) for tensor in outputs])
    lazy_load_decompositions()
    level = functorch._vmap_increment_nesting(size, randomness)
    try:
        outputs = run(*[functorch._add_batch_dim(tensor, 0, level) for tensor in tensors])
        return tuple(functorch._remove_batch_dim(tensor, level, size, 0) for tensor in outputs)
    finally:
        functorch._vmap_decrement_nesting()


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
