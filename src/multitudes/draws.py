"""Draws: layers with tensors that are drawn for each member, outside forward, which only reads them.

What is drawn stands in buffers that no state dict has: it is made again from the members' seeds, one whole number for each,
which stand in the state dict as `draw_seeds`. In eval mode draws stay as they are until `Ensemble.resample`, so that what is
predicted does not depend on how rows are put into batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from multitudes.engine.state import SEEDS, bake, named_tensors, slots_of
from multitudes.errors import InputError
from multitudes.initialise import member_seed
from multitudes.inputs import Inputs, axes
from multitudes.layers import Mixed, mixed_class
from multitudes.tasks import values_of
from multitudes.uncertainty import moments

if TYPE_CHECKING:
    from multitudes.engine.state import Engine
    from multitudes.method import Method


class Drawing(Mixed):
    """A layer that reads what is drawn for it: what is in its class before the layer's own."""

    draws: tuple[str, ...]
    """The names of its drawn buffers."""

    ADDED: tuple[str, ...]
    """The names of what else it has beside the layer's own."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One member's values for them, on the CPU."""
        raise NotImplementedError

    def settle(self) -> None:
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
    return moved({name: value.to(buffers[name].dtype) for name, value in stacked.items()}, buffers[SEEDS].device)


def draw_apart(network: nn.Module, owned: Collection[str], members: int) -> None:
    """Draws, in place, so that members differ wherever they can: what is tried on equal members proves nothing."""
    slots, buffers, generator = slots_of(network), dict(network.named_buffers()), torch.Generator().manual_seed(0)
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


def moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
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
    new = bake(network, {})
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

    def settle(self) -> None:
        """Becomes the plain layer with the tensors that its forward finds now."""
        layer: Any = self
        values = [self.formed(key) for key in self.replaced]
        for key, value in zip(self.replaced, values, strict=True):
            register, name = self._place(key)
            register[name] = nn.Parameter(value.detach().clone(), requires_grad=register[name].requires_grad)
        unmixed(layer)


def unmixed(layer: Any) -> None:
    """A drawing layer without its draws, and with the class that it had."""
    for key in layer.draws:
        delattr(layer, key)
    for key in [key for key in vars(layer) if key in type(layer).ADDED]:
        delattr(layer, key)
    layer.__class__ = type(layer).made_of[1]


def mixed(layer: Any, kind: type[Drawing], **values: Any) -> None:
    """Makes a layer draw, in place; its own tensors and names stay."""
    layer.__class__ = mixed_class(kind, type(layer), (("ADDED", ("draws", *values)),))
    vars(layer).update(values)


def settled(member: nn.Module) -> None:
    """A member's layers as plain ones, in place, with what was drawn worked in."""
    for _, layer in list(drawing_layers(member)):
        layer.settle()
    if SEEDS in member._buffers:
        delattr(member, SEEDS)


class Resampled:
    """What an ensemble does with draws."""

    engine: Engine
    method: Method
    generator: torch.Generator
    _drawn_for: list[torch.Size] | None
    _told: bool

    @torch.no_grad()
    def moments(self, *inputs: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The predictive mean and variance of a regression, ``[B, ...]`` (appendix B.3 of Ensemble Model Patching).

        The mean over members; the mean of their squares without the square of their mean, and 1/τ of the observation where the
        method has a `tau_output`.
        """
        outputs = self(*inputs, **kwargs)  # type: ignore[operator]
        if not isinstance(outputs, Tensor):
            raise InputError("moments are those of one tensor: this model returns several")
        values = values_of(outputs, "regression", self.method)
        found = moments(values["mean"], values.get("variance"))
        return found["mean"], found["aleatoric"] + found["epistemic"]

    def resample(self, seed: int | None = None) -> Any:
        """Other draws for all members, by a seed; None takes one from the ensemble's generator."""
        if not self.method.draws:
            raise InputError(f"{type(self.method).__name__} draws nothing that could be drawn again")
        if seed is None:
            seed = int(torch.randint(2**62, (), generator=self.generator))
        own = self.engine.template._buffers[SEEDS]
        assert own is not None
        with torch.no_grad():
            own.copy_(torch.tensor([member_seed(seed, m) for m in range(self.engine.members)]))
        self.redraw()
        return self

    def redraw(self) -> None:
        """Makes draws again, from the members' seeds."""
        seeds = self.engine.template._buffers[SEEDS]
        assert seeds is not None
        if seeds.is_meta:
            return
        with torch.inference_mode(False):  # what is drawn may be needed for gradients later
            for name, value in draw_all(self.engine.template, seeds.tolist()).items():
                for register, key in self.engine.slots[name] if name in self.engine.owned else ():
                    register[key] = value
        self.engine.refresh()

    def _all_owned(self, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Draws, and for what else members own that of the first."""
        names = drawn_names(self.engine.template) & self.engine.owned
        own = self.engine.buffers()
        if not isinstance(draws, Mapping) or not all(isinstance(draws.get(name), Tensor) for name in names):
            raise InputError("draws= has to be what ens.batch gives: a tensor for each drawn buffer, by name")
        count = len(draws[next(iter(names))])
        fits = 1 if self.method.by_shape else None  # there only how many there are is known beforehand
        odd = [name for name in sorted(names) if draws[name].shape[:fits] != (count, *own[name].shape[1:])[:fits]]
        if odd or not count:
            shown = ", ".join(f"{name} is {list(draws[name].shape)}" for name in odd or sorted(names)[:1])
            raise InputError(f"draws= has to be what ens.batch gives, the same number for each buffer: {shown}")
        rest = {n: b for n, b in self.engine.buffers().items() if n in self.engine.owned and n not in names}
        draws = {name: draws[name] for name in names}
        return {**draws, **{name: buffer[:1].expand(count, *buffer.shape[1:]) for name, buffer in rest.items()}}

    def _fit_draws(self, call: Inputs) -> None:
        """Draws again, by the same seeds, where their shapes follow those of the call, and these have changed."""
        if not self.method.draws or not self.method.by_shape:
            return
        for _, layer in drawing_layers(self.engine.template):
            vars(layer)["at"] = 0  # a call that failed may have left it elsewhere
        pairs = zip(call.tensors(), axes(call, self.engine.batch_axis), strict=True)
        shapes = [t.shape if a is None else t.shape[:a] + t.shape[a + 1 :] for t, a in pairs]
        if shapes != self._drawn_for and self.method.measure(self.engine.template, call, self.engine.batch_axis):
            self.redraw()
        self._drawn_for = shapes

    def _say_once(self) -> None:
        """A training step of some methods is not a call of all members."""
        if self._told or not self.method.trains_by_part:
            return
        self._told = True
        warnings.warn(
            f"{type(self.method).__name__} trains by parts: call ens.loss, or ens(*batch.inputs, **batch.kwargs) with "
            "batch = ens.batch(x, y); this call is of all members", stacklevel=3,
        )  # fmt: skip
