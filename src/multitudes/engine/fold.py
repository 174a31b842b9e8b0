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

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, count_rows, join_slots, take_rows, tile_rows
from multitudes.engine.loop import OUTPUT, output_axes, slices
from multitudes.engine.modules import batch_norms, has_attention, named_tensors, owning_module, plain_attention, uses_batch
from multitudes.engine.state import SEEDS, Engine, call
from multitudes.engine.tree import Tree
from multitudes.errors import RunError


def run_fold(engine: Engine, inputs: Inputs, per_member: bool = False) -> Tree:
    """All members at once, on M times the rows. Shape: ``[M, B, ...]``."""
    folded = join_slots(inputs, engine.batch_axis) if per_member else tile_rows(inputs, engine.batch_axis, engine.members)
    count = count_rows(folded, engine.batch_axis) // engine.members
    if takes_rows(engine):
        with _counted_once(engine) if not per_member else contextlib.nullcontext():
            output = call(engine, _of_rows(engine, count), folded)[0]
    else:
        places = list(torch.arange(engine.members * count, device=_device(engine)).split(count))
        output = _run(engine, folded, places, tiled=not per_member)
    tree.plain(output)
    unfolded = []
    for tensor, axis in zip(tree.tensors(output), output_axes(engine, output), strict=True):
        if axis is None or tensor.ndim <= axis or tensor.shape[axis] != engine.members * count:
            raise RunError(f"an output of shape {tuple(tensor.shape)} does not have one entry for each of its rows")
        unfolded.append(torch.stack(tensor.split(count, dim=axis)))
    return tree.refill(output, unfolded)


def run_fold_rows(engine: Engine, inputs: Inputs, members: Tensor) -> Tree:
    """Each row by the member that `members` ``[B]`` gives it. Shape: ``[B, ...]``."""
    return _run(engine, inputs, [(members == m).nonzero().flatten() for m in range(engine.members)])


def run_fold_each_row(engine: Engine, inputs: Inputs, members: Tensor) -> Tree:
    """The same in one pass, where every layer with member tensors takes those of each row, ``[B, ...]``."""
    own = [(n, t) for n, t in [*engine.parameters().items(), *engine.buffers().items()] if n in engine.owned]
    return call(engine, {name: tensor[members.to(tensor.device)] for name, tensor in own}, inputs)[0]


def _of_rows(engine: Engine, count: int) -> dict[str, Tensor]:
    """Each row's own tensors, where each member has so many rows: ``[(M B), ...]``."""
    own = [(n, t) for n, t in [*engine.parameters().items(), *engine.buffers().items()] if n in engine.owned]
    return {name: t.unsqueeze(1).expand(-1, count, *t.shape[1:]).flatten(0, 1) for name, t in own}


def takes_rows(engine: Engine) -> bool:
    """Whether every layer with member tensors can take those of each row: it says so, and its rows are the first axis.

    That a row's entries lie together is what fold takes for granted too: only where it is proven.
    """
    if not rows_lie_together(engine):
        return False
    found = sites(engine)
    first = all(call_[0][0] == 0 for name in found for call_ in engine.row_axes.get(name, [[[None]]]))
    return first and all(getattr(type(site), "takes_rows", False) for site in found.values())


def rows_lie_together(engine: Engine) -> bool:
    """Whether each row has its own entries, equally many, next to each other: proven by fold on the example."""
    return "fold" in engine.proven["eval"] and not engine.traits.ragged


def sites(engine: Engine) -> dict[str, nn.Module]:
    """The outermost modules that own member tensors themselves."""
    owners = {owning_module(name) for name in engine.owned if name != SEEDS}
    names = [n for n, _ in engine.template.named_modules() if n in owners]
    outermost = [n for n in names if not any(o != n and (o == "" or n.startswith(f"{o}.")) for o in owners)]
    return {name: engine.template.get_submodule(name) for name in outermost}


def forbidden(engine: Engine) -> str | None:
    """Why fold would not be right in training, if it would not: a shared BatchNorm layer inside a layer run by members."""
    found = sites(engine)
    for name in sorted(engine.shared_norms):
        inside = [site for site in found if site in ("", name) or name.startswith(f"{site}.")]
        if inside:
            return f"the shared BatchNorm {name} lies inside {inside[0] or 'the model'}, which owns member tensors"
    return None


def learn_rows(engine: Engine, inputs: Inputs) -> dict[str, list[Any]]:
    """Where the rows are in what goes into and comes out of each site, call by call.

    Seen from one member at two batch sizes: the axis that grows is the rows'. Nothing is guessed from a size.
    """
    count = count_rows(inputs, engine.batch_axis)
    more = take_rows(inputs, engine.batch_axis, torch.tensor([*range(count), 0]))
    first, second = _shapes(engine, inputs), _shapes(engine, more)
    learned: dict[str, list[Any]] = {}
    for name in first:
        if len(first[name]) != len(second[name]):
            raise RunError(f"{name} is called another number of times when there are more rows")
        pairs = zip(first[name], second[name], strict=True)
        learned[name] = [
            [[_grown(name, *p, count) for p in zip(*side, strict=True)] for side in zip(*pair, strict=True)] for pair in pairs
        ]
    return learned


def learn_output(engine: Engine, inputs: Inputs) -> list[int | None]:
    """Where the rows are in each tensor of an output, seen from one member at two batch sizes."""
    count = count_rows(inputs, engine.batch_axis)
    more = take_rows(inputs, engine.batch_axis, torch.tensor([*range(count), 0]))
    with torch.no_grad():
        few, many = (tree.tensors(call(engine, next(slices(engine)), one)[0]) for one in (inputs, more))
    return [_grown(OUTPUT, tuple(a.shape), tuple(b.shape), count) for a, b in zip(few, many, strict=True)]


def _shapes(engine: Engine, inputs: Inputs) -> dict[str, list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]]]:
    """For each site and call, the shapes of the tensors that go in and come out."""
    seen: dict[str, list[Any]] = {name: [] for name in sites(engine)}

    def note(name: str, args: Any, kwargs: Any, output: Any) -> None:
        seen[name].append(tuple([tuple(t.shape) for t in tree.tensors(value)] for value in ((args, kwargs), output)))

    handles = [
        site.register_forward_hook(lambda _, args, kwargs, out, name=name: note(name, args, kwargs, out), with_kwargs=True)
        for name, site in sites(engine).items()
    ]
    try:
        with torch.no_grad():
            call(engine, next(slices(engine)), inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _axes(name: str, few: list[tuple[int, ...]], more: list[tuple[int, ...]], count: int) -> list[int | None]:
    return [_grown(name, a, b, count) for a, b in zip(few, more, strict=True)]


def _grown(name: str, small: tuple[int, ...], large: tuple[int, ...], count: int) -> int | None:
    """The axis that grows with the rows; None if there is none."""
    axes = [axis for axis, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]
    if not axes:
        return None
    axis = axes[0]
    if len(axes) > 1 or small[axis] % count or large[axis] * count != small[axis] * (count + 1):
        raise RunError(f"the rows of what {name} works on cannot be told apart: {list(small)} becomes {list(large)}")
    return axis


def _run(engine: Engine, inputs: Inputs, places: list[Tensor], tiled: bool = False) -> Tree:
    total = sum(len(place) for place in places)
    guard = plain_attention() if has_attention(engine.template) else contextlib.nullcontext()
    if engine.traits.mutates:
        inputs = inputs.refill([tensor.clone() for tensor in inputs.tensors()])
    with guard, _folded(engine, places, total), _counted_once(engine) if tiled else contextlib.nullcontext():
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
            own = [{n.removeprefix(prefix): t for n, t in part.items() if n.startswith(prefix)} for part in parts]
            own = [{n: t for n, t in tensors.items() if n in known} for tensors in own]
            changed.append((site, "forward" in vars(site), vars(site).get("forward")))
            fold = _Fold(name, places, total, engine.row_axes.get(name, []))
            site.forward = functools.partial(fold.run, _Inner(site, site.forward), own)
        yield
    finally:
        for site, had, before in changed:
            del site.forward
            if had:
                site.forward = before


@contextlib.contextmanager
def _counted_once(engine: Engine) -> Iterator[None]:
    """While it lasts, a BatchNorm layer of the trunk sees each row once: all members' are the same there."""
    changed = []
    norms = batch_norms(engine.template)

    def once(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        y = forward(x.narrow(0, 0, x.shape[0] // engine.members))
        return y.repeat(engine.members, *(1 for _ in y.shape[1:]))

    try:
        for name in engine.shared_norms - engine.traits.coupled:
            if engine.members > 1 and uses_batch(norms[name]):
                changed.append((norms[name], "forward" in vars(norms[name]), vars(norms[name]).get("forward")))
                norms[name].forward = functools.partial(once, norms[name].forward)  # type: ignore[method-assign]
        yield
    finally:
        for norm, had, before in changed:
            del norm.forward
            if had:
                norm.forward = before  # type: ignore[assignment]


class _Inner(nn.Module):
    """The site as a child, so that its tensors can be replaced while its own forward runs, hooks not called twice."""

    def __init__(self, site: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.site = site
        self.run = forward

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tree, dict[str, Tensor]]:
        return self.run(*args, **kwargs), dict(self.site.named_buffers())


class _Fold:
    """One site in one pass: which rows belong to which member, and where the rows are, call by call."""

    def __init__(self, name: str, places: list[Tensor], total: int, calls: list[Any]) -> None:
        self.name = name
        self.places = places
        self.total = total
        self.calls = iter(calls)

    def run(self, inner: _Inner, own: list[dict[str, Tensor]], *args: Any, **kwargs: Any) -> Tree:
        """The site's output, each member's rows by its own tensors."""
        before, after = next(self.calls, ([], []))
        given = tree.tensors((args, kwargs))
        if not after or len(before) != len(given):
            raise RunError(f"{self.name} is called otherwise than on the example, so its rows cannot be told apart")
        pieces = []
        for tensors, place in zip(own, self.places, strict=True):
            if len(place):
                mine = tree.refill((args, kwargs), [self._rows_of(t, a, place) for t, a in zip(given, before, strict=True)])
                output, buffers = functional_call(inner, {f"site.{n}": t for n, t in tensors.items()}, mine)
                pieces.append(output)
                with torch.no_grad():
                    for name, tensor in tensors.items():
                        if name in buffers and buffers[name] is not tensor:
                            tensor.copy_(buffers[name])
        return self._joined(pieces, after)

    def _rows_of(self, tensor: Tensor, axis: int | None, place: Tensor) -> Tensor:
        return tensor if axis is None else tensor.index_select(axis, self._index(tensor, axis, place))

    def _index(self, tensor: Tensor, axis: int, place: Tensor) -> Tensor:
        """Where these rows' entries are: several in a run for each, where a row has been taken apart (windows)."""
        each, rest = divmod(tensor.shape[axis], self.total)
        if rest or not each:
            raise RunError(f"{self.name} works on {tensor.shape[axis]} entries for {self.total} rows")
        place = place.to(tensor.device)
        return place if each == 1 else (place[:, None] * each + torch.arange(each, device=place.device)).flatten()

    def _joined(self, pieces: list[Tree], axes: list[int | None]) -> Tree:
        columns = list(zip(*(tree.tensors(piece) for piece in pieces), strict=True))
        order = torch.cat(self.places).argsort()
        joined = []
        for column, axis in zip(columns, axes, strict=True):
            if axis is None:
                raise RunError(f"{self.name} gives something without rows, which differs by member")
            whole = torch.cat(column, dim=axis)
            joined.append(whole.index_select(axis, self._index(whole, axis, order)))
        return tree.refill(pieces[0], joined)


def _device(engine: Engine) -> torch.device:
    return next((t.device for _, t in named_tensors(engine.template)), torch.device("cpu"))


def batch_coupled(engine: Engine, per_member: bool = False) -> list[str]:
    """The shared BatchNorm layers that would now take statistics over the rows of all members."""
    norms = batch_norms(engine.template)
    names = engine.shared_norms if per_member else engine.traits.coupled
    return sorted(name for name in names if uses_batch(norms[name]))
