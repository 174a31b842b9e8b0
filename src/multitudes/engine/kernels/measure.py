"""Measures the ways in which convolutions of members can run, each on its own, on random tensors."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from multitudes.engine.kernels.convolution import WAYS, beside, second
from multitudes.engine.kernels.ways import Convolution
from multitudes.engine.seeds import kept_randomness


def measured_ways(convolutions: Iterable[Convolution], repeats: int = 7) -> dict[str, str]:
    """Returns the fastest way of each convolution, by key."""
    return {one.key(): min(times, key=lambda way: times[way]) for one in convolutions if (times := milliseconds(one, repeats))}


def milliseconds(convolution: Convolution, repeats: int = 7) -> dict[str, float]:
    """Times every possible way of a convolution: forward, and backward if it trains. Ways that fail are left out."""
    found: dict[str, float] = {}
    with kept_randomness(), torch.autocast(convolution.device, enabled=False):
        for way in convolution.possible:
            with contextlib.suppress(RuntimeError):  # out of memory, or no kernel for these shapes
                found[way] = _time(_call(convolution, way), convolution.device, repeats)
    return found


def _call(one: Convolution, way: str) -> Callable[[], None]:
    """Returns a run of a convolution in a way.

    On a CPU, inputs have the layout in which this way takes them without a copy. Elsewhere channels of members lie beside each
    other, in the input and the result, as most layers of a network have them.
    """
    front = one.device == "cpu" and way in ("each", "product")
    lead = (one.members, one.rows) if front else (one.rows, one.members)
    make = {"dtype": one.dtype, "device": one.device}
    if one.channels_last:
        pixels = torch.randn(
            lead[0], *((lead[1],) if front else ()), *one.image, *(() if front else (lead[1],)), one.channels, **make
        )  # type: ignore[call-overload]
        x: Tensor = pixels.movedim(-1, 2).movedim(0, 1) if front else pixels.movedim((-2, -1), (1, 2))
    else:
        x = torch.randn(*lead, one.channels, *one.image, **make)  # type: ignore[call-overload]
        x = x.movedim(0, 1) if front else x
    shape = (one.members * one.out, one.channels // one.groups, *one.kernel)
    weights = torch.randn(shape, **make)  # type: ignore[call-overload]
    if one.channels_last and len(one.kernel) == 2:
        weights = weights.to(memory_format=torch.channels_last)
    kernel = weights.unflatten(0, (one.members, one.out))
    how = (list(one.stride), list(one.padding), list(one.dilation), one.groups)
    if one.trains:
        x, kernel = x.requires_grad_(), kernel.requires_grad_()

    def run() -> None:
        with torch.set_grad_enabled(one.trains):
            y, dim = WAYS[way](x, kernel, None, *how)
            if one.device != "cpu":
                y = beside(second(y, dim, one.members))
            if one.trains:
                torch.autograd.grad(y, (x, kernel), _like(y))

    gradients: list[Tensor] = []

    def _like(y: Tensor) -> Tensor:
        if not gradients:
            gradients.append(torch.randn_like(y))
        return gradients[0]

    return run


def _time(run: Callable[[], None], device: str, repeats: int) -> float:
    """Returns the median milliseconds of a run, after two to warm up."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    times = []
    for turn in range(repeats + 2):
        wait()
        start = time.perf_counter()
        for _ in range(3):
            run()
        wait()
        if turn > 1:
            times.append((time.perf_counter() - start) / 3 * 1000)
    return statistics.median(times)
