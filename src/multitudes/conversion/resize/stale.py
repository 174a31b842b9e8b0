"""Finds numbers of a network that follow its width but are stored apart from it, as 1/√64 is: a thinner network needs others.

A constructor that is run again with other arguments computes them anew. Where channels are removed, or widths are changed in
the constructor's code, they would stay, and be wrong without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.conversion.resize.audit import run_of, width_of, without_constants
from multitudes.conversion.resize.roles import is_head_count
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import join_name, named_tensors
from multitudes.engine.seeds import seeded

FORMULAS: dict[str, Callable[[float], float]] = {
    "1/√{}": lambda width: width**-0.5,
    "√{}": math.sqrt,
    "1/{}": lambda width: 1 / width,
    "{}": float,
}
"""What networks compute from a width, or from the size of a head."""
PROBES = 20
"""How many numbers are tried."""


def stale_numbers(model: nn.Module, new: nn.Module, inputs: Inputs) -> Iterator[str]:
    """Reports numbers that forward computes with, and that are those of a width in the given model, which changes in `new`."""
    if any(tensor.is_meta for _, tensor in named_tensors(model)):  # nothing can be run
        return
    probe = without_constants(model)
    pairs = [(width_of(part), width_of(new.get_submodule(name))) for name, part in model.named_modules()]
    suspects = list(_suspects(probe, new, {before for before, after in pairs if before != after}))[:PROBES]
    before = _outputs(probe, inputs) if suspects else []
    for name, key, meaning in suspects:
        part: Any = probe.get_submodule(name)
        value = getattr(part, key)
        try:
            setattr(part, key, value * 1.5)
            after = _outputs(probe, inputs)
        except Exception:  # a fraction is no size, no window and no number of steps
            continue
        finally:
            setattr(part, key, value)
        if not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(before, after, strict=False)):
            yield f"forward computes with {join_name(name, key)} = {float(value):g}, which is {meaning} and would stay so"


def _outputs(net: nn.Module, inputs: Inputs) -> list[Tensor]:
    with seeded(0):
        return tree.tensors(run_of(net, inputs, copied=False).output)


def _suspects(model: nn.Module, new: nn.Module, widths: set[int]) -> Iterator[tuple[str, str, str]]:
    """Yields modules, their attributes or scalar buffers that are the same in `new`, and what they are: a width, its root."""
    parts = [(name, part) for name, part in model.named_modules() if not type(part).__module__.startswith("torch.nn.")]
    heads = {v for _, part in parts for k, v in vars(part).items() if type(v) is int and v > 1 and is_head_count((k,))}
    sizes = sorted(widths | {width // count for width in widths for count in heads if width % count == 0})
    for name, part in parts:
        numbers = {key: value for key, value in vars(part).items() if type(value) in (int, float) and key[0] != "_"}
        scalars = {k: b.item() for k, b in part._buffers.items() if b is not None and b.numel() == 1 and not b.is_meta}
        other = new.get_submodule(name)
        for key, value in {**numbers, **scalars}.items():
            now = getattr(other, key, None)
            if (now.item() if isinstance(now, Tensor) else now) != value:
                continue
            whole = isinstance(value, int)
            for size in sizes:
                meanings = [text for text, of in FORMULAS.items() if (not whole or text == "{}") and _same(value, of(size))]
                if meanings and size > 1 and (not whole or size in widths):
                    yield name, key, meanings[0].format(size)
                    break


def _same(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-5)
