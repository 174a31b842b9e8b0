"""A shallower network: of the blocks of a list that are alike, few stay.

What is proved of a block holds for others of the same class, shapes and settings. A network without these is a valid copy of
the problem if it runs every operation of the whole one, with the same shapes and numbers, in both modes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

from torch import Tensor, nn

from multitudes.engine.choose import DROPOUTS
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import EVERY_MODULES, batch_norms, copy_with, hooked, join_name, named_parts, named_tensors
from multitudes.engine.program import Program, Tracer
from multitudes.engine.state import MODES, Engine
from multitudes.engine.tree import PLAIN

BLOCKS = 2
"""A list of blocks keeps at least this many, so that what one block leaves behind meets another one."""
RATE = 0.1
"""The rate of all dropout where blocks are compared: 0 stays 0, with which other code runs."""
WORTH = 0.75
"""A shallower network pays if it has at most this share of the modules."""


def shallower(engine: Engine, inputs: Inputs, plain: nn.Module) -> Engine | None:
    """Returns the engine without blocks that are like others; None if it runs other operations, or is hardly shallower.

    `plain` is the network of one member. The engines share their tensors.
    """
    repeated = _repeated(engine)
    if not repeated:
        return None
    template = without_blocks(copy_with(engine.template, {}), repeated)
    names = {name for name, _ in named_tensors(template)}
    if len(named_parts(template)) > WORTH * len(named_parts(engine.template)) or not names <= engine.registers.keys():
        return None
    part = replace(
        engine,
        template=template,
        owned=engine.owned & names,
        summed=engine.summed & names,
        shared_norms=engine.shared_norms & batch_norms(template).keys(),
        why={},
        proven=dict(engine.proven),
        blocks_left_out=sum(map(len, repeated.values())),
    )
    part.refresh()
    whole = _at_one_rate(plain, inputs)
    return part if whole is not None and _runs_all(without_blocks(copy_with(whole, {}), repeated), whole, inputs) else None


def without_blocks(module: nn.Module, blocks: Mapping[str, Sequence[str]]) -> nn.Module:
    """Removes blocks from lists, in place. `blocks` has the keys to remove by the name of their list; other keys stay."""
    for name, keys in blocks.items():
        for key in keys:
            del module.get_submodule(name)._modules[key]
    return module


def _repeated(engine: Engine) -> dict[str, list[str]]:
    """Returns, for each list of blocks, the keys of blocks that are like one that stays. Lists inside of these are left out."""
    hooks = set(hooked(engine.template))
    repeated: dict[str, list[str]] = {}
    gone: list[str] = []
    for name, part in named_parts(engine.template):
        if not isinstance(part, (nn.ModuleList, nn.Sequential)) or any(f"{name}.".startswith(f"{block}.") for block in gone):
            continue
        if any(getattr(each, "inplace", False) for each in part.children()):
            continue  # without a layer between them, one would overwrite what another needs for backward
        keys = _repeated_in(engine, name, part, hooks)
        gone += [join_name(name, key) for key in keys]
        if keys:
            repeated[name] = keys
    return repeated


def _repeated_in(engine: Engine, name: str, blocks: nn.Module, hooks: set[str]) -> list[str]:
    kept: set[Hashable] = set()
    keys, count = [], 0
    for place, (key, block) in enumerate(blocks._modules.items()):
        if block is None or next(block.parameters(), None) is None:
            continue
        kinds = {_kind(engine, join_name(name, key), block, number, hooks) for number in (place, None)}
        if kinds & kept and count >= BLOCKS:
            keys.append(key)
        else:
            count += 1
        kept |= kinds
    return keys


def _kind(engine: Engine, name: str, block: nn.Module, place: int | None, hooks: set[str]) -> Hashable:
    """Returns what blocks that are alike have in common: classes, shapes, settings, and which tensors belong to members.

    With `place`, the number of the block in its list, settings that are this number are equal to those of other blocks.
    """
    parts: list[Hashable] = []
    for inner, part in named_parts(block):
        full = join_name(name, inner) if inner else name
        if full in hooks:
            return full
        tensors = tuple(
            (key, tuple(t.shape), t.dtype, t.requires_grad, join_name(full, key) in engine.owned | engine.summed)
            for register in (part._parameters, part._buffers)
            for key, t in register.items()
            if t is not None
        )
        others = EVERY_MODULES.union(
            getattr(type(part), "reported", ())
        )  # a method's facts for the plan: no forward reads them
        own = {key: value for key, value in vars(part).items() if key not in others}
        settings = tuple((key, RATE if _is_rate(part, key) else _mark(value, place)) for key, value in own.items())
        parts.append((inner, type(part), full in engine.shared_norms, tensors, settings))
    return tuple(parts)


def _is_rate(part: nn.Module, key: str) -> bool:
    """Whether a setting is a rate at which a module drops. Blocks may differ in it: stochastic depth drops later ones more."""
    value = vars(part)[key]
    if not isinstance(value, float) or not 0 < value < 1:
        return False
    return "drop" in key or (key == "p" and (isinstance(part, DROPOUTS) or "drop" in type(part).__name__.lower()))


def _at_one_rate(network: nn.Module, inputs: Inputs) -> nn.Module | None:
    """Returns a copy in which all rates above 0 are the same; None if it then runs other operations."""
    places = [(name, key) for name, part in named_parts(network) for key in vars(part) if _is_rate(part, key)]
    if not places:
        return network
    equal = copy_with(network, {})
    for name, key in places:
        vars(equal.get_submodule(name))[key] = RATE
    try:
        ours, theirs = (Tracer(each).program(inputs, "train") for each in (equal, network))
    except Exception:  # it does not train on this example
        return None
    return equal if (ours.names, ours.shapes) == (theirs.names, theirs.shapes) else None


def _mark(value: Any, place: int | None = None) -> Hashable:
    """Returns a value that is equal for settings that are equal."""
    if type(value) is int and value == place:
        return "its place"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_mark(entry) for entry in value)
    if isinstance(value, dict):
        return type(value), tuple((repr(key), _mark(entry)) for key, entry in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), _mark(vars(value)) if hasattr(value, "__dict__") else id(value)
    return id(value)


def _runs_all(part: nn.Module, whole: nn.Module, inputs: Inputs) -> bool:
    """Whether a network runs every operation of the whole one in both modes, and has outputs of the same shapes."""
    of_whole, of_part = Tracer(whole), Tracer(part)
    try:
        return all(_covers(of_part.program(inputs, mode), of_whole.program(inputs, mode)) for mode in MODES)
    except Exception:  # a block is read by its number, or is missing
        return False


def _covers(part: Program, whole: Program) -> bool:
    return part.outputs == whole.outputs and set(whole.operations) <= set(part.operations)
