"""MCDropout: one network, in which units are dropped at prediction too, each member with a draw of its own.

Gal, Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning", ICML 2016,
https://arxiv.org/abs/1506.02142

Training is that of ordinary dropout: each row and unit by itself, one pass. At prediction each member has one mask of the shape
of a row's activation, the same for all rows, so that what is predicted does not depend on batches; with `filterwise` it is one
over channels. Dropout modules of the model become live, or dropout is put before layers or norms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from multitudes import tree
from multitudes.draws import Drawing, add_seeds, drawing_layers, drawn_member, drawn_names, mixed, unmixed
from multitudes.engine.state import SEEDS, bake, slots_of
from multitudes.errors import ConversionError, InputError, RunError
from multitudes.initialise import member_seed
from multitudes.inputs import BatchAxis, Inputs, rows, take_rows
from multitudes.layers import channel_axis, known_layers, without_fast_path
from multitudes.method import Batch, Criterion, Factory, Layout, Method, names_matching
from multitudes.structure import NORMS, Structure, first_layers, observe

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

WORDS = ("auto", "existing", "layers", "norm")
FILTERWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Dropout that puts something else in place of what it drops, and shifts the rest."""


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """A mask for each member and dropout: ``[M, B, ...]``."""

    members: int = 10

    p: float | None = None
    """How many units are dropped; None for the rates of the model's own dropout, and 0.1 elsewhere."""

    position: str | tuple[str, ...] = "auto"
    """Where: "existing" dropout modules, before "layers" but the first, before each "norm", or globs of modules; "auto" for
    existing ones if any has a rate above 0, else layers."""

    filterwise: bool = False
    """Whether whole channels are dropped."""

    reduction: Literal["sum", "mean"] = "mean"
    """How draws' losses are joined, where there are several."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    by_shape: ClassVar[bool] = True
    works_in: ClassVar[bool] = False
    origin: ClassVar[str] = "drawn by the seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.position, list):
            object.__setattr__(self, "position", tuple(self.position))
        wrong = isinstance(self.p, bool) or not isinstance(self.p, (int, float)) or not 0 <= self.p < 1
        if self.p is not None and wrong:
            raise InputError(f"MCDropout(p={self.p!r}): give a number from 0 on and below 1, or None")
        if not self.position or not isinstance(self.filterwise, bool):
            raise InputError(f"MCDropout(position={self.position!r}, filterwise={self.filterwise!r}): give a place, and a bool")

    def sites(self, structure: Structure) -> list[str]:
        """The modules that drop, or before which is dropped."""
        model = structure.model
        live = [n for n, part in model.named_modules() if isinstance(part, _DropoutNd) and not isinstance(part, ALPHA)]
        existing = [n for n in live if model.get_submodule(n).p > 0 and n in structure.order]  # type: ignore[operator]
        where = self.position
        if where == "auto":
            where = "existing" if existing else "layers"
        if where == "existing":
            found = existing
            missing = "no dropout module with a rate above 0; MCDropout(position='layers') would add dropout before layers"
        elif where == "layers":
            first = first_layers(structure)
            known = [n for n, part in known_layers(model) if not isinstance(part, nn.MultiheadAttention)]
            found = [n for n in known if n not in first and n in structure.order]
            missing = "no layer behind the first"
        elif where == "norm":
            found = [n for n, part in model.named_modules() if isinstance(part, NORMS) and n in structure.order]
            missing = "no norm layer"
        else:
            globs = [where] if isinstance(where, str) else list(where)
            names = [n for n, _ in model.named_modules() if n]
            hits = names_matching(names, globs, f"MCDropout(position={self.position!r})")
            found = [n for n in names if any(n in hit for hit in hits.values())]
            missing = "nothing"
        if not found:
            raise ConversionError(f"MCDropout(position={self.position!r}): there is {missing}")
        return found

    def prepare(
        self, model: nn.Module, factory: Factory | None, inputs: Inputs, seed: int, at: Mapping[str, MCDropout]
    ) -> nn.Module:
        """The model with live dropout, of which nothing is drawn yet."""
        new = bake(model, {})
        for name in self.sites(observe(model, inputs)):
            part: Any = new.get_submodule(name)
            if isinstance(part, ALPHA):
                raise ConversionError(f"{name} is a {type(part).__name__}, which is no mask: it shifts what it keeps")
            if isinstance(part, _DropoutNd):
                rate = part.p if self.p is None else self.p
                mixed(part, Live, rate=rate, slots=[], filterwise=self.filterwise or isinstance(part, FILTERWISE))
                part.p = rate
            else:
                rate = 0.1 if self.p is None else self.p
                mixed(part, DroppedBefore, rate=rate, slots=[], filterwise=self.filterwise)
            part.draws = ()
        without_fast_path(new, Drawing)
        add_seeds(new)
        return new

    def measure(self, network: nn.Module, inputs: Inputs, batch_axis: BatchAxis) -> bool:
        """The shapes in which each dropout is called, and where its rows are: seen at two numbers of rows."""
        count = rows(inputs, batch_axis)
        more = take_rows(inputs, batch_axis, torch.tensor([*range(count), 0]))
        few = _seen(network, inputs, lambda name, at, x: tuple(x.shape))
        many = _seen(network, more, lambda name, at, x: _slot(name, few[name][at], x, count) if at < len(few[name]) else None)
        changed = False
        for name, layer in drawing_layers(network):
            assert isinstance(layer, Dropped)
            if len(few[name]) != len(many[name]):
                raise ConversionError(f"{name} is called another number of times when there are more rows")
            before = layer.slots
            layer.fit(many[name], name, next(p.detach() for p in network.parameters() if p.is_floating_point()))
            changed |= layer.slots != before
        return changed

    @property
    def keeps_weights(self) -> bool:
        """Members have the given weights."""
        return True

    def start(
        self, model: nn.Module, network: nn.Module, inputs: Inputs, seed: int, m: int, at: Mapping[str, MCDropout]
    ) -> nn.Module:
        """Member m's masks."""
        return drawn_member(network, member_seed(seed, m))

    def layout(self, structure: Structure) -> Layout:
        """The masks, and the seeds; the plan names dropout that stays off."""
        because = {
            name: f"dropped with probability {layer.rate:g} {'there' if isinstance(layer, Live) else 'before it'}"  # type: ignore[attr-defined]
            for name, layer in drawing_layers(structure.model)
        }
        quiet = sorted(set(structure.dropping) | {n for n, part in structure.model.named_modules() if _quiet(part)})
        note = f"not live at prediction: dropout in {', '.join(quiet)}" if quiet else ""
        return Layout(tensors=drawn_names(structure.model) | {SEEDS}, because=because, note=note)

    def plain(self, member: nn.Module) -> None:
        """Keeps a member's masks, which no weight can hold; a part of one, kept on purpose, is as it was given."""
        if SEEDS in member._buffers:
            delattr(member, SEEDS)
            return
        for _, layer in list(drawing_layers(member)):
            unmixed(layer)

    def neutral(self) -> MCDropout:
        """Nothing dropped."""
        return replace(self, members=1, p=0.0)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Ordinary dropout."""
        whole = super().batch(inputs, target, rng, per_member, count)
        return whole if per_member else replace(whole, kwargs={**whole.kwargs, "draws": [0]})

    def drawn_for_step(self, network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Nothing: torch's own randomness drops each unit of each row."""
        buffers = dict(network.named_buffers())
        return {name: buffers[name].new_zeros(1, 0) for name in drawn_names(network)}

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """That of the one pass."""
        if "draws" not in batch.kwargs:
            return super().loss(outputs, batch, criterion)
        return criterion(tree.take(outputs, 0), batch.target)

    def effective_size(self, ensemble: Ensemble) -> int:
        """Each unit may be there or not."""
        masks = [b for n, b in ensemble.template.named_buffers() if n in drawn_names(ensemble.template)]
        return int(2 ** sum(mask[0].numel() for mask in masks))


def _quiet(part: nn.Module) -> bool:
    """Whether a module may drop in training, and is none of ours."""
    if isinstance(part, nn.MultiheadAttention):
        return part.dropout > 0
    return isinstance(part, _DropoutNd) and part.p > 0 and not isinstance(part, Dropped)


@dataclass(frozen=True)
class Slot:
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


class Dropped(Drawing):
    """Dropout whose masks are drawn outside."""

    rate: float
    filterwise: bool
    slots: list[Slot]

    def fit(self, found: list[Slot], name: str, like: Tensor) -> None:
        """Takes over the shapes of its calls, with a mask for each."""
        layer: Any = self
        found = list(dict.fromkeys(found))
        if self.slots and len(found) != len(self.slots):
            raise RunError(f"{name} is called with {len(found)} shapes, and was with {len(self.slots)} at conversion")
        first = not self.slots
        self.slots = found
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
                channel = self._channel(slot) % len(shape)
                shape = [size if at == channel else 1 for at, size in enumerate(shape)]
            kept = torch.rand(shape, generator=generator) >= self.rate
            found[f"mask{index}"] = kept.double() / (1 - self.rate)
        return found

    def _channel(self, slot: Slot) -> int:
        """The axis of channels in a call."""
        layer: Any = self
        if isinstance(layer, (nn.Linear, nn.LayerNorm, nn.RMSNorm)):
            return -1
        if hasattr(layer, "kernel_size"):
            return channel_axis(layer)
        return 1 if len(slot.shape) > 3 or isinstance(layer, (*FILTERWISE, *NORMS)) else -1

    def drop(self, x: Tensor) -> Tensor | None:
        """What is left of x by the masks that are drawn; None where none is."""
        layer: Any = self
        if not self.slots or layer._buffers["mask0"].numel() == 0:
            return None
        for index, slot in enumerate(self.slots):
            if slot.fits(x):
                mask = layer._buffers[f"mask{index}"]
                if slot.axis is None or slot.each == 1 or mask.shape[slot.axis] == 1:
                    return x * mask
                return (x.unflatten(slot.axis, (-1, slot.each)) * mask.unsqueeze(slot.axis)).flatten(slot.axis, slot.axis + 1)
        shapes = [list(slot.shape) for slot in self.slots]
        raise RunError(f"masks were drawn for {shapes}, not for {list(x.shape)}: call the ensemble, not its template")

    def settle(self) -> None:
        """Stays as it is: a mask is over units, not weights."""


class Live(Dropped):
    """A dropout module that drops at prediction too."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape: as given."""
        left = self.drop(input)
        return super().forward(input) if left is None else left  # type: ignore[misc]


class DroppedBefore(Dropped):
    """A layer before which units are dropped."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Shape: as the layer's own."""
        left = self.drop(input)
        if left is None:
            left = self._noise(input)
        return super().forward(left, *args, **kwargs)  # type: ignore[misc]

    def _noise(self, x: Tensor) -> Tensor:
        layer: Any = self
        if not layer.training or not self.rate:
            return x
        if not self.filterwise:
            return F.dropout(x, self.rate, True)
        channel = self._channel(Slot(tuple(x.shape), 0, 1)) % x.ndim
        noise = F.dropout(x.new_ones([size if at in (0, channel) else 1 for at, size in enumerate(x.shape)]), self.rate, True)
        return x * noise


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
    places = [(name, *place) for name, held in slots_of(network).items() for place in held]
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


def _slot(name: str, small: tuple[int, ...], x: Tensor, count: int) -> Slot:
    """A call, from its shape at a number of rows, and what it is given with the first row once more behind them."""
    large = tuple(x.shape)
    if len(small) != len(large):
        raise ConversionError(f"the rows of what {name} drops from cannot be told apart: {list(small)} becomes {list(large)}")
    grown = [at for at, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]
    if not grown:
        return Slot(small, None, 1)
    axis = grown[0]
    if len(grown) > 1 or small[axis] % count or large[axis] * count != small[axis] * (count + 1):
        raise ConversionError(f"the rows of what {name} drops from cannot be told apart: {list(small)} becomes {list(large)}")
    each = small[axis] // count
    if each > 1 and not x.is_meta:
        parts = x.unflatten(axis, (count + 1, each))
        if not torch.allclose(parts.select(axis, 0), parts.select(axis, count), equal_nan=True):
            raise ConversionError(f"the rows of what {name} drops from cannot be told apart: a row's {each} parts lie apart")
    shape = tuple(0 if at == axis else size for at, size in enumerate(small))
    return Slot(shape, axis, each)
