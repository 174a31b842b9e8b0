"""Rows of members: calls in which each row of a batch has its own member, which `rows=` names.

Layers that take one entry per row of their member tensors get them from here. A GPU that runs a step layer by layer waits for
launches, so tensors of one shape are looked up together, and cast together under autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.modules import under_autocast

FEW_MEMBERS = 8
"""Up to so many members, a lookup on a GPU looks at all of them."""

FEW_BLOCKS = 16
"""Up to so many blocks of rows, a GPU adds up those of a member one after the other, and so in the same order every time."""

BYTES = 2**26
"""Bytes of all members' entries that a lookup on a GPU makes at once."""


def split_evenly(count: int, members: int, first: int, device: torch.device) -> Tensor:
    """Assigns rows to members in blocks, starting with member `first`. Shape: ``[M, 1]``, or ``[B]`` if blocks differ in size.

    They are computed on the device: copied there, they would make the GPU wait. Their values are noted with them.
    """
    shape, count = ((members, 1), members) if count and count % members == 0 else ((count,), count)
    size = max(count, members)
    places = [torch.device("cpu")] if device.type == "cpu" else [torch.device("cpu"), device]
    starts = (torch.arange(first * size, first * size + count * members, members, device=place) for place in places)
    *values, rows = [(start // size % members).view(shape) for start in starts]
    if values:
        _note(rows, values[0])
    return rows


def values_of(rows: Tensor) -> Tensor:
    """Returns `rows` on the CPU. A GPU is not waited for if they were made here; those of others may change unseen."""
    if rows.device.type == "cpu" or rows.is_inference():
        return rows.cpu()
    mark, values = getattr(rows, "multitudes_values", (None, None))
    return values if values is not None and mark == _mark(rows) else rows.cpu()


def _note(rows: Tensor, values: Tensor) -> None:
    if not (rows.is_inference() or torch.compiler.is_compiling()):  # inference tensors do not count writes
        rows.multitudes_values = (_mark(rows), values)  # type: ignore[attr-defined]


def _mark(rows: Tensor) -> tuple[int, int]:
    """Returns what changes with the values; also the place, since a copy takes the note along, and counts anew."""
    return rows._version, rows.untyped_storage()._cdata


def of_each_row(tensors: Mapping[str, Tensor], members: Tensor, each: int = 1) -> dict[str, Tensor]:
    """Returns each row's entries of tensors ``[M, ...]``: ``[B, ...]``; `members` names that of each block of `each` rows.

    A block's entries are looked up once.
    """
    if not tensors:
        return {}
    places = members.to(next(iter(tensors.values())).device)
    found: dict[str, Tensor] = {}
    if torch.compiler.is_compiling():
        trained = {n: t for n, t in tensors.items() if t.requires_grad and len(t) <= FEW_MEMBERS}
        for names in _alike(trained, len(members) * each):
            entries = LookUp.apply(places, each, *[trained[name] for name in names])
            found.update(zip(names, entries, strict=True))
    rest = {name: tensor for name, tensor in tensors.items() if name not in found}
    return {**found, **_together(rest, len(members) * each, lambda table: repeated(of_rows(table, places), each))}


def of_repeated_rows(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Returns the entries of tensors ``[M, ...]`` for `count` rows of each member: ``[(M B), ...]``."""
    if torch.compiler.is_compiling():  # a part of the kernels that use them
        return {name: repeated(tensor.unsqueeze(0), count).squeeze(0) for name, tensor in tensors.items()}
    return _together(tensors, count, lambda table: repeated(table, count))


def repeated(table: Tensor, count: int) -> Tensor:
    """Repeats the entries of K tensors in one ``[K, M, ...]``, each `count` times: ``[K, (M count), ...]``."""
    if count == 1:
        return table
    return table.unsqueeze(2).expand(-1, -1, count, *table.shape[2:]).flatten(1, 2)


_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define("of_rows(Tensor[] tensors, Tensor members) -> Tensor")
_library.define("sums_of_rows(Tensor[] rows, Tensor members, SymInt each, SymInt count) -> Tensor")


@torch.library.impl(_library, "of_rows", "CompositeExplicitAutograd")
def _(tensors: Sequence[Tensor], members: Tensor) -> Tensor:
    return torch.stack(list(tensors)).index_select(1, members)


@torch.library.impl(_library, "sums_of_rows", "CompositeExplicitAutograd")
def _(rows: Sequence[Tensor], members: Tensor, each: int, count: int) -> Tensor:
    blocks = torch.stack(list(rows))
    if each > 1:
        blocks = blocks.unflatten(1, (len(members), each)).sum(2)
    if len(members) <= FEW_BLOCKS:
        return blocks.new_zeros(len(blocks), count, *blocks.shape[2:]).index_add_(1, members, blocks)
    return torch.where(_own(members, count, blocks), blocks.unsqueeze(1), 0).sum(2)


torch.library.register_fake(
    "multitudes::of_rows",
    lambda tensors, members: tensors[0].new_empty(len(tensors), len(members), *tensors[0].shape[1:]),
    lib=_library,
)
torch.library.register_fake(
    "multitudes::sums_of_rows",
    lambda rows, members, each, count: rows[0].new_empty(len(rows), count, *rows[0].shape[1:]),
    lib=_library,
)


class LookUp(torch.autograd.Function):
    """Returns the entries of each row, ``[(K each), ...]``, of tensors ``[M, ...]`` of one shape, for a compiler.

    It calls operators into which a compiler does not look: joined with a kernel that multiplies by entries, the lookup would
    run for every pixel, and each tensor's gradient would be summed by a kernel of its own.
    """

    @staticmethod
    def forward(ctx: Any, members: Tensor, each: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Looks up the entries of `members`, each for `each` rows: a compiler repeats them where it needs them."""
        ctx.save_for_backward(members)
        ctx.each, ctx.count = each, len(tensors[0])
        return repeated(torch.ops.multitudes.of_rows(list(tensors), members), each).unbind(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Sums the gradients of each member's rows."""
        sums = torch.ops.multitudes.sums_of_rows(list(gradients), *ctx.saved_tensors, ctx.each, ctx.count)
        return None, None, *sums.unbind(0)


def _own(members: Tensor, count: int, rows: Tensor) -> Tensor:
    """Says which rows are a member's, ``[1, M, B, 1, ...]``, for rows ``[K, B, ...]`` or a table ``[K, M, ...]``."""
    own = members == torch.arange(count, device=members.device).unsqueeze(1)
    return own.view(1, count, -1, *(1 for _ in rows.shape[2:]))


def among_all(table: Tensor, members: Tensor) -> Tensor:
    """Returns the same as `of_rows`, by looking at all members' entries for each row."""
    return torch.where(_own(members, table.shape[1], table), table.unsqueeze(2), 0).sum(1)


def of_rows(table: Tensor, members: Tensor) -> Tensor:
    """Returns each row's entries of K tensors in one ``[K, M, ...]``; `members` ``[B]`` names each row's: ``[K, B, ...]``.

    The gradient of an index is added up entry by entry. With few members, a GPU looks at all entries and leaves out those of
    other members: the gradient is then one sum.
    """
    if not table.requires_grad:
        return table.index_select(1, members)
    if table.is_cuda and table.shape[1] <= FEW_MEMBERS and not torch.compiler.is_compiling():
        return among_all(table, members)
    if torch.compiler.is_compiling() or not table.is_floating_point():
        return table[:, members]
    count = table.shape[1]
    places = members + torch.arange(0, len(table) * count, count, device=members.device).unsqueeze(1)
    rows = F.embedding(places, table.reshape(len(table) * count, math.prod(table.shape[2:])))
    return rows.view(*places.shape, *table.shape[2:])


def _together(tensors: Mapping[str, Tensor], rows: int, find: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Looks up all tensors by `find`, which takes K of them as one ``[K, M, ...]``."""
    found: dict[str, Tensor] = {}
    for names in _alike(tensors, rows):
        table = torch.stack([tensors[name] for name in names])
        entries = find(table)
        found.update(zip(names, entries.unbind(0), strict=True))
        kind = table.device.type
        if torch.compiler.is_compiling() or not (table.is_floating_point() and under_autocast(kind)):
            continue
        if torch.get_autocast_dtype(kind) is not table.dtype:
            for name, lower in zip(names, entries.to(torch.get_autocast_dtype(kind)).unbind(0), strict=True):
                found[name].multitudes_lowered = lower  # type: ignore[attr-defined]
    return found


def _alike(tensors: Mapping[str, Tensor], rows: int) -> Iterator[Sequence[str]]:
    """Yields the names of tensors that can be looked up together, as many as `BYTES` allows."""
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault((tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad), []).append(name)
    for names in kinds.values():
        compiling = torch.compiler.is_compiling()  # its sizes may be symbols
        size = len(names) if compiling else max(1, int(BYTES / max(1, tensors[names[0]].nbytes * rows)))
        yield from (names[at : at + size] for at in range(0, len(names), size))


def in_dtype(entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Casts rows' entries of a tensor; those that were cast together with others are used."""
    if entries.dtype is dtype or torch.compiler.is_compiling():
        return entries.to(dtype)
    lower = getattr(entries, "multitudes_lowered", None)
    return lower if lower is not None and lower.dtype is dtype else entries.to(dtype)
