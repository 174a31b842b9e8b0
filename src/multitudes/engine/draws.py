"""Draws: random tensors of each member (masks, choices, noise). They are drawn before forward, which only reads them.

Draws are buffers outside the state dict. The state dict has the members' seeds instead, as `draw_seeds`: one integer per
member, from which draws can be made again. In eval mode draws stay the same until `Ensemble.resample`, so predictions do
not depend on how rows are split into batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.converted import check_names, convert_layer
from multitudes.engine.inputs import Inputs, axes
from multitudes.engine.modules import copy_with, join_name, named_parts, note_names, registers_of
from multitudes.engine.seeds import member_seeds
from multitudes.engine.state import SEEDS, Engine
from multitudes.errors import InputError, RunError, listed

CHUNK = 256
"""The number of draws that are made and run at once when there are many."""


class Drawing:
    """Mixin of layers that read draws; `make_drawing` puts it before a layer's class."""

    draws: tuple[str, ...]
    """Names of the buffers with draws."""

    ADDED: tuple[str, ...]
    """Names of the attributes that `make_drawing` added to the layer."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws one member's values of the buffers in `draws`, by name, on the CPU."""
        raise NotImplementedError

    def draw_for_trial(self, generator: torch.Generator, members: int) -> dict[str, Tensor]:
        """Draws for a trial run, ``[M, ...]`` by name: by `draw`, until members differ, or often enough."""
        for _ in range(16):
            drawn = [self.draw(generator) for _ in range(members)]
            if not any(torch.equal(one[key], drawn[0][key]) for one in drawn[1:] for key in self.draws):
                break
        return {key: torch.stack([one[key] for one in drawn]) for key in self.draws}

    def bake(self) -> None:
        """Turns the layer back into its plain class, in place, with the current draws worked into its weights."""
        raise NotImplementedError


def add_seeds(network: nn.Module) -> None:
    """Adds the buffer for the members' seeds to a network."""
    device = next(tensor.device for tensor in network.parameters())
    network.register_buffer(SEEDS, torch.zeros((), dtype=torch.int64, device=device))


def drawing_layers(network: nn.Module) -> Iterator[tuple[str, Drawing]]:
    """Yields the layers with draws, by name."""
    return ((name, part) for name, part in named_parts(network) if isinstance(part, Drawing))


def drawn_names(network: nn.Module) -> frozenset[str]:
    """Returns the names of all buffers with draws."""
    return frozenset(join_name(name, key) for name, layer in drawing_layers(network) for key in layer.draws)


def unwritten_names(network: nn.Module) -> frozenset[str]:
    """Names the buffers that no forward writes into, draws and notes: copies for trial runs share their memory."""
    return drawn_names(network) | note_names(network)


def draw(network: nn.Module, seed: int) -> dict[str, Tensor]:
    """Returns the draws of one member with this seed, by name."""
    generator = torch.Generator().manual_seed(seed)
    draws = {}
    for name, layer in drawing_layers(network):
        draws.update({join_name(name, key): value for key, value in layer.draw(generator).items()})
    return draws


def draw_all(network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
    """Returns the draws of members with these seeds, ``[M, ...]`` by name, on the network's device."""
    members = [draw(network, seed) for seed in seeds]
    stacked = {name: _stacked([draws[name] for draws in members]) for name in members[0]}
    buffers = dict(network.named_buffers())
    return on_device({name: value.to(buffers[name].dtype) for name, value in stacked.items()}, buffers[SEEDS].device)


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """Stacks tensors; a single one, which may be large, is not copied."""
    return torch.stack(list(values)) if len(values) > 1 else values[0].unsqueeze(0)


def draw_chunks(engine: Engine, seed: int, count: int) -> Iterator[dict[str, Tensor]]:
    """Yields `count` draws in chunks of at most `CHUNK`, ``[D, ...]`` by name; the first are the members' own.

    Members that were made from `seed` are followed by those that an ensemble of more members would have.
    """
    stored = engine.template._buffers[SEEDS]
    assert stored is not None
    own = stored.tolist()
    known = own == member_seeds(seed, len(own))
    seeds = (own + member_seeds(seed if known else own[0], max(count, len(own)))[len(own) :])[:count]
    for start in range(0, count, CHUNK):
        yield draw_all(engine.template, seeds[start : start + CHUNK])


def draw_distinct(network: nn.Module, owned: Collection[str], members: int) -> None:
    """Draws for all members, in place, until members differ: a trial run on equal members proves nothing."""
    registers, buffers, generator = registers_of(network), dict(network.named_buffers()), torch.Generator().manual_seed(0)
    for name, layer in drawing_layers(network):
        for key, value in layer.draw_for_trial(generator, members).items():
            full = join_name(name, key)
            for register, place in registers[full] if full in owned else ():
                register[place] = value.to(buffers[full])


def are_distinct(network: nn.Module, owned: Collection[str], count: int | None = None) -> bool:
    """Whether in every draw, ``[M, ...]``, the other members, or the first `count`, differ from the first one."""
    draws = [network.get_buffer(name) for name in drawn_names(network) if name in owned]
    return all(not torch.equal(draw[0], other) for draw in draws for other in draw[1:count])


def on_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Moves tensors to a device, all tensors of one dtype in one transfer: many small transfers would be slow."""
    if device.type == "cpu":
        return dict(tensors)
    moved: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors.values()}:
        some = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        whole = torch.cat([tensor.flatten() for tensor in some.values()]).to(device, non_blocking=True)
        pieces = whole.split([tensor.numel() for tensor in some.values()])
        moved.update({name: piece.view(some[name].shape) for name, piece in zip(some, pieces, strict=True)})
    return {name: moved[name] for name in tensors}


def drawn_member(network: nn.Module, seed: int) -> nn.Module:
    """Returns a copy of the network that has this seed and the draws made from it; the other tensors are the network's own."""
    new = copy_with(network, {SEEDS: torch.full_like(network.get_buffer(SEEDS), seed)})
    set_draws(new, seed)
    return new


def set_draws(network: nn.Module, seed: int) -> None:
    """Replaces the draws of a network of one member, in place, by those of this seed; their shapes may have changed."""
    registers = registers_of(network)
    for name, value in draw_all(network, [seed]).items():
        for register, key in registers[name]:
            register[key] = value[0]


def run_with(layer: Any, weights: Mapping[str, Tensor], forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls `forward(*args, **kwargs)` with effective weights in place of the layer's parameters, by name."""
    places = [parameter_place(layer, key) for key in weights]
    stored = [register[name] for register, name in places]
    try:
        for (register, name), weight in zip(places, weights.values(), strict=True):
            register[name] = weight
        return forward(*args, **kwargs)
    finally:
        for (register, name), parameter in zip(places, stored, strict=True):
            register[name] = parameter


def bake_weights(layer: Any, weights: Mapping[str, Tensor]) -> None:
    """Stores effective weights as the layer's parameters, by name, and turns the layer back into its plain class."""
    bake_parameters(layer, weights)
    remove_draws(layer)


def bake_parameters(layer: Any, weights: Mapping[str, Tensor]) -> None:
    """Stores effective weights as the layer's parameters, by name."""
    for key, weight in weights.items():
        register, name = parameter_place(layer, key)
        register[name] = nn.Parameter(weight.detach().clone(), requires_grad=register[name].requires_grad)


def parameter_place(layer: Any, key: str) -> tuple[dict[str, Any], str]:
    """Returns the `_parameters` dict that holds a parameter, and its key there; `key` is dotted if a child holds it."""
    *path, name = key.split(".")
    for step in path:
        layer = layer._modules[step]
    return layer._parameters, name


def stored_weight(layer: Any, key: str) -> Tensor:
    """Returns a layer's stored parameter, without draws; `key` is dotted if a child holds it."""
    register, name = parameter_place(layer, key)
    weight: Tensor = register[name]
    return weight


def remove_draws(layer: Any) -> None:
    """Removes a layer's draws, and gives it back its original class."""
    for key in layer.draws:
        delattr(layer, key)
    for key in [key for key in vars(layer) if key in type(layer).ADDED]:
        delattr(layer, key)
    layer.__class__ = type(layer).made_of[1]


def make_drawing(layer: Any, kind: type[Drawing], **values: Any) -> None:
    """Gives a layer draws, in place: puts the mixin `kind` before its class, and sets `values` as attributes.

    The layer's tensors and their names stay.
    """
    convert_layer(layer, kind, (("ADDED", ("draws", *values)),), draws=(), **values)


def add_draws(layer: Any, draws: Mapping[str, Tensor]) -> None:
    """Adds the buffers of a layer's draws, outside the state dict."""
    check_names(layer, draws)
    layer.draws = tuple(draws)
    for name, value in draws.items():
        layer.register_buffer(name, value, persistent=False)


def bake_draws(member: nn.Module) -> None:
    """Turns a member's layers into plain ones, in place, with their draws worked into the weights."""
    for _, layer in list(drawing_layers(member)):
        layer.bake()
    if SEEDS in member._buffers:
        delattr(member, SEEDS)


@torch.no_grad()
def resample(engine: Engine, seed: int) -> None:
    """Gives every member a new seed, derived from `seed`, and redraws."""
    seeds = engine.template._buffers[SEEDS]
    assert seeds is not None
    seeds.copy_(torch.tensor(member_seeds(seed, engine.members)))
    redraw(engine)


def redraw(engine: Engine) -> None:
    """Draws again from the members' seeds."""
    seeds = engine.template._buffers[SEEDS]
    assert seeds is not None
    if seeds.is_meta:
        return
    with torch.inference_mode(False):  # draws may be needed for gradients later
        for name, value in draw_all(engine.template, seeds.tolist()).items():
            for register, key in engine.registers[name] if name in engine.owned else ():
                register[key] = value.contiguous()  # a draw may be one number, seen in every place
    engine.refresh()


def checked_draws(engine: Engine, draws: Mapping[str, Tensor], any_shape: bool) -> dict[str, Tensor]:
    """Checks draws= of one call. Returns these draws, and all other member buffers with the first member's value."""
    names = drawn_names(engine.template) & engine.owned
    buffers = engine.buffers()
    if not isinstance(draws, Mapping) or not all(isinstance(draws.get(name), Tensor) for name in names):
        raise InputError("draws= must be a dict with one tensor per buffer of draws: pass the draws of ens.batch(...)")
    count = len(draws[next(iter(names))])
    axes_compared = 1 if any_shape else None  # the other sizes depend on the call
    expected = {name: (count, *buffers[name].shape[1:])[:axes_compared] for name in sorted(names)}
    wrong = [name for name, shape in expected.items() if draws[name].shape[:axes_compared] != shape]
    if wrong or not count:
        shown = ", ".join(f"{name} has shape {list(draws[name].shape)}" for name in wrong or sorted(names)[:1])
        raise InputError(
            f"draws= must have equally many draws for each buffer, at least one: {shown}. Pass the draws of ens.batch(...)"
        )
    rest = {name: buffer for name, buffer in buffers.items() if name in engine.owned and name not in names}
    draws = {name: draws[name] for name in names}
    return {**draws, **{name: buffer[:1].expand(count, *buffer.shape[1:]) for name, buffer in rest.items()}}


def reset_counts(engine: Engine, call: Inputs) -> list[torch.Size]:
    """Resets the call counter of each dropout layer. Returns the shape of one row of each input."""
    for _, layer in drawing_layers(engine.template):
        vars(layer)["at"] = 0  # a call that failed may have left another number
    pairs = zip(call.tensors(), axes(call, engine.batch_axis), strict=True)
    return [t.shape if a is None else t.shape[:a] + t.shape[a + 1 :] for t, a in pairs]


class DrawWritten(RunError):
    """Raised when forward writes into draws, whose memory all trial runs share."""


@contextlib.contextmanager
def only_read(template: nn.Module, replaced: set[str]) -> Iterator[None]:
    """Raises DrawWritten after a with-block that writes into draws, or puts others in their place (`replaced`)."""
    draws = {name: template.get_buffer(name) for name in drawn_names(template)}
    versions = {name: draw._version for name, draw in draws.items()}
    try:
        yield
    finally:  # backward fails on what was written, and says less
        written = sorted(n for n, draw in draws.items() if n in replaced or draw._version != versions[n])
        if written:
            raise DrawWritten(
                f"forward writes into {listed(written)}, which holds draws: make draws in draw(), and only read them"
            )
