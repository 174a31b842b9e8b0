"""Draws: layers with tensors that are drawn for each member, outside forward, which only reads them.

What is drawn stands in buffers that no state dict has: it is made again from the members' seeds, one whole number for each,
which stand in the state dict as `draw_seeds`. In eval mode draws stay as they are until `Ensemble.resample`, so that what is
predicted does not depend on how rows are put into batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.converted import Converted, converted_class
from multitudes.engine.inputs import Inputs, axes
from multitudes.engine.modules import detached_copy, named_tensors, registers_of
from multitudes.engine.seeds import member_seed
from multitudes.engine.state import SEEDS, Engine
from multitudes.errors import InputError


class Drawing(Converted):
    """A layer that reads what is drawn for it: what is in its class before the layer's own."""

    draws: tuple[str, ...]
    """The names of its drawn buffers."""

    ADDED: tuple[str, ...]
    """The names of what else it has beside the layer's own."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One member's values for them, on the CPU."""
        raise NotImplementedError

    def bake(self) -> None:
        """Becomes the plain layer with what is drawn now worked in, in place."""
        raise NotImplementedError


def add_seeds(network: nn.Module) -> None:
    """Gives a network the place of its members' seeds."""
    device = next(tensor.device for tensor in network.parameters())
    network.register_buffer(SEEDS, torch.zeros((), dtype=torch.int64, device=device))


def drawing_layers(network: nn.Module) -> Iterator[tuple[str, Drawing]]:
    """The layers of a network that draw, by name."""
    return ((name, part) for name, part in network.named_modules() if isinstance(part, Drawing))


def drawn_names(network: nn.Module) -> frozenset[str]:
    """The names of all drawn buffers."""
    return frozenset(f"{name}.{key}" if name else key for name, layer in drawing_layers(network) for key in layer.draws)


def draw(network: nn.Module, seed: int) -> dict[str, Tensor]:
    """What one member with this seed draws, by name."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, layer in drawing_layers(network):
        found.update({f"{name}.{key}" if name else key: value for key, value in layer.draw(generator).items()})
    return found


def draw_all(network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
    """What members with these seeds draw, ``[M, ...]`` by name, on the network's device."""
    drawn = [draw(network, seed) for seed in seeds]
    stacked = {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}
    buffers = dict(network.named_buffers())
    return on_device({name: value.to(buffers[name].dtype) for name, value in stacked.items()}, buffers[SEEDS].device)


def draw_distinct(network: nn.Module, owned: Collection[str], members: int) -> None:
    """Draws, in place, so that members differ wherever they can: what is tried on equal members proves nothing."""
    slots, buffers, generator = registers_of(network), dict(network.named_buffers()), torch.Generator().manual_seed(0)
    for name, layer in drawing_layers(network):
        for _ in range(16):
            drawn = [layer.draw(generator) for _ in range(members)]
            if all(bool((one[key] != drawn[0][key]).any()) for one in drawn[1:] for key in layer.draws):
                break
        for key in layer.draws:
            full = f"{name}.{key}" if name else key
            value = torch.stack([one[key] for one in drawn]).to(buffers[full])
            for register, own in slots[full] if full in owned else ():
                register[own] = value


def on_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tensors on a device: those of one type in one piece, since each transfer takes longer than what is drawn."""
    if device.type == "cpu":
        return dict(tensors)
    found: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors.values()}:
        some = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        whole = torch.cat([tensor.flatten() for tensor in some.values()]).to(device, non_blocking=True)
        pieces = whole.split([tensor.numel() for tensor in some.values()])
        found.update({name: piece.view(some[name].shape) for name, piece in zip(some, pieces, strict=True)})
    return {name: found[name] for name in tensors}


def drawn_member(network: nn.Module, seed: int) -> nn.Module:
    """A copy of a network with what this seed draws."""
    new = detached_copy(network, {})
    own = dict(named_tensors(new))
    for name, value in draw_all(new, [seed]).items():
        own[name].copy_(value[0])
    own[SEEDS].fill_(seed)
    return new


class Replaced(Drawing):
    """A layer whose forward finds other tensors in place of its own parameters, formed from them and what is drawn."""

    replaced: tuple[str, ...]
    """The parameters' names; dotted where a child holds one."""

    def formed(self, key: str) -> Tensor:
        """What stands in for a parameter."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer's own."""
        places = [self._place(key) for key in self.replaced]
        stored = [register[name] for register, name in places]
        formed = [self.formed(key) for key in self.replaced]
        try:
            for (register, name), tensor in zip(places, formed, strict=True):
                register[name] = tensor
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            for (register, name), tensor in zip(places, stored, strict=True):
                register[name] = tensor

    def stored(self, key: str) -> Tensor:
        """A parameter of its own."""
        register, name = self._place(key)
        tensor: Tensor = register[name]
        return tensor

    def _place(self, key: str) -> tuple[dict[str, Any], str]:
        module: Any = self
        *path, name = key.split(".")
        for step in path:
            module = module._modules[step]
        return module._parameters, name

    def bake(self) -> None:
        """Becomes the plain layer with the tensors that its forward finds now."""
        layer: Any = self
        values = [self.formed(key) for key in self.replaced]
        for key, value in zip(self.replaced, values, strict=True):
            register, name = self._place(key)
            register[name] = nn.Parameter(value.detach().clone(), requires_grad=register[name].requires_grad)
        remove_draws(layer)


def remove_draws(layer: Any) -> None:
    """A drawing layer without its draws, and with the class that it had."""
    for key in layer.draws:
        delattr(layer, key)
    for key in [key for key in vars(layer) if key in type(layer).ADDED]:
        delattr(layer, key)
    layer.__class__ = type(layer).made_of[1]


def make_drawing(layer: Any, kind: type[Drawing], **values: Any) -> None:
    """Makes a layer draw, in place; its own tensors and names stay."""
    layer.__class__ = converted_class(kind, type(layer), (("ADDED", ("draws", *values)),))
    vars(layer).update(values)


def bake_draws(member: nn.Module) -> None:
    """A member's layers as plain ones, in place, with what was drawn worked in."""
    for _, layer in list(drawing_layers(member)):
        layer.bake()
    if SEEDS in member._buffers:
        delattr(member, SEEDS)


@torch.no_grad()
def resample(engine: Engine, seed: int) -> None:
    """Gives every member a new seed, made from this one, and draws by them."""
    own = engine.template._buffers[SEEDS]
    assert own is not None
    own.copy_(torch.tensor([member_seed(seed, m) for m in range(engine.members)]))
    redraw(engine)


def redraw(engine: Engine) -> None:
    """Makes the draws again from the members' seeds."""
    seeds = engine.template._buffers[SEEDS]
    assert seeds is not None
    if seeds.is_meta:
        return
    with torch.inference_mode(False):  # what is drawn may be needed for gradients later
        for name, value in draw_all(engine.template, seeds.tolist()).items():
            for register, key in engine.registers[name] if name in engine.owned else ():
                register[key] = value
    engine.refresh()


def checked_draws(engine: Engine, draws: Mapping[str, Tensor], any_shape: bool) -> dict[str, Tensor]:
    """The draws of one call, and the first member's value of every other buffer that members own."""
    names = drawn_names(engine.template) & engine.owned
    own = engine.buffers()
    if not isinstance(draws, Mapping) or not all(isinstance(draws.get(name), Tensor) for name in names):
        raise InputError("draws= has to be what ens.batch gives: a tensor for each drawn buffer, by name")
    count = len(draws[next(iter(names))])
    fits = 1 if any_shape else None  # there only how many there are is known beforehand
    odd = [name for name in sorted(names) if draws[name].shape[:fits] != (count, *own[name].shape[1:])[:fits]]
    if odd or not count:
        shown = ", ".join(f"{name} is {list(draws[name].shape)}" for name in odd or sorted(names)[:1])
        raise InputError(f"draws= has to be what ens.batch gives, the same number for each buffer: {shown}")
    rest = {name: buffer for name, buffer in own.items() if name in engine.owned and name not in names}
    draws = {name: draws[name] for name in names}
    return {**draws, **{name: buffer[:1].expand(count, *buffer.shape[1:]) for name, buffer in rest.items()}}


def reset_counts(engine: Engine, call: Inputs) -> list[torch.Size]:
    """Starts counting the calls of each dropout layer at 0. Returns the shapes of one row of the inputs."""
    for _, layer in drawing_layers(engine.template):
        vars(layer)["at"] = 0  # a call that failed may have left it elsewhere
    pairs = zip(call.tensors(), axes(call, engine.batch_axis), strict=True)
    return [t.shape if a is None else t.shape[:a] + t.shape[a + 1 :] for t, a in pairs]
