"""Fold: puts all members' rows into one batch, member-major; layers with member tensors run each member on its rows.

Shared layers see all rows at once. So a shared BatchNorm layer computes one set of statistics over the rows of all members,
which the loop cannot do. In training with shared BatchNorm, fold therefore defines the right result.
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
from multitudes.engine.inputs import Inputs, add_row, count_rows, join_slots, row_axis, tile_rows
from multitudes.engine.loop import OUTPUT, output_axes, slices
from multitudes.engine.modules import (
    batch_norms,
    inside,
    named_tensors,
    plain_attention,
    uses_batch,
)
from multitudes.engine.rows import of_each_row, of_repeated_rows
from multitudes.engine.state import Engine, call
from multitudes.engine.tree import Tree
from multitudes.errors import RunError


def run_fold(engine: Engine, inputs: Inputs, per_member: bool = False) -> Tree:
    """Runs all members at once, on M times the rows. Shape: ``[M, B, ...]``."""
    folded = join_slots(inputs, engine.batch_axis) if per_member else tile_rows(inputs, engine.batch_axis, engine.members)
    count = count_rows(folded, engine.batch_axis) // engine.members
    if takes_rows(engine):
        with _counted_once(engine, engine.members * count) if not per_member else contextlib.nullcontext():
            output = call(engine, of_repeated_rows(owned_tensors(engine), count), folded)[0]
    else:
        places = list(torch.arange(engine.members * count, device=_device(engine)).split(count))
        output = _run(engine, folded, places, tiled=not per_member)
    tree.plain(output)
    unfolded = []
    for tensor, axis in zip(tree.tensors(output), output_axes(engine, output), strict=True):
        if axis is None or tensor.ndim <= axis or tensor.shape[axis] != engine.members * count:
            raise RunError(
                f"fold needs one entry per row in every output, but an output has shape {tuple(tensor.shape)}: "
                "return outputs with a batch axis"
            )
        unfolded.append(torch.stack(tensor.split(count, dim=axis)))
    return tree.refill(output, unfolded)


def run_fold_rows(engine: Engine, inputs: Inputs, members: Tensor) -> Tree:
    """Runs each row by its member; `members` ``[B]`` names the member of each row. Shape: ``[B, ...]``."""
    device = _device(engine)
    return _run(engine, inputs, [(members == m).nonzero().flatten().to(device) for m in range(engine.members)])


def run_fold_each_row(engine: Engine, inputs: Inputs, members: Tensor, each: int = 1) -> Tree:
    """Runs each row by its member, as `run_fold_rows` does, but in one pass; `members` may name those of blocks of `each` rows.

    Every layer must accept member tensors with one entry per row, ``[B, ...]``.
    """
    return call(engine, of_each_row(owned_tensors(engine), members, each), inputs)[0]


def owned_tensors(engine: Engine) -> dict[str, Tensor]:
    """Returns the tensors with a member axis by name."""
    return {n: t for n, t in [*engine.parameters().items(), *engine.buffers().items()] if n in engine.owned}


def takes_rows(engine: Engine) -> bool:
    """Checks whether every layer with member tensors accepts these with one entry per row, ``[B, ...]``.

    Such a layer's class has `takes_rows = True`, and its batch axis must be the first. Fold must be proven in eval mode.
    """
    if not rows_lie_together(engine):
        return False
    layers = engine.sites()
    first = all(call_[0][0] == 0 for name, _ in layers for call_ in engine.row_axes.get(name, [[[None]]]))
    return first and all(takes for _, takes in layers)


def rows_lie_together(engine: Engine) -> bool:
    """Checks whether all rows have the same number of entries, and whether each row's entries are adjacent.

    That is so if fold is proven in eval mode, and no tensor's size depends on values.
    """
    return "fold" in engine.proven["eval"] and not engine.traits.ragged


def sites(engine: Engine) -> dict[str, nn.Module]:
    """Returns the sites by name: the outermost modules that hold member tensors directly."""
    return {name: engine.template.get_submodule(name) for name, _ in engine.sites()}


def forbidden(engine: Engine) -> str | None:
    """Returns why fold is wrong in training: a shared BatchNorm inside a layer with member tensors. None if it is right."""
    layers = dict(engine.sites())
    for name in sorted(engine.shared_norms):
        if inside(name, layers):
            around = next(site for site in layers if inside(name, [site]))
            return f"the shared BatchNorm {name} lies inside {around or 'the model'}, which owns member tensors"
    return None


def learn_rows(engine: Engine, inputs: Inputs) -> dict[str, list[Any]]:
    """Finds the batch axes in the inputs and outputs of each site, call by call.

    One member runs at two batch sizes: the axis whose size differs is the batch axis.
    """
    count = count_rows(inputs, engine.batch_axis)
    small, large = _shapes(engine, inputs), _shapes(engine, add_row(inputs, engine.batch_axis))
    learned: dict[str, list[Any]] = {}
    for name in small:
        if len(small[name]) != len(large[name]):
            raise RunError(f"the number of calls of {name} depends on the number of rows: call it once, on the whole batch")
        learned[name] = [
            [[_row_axis(name, *shapes, count) for shapes in zip(*side, strict=True)] for side in zip(*pair, strict=True)]
            for pair in zip(small[name], large[name], strict=True)
        ]
    return learned


def learn_output(engine: Engine, inputs: Inputs) -> list[int | None]:
    """Finds the batch axis of each output tensor, by running one member at two batch sizes."""
    count, more = count_rows(inputs, engine.batch_axis), add_row(inputs, engine.batch_axis)
    with torch.no_grad():
        few, many = (tree.tensors(call(engine, next(slices(engine)), one)[0]) for one in (inputs, more))
    return [_row_axis(OUTPUT, tuple(a.shape), tuple(b.shape), count) for a, b in zip(few, many, strict=True)]


def _shapes(engine: Engine, inputs: Inputs) -> dict[str, list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]]]:
    """Returns the shapes of the input and output tensors of each site, call by call."""
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


def _row_axis(name: str, small: tuple[int, ...], large: tuple[int, ...], count: int) -> int | None:
    try:
        return row_axis(small, large, count)
    except ValueError as error:
        raise RunError(f"cannot fold a tensor of {name}: {error}") from error


def _run(engine: Engine, inputs: Inputs, places: list[Tensor], tiled: bool = False) -> Tree:
    total = sum(len(place) for place in places)
    guard = plain_attention() if engine.has_attention and not torch.compiler.is_compiling() else contextlib.nullcontext()
    if engine.traits.mutates:
        inputs = inputs.refill([tensor.clone() for tensor in inputs.tensors()])
    with guard, _folded(engine, places, total), _counted_once(engine, total) if tiled else contextlib.nullcontext():
        return tree.without_objects(engine.template(*inputs.args, **inputs.kwargs))


@contextlib.contextmanager
def _folded(engine: Engine, places: list[Tensor], total: int) -> Iterator[None]:
    """Makes each site run every member on the rows of that member, in a with-block."""
    parts = list(slices(engine))
    changed: list[tuple[nn.Module, bool, Any]] = []
    try:
        for name, site in sites(engine).items():
            prefix = f"{name}." if name else ""
            names = {f"{prefix}{n}": n for n, _ in named_tensors(site)}
            tensors = [{names[n]: t for n, t in part.items() if n in names} for part in parts]
            changed.append((site, "forward" in vars(site), vars(site).get("forward")))
            fold = _Fold(name, places, total, engine.row_axes.get(name, []))
            site.forward = functools.partial(fold.run, _Inner(site, site.forward), tensors)
        yield
    finally:
        for site, had, before in changed:
            del site.forward
            if had:
                site.forward = before


@contextlib.contextmanager
def _counted_once(engine: Engine, total: int) -> Iterator[None]:
    """Runs BatchNorm layers of the shared trunk on one member's rows, in a with-block: all members have equal rows there."""
    changed = []
    norms = batch_norms(engine.template)

    def once(name: str, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x.shape[0] % total:  # parts of the batch, as in ghost batch norm, are no copies of one member's rows
            raise RunError(_not_the_rows(name, x.shape[0], total))
        y = forward(x.narrow(0, 0, x.shape[0] // engine.members))
        return y.repeat(engine.members, *(1 for _ in y.shape[1:]))

    try:
        for name in engine.shared_norms - engine.traits.coupled:
            if engine.members > 1 and uses_batch(norms[name]):
                changed.append((norms[name], "forward" in vars(norms[name]), vars(norms[name]).get("forward")))
                norms[name].forward = functools.partial(once, name, norms[name].forward)  # type: ignore[method-assign]
        yield
    finally:
        for norm, had, before in changed:
            del norm.forward
            if had:
                norm.forward = before  # type: ignore[assignment]


def _not_the_rows(name: str, entries: int, total: int) -> str:
    """Says that a tensor does not hold the rows of all members."""
    return (
        f"a tensor of {name} has {entries} entries along its batch axis, which is not a multiple of the {total} rows: keep the "
        "batch axis in forward"
    )


class _Inner(nn.Module):
    """Holds a site as its child, so that functional_call can replace the site's tensors without running its hooks twice."""

    def __init__(self, site: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.site = site
        self.run = forward

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tree, dict[str, Tensor]]:
        return self.run(*args, **kwargs), dict(self.site.named_buffers())


class _Fold:
    """Runs one site for all members. Holds the row numbers of each member, and the batch axes of each call of the site."""

    def __init__(self, name: str, places: list[Tensor], total: int, calls: list[Any]) -> None:
        self.name = name
        self.places = places
        self.total = total
        self.calls = iter(calls)

    def run(self, inner: _Inner, members: list[dict[str, Tensor]], *args: Any, **kwargs: Any) -> Tree:
        """Runs the site (a module that holds member tensors). Each row is computed with the tensors of its own member."""
        before, after = next(self.calls, ([], []))
        inputs = tree.tensors((args, kwargs))
        if not after or len(before) != len(inputs):
            raise RunError(
                f"{self.name} is called with other tensor arguments, or more often, than on the example, so its batch axes are "
                "unknown: convert again with an example like this input"
            )
        pieces = []
        for tensors, place in zip(members, self.places, strict=True):
            if len(place):
                mine = tree.refill((args, kwargs), [self._rows_of(t, a, place) for t, a in zip(inputs, before, strict=True)])
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
        """Returns the positions of the entries of rows `place`: several per row if rows were split (attention windows)."""
        each, rest = divmod(tensor.shape[axis], self.total)
        if rest or not each:
            raise RunError(_not_the_rows(self.name, tensor.shape[axis], self.total))
        place = place.to(tensor.device)
        return place if each == 1 else (place[:, None] * each + torch.arange(each, device=place.device)).flatten()

    def _joined(self, pieces: list[Tree], axes: list[int | None]) -> Tree:
        columns = list(zip(*(tree.tensors(piece) for piece in pieces), strict=True))
        order = torch.cat(self.places).argsort()
        joined = []
        for column, axis in zip(columns, axes, strict=True):
            if axis is None:
                raise RunError(f"an output of {self.name} has no batch axis: fold needs outputs with one entry per row")
            whole = torch.cat(column, dim=axis)
            joined.append(whole.index_select(axis, self._index(whole, axis, order)))
        return tree.refill(pieces[0], joined)


def _device(engine: Engine) -> torch.device:
    return next((t.device for _, t in named_tensors(engine.template)), torch.device("cpu"))


def batch_coupled(engine: Engine, per_member: bool = False) -> list[str]:
    """Returns the shared BatchNorm layers that would now use statistics over the rows of all members."""
    norms = batch_norms(engine.template)
    names = engine.shared_norms if per_member else engine.traits.coupled
    return sorted(name for name in names if uses_batch(norms[name]))
