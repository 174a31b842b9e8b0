"""Fold: all members' rows in one batch, member-major, and each layer that owns member tensors run on its members' rows.

What is shared sees all rows at once. So a BatchNorm layer shared by members takes one set of statistics over the rows of
all of them, which a loop cannot say: in training with shared BatchNorm, fold is the meaning.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from multitudes import tree
from multitudes.engine.loop import gather, row_axis, slices
from multitudes.engine.state import Engine, batch_norms, has_attention, named_tensors, owner, plain_attention, uses_batch
from multitudes.errors import RunError
from multitudes.inputs import Inputs, join_slots, rows, tile_rows
from multitudes.tree import Tree


def run_fold(engine: Engine, inputs: Inputs, per_member: bool = False) -> Tree:
    """All members at once, on M times the rows. Shape: ``[M, B, ...]``."""
    folded = join_slots(inputs, engine.batch_axis) if per_member else tile_rows(inputs, engine.batch_axis, engine.members)
    count = rows(folded, engine.batch_axis) // engine.members
    places = list(torch.arange(engine.members * count, device=_device(engine)).split(count))
    output = _run(engine, folded, places)
    axis = row_axis(engine)

    def unfold(tensor: Tensor) -> Tensor:
        if tensor.ndim <= axis or tensor.shape[axis] != engine.members * count:
            raise RunError(f"an output of shape {tuple(tensor.shape)} does not have one entry for each of its rows")
        return torch.stack(tensor.split(count, dim=axis))

    tree.plain(output)
    return tree.apply(unfold, output)


def run_fold_rows(engine: Engine, inputs: Inputs, members: Tensor) -> Tree:
    """Each row by the member that `members` ``[B]`` gives it. Shape: ``[B, ...]``."""
    return _run(engine, inputs, [(members == m).nonzero().flatten() for m in range(engine.members)])


def sites(engine: Engine) -> dict[str, nn.Module]:
    """The outermost modules that own member tensors themselves."""
    owners = {owner(name) for name in engine.owned}
    names = [n for n, _ in engine.template.named_modules() if n in owners]
    outermost = [n for n in names if not any(o != n and (o == "" or n.startswith(f"{o}.")) for o in owners)]
    return {name: engine.template.get_submodule(name) for name in outermost}


def forbidden(engine: Engine) -> str | None:
    """Why fold would not be right in training, if it would not: a shared BatchNorm layer inside a layer run by members."""
    found = sites(engine)
    for name in sorted(engine.shared_norms):
        inside = [site for site in found if site == "" or name.startswith(f"{site}.")]
        if inside:
            return f"the shared BatchNorm {name} lies inside {inside[0] or 'the model'}, which owns member tensors"
    return None


def _run(engine: Engine, inputs: Inputs, places: list[Tensor]) -> Tree:
    total = sum(len(place) for place in places)
    guard = plain_attention() if has_attention(engine.template) else contextlib.nullcontext()
    with guard, _folded(engine, places, total):
        return engine.template(*inputs.args, **inputs.kwargs)


@contextlib.contextmanager
def _folded(engine: Engine, places: list[Tensor], total: int) -> Iterator[None]:
    """While it lasts, each site runs its members on their own rows."""
    parts = list(slices(engine))
    changed: list[tuple[nn.Module, bool, Any]] = []
    try:
        for name, site in sites(engine).items():
            prefix = f"{name}." if name else ""
            known = {n for n, _ in named_tensors(site)}
            own = [{n.removeprefix(prefix): t for n, t in part.items() if n.removeprefix(prefix) in known} for part in parts]
            changed.append((site, "forward" in vars(site), vars(site).get("forward")))
            site.forward = _by_member(site, site.forward, own, places, total)
        yield
    finally:
        for site, had, before in changed:
            del site.forward
            if had:
                site.forward = before


class _Inner(nn.Module):
    """The site as a child, so that its tensors can be replaced while its own forward runs, hooks not called twice."""

    def __init__(self, site: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.site = site
        self.run = forward

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tree, dict[str, Tensor]]:
        return self.run(*args, **kwargs), dict(self.site.named_buffers())


def _by_member(
    site: nn.Module, forward: Callable[..., Any], own: list[dict[str, Tensor]], places: list[Tensor], total: int
) -> Callable[..., Any]:
    inner = _Inner(site, forward)

    def run(*args: Any, **kwargs: Any) -> Tree:
        pieces = []
        for tensors, place in zip(own, places, strict=True):
            if not len(place):
                continue
            mine = tree.apply(functools.partial(_rows_of, place=place, total=total), (args, kwargs))
            output, buffers = functional_call(inner, {f"site.{n}": t for n, t in tensors.items()}, mine)
            pieces.append(tree.apply(functools.partial(_has_rows, place=place), output))
            with torch.no_grad():
                for name, tensor in tensors.items():
                    if name in buffers and buffers[name] is not tensor:
                        tensor.copy_(buffers[name])
        return gather(pieces, torch.cat(places).argsort(), 0)

    return run


def _rows_of(tensor: Tensor, place: Tensor, total: int) -> Tensor:
    return tensor.index_select(0, place.to(tensor.device)) if tensor.ndim and tensor.shape[0] == total else tensor


def _has_rows(tensor: Tensor, place: Tensor) -> Tensor:
    if not tensor.ndim or tensor.shape[0] != len(place):
        raise RunError(f"a layer gives {tuple(tensor.shape)} for {len(place)} rows, so its rows cannot be told apart")
    return tensor


def _device(engine: Engine) -> torch.device:
    return next((t.device for _, t in named_tensors(engine.template)), torch.device("cpu"))


def batch_coupled(engine: Engine, per_member: bool = False) -> list[str]:
    """The shared BatchNorm layers that would now take statistics over the rows of all members."""
    norms = batch_norms(engine.template)
    names = engine.shared_norms if per_member else engine.traits.coupled
    return sorted(name for name in names if uses_batch(norms[name]))
