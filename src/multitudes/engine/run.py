"""Runs one call of an engine: chooses the executor for this call, and passes it the inputs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from multitudes.engine import (
    EXECUTORS,
    Engine,
    batch_coupled,
    forbidden,
    rows_lie_together,
    run_fold_each_row,
    run_fold_rows,
    run_loop_rows,
    run_vmap_rows,
    takes_rows,
    tree,
)
from multitudes.engine.choose import choose, draws_in_trunk, vmap_is_right
from multitudes.engine.fold import owned_tensors
from multitudes.engine.inputs import Inputs, count_rows
from multitudes.engine.rows import of_each_row, values_of
from multitudes.engine.slots import run_slots_in_turn
from multitudes.engine.state import SEEDS
from multitudes.engine.vmap import SLOW
from multitudes.errors import InputError, RunError, listed

FEW_BYTES = 2**31
"""Activations of one member, in bytes, below which a GPU of today waits for its launches."""

FULL_BYTES = {"train": 7 * 2**29, "eval": 5 * 2**29}
"""Activations of one member, in bytes, from which a network of matrices fills a GPU of today, in each mode."""

FEW_MEMBERS = {"train": 2, "eval": 3}
"""Members that a GPU runs in turn in a plain call, in each mode. To launch all together takes as long as to launch 2.2 ResNets
in a training step, and 3.7 in a prediction (`python -m benchmarks --growth members`)."""

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def run(engine: Engine, call: Inputs, per_member: bool, members: Tensor | None) -> Any:
    """Runs all members, ``[M, B, ...]``.

    With `members`, which names one member per row, ``[B]``, or per block of rows, ``[K, 1]``, runs each row by its member only,
    ``[B, ...]``.
    """
    if members is not None:
        return run_by_rows(engine, call, members, per_member)
    if engine.summed and per_member:
        return run_slots(engine, call)
    name = choose(engine, per_member)
    if name == "vmap" and not per_member and _launches_count(engine, call) and takes_rows(engine):
        name = "fold"
    if name == "vmap" and (_are_few_members(engine) or _member_fills_device(engine, call, per_member)):
        name = "loop"
    untraceable = engine.traits.written_buffers or (name == "loop" and draws_in_trunk(engine))
    if untraceable and torch.compiler.is_dynamo_compiling():
        return _untraced_loop(engine, call, per_member)
    return EXECUTORS[name](engine, call, per_member)


def _launches_count(engine: Engine, call: Inputs) -> bool:
    """Whether a prediction on a GPU is so small that launching it takes longer than running it.

    Layers that take a member for each row then run as fold, which launches what one network launches.
    """
    if not _may_choose(engine) or engine.template.training:
        return False
    return bytes_of_member(engine, call) < FEW_BYTES


def _are_few_members(engine: Engine) -> bool:
    """Whether so few members launch less in turn than vmap does, which takes a GPU as long as some networks to launch."""
    if not _may_choose(engine) or engine.shares or engine.is_traced:
        return False
    return engine.members <= FEW_MEMBERS["train" if engine.template.training else "eval"]


def _member_fills_device(engine: Engine, call: Inputs, per_member: bool) -> bool:
    """Whether each member keeps a GPU busy alone, so that members had better run in turn.

    A batched product of matrices adds biases, and members' norms scale, in passes of their own, which one network needs not.
    Convolutions of all members need no such passes, and members that share something compute it once.
    """
    if not _may_choose(engine) or (engine.shares and (engine.template.training or engine.shares_work())):
        return False
    if engine.shared_norms and batch_coupled(engine, per_member):
        return False
    if bytes_of_member(engine, call, per_member) < FULL_BYTES["train" if engine.template.training else "eval"]:
        return False
    sizes = {True: 0, False: 0}
    for name, tensor in engine.parameters().items():
        ndim = tensor.ndim - (name in engine.owned)
        if ndim > 1:
            sizes[ndim == 2] += tensor.numel()
    return sizes[True] > sizes[False]


def _may_choose(engine: Engine) -> bool:
    """Whether a call may take another executor than the picked one, by its size: on a GPU, if nobody has measured."""
    if torch.compiler.is_compiling():
        return False
    return engine.chunk is None and engine.device_type not in {"cpu", *engine.tuned}


def bytes_of_member(engine: Engine, call: Inputs, per_member: bool = False) -> float:
    """Returns the bytes of one member's activations; with `per_member` the call has inputs of all of them."""
    entries = sum(tensor.numel() for tensor in call.tensors())
    return engine.input_bytes * entries / (engine.members if per_member else 1)


def run_slots(engine: Engine, call: Inputs) -> Any:
    """Runs members with summed first layers (MIMO), each on its own inputs: by vmap, or one slot after another."""
    if engine.traits.vmap_per_member:
        if torch.compiler.is_compiling():
            return EXECUTORS["vmap"](engine, call, per_member=True)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", SLOW
            )  # an operation without a rule, in a first layer: nothing else would be faster
            return EXECUTORS["vmap"](engine, call, per_member=True)
    if not engine.traits.slots_in_turn:
        why = engine.why.get("vmap", "with equal inputs for all members its result differs from a plain call")
        raise RunError(
            f"this ensemble cannot train with different inputs per member: {why}. "
            "Convert the model again, change this part of it, or use another method than MIMO"
        )
    return _untraced_slots(engine, call)


def run_by_rows(engine: Engine, call: Inputs, members: Tensor, per_member: bool) -> Any:
    """Runs each row by the member that `members` ``[B]`` names for it, or ``[K, 1]`` for its block of rows."""
    if per_member:
        raise InputError("rows= and per_member=True exclude each other: give one of them")
    members, each = _checked_members(engine, call, members)
    if not len(members):
        return tree.take(EXECUTORS["loop"](engine, call), 0)
    coupled = SEEDS in engine.template._buffers and batch_coupled(engine, per_member=True)
    if engine.traits.vmap_per_member and (engine.drawn or coupled):
        with engine.with_draws(engine.tensors_of_rows(members.flatten().repeat_interleave(each))):
            return run_vmap_rows(engine, call)
    mixed = engine.template.training and engine.traits.mixes_rows
    if takes_rows(engine) and not mixed:
        return run_fold_each_row(engine, call, members.flatten(), each)
    if each > 1 and _blocks_run_together(engine, len(members)):
        with engine.with_draws(of_each_row(owned_tensors(engine), members.flatten())):
            return run_vmap_rows(engine, call, each)
    shared = batch_coupled(engine, per_member=True)
    together = rows_lie_together(engine) and not mixed
    apart = None if together else engine.why.get("fold", "rows may have different numbers of entries")
    if shared and (why := forbidden(engine) or apart):
        raise RunError(
            f"BatchNorm {listed(shared)} is shared by members, so in training it must see all rows at once. "
            f"That needs fold, which cannot run this model: {why}. Put this BatchNorm into eval mode"
        )
    members = members if torch.compiler.is_compiling() else values_of(members)  # a search on a GPU would wait for it
    return (run_fold_rows if shared else run_loop_rows)(engine, call, members.flatten().repeat_interleave(each))


def _blocks_run_together(engine: Engine, blocks: int) -> bool:
    """Whether blocks of rows run by vmap, each with a copy of its member's tensors. `ens.batch` makes one block of each member.

    The loop would launch a network for each member, and its search for rows depends on values, which stops a compiler. On a CPU
    it is as fast.
    """
    together = torch.compiler.is_compiling() or engine.device_type != "cpu"
    few = engine.shares and engine.chunk is None and blocks <= 2 * engine.members
    return together and few and not engine.writes_owned() and vmap_is_right(engine, per_member=True)  # writes would be lost


def _checked_members(engine: Engine, call: Inputs, members: Tensor) -> tuple[Tensor, int]:
    """Checks that rows= names a member for each row or block of rows. Returns it as int64, and the rows of a block."""
    count = count_rows(call, engine.batch_axis)
    members = torch.as_tensor(members)
    blocks = members.ndim == 2 and members.shape[1] == 1 and len(members) > 0 and count % len(members) == 0
    if not (blocks or members.shape == (count,)) or members.dtype not in INTEGERS:
        raise InputError(
            f"rows= must be {count} whole numbers, one per row, or [K, 1], one for each of K equal blocks of rows, not "
            f"{members.dtype} of shape {list(members.shape)}"
        )
    if count and not torch.compiler.is_compiling():
        values = values_of(members)
        if int(values.min()) < 0 or int(values.max()) >= engine.members:
            raise InputError(f"rows= names a member that does not exist: members are 0 to {engine.members - 1}")
    return members.long(), count // len(members) if blocks else 1


_untraced_slots = torch._disable_dynamo(run_slots_in_turn)  # type: ignore[attr-defined]
_untraced_loop = torch._disable_dynamo(EXECUTORS["loop"])  # type: ignore[attr-defined]
