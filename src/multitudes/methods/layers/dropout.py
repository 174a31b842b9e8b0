"""Dropout with masks that are drawn outside forward, one for each member and call.

A mask has the shape of a row's activation. To find that shape, the network is run with two numbers of rows: this shows how
often each dropout is called, with which shapes, and which axis holds the rows.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from multitudes.conversion.anatomy.known_layers import channel_axis
from multitudes.conversion.anatomy.structure import NORMS
from multitudes.engine import tree
from multitudes.engine.draws import Drawing, add_draws, drawing_layers, drawn_names
from multitudes.engine.inputs import BatchAxis, Inputs, add_row, count_rows, row_axis
from multitudes.engine.listening import Quick
from multitudes.engine.modules import registers_of
from multitudes.engine.program import Decisions, shape_inputs, shapes_only
from multitudes.engine.proof import smaller
from multitudes.engine.writes import on_copy
from multitudes.errors import ConversionError, RunError, listed

FEW_PLACES = 8
"""Up to so many places are named in a refusal, otherwise by globs."""
ROUNDING = 1e-2
"""A row that is repeated in a batch differs from itself by less than this part of its difference from another row."""
FILTERWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(frozen=True)
class CallShape:
    """The input shape of one dropout call, and its axis of rows."""

    shape: tuple[int, ...]
    """The shape of the input, with 0 at the axis of rows."""
    axis: int | None
    """The axis of rows; None if there is none."""
    each: int
    """The number of entries that each row has along that axis."""

    def fits(self, x: Tensor) -> bool:
        """Whether an input has this shape, for any number of rows."""
        if x.ndim != len(self.shape):
            return False
        return all(a == b for at, (a, b) in enumerate(zip(x.shape, self.shape, strict=True)) if at != self.axis)


class MaskedDropout(Drawing):
    """Mixin of a dropout module, or of a layer with dropout before it; each call in a forward has its own mask."""

    rate: float
    filterwise: bool
    weight_behind: str
    """With prior="elbo", the name of the weight that the dropped units are multiplied with."""
    calls: list[CallShape]
    at: int
    """The number of the next call."""

    def fit(self, found: list[CallShape], name: str, like: Tensor) -> None:
        """Records the shapes of the calls, and adds a mask for each call."""
        layer: Any = self
        if self.calls and len(found) != len(self.calls):
            raise RunError(
                f"{name} is called {len(found)} times, but {len(self.calls)} times at conversion: convert again with this input"
            )
        first = not self.calls
        self.calls, layer.at = found, 0
        if first:
            drawn = self.draw(torch.Generator())
            add_draws(layer, {key: like.new_ones(mask.shape) for key, mask in drawn.items()})

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws the masks: 0 or 1 / (1 − p) for each unit of a row, or for each channel."""
        found = {}
        for index, slot in enumerate(self.calls):
            shape = [slot.each if at == slot.axis else size for at, size in enumerate(slot.shape)]
            if self.filterwise:
                channel = self._channel(slot.shape)
                shape = [size if at == channel else 1 for at, size in enumerate(shape)]
            kept = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") >= self.rate
            found[f"mask{index}"] = kept.double() / (1 - self.rate) if self.rate < 1 else torch.zeros(shape)
        return found

    def _own(self) -> Any:
        """Returns the layer's class before conversion."""
        kind: Any = type(self)
        return kind.made_of[1]

    def _channel(self, shape: Sequence[int]) -> int:
        """Returns the axis of channels in an input of this shape."""
        layer: Any = self
        rank = len(shape)
        if isinstance(layer, nn.LayerNorm) and self._own().forward is not nn.LayerNorm.forward:
            sites = [at for at in range(1, rank) if shape[at] == layer.normalized_shape[-1]]
            if len(sites) != 1:
                raise ConversionError(
                    f"the channel axis of a {self._own().__name__} on {list(shape)} is unclear: use MCDropout(filterwise=False)"
                )
            return sites[0]
        if isinstance(layer, (nn.Linear, nn.LayerNorm, nn.RMSNorm)):
            return rank - 1
        if hasattr(layer, "kernel_size"):
            return channel_axis(layer) % rank
        if isinstance(layer, (*FILTERWISE, *NORMS)):
            return 1
        if rank == 3:
            raise ConversionError(
                f"the channels of the {self._own().__name__}'s input {list(shape)} may be its second or its last axis: use "
                "nn.Dropout1d in the model, or MCDropout(filterwise=False)"
            )
        return 1 if rank > 3 else rank - 1

    def drop(self, x: Tensor) -> Tensor | None:
        """Applies this member's mask to x; returns None if no mask is drawn, as in training."""
        layer: Any = self
        if not self.calls or layer._buffers["mask0"].numel() == 0:
            return None
        index = layer.at
        if len(self.calls) > 1:
            layer.at = (index + 1) % len(self.calls)
        slot, mask = self.calls[index], layer._buffers[f"mask{index}"]
        if not slot.fits(x):
            raise RunError(
                f"the mask was drawn for inputs {list(slot.shape)} (0: any number of rows), but this one is {list(x.shape)}:"
                " call the ensemble, which draws new masks, instead of its template or a member"
            )
        if slot.axis is None or slot.each == 1 or mask.shape[slot.axis] == 1:
            return x * mask
        return (x.unflatten(slot.axis, (-1, slot.each)) * mask.unsqueeze(slot.axis)).flatten(slot.axis, slot.axis + 1)

    def noise(self, x: Tensor) -> Tensor:
        """Applies ordinary dropout in training, with a separate mask for each row, of units or of whole channels."""
        layer: Any = self
        if not layer.training or not self.rate:
            return x
        if not self.filterwise:
            return F.dropout(x, self.rate, True)
        channel = self._channel(x.shape)
        rows = next((slot.axis for slot in self.calls if slot.fits(x)), 0)
        ones = x.new_ones([size if at in (rows, channel) else 1 for at, size in enumerate(x.shape)])
        return x * F.dropout(ones, self.rate, True)

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns the input with units dropped; a layer other than dropout runs on this input, and its output is returned."""
        left = self.drop(input)
        if not isinstance(self, _DropoutNd):
            return super().forward(self.noise(input) if left is None else left, *args, **kwargs)  # type: ignore[misc]
        if left is not None:
            return left
        usual = not self.filterwise or isinstance(self, FILTERWISE)
        return super().forward(input) if usual else self.noise(input)  # type: ignore[misc]

    def bake(self) -> None:
        """Does nothing: no weight can hold a mask over units."""


def reset_call_counts(network: nn.Module, _: Any) -> None:
    """Sets the number of the next call to 0 in each dropout, since a failed forward may have stopped in between."""
    for _, layer in drawing_layers(network):
        layer.at = 0  # type: ignore[attr-defined]


def measure(network: nn.Module, inputs: Inputs, batch_axis: BatchAxis, like: nn.Module | None = None) -> bool:
    """Records the shapes of each dropout's calls, in place. Returns True if they changed.

    `like` is another network with the same places, whose calls were recorded.
    """
    calls = _calls_without_values(network, inputs, batch_axis, network if like is None else like)
    if calls is None:
        calls = on_copy(network, lambda copy: _calls(copy, inputs, batch_axis))  # forward may write into its parameters
    changed = False
    for name, layer in drawing_layers(network):
        assert isinstance(layer, MaskedDropout)
        before = layer.calls
        layer.fit(calls[name], name, next(p.detach() for p in network.parameters() if p.is_floating_point()))
        changed |= layer.calls != before
    return changed


def _calls(network: nn.Module, inputs: Inputs, batch_axis: BatchAxis) -> dict[str, list[CallShape]]:
    """Runs the network with two numbers of rows. Returns the shapes of each dropout's calls, by the dropout's name."""
    count, decisions = count_rows(inputs, batch_axis), Decisions()
    with decisions:
        few = _seen(network, inputs, lambda name, at, x: tuple(x.shape))
    faults: dict[str, str] = {}

    def look(name: str, at: int, x: Tensor) -> CallShape | None:
        try:
            return _slot(few[name][at], x, count) if at < len(few[name]) else None
        except ValueError as error:
            faults.setdefault(name, str(error))
            return None

    many = _seen(network, add_row(inputs, batch_axis), look)
    faults |= _by_values(network, inputs, few, many)
    if decisions.values and not any(layer.calls for _, layer in drawing_layers(network)):  # type: ignore[attr-defined]
        faults |= _by_decisions(network, inputs, few)
    if faults:
        raise ConversionError(_without(faults, list(many)))
    for name, calls in many.items():
        if len(calls) != len(few[name]):
            raise ConversionError(
                f"{name} must be called equally often for any number of rows, but a row more changes it: change forward"
            )
    return many


def _calls_without_values(
    network: nn.Module, inputs: Inputs, batch_axis: BatchAxis, like: nn.Module
) -> dict[str, list[CallShape]] | None:
    """Returns what `_calls` does, without arithmetic; None if that needs values, or the network is small."""
    numbers = sum(p.numel() for p in network.parameters()) * sum(t.numel() for t in inputs.tensors())
    if numbers <= smaller.LARGE * count_rows(inputs, batch_axis):
        return None
    try:
        thin, call = shapes_only(network), shape_inputs(inputs)
        with Quick():
            calls = _calls(thin, call, batch_axis)
    except Exception:  # values decide what runs
        return None
    known = {name: layer.calls for name, layer in drawing_layers(like)}  # type: ignore[attr-defined]
    new = [call for name, found in calls.items() if found != known.get(name) for call in found]
    return None if any(call.each > 1 for call in new) else calls  # where a row lies shows in values, once for each shape


def _seen(network: nn.Module, inputs: Inputs, look: Callable[[str, int, Tensor], Any]) -> dict[str, list[Any]]:
    """Runs the network without dropping, and collects `look(name, call number, input)` for each dropout."""
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


def _by_values(
    network: nn.Module, inputs: Inputs, few: Mapping[str, list[tuple[int, ...]]], calls: Mapping[str, list[CallShape | None]]
) -> dict[str, str]:
    """Names the places without rows whose shape depends on values: those of experts, which are given some of the rows."""
    fixed = [name for name, found in calls.items() if any(call is not None and call.axis is None for call in found)]
    faults: dict[str, str] = {}
    for shift in (1, 2, 3) if fixed else ():
        other = inputs.refill([t.roll(shift, -1) if t.ndim > 1 else t for t in inputs.tensors()])
        seen = _seen(network, other, lambda name, at, x: tuple(x.shape))
        for name in fixed:
            if seen[name] != few[name]:
                faults[name] = f"its shape {list(few[name][0])} depends on the values of the inputs"
    return faults


def _by_decisions(network: nn.Module, inputs: Inputs, few: Mapping[str, list[tuple[int, ...]]]) -> dict[str, str]:
    """Names the places that other inputs call more or less often, as a loop until convergence does: each call has a mask."""
    faults: dict[str, str] = {}
    for scale in (0.01, 0.1, 10.0, 100.0):
        other = inputs.refill([t * scale if t.is_floating_point() else t.roll(1, -1) for t in inputs.tensors()])
        try:
            seen = _seen(network, other, lambda name, at, x: None)
        except Exception:  # forward may refuse such values
            continue
        for name in few:
            if len(seen[name]) != len(few[name]):
                faults[name] = (
                    f"it is called {len(few[name])} times, but {len(seen[name])} times with other values of the inputs"
                )
    return faults


def _without(faults: Mapping[str, str], every: Sequence[str]) -> str:
    """Says where nothing can be dropped, why, and what to type: the other places, or another method."""
    name, reason = next(iter(faults.items()))
    more = f" (nor at {listed(list(faults)[1:])})" if len(faults) > 1 else ""
    others = _globs([place for place in every if place not in faults], faults)
    instead = f"Leave it out: mt.MCDropout(position={others})" if others else "Use another method, such as mt.Deep(members=4)"
    return f"MCDropout cannot drop at {name}{more}: {reason}. {instead}"


def _globs(places: list[str], others: Collection[str]) -> list[str]:
    """Returns places, or if they are many, globs of their last names that match none of the others."""
    if len(places) <= FEW_PLACES:
        return places
    globs = sorted({f"*{place.rpartition('.')[2]}" for place in places})
    return [glob for glob in globs if not fnmatch.filter(others, glob)] or places


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _slot(small: tuple[int, ...], x: Tensor, count: int) -> CallShape:
    """Returns the shape of a call from its input shape with `count` rows, and its input x with the first row repeated last.

    Raises ValueError if rows cannot be told from what belongs to one row.
    """
    axis = row_axis(small, x.shape, count)
    if axis is None:
        return CallShape(small, None, 1)
    each = small[axis] // count
    if each > 1 and not x.is_meta:
        rows = x.unflatten(axis, (count + 1, each)).unbind(axis)
        repeated = _gap(rows[0], rows[-1]) <= ROUNDING * _gap(rows[0], rows[1])
        if not (repeated or torch.allclose(rows[0], rows[-1], equal_nan=True)):
            raise ValueError(f"a row's {each} entries lie apart in its input")
    shape = tuple(0 if at == axis else size for at, size in enumerate(small))
    return CallShape(shape, axis, each)
