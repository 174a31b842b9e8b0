"""Slots: summed first layers (MIMO) with other inputs for each slot, run one slot after another.

vmap runs all slots at once where it can; this works for every model, and is the reference for vmap. First each slot runs
until its first layers are done. Then each member runs on its own inputs, with the sums over all slots as the outputs of first
layers. So all that reads inputs beside these layers, such as a mask, reads those of the member's own slot.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, slot
from multitudes.engine.listening import Quick
from multitudes.engine.loop import slices
from multitudes.engine.modules import with_attribute
from multitudes.engine.program import shape_inputs, shapes_only
from multitudes.engine.state import Engine, call, write_back
from multitudes.engine.tree import Tree
from multitudes.errors import RunError


@dataclass(frozen=True)
class Turn:
    """The slot whose turn it is; first layers read it."""

    slot: int
    members: int
    join: Callable[[Tree], Tree]
    """Takes what a first layer gives for this slot, and returns what the layer shall return."""


class Enough(Exception):
    """All first layers of a slot have run."""


def run_slots_in_turn(engine: Engine, inputs: Inputs, per_member: bool = True) -> Tree:
    """Runs each member on its own inputs, ``[M, B, ...]``, with first layers that sum over slots. Shape: ``[M, B, ...]``."""
    before = {n: b.clone() for n, b in engine.buffers().items() if n not in engine.owned}
    noise = noise_state()
    outputs, changed = [], []
    for output, entries in members_on_sums(engine, inputs, sums_of_slots(engine, inputs, before, noise), before, noise):
        outputs.append(output)
        changed.append(entries)
    write_back(engine, changed)
    return tree.stack(outputs)


def run_last_slot(engine: Engine, inputs: Inputs) -> Tree:
    """Runs the last member alone as `run_slots_in_turn` does, without its changes of buffers. Shape: ``[1, B, ...]``."""
    before = {n: b.clone() for n, b in engine.buffers().items() if n not in engine.owned}
    noise, last = noise_state(), engine.members - 1
    sums = sums_of_slots(engine, inputs, before, noise, _count_of_calls(engine, inputs))
    for output, _ in members_on_sums(engine, inputs, sums, before, noise, first=last):
        return tree.stack([output])
    raise AssertionError("there is a last member")


def _count_of_calls(engine: Engine, inputs: Inputs) -> int | None:
    """Counts the calls of first layers in one forward, on the meta device; None if the network does not run there."""
    thin, call = replace(engine, template=shapes_only(engine.template)), shape_inputs(inputs)
    thin.refresh()
    try:
        with Quick():
            return len(_products(thin, next(iter(slices(thin))), _slot(thin, call, 0), 0, None))
    except Exception:  # values decide what runs
        return None


def sums_of_slots(
    engine: Engine, inputs: Inputs, buffers: dict[str, Tensor], noise: Any, count: int | None = None
) -> list[Tree]:
    """Returns the sum over slots for each call of a first layer, in order. Buffers stay as they are.

    Without `count`, the number of these calls, the first slot runs to the end, since it is not known which call is the last:
    what it counts there is not counted.
    """
    products: list[list[Tree]] = []
    for m, tensors in enumerate(slices(engine)):
        _set_noise(noise)
        count = len(products[0]) if m else count
        own = _cloned({name: tensor for name, tensor in tensors.items() if name in engine.buffers()})
        products.append(_products(engine, {**_cloned(buffers), **tensors, **own}, _slot(engine, inputs, m), m, count))
    if any(len(other) != len(products[0]) for other in products):
        raise RunError("slots call first layers in different numbers: forward must call them equally often for every example")
    return [_total([product[k] for product in products]) for k in range(len(products[0]))]


def members_on_sums(
    engine: Engine, inputs: Inputs, sums: list[Tree], buffers: dict[str, Tensor], noise: Any, first: int = 0
) -> Iterator[tuple[Tree, dict[str, Tensor]]]:
    """Yields each member's output on its own inputs, with these sums as outputs of first layers, and the changed buffers.

    `first` is the member to begin with.

    There is one network behind all slots: it draws its noise once, and counts the batch once in shared buffers.
    """
    for m, tensors in itertools.islice(enumerate(slices(engine)), first, None):
        _set_noise(noise)
        rest = iter(sums)
        now = Turn(m, engine.members, lambda _, rest=rest: tree.apply(Tensor.clone, next(rest)))  # type: ignore[misc]
        with turn(engine, now):
            result = call(engine, {**(_cloned(buffers) if m else {}), **tensors}, _slot(engine, inputs, m))
        yield result


def _slot(engine: Engine, inputs: Inputs, m: int) -> Inputs:
    mine = slot(inputs, engine.batch_axis, m)
    return mine.refill([t.clone() for t in mine.tensors()]) if engine.traits.mutates else mine


def _products(engine: Engine, tensors: dict[str, Tensor], inputs: Inputs, m: int, count: int | None) -> list[Tree]:
    """Returns what the calls of first layers give for slot m; forward stops after `count` of them."""
    done: list[Tree] = []

    def keep(product: Tree) -> Tree:
        done.append(product)
        if len(done) == count:
            raise Enough
        return tree.apply(Tensor.clone, product)  # what follows may write into it

    with contextlib.suppress(Enough), turn(engine, Turn(m, engine.members, keep)):
        call(engine, tensors, inputs)
    return done


def _total(products: list[Tree]) -> Tree:
    columns = zip(*(tree.tensors(product) for product in products), strict=True)
    return tree.refill(products[0], [torch.stack(column).sum(0) for column in columns])


def turn(engine: Engine, now: Turn) -> AbstractContextManager[None]:
    """Tells the first layers of a template in a with-block which slot's turn it is."""
    layers = [part for part in engine.template.modules() if hasattr(type(part), "slot_turn")]
    return with_attribute(layers, "slot_turn", now)


def _cloned(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in buffers.items()}


def noise_state() -> Any:
    """Returns the states of torch's generators."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in devices]


def _set_noise(state: Any) -> None:
    torch.set_rng_state(state[0])
    for device, value in enumerate(state[1]):
        torch.cuda.set_rng_state(value, device)
