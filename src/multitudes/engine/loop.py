"""The loop: calls the template once per member, with that member's tensors.

It works for every model, and is the reference for the other executors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, slot, take_rows
from multitudes.engine.replay import Diverged, Replay
from multitudes.engine.seeds import seed_all
from multitudes.engine.state import Engine, call, write_back
from multitudes.engine.tree import Tree
from multitudes.errors import RunError

KEPT_NUMBERS = 2**16
"""Most numbers of a tensor whose members' slices are kept from call to call."""
OUTPUT = "(output)"
"""Key of the outputs' batch axes in `Engine.row_axes`."""


def run_loop(engine: Engine, inputs: Inputs, per_member: bool = False, seed: int | None = None) -> Tree:
    """Runs all members, one after another. Shape: ``[M, B, ...]``. With `seed`, member m starts from the seed ``seed + m``."""
    outputs, changed = [], []
    for output, entries in members(engine, inputs, per_member, seed=seed):
        outputs.append(output)
        changed.append(entries)
    write_back(engine, changed)
    return tree.stack(outputs)


def members(
    engine: Engine,
    inputs: Inputs,
    per_member: bool = False,
    replay: Replay | None = None,
    seed: int | None = None,
) -> Iterator[tuple[Tree, dict[str, Tensor]]]:
    """Yields each member's output, with the buffers that its forward changed."""
    common = _copied(inputs) if engine.traits.mutates else inputs
    names = engine.traits.written_buffers
    written = {name: buffer for name, buffer in engine.shared_buffers().items() if name in names} if names else {}
    shared = {name: buffer.clone() for name, buffer in written.items()}
    replay = replay or make_replay(engine)
    if replay is not None:
        replay.add_shared({**shared, **({} if per_member else {f"input {k}": t for k, t in enumerate(common.tensors())})})
    for m, tensors in enumerate(slices(engine)):
        if m and torch.compiler.is_compiling():  # traced, the trunk runs for each member: only the first may count the batch
            shared = {name: buffer.clone() for name, buffer in engine.shared_buffers().items()}
        elif m and (replay is None or replay.disabled):  # each member starts from the stored value of a shared buffer
            shared = {name: buffer.clone() for name, buffer in written.items()}
        if per_member:
            mine = slot(inputs, engine.batch_axis, m)
        elif not engine.traits.mutates or (replay is not None and not replay.disabled):
            mine = common
        else:
            mine = _copied(inputs)
        if seed is not None:
            seed_all(seed + m)
        if replay is None:
            yield call(engine, {**shared, **tensors} if shared else tensors, mine)
            continue
        try:
            with member_turn(replay, m):
                result = call(engine, {**shared, **tensors}, mine)
        except Diverged:  # run this member again, and the rest, without replay
            replay.disabled = True
            shared = {name: buffer.clone() for name, buffer in written.items()}
            result = call(engine, {**shared, **tensors}, _copied(inputs) if engine.traits.mutates else inputs)
        yield result


def run_loop_rows(engine: Engine, inputs: Inputs, members: Tensor) -> Tree:
    """Runs each row by its member; `members` ``[B]`` names the member of each row. Shape: ``[B, ...]``."""
    pieces, places = [], []
    changed: list[dict[str, Tensor]] = [{} for _ in range(engine.members)]
    for m, tensors in enumerate(slices(engine)):
        index = (members == m).nonzero().flatten()
        if len(index):
            output, changed[m] = call(engine, tensors, take_rows(inputs, engine.batch_axis, index))
            pieces.append(output)
            places.append(index)
    write_back(engine, changed)
    engine.refresh()  # members that had no row did not count this batch
    order = torch.cat(places).argsort()
    return gather(pieces, order, output_axes(engine, pieces[0]))


def output_axes(engine: Engine, output: Tree) -> list[int | None]:
    """Returns the batch axis of each output tensor, as found at conversion; 0 if that is unknown."""
    learned = engine.row_axes.get(OUTPUT)
    count = len(tree.tensors(output))
    return learned if learned is not None and len(learned) == count else [0] * count


def gather(pieces: list[Tree], order: Tensor, axes: list[int | None]) -> Tree:
    """Concatenates the rows of the pieces and puts them into order."""
    columns = zip(*(tree.tensors(piece) for piece in pieces), strict=True)
    joined = []
    for column, axis in zip(columns, axes, strict=True):
        if axis is None or sum(part.shape[axis] if part.ndim > axis else 1 for part in column) != len(order):
            raise RunError(
                f"rows= needs one entry per row in every output, but this model returns an output of shape "
                f"{tuple(column[0].shape)}: remove that output, or call without rows="
            )
        whole = torch.cat(column, dim=axis)
        joined.append(whole.index_select(axis, order.to(whole.device)))
    return tree.refill(pieces[0], joined)


def slices(engine: Engine) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors of each member. Parameters are split by one unbind, whose backward stacks the gradients once."""
    tensors = {**engine.parameters(), **engine.buffers()}
    again = _may_use_again()
    parts = {n: _split(engine, n, t) if again else t.unbind(0) for n, t in tensors.items() if n in engine.owned}
    written = [name for name in engine.traits.written_buffers if name in parts]
    for m in range(engine.members):
        mine = {name: slices[m] for name, slices in parts.items()}
        for name in written:
            mine[name] = mine[name].clone()
        yield mine


def _may_use_again() -> bool:
    """Whether this call may use slices of an earlier one: no graph is built, and nobody listens to operations."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    return not (torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def _split(engine: Engine, name: str, tensor: Tensor) -> tuple[Tensor, ...]:
    """Returns the members' slices of a tensor. Those of a small one are kept for the next call: they are views of its values.

    In a small network, making them takes about as long as a layer. Those of a large one would keep memory that was replaced.
    They are views of an alias: autograd forbids views of a parameter that were made without gradients once it changes.
    """
    kept = engine.slices.get(name)
    if kept is not None and kept[0] is tensor and kept[1].dtype is tensor.dtype and kept[1].is_set_to(tensor):
        return kept[2]
    plain = type(tensor) in (Tensor, nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if not plain or tensor.is_meta or tensor.numel() > KEPT_NUMBERS:
        return tensor.unbind(0)
    alias = tensor.detach()
    engine.slices[name] = tensor, alias, alias.unbind(0)
    return engine.slices[name][2]


def _copied(inputs: Inputs) -> Inputs:
    return inputs.refill([tensor.clone() for tensor in inputs.tensors()])


def make_replay(engine: Engine) -> Replay | None:
    """Returns a Replay of the shared tensors; None if nothing is shared, or replay would be wrong."""
    if not engine.shares or engine.members == 1 or engine.traits.no_replay or torch.compiler.is_compiling():
        return None
    return Replay({n: t for n, t in [*engine.parameters().items(), *engine.buffers().items()] if n not in engine.owned})


@contextlib.contextmanager
def member_turn(replay: Replay, m: int) -> Iterator[None]:
    """Records the shared operations of member 0 in a with-block, or replays them for member m > 0."""
    if m:
        replay.next_member()
    with replay:
        yield
    replay.end_member()
