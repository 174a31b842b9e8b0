"""Dropped: dropout whose masks are drawn outside of forward, for each member and each call.

A mask has the shape of a row's activation. So a forward is watched at two numbers of rows: that tells how often each dropout is
called, with what shapes, and which axis has the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.conversion.anatomy.known_layers import channel_axis
from multitudes.conversion.anatomy.structure import NORMS
from multitudes.engine import tree
from multitudes.engine.draws import Drawing, drawing_layers, drawn_names
from multitudes.engine.inputs import BatchAxis, Inputs, add_row, count_rows, row_axis
from multitudes.engine.modules import registers_of
from multitudes.errors import ConversionError, RunError

FILTERWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(frozen=True)
class CallShape:
    """How a dropout is called: the shape of what it is given, and which axis has how many entries for each row."""

    shape: tuple[int, ...]
    """What it is given; 0 where rows are."""
    axis: int | None
    """Where rows are; None if nowhere."""
    each: int
    """How many entries each row has there."""

    def fits(self, x: Tensor) -> bool:
        """Whether this is such a call."""
        if x.ndim != len(self.shape):
            return False
        return all(a == b for at, (a, b) in enumerate(zip(x.shape, self.shape, strict=True)) if at != self.axis)


class MaskedDropout(Drawing):
    """Dropout whose masks are drawn outside, one for each of its calls in a forward."""

    rate: float
    filterwise: bool
    slots: list[CallShape]
    at: int
    """Which of its calls comes next."""

    def fit(self, found: list[CallShape], name: str, like: Tensor) -> None:
        """Takes over the shapes of its calls, with a mask for each."""
        layer: Any = self
        if self.slots and len(found) != len(self.slots):
            raise RunError(f"{name} is called {len(found)} times, and was {len(self.slots)} times at conversion")
        first = not self.slots
        self.slots, layer.at = found, 0
        if first:
            drawn = self.draw(torch.Generator())
            layer.draws = tuple(drawn)
            for key, mask in drawn.items():
                layer.register_buffer(key, like.new_ones(mask.shape), persistent=False)

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """For each unit of a row, or each channel, 0 or 1 / (1 − p)."""
        found = {}
        for index, slot in enumerate(self.slots):
            shape = [slot.each if at == slot.axis else size for at, size in enumerate(slot.shape)]
            if self.filterwise:
                channel = self._channel(slot.shape)
                shape = [size if at == channel else 1 for at, size in enumerate(shape)]
            kept = torch.rand(shape, generator=generator) >= self.rate
            found[f"mask{index}"] = kept.double() / (1 - self.rate) if self.rate < 1 else torch.zeros(shape)
        return found

    def _own(self) -> Any:
        """The class that the layer had."""
        kind: Any = type(self)
        return kind.made_of[1]

    def _channel(self, shape: Sequence[int]) -> int:
        """The axis of channels in a call with this shape."""
        layer: Any = self
        rank = len(shape)
        if isinstance(layer, nn.LayerNorm) and self._own().forward is not nn.LayerNorm.forward:
            sites = [at for at in range(1, rank) if shape[at] == layer.normalized_shape[-1]]
            if len(sites) != 1:
                raise ConversionError(f"the channels of a {self._own().__name__} on {list(shape)} cannot be told")
            return sites[0]
        if isinstance(layer, (nn.Linear, nn.LayerNorm, nn.RMSNorm)):
            return rank - 1
        if hasattr(layer, "kernel_size"):
            return channel_axis(layer) % rank
        if isinstance(layer, (*FILTERWISE, *NORMS)):
            return 1
        if rank == 3:
            raise ConversionError(
                f"the channels of what a {self._own().__name__} is given, {list(shape)}, may be the second axis or the "
                "last: give the model nn.Dropout1d there, or say MCDropout(filterwise=False)"
            )
        return 1 if rank > 3 else rank - 1

    def drop(self, x: Tensor) -> Tensor | None:
        """What is left of x by the masks that are drawn; None where none is."""
        layer: Any = self
        if not self.slots or layer._buffers["mask0"].numel() == 0:
            return None
        index = layer.at
        if len(self.slots) > 1:
            layer.at = (index + 1) % len(self.slots)
        slot, mask = self.slots[index], layer._buffers[f"mask{index}"]
        if not slot.fits(x):
            raise RunError(f"a mask was drawn for {list(slot.shape)}, not {list(x.shape)}: call the ensemble, not its template")
        if slot.axis is None or slot.each == 1 or mask.shape[slot.axis] == 1:
            return x * mask
        return (x.unflatten(slot.axis, (-1, slot.each)) * mask.unsqueeze(slot.axis)).flatten(slot.axis, slot.axis + 1)

    def noise(self, x: Tensor) -> Tensor:
        """What is left of x in training: each row by itself, unit by unit or channel by channel."""
        layer: Any = self
        if not layer.training or not self.rate:
            return x
        if not self.filterwise:
            return F.dropout(x, self.rate, True)
        channel = self._channel(x.shape)
        rows = next((slot.axis for slot in self.slots if slot.fits(x)), 0)
        ones = x.new_ones([size if at in (rows, channel) else 1 for at, size in enumerate(x.shape)])
        return x * F.dropout(ones, self.rate, True)

    def bake(self) -> None:
        """Stays as it is: a mask is over units, not weights."""


class LiveDropout(MaskedDropout):
    """A dropout module that drops at prediction too."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape: as given."""
        left = self.drop(input)
        if left is not None:
            return left
        usual = not self.filterwise or isinstance(self, FILTERWISE)
        return super().forward(input) if usual else self.noise(input)  # type: ignore[misc]


class DropoutBefore(MaskedDropout):
    """A layer before which units are dropped."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Shape: as the layer's own."""
        left = self.drop(input)
        return super().forward(self.noise(input) if left is None else left, *args, **kwargs)  # type: ignore[misc]


def reset_call_counts(network: nn.Module, _: Any) -> None:
    """A forward that did not come to its end leaves dropout behind that waits for its next call."""
    for _, layer in drawing_layers(network):
        layer.at = 0  # type: ignore[attr-defined]


def measure(network: nn.Module, inputs: Inputs, batch_axis: BatchAxis) -> bool:
    """Fits each dropout's masks to the shapes in which it is called, in place; whether these are others than before."""
    count = count_rows(inputs, batch_axis)
    few = _seen(network, inputs, lambda name, at, x: tuple(x.shape))
    many = _seen(
        network,
        add_row(inputs, batch_axis),
        lambda name, at, x: _slot(name, few[name][at], x, count) if at < len(few[name]) else None,
    )
    changed = False
    for name, layer in drawing_layers(network):
        assert isinstance(layer, MaskedDropout)
        if len(few[name]) != len(many[name]):
            raise ConversionError(f"{name} is called another number of times when there are more rows")
        before = layer.slots
        layer.fit(many[name], name, next(p.detach() for p in network.parameters() if p.is_floating_point()))
        changed |= layer.slots != before
    return changed


def _seen(network: nn.Module, inputs: Inputs, look: Callable[[str, int, Tensor], Any]) -> dict[str, list[Any]]:
    """What `look(name, at, x)` makes of what each dropout is given, call by call, with nothing dropped."""
    found: dict[str, list[Any]] = {name: [] for name, _ in drawing_layers(network)}
    inputs = inputs.refill([tensor.detach().clone() for tensor in inputs.tensors()])  # which forward may write into

    def note(name: str, args: Any, kwargs: Any) -> None:
        found[name].append(look(name, len(found[name]), tree.tensors((args, kwargs))[0]))

    handles = [
        layer.register_forward_pre_hook(lambda _, args, kwargs, name=name: note(name, args, kwargs), with_kwargs=True)  # type: ignore[attr-defined]
        for name, layer in drawing_layers(network)
    ]
    modes = [(part, part.training) for part in network.modules()]
    drawn = drawn_names(network)
    places = [(name, *place) for name, held in registers_of(network).items() for place in held]
    own = [(name, place, key, place[key]) for name, place, key in places if not isinstance(place[key], nn.Parameter)]
    network.eval()
    try:
        for name, register, key, buffer in own:  # copies, since forward may set them
            register[key] = buffer.new_zeros(0) if name in drawn else buffer.clone()
        with torch.no_grad():
            network(*inputs.args, **inputs.kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for part, training in modes:
            part.training = training
        for _, register, key, buffer in own:
            register[key] = buffer
    return found


def _slot(name: str, small: tuple[int, ...], x: Tensor, count: int) -> CallShape:
    """A call, from its shape at a number of rows, and what it is given with the first row once more behind them."""
    try:
        axis = row_axis(small, x.shape, count)
    except ValueError as error:
        raise ConversionError(f"the rows of what {name} drops from cannot be told apart: {error}") from error
    if axis is None:
        return CallShape(small, None, 1)
    each = small[axis] // count
    if each > 1 and not x.is_meta:
        parts = x.unflatten(axis, (count + 1, each))
        if not torch.allclose(parts.select(axis, 0), parts.select(axis, count), equal_nan=True):
            raise ConversionError(f"the rows of what {name} drops from cannot be told apart: a row's {each} parts lie apart")
    shape = tuple(0 if at == axis else size for at, size in enumerate(small))
    return CallShape(shape, axis, each)
