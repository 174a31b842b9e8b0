"""Runs a whole network forward, after a shallower copy of it was proved: what holds for the copy must hold for all blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from multitudes.engine.inputs import Inputs
from multitudes.engine.loop import OUTPUT
from multitudes.engine.proof.slots import check_slots, norms_of_slots
from multitudes.engine.proof.trial import Trial
from multitudes.engine.state import MODES, Engine, Traits
from multitudes.errors import RunError

NAMES = ("coupled", "written_buffers", "slot_norms")
"""Traits that name parts of the network: the whole network shows its own, which must agree with those of the copy."""
TRIED = ("vmap_per_member", "fold_per_member", "backward_in_eval", "mixes_rows")
"""Traits that only the copy shows: forward passes of the whole network do not."""


def run_whole(engine: Engine, inputs: Inputs, part: Engine, same: bool) -> Engine:
    """Runs the plain members, the loop and the executors proven on `part` forward on the whole network.

    They run in training mode, or in eval mode if training runs the `same` operations; in both if forward writes into buffers.
    Returns an engine with the traits and batch axes of the whole network. Raises an error if outputs or traits differ.
    """
    modes = MODES if part.traits.written_buffers else ("eval",) if same else ("train",)
    whole = Trial(engine, inputs, large=True, modes=modes, backward=False, random=part.traits.random)
    whole.engine.proven = dict(part.proven)
    whole.engine.row_axes = {name: axes for name, axes in part.row_axes.items() if name == OUTPUT}
    if any("fold" in names for names in part.proven.values()):
        whole.engine.row_axes |= whole.learned_rows()
    for mode in modes:
        _compare(whole, mode)
    slots: dict[str, Any] = {}
    if engine.summed:
        slots = {"vmap_per_member": part.traits.vmap_per_member, "slots_in_turn": part.traits.slots_in_turn}
        slots["slot_norms"] = norms_of_slots(whole.engine, inputs)
    whole.engine.traits = _agreed(replace(whole.engine.traits, **slots), part)
    if engine.summed:
        check_slots(whole.engine, inputs, lambda: whole.outcome("loop", "eval"))
    return whole.engine


def _compare(whole: Trial, mode: str) -> None:
    """Compares the outputs of the proven executors. Those with coupled norms in training are compared with each other."""
    engine = whole.engine
    names = list(engine.proven[mode])
    if mode == "train" and engine.traits.coupled:
        names.remove("loop")
    loop = whole.outcome("loop", mode)
    for name in names:
        whole.outcome(name, mode)
        differs = None if loop.random else whole.difference(name, names[0], mode)
        if differs:
            raise RunError(f"{name} in {mode} mode: {differs}")


def _agreed(whole: Traits, part: Engine) -> Traits:
    """Returns the traits of the whole network, if those of its copy agree with them. Otherwise raises RunError.

    Noise on branches that start at zero shows in gradients alone, which the copy has.
    """
    inside = {name for name, _ in part.template.named_modules()} | part.registers.keys()
    names = {key: getattr(whole, key) for key in NAMES}
    traits = replace(whole, random=whole.random or part.traits.random, **{key: getattr(part.traits, key) for key in TRIED})
    if replace(traits, **{key: value & inside for key, value in names.items()}) != part.traits:
        raise RunError("the whole network has other traits than its shallower copy")
    return traits
