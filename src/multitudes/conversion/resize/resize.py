"""resize: makes a network of the same architecture, thinner or wider.

A factory `lambda ratio: Net(...)` in place of the model always works. Without one, two ways are tried in this order:

1. the constructor or configuration of the network (our models, transformers, timm): exact, with the model's initialisation;
2. for thinner networks, removing channels (see `multitudes.conversion.resize.pruning`).

Widths are rounded to the nearest positive multiple of their divisor; the number of heads is kept and their width scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.conversion.anatomy.initialise import build, check_model, is_constant, reinitialised
from multitudes.conversion.anatomy.refusals import refusals
from multitudes.conversion.anatomy.structure import Structure, last_layers, run_example
from multitudes.conversion.resize.audit import changed_outputs
from multitudes.conversion.resize.constructors import HEADS, by_config, by_constructor, by_timm
from multitudes.conversion.resize.pruning import ADVICE, pruned, width_of
from multitudes.engine.inputs import checked_example
from multitudes.engine.modules import Factory, named_tensors
from multitudes.engine.seeds import checked_seed, seeded
from multitudes.engine.undisturbed import undisturbed
from multitudes.errors import ConversionError
from multitudes.settings import above, check_value

Way = Callable[[Any, float, torch.device], nn.Module | None]
"""way(model, ratio, device): the model at another width; None if the way does not apply to it."""

WAYS: dict[str, Way] = {"its constructor": by_constructor, "its configuration": by_config, "timm's constructor": by_timm}


@dataclass(frozen=True)
class Resizing:
    """How a network was resized: its attribute `resizing`."""

    ratio: float
    way: str
    rounded: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Layers with a rounded width: the exact product, and the width."""
    grouped: dict[str, int] = field(default_factory=dict)
    """Layers that Packed divided into groups, and the number of groups."""

    def __str__(self) -> str:
        text = f"resized to {self.ratio:g} of the width by {self.way}"
        if self.rounded:
            shown = [f"{name} {exact:g} → {width}" for name, (exact, width) in self.rounded.items()]
            text += f"; rounded: {', '.join(shown[:3])}" + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
        return text + (f"; {len(self.grouped)} layers in groups" if self.grouped else "")


@undisturbed
def resize(model: nn.Module | Factory, ratio: float, example: Any, *, seed: int | None = None) -> nn.Module:
    """Returns a freshly initialised model with every hidden width times `ratio`. Its attribute `resizing` lists rounded widths.

    >>> import torch, multitudes as mt
    >>> from multitudes.models import ResNet
    >>> thin = mt.resize(ResNet(18), 0.3, torch.randn(2, 3, 32, 32))
    >>> thin.resizing.rounded["layer4.1.conv2"]
    (153.6, 154)
    """
    check_value("ratio", ratio, Annotated[float, above(0)])
    check_model(model)
    seed = checked_seed(seed)
    net = model if isinstance(model, nn.Module) else build(model, 1.0, seed)
    if reasons := refusals(net):
        raise ConversionError(
            f"{type(net).__name__} cannot be resized: {'; '.join(f'{n}: {why}' for n, why in reasons.items())}"
        )
    structure = run_example(net, checked_example(net, example, 0), seed)
    return resized(structure, None if isinstance(model, nn.Module) else model, ratio, seed)


def resized(structure: Structure, factory: Factory | None, ratio: float, seed: int) -> nn.Module:
    """Resizes an observed model, or calls its factory at this ratio."""
    model = structure.model
    if factory is not None:
        new = build(factory, ratio, seed)
        problems = list(_problems(structure, new, ratio))
        if problems:
            raise ConversionError(
                f"the factory's network at ratio {ratio:g} is wrong: {'; '.join(problems[:4])}. "
                "The factory must multiply hidden widths by the ratio, and change nothing else"
            )
        return reported(structure, new, ratio, "the factory")
    if ratio == 1:
        return reported(structure, reinitialised(model, seed)[0], ratio, "nothing")
    failures = []
    for name, way in WAYS.items():
        rebuilt: nn.Module | None = None
        try:
            rebuilt, problems = _by_way(way, structure, ratio, seed)
        except Exception as error:  # constructors of other libraries may raise anything
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            failures.append(f"  by {name}: {'; '.join(problems[:3])}")
        elif rebuilt is not None:
            return reported(structure, rebuilt, ratio, name)
    if ratio > 1:
        why = "\n".join(failures) or "  its constructor is unknown (known: our models, transformers, timm)"
        raise ConversionError(f"{type(model).__name__} cannot be made {ratio:g} times as wide:\n{why}\n{ADVICE}")
    try:
        thin = pruned(structure, ratio)
    except ConversionError as error:
        reasons = str(error).removesuffix(f"\n{ADVICE}")
        raise ConversionError("\n".join([reasons, *failures, ADVICE])) from error
    return reported(structure, reinitialised(thin, seed, resized_from=model)[0], ratio, "channels")


def _by_way(way: Way, structure: Structure, ratio: float, seed: int) -> tuple[nn.Module | None, list[str]]:
    """Tries one way to resize. Returns the new model (None if the way does not apply), and a list of its problems."""
    model = structure.model
    device = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    with seeded(seed):
        new = way(model, ratio, device)
        if new is None:
            return None, []
        try:
            same = way(model, 1.0, torch.device("meta"))
        except (RuntimeError, NotImplementedError):  # a constructor that reads values cannot run on the meta device
            same = way(model, 1.0, device)
    assert same is not None
    new = _in_place_of(model, new)
    return new, [*_changes_lost(model, same)] or [*_problems(structure, new, ratio)]


def reported(structure: Structure, new: nn.Module, ratio: float, way: str) -> nn.Module:
    """Sets the attribute `resizing` of the new model, and returns it in the memory layout of the given model."""
    model = structure.model
    ends = last_layers(structure)[0]
    rounded = {}
    for name in structure.layers():
        exact, width = width_of(model.get_submodule(name)) * ratio, width_of(new.get_submodule(name))
        if width != exact and name not in ends:
            rounded[name] = (exact, width)
    if not hasattr(new, "resizing"):  # the model may have a module of that name
        new.resizing = Resizing(ratio, way, rounded)  # type: ignore[assignment]
    return in_layout_of(model, new)


def in_layout_of(model: nn.Module, new: nn.Module) -> nn.Module:
    """Returns the new model with weights in the memory layout of the given model."""
    for layout in (torch.channels_last, torch.channels_last_3d):
        rank = 4 if layout is torch.channels_last else 5
        weights = [t for _, t in named_tensors(model) if t.ndim == rank and min(t.shape[1:]) > 1]
        if weights and all(t.is_contiguous(memory_format=layout) and not t.is_contiguous() for t in weights):
            new = new.to(memory_format=layout)  # type: ignore[call-overload]
    return new


def _in_place_of(model: nn.Module, new: nn.Module) -> nn.Module:
    """Moves the new model to the device, dtypes and modes of the given one, and freezes the same parameters.

    As in any fresh member, parameters that are constant in the given model and buffers of the same shape keep their values.
    """
    tensors = dict(named_tensors(model))
    for name, new_tensor in named_tensors(new):
        if name not in tensors:
            continue
        tensor = tensors[name]
        new_tensor.data = new_tensor.data.to(tensor.device, tensor.dtype)
        new_tensor.requires_grad_(tensor.requires_grad)
        is_parameter = isinstance(new_tensor, nn.Parameter)
        if is_parameter and tensor.numel() > 1 and is_constant(tensor) and not new_tensor.is_meta:
            new_tensor.data.fill_(tensor.flatten()[0])
        elif not is_parameter and new_tensor.shape == tensor.shape:
            new_tensor.data.copy_(tensor)
    for part in new.modules():
        if isinstance(part, _NormBase):
            part.reset_running_stats()
    modes = {name: part.training for name, part in model.named_modules()}
    for name, part in new.named_modules():
        part.training = modes.get(name, model.training)
    return new


def _changes_lost(model: nn.Module, same: nn.Module) -> Iterator[str]:
    """Reports changes made to the model after construction, which `same`, the model rebuilt at ratio 1, does not have."""
    before, after = _described(model), _described(same)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"{name or 'the model'} would be {after.get(name, 'lost')} instead of {before.get(name, 'nothing')}"


def _described(model: nn.Module) -> dict[str, Any]:
    """Describes modules by type, attributes and number of hooks, and tensors by shape, under their names."""
    descriptions: dict[str, Any] = {}
    for name, part in model.named_modules():
        attributes = {k: _comparable(v) for k, v in vars(part).items() if k[0] != "_" and k not in ("training", "resizing")}
        attributes = {k: v for k, v in attributes.items() if v is not None}
        hooks = sum(len(value) for key, value in vars(part).items() if key.endswith("_hooks"))
        with_hooks = f" with {hooks} hooks" if hooks else ""
        descriptions[name] = f"{type(part).__name__}({part.extra_repr()}) {attributes}{with_hooks}"
    return descriptions | {f"{name} (tensor)": list(tensor.shape) for name, tensor in named_tensors(model)}


def _comparable(value: Any) -> Any:
    """Returns the comparable part of an attribute: numbers, strings, functions by name, and collections of these."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_comparable, value)) if type(value) in (list, tuple) else None
    if isinstance(value, dict):
        return {str(key): _comparable(part) for key, part in value.items()}
    if isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", None)


def _problems(structure: Structure, new: nn.Module, ratio: float) -> Iterator[str]:
    """Reports problems with a resized network: other modules, other outputs, layers as wide as before."""
    model = structure.model
    ours, theirs = ({n: type(part) for n, part in net.named_modules()} for net in (model, new))
    names = [n for n in ours.keys() | theirs.keys() if ours.get(n) is not theirs.get(n)]
    if names:
        yield f"module {min(names) or '(the model)'} is missing or has another type"
        return
    try:
        yield from changed_outputs(model, new, structure.inputs)
    except Exception as error:
        yield f"it does not run: {type(error).__name__}: {error}"
        return
    yield from _unchanged(structure, new, ratio)


def _unchanged(structure: Structure, new: nn.Module, ratio: float) -> Iterator[str]:
    """Reports layers whose width should have changed and did not."""
    model = structure.model
    ends = last_layers(structure)[0]
    heads = {getattr(part, name, None) for part in model.modules() for name in HEADS}
    for name in structure.layers():
        layer, other = model.get_submodule(name), new.get_submodule(name)
        shapes = [[t.shape for _, t in named_tensors(part)] for part in (layer, other)]
        width = width_of(layer)
        if name not in ends and width not in heads and shapes[0] == shapes[1] and abs(width * ratio - width) >= 1:
            yield f"{name} is as wide as before"
