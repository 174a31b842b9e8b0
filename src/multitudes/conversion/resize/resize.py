"""resize: the same architecture, thinner or wider.

There are three ways, tried in this order: the network's own constructor or configuration (our models, transformers, timm),
which is exact and keeps the model's own initialisation; for thinner networks of unknown make, their channels (see
`multitudes.conversion.resize.pruning`); and a factory `lambda ratio: Net(...)`, which may always stand in the model's place.

Widths go to the nearest positive multiple of what must divide them; the number of heads is kept and their width scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.conversion.anatomy.initialise import build, is_constant, reinitialised
from multitudes.conversion.anatomy.refusals import refusals
from multitudes.conversion.anatomy.structure import last_layers, observe
from multitudes.conversion.resize.audit import changed_outputs
from multitudes.conversion.resize.constructors import HEADS, by_config, by_constructor, by_timm
from multitudes.conversion.resize.pruning import ADVICE, pruned, width_of
from multitudes.engine.inputs import Inputs, checked_example
from multitudes.engine.modules import Factory, named_tensors
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.seeds import seeded
from multitudes.errors import ConversionError, InputError
from multitudes.settings import above, check

Way = Callable[[Any, float, torch.device], nn.Module | None]
"""Makes a model at another width, on a device; None where it does not know how."""

WAYS: dict[str, Way] = {"its constructor": by_constructor, "its configuration": by_config, "timm's constructor": by_timm}


@dataclass(frozen=True)
class Resizing:
    """How a network was resized, kept as its `resizing`."""

    ratio: float
    way: str
    rounded: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Layers whose width is not the exact product: what that would be, and what it is."""
    grouped: dict[str, int] = field(default_factory=dict)
    """Layers that were divided into groups afterwards, and into how many."""

    def __str__(self) -> str:
        text = f"resized to {self.ratio:g} of the width by {self.way}"
        if self.rounded:
            shown = [f"{name} {asked:g} → {got}" for name, (asked, got) in self.rounded.items()]
            text += f"; not exact: {', '.join(shown[:3])}" + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
        return text + (f"; {len(self.grouped)} layers in groups" if self.grouped else "")


@clean_autograd()
def resize(model: nn.Module | Factory, ratio: float, example: Any, *, seed: int | None = None) -> nn.Module:
    """A new model with every hidden width times `ratio`, newly initialised; what rounding did is in its `resizing`.

    >>> import torch, multitudes as mt
    >>> from multitudes.models import ResNet
    >>> thin = mt.resize(ResNet(18), 0.3, torch.randn(2, 3, 32, 32))
    >>> thin.resizing.rounded["layer4.1.conv2"]
    (153.6, 154)
    """
    check("ratio", ratio, Annotated[float, above(0)])
    if not isinstance(model, nn.Module) and (isinstance(model, type) or not callable(model)):
        raise InputError(f"the model must be an nn.Module or a factory lambda ratio: nn.Module, not {model!r}")
    check("seed", seed, int | None)
    seed = int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
    given = model if isinstance(model, nn.Module) else build(model, 1.0, seed)
    if reasons := refusals(given):
        raise ConversionError(
            f"{type(given).__name__} cannot be resized: {'; '.join(f'{n}: {why}' for n, why in reasons.items())}"
        )
    inputs = checked_example(given, example, 0)
    try:
        observe(given, inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the model rejects the example {inputs}: {type(error).__name__}: {error}") from error
    return resized(given, None if isinstance(model, nn.Module) else model, ratio, inputs, seed)


def resized(model: nn.Module, factory: Factory | None, ratio: float, inputs: Inputs, seed: int) -> nn.Module:
    """`resize`, with the input already looked at."""
    if factory is not None:
        new = build(factory, ratio, seed)
        wrong = list(_problems(model, new, ratio, inputs))
        if wrong:
            raise ConversionError(f"the factory's network at ratio {ratio:g} is not what it should be: {'; '.join(wrong[:4])}")
        return reported(model, new, ratio, "the factory", inputs)
    if ratio == 1:
        return reported(model, reinitialised(model, seed)[0], ratio, "nothing", inputs)
    tried = []
    for name, way in WAYS.items():
        try:
            found, wrong = _by_way(way, model, ratio, inputs, seed)
        except Exception as error:  # a foreign constructor may fail in any way: it was no way then
            found, wrong = None, [f"{type(error).__name__}: {error}"]
        if found is not None and not wrong:
            return reported(model, found, ratio, name, inputs)
        if wrong:
            tried.append(f"  by {name}: {'; '.join(wrong[:3])}")
    if ratio > 1:
        what = "\n".join(tried) or "  nothing is known of how it is made"
        raise ConversionError(f"{type(model).__name__} cannot be made {ratio:g} times as wide:\n{what}\n{ADVICE}")
    try:
        thin = pruned(model, ratio, inputs)
    except ConversionError as error:
        raise ConversionError("\n".join([str(error), *tried])) from error
    return reported(model, reinitialised(thin, seed, resized_from=model)[0], ratio, "channels", inputs)


def _by_way(way: Way, model: nn.Module, ratio: float, inputs: Inputs, seed: int) -> tuple[nn.Module | None, list[str]]:
    """The model as one of the ways makes it, if it knows how, and what is wrong with it."""
    place = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    with seeded(seed, model):
        new = way(model, ratio, place)
        if new is None:
            return None, []
        try:
            same = way(model, 1.0, torch.device("meta"))
        except (RuntimeError, NotImplementedError):  # a constructor that looks at values
            same = way(model, 1.0, place)
    assert same is not None
    new = _in_place_of(model, new)
    return new, [*_changes_lost(model, same)] or [*_problems(model, new, ratio, inputs)]


def reported(model: nn.Module, new: nn.Module, ratio: float, way: str, inputs: Inputs) -> nn.Module:
    """The new model, with what became of its widths."""
    structure = observe(model, inputs)
    ends = last_layers(structure)[0]
    rounded = {}
    for name in structure.layers():
        asked, got = width_of(model.get_submodule(name)) * ratio, width_of(new.get_submodule(name))
        if got != asked and name not in ends:
            rounded[name] = (asked, got)
    if not hasattr(new, "resizing"):  # a part of the model may have that name
        new.resizing = Resizing(ratio, way, rounded)  # type: ignore[assignment]
    return in_layout_of(model, new)


def in_layout_of(model: nn.Module, new: nn.Module) -> nn.Module:
    """The new model, with weights in the memory layout that the given one's have."""
    for layout in (torch.channels_last, torch.channels_last_3d):
        rank = 4 if layout is torch.channels_last else 5
        weights = [t for _, t in named_tensors(model) if t.ndim == rank and min(t.shape[1:]) > 1]
        if weights and all(t.is_contiguous(memory_format=layout) and not t.is_contiguous() for t in weights):
            new = new.to(memory_format=layout)  # type: ignore[call-overload]
    return new


def _in_place_of(model: nn.Module, new: nn.Module) -> nn.Module:
    """The new model on the given one's device, in its dtypes, layouts and modes, frozen where it is frozen.

    What is constant in the given model stays so, and buffers of the same shape keep their values, as in any fresh member.
    """
    given = dict(named_tensors(model))
    for name, tensor in named_tensors(new):
        if name not in given:
            continue
        tensor.data = tensor.data.to(given[name].device, given[name].dtype)
        tensor.requires_grad_(given[name].requires_grad)
        if isinstance(tensor, nn.Parameter) and given[name].numel() > 1 and is_constant(given[name]) and not tensor.is_meta:
            tensor.data.fill_(given[name].flatten()[0])
        elif not isinstance(tensor, nn.Parameter) and tensor.shape == given[name].shape:
            tensor.data.copy_(given[name])
    for part in new.modules():
        if isinstance(part, _NormBase):
            part.reset_running_stats()
    modes = {name: part.training for name, part in model.named_modules()}
    for name, part in new.named_modules():
        part.training = modes.get(name, model.training)
    return new


def _changes_lost(model: nn.Module, same: nn.Module) -> Iterator[str]:
    """What the model was given since it was made, and would lose if it were made again: here is the same, made again."""
    mine, other = _described(model), _described(same)
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            yield f"{name or 'it'} would be {other.get(name, 'lost')} instead of {mine.get(name, 'nothing')}"


def _described(model: nn.Module) -> dict[str, Any]:
    """Everything that can be said of a model without its values."""
    found: dict[str, Any] = {}
    for name, part in model.named_modules():
        own = {k: _plain(v) for k, v in vars(part).items() if k[0] != "_" and k not in ("training", "resizing")}
        hooks = sum(len(value) for key, value in vars(part).items() if key.endswith("_hooks"))
        own = {k: v for k, v in own.items() if v is not None}
        found[name] = f"{type(part).__name__}({part.extra_repr()}) {own}" + (f" with {hooks} hooks" if hooks else "")
    return {**found, **{f"{name} (tensor)": list(tensor.shape) for name, tensor in named_tensors(model)}}


def _plain(value: Any) -> Any:
    """What can be compared of an attribute: numbers, words, functions by name, and collections of these."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else None
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", None)


def _problems(model: nn.Module, new: nn.Module, ratio: float, inputs: Inputs) -> Iterator[str]:
    """What differs in a resized network, beside widths: parts, outputs, heads; and whether any width has changed."""
    ours, theirs = ({n: type(part) for n, part in net.named_modules()} for net in (model, new))
    names = [n for n in ours.keys() | theirs.keys() if ours.get(n) is not theirs.get(n)]
    if names:
        yield f"{min(names)} is not of the same kind"
        return
    try:
        yield from changed_outputs(model, new, inputs)
    except Exception as error:
        yield f"it does not run: {type(error).__name__}: {error}"
        return
    yield from _unchanged(model, new, ratio, inputs)


def _unchanged(model: nn.Module, new: nn.Module, ratio: float, inputs: Inputs) -> Iterator[str]:
    """Layers that are as they were on both sides, although they should have other widths."""
    structure = observe(model, inputs)
    ends = last_layers(structure)[0]
    heads = {getattr(part, name, None) for part in model.modules() for name in HEADS}
    for name in structure.layers():
        layer, other = model.get_submodule(name), new.get_submodule(name)
        shapes = [[t.shape for _, t in named_tensors(part)] for part in (layer, other)]
        width = width_of(layer)
        if name not in ends and width not in heads and shapes[0] == shapes[1] and abs(width * ratio - width) >= 1:
            yield f"{name} is as wide as before"
