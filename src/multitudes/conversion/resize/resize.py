"""resize: makes a network of the same architecture, thinner or wider.

A factory `lambda ratio: Net(...)` in place of the model always works. Without one, two ways are tried in this order:

1. the constructor or configuration of the network (our models, transformers, timm): exact, with the model's initialisation;
2. for thinner networks, removing channels (see `multitudes.conversion.resize.pruning`).

Widths are rounded to the nearest positive multiple of their divisor; the number of heads is kept and their width scaled.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.conversion.anatomy.initialise import build, check_model, copies_in, is_constant, reinitialised, takes_ratio
from multitudes.conversion.anatomy.refusals import refusals
from multitudes.conversion.anatomy.structure import Structure, is_layer, last_layers, run_example
from multitudes.conversion.resize.advice import advice
from multitudes.conversion.resize.audit import (
    changed_outputs,
    changes_lost,
    fails_in_training,
    kinds_of,
    width_of,
    without_channels,
)
from multitudes.conversion.resize.constants import Path
from multitudes.conversion.resize.constructors import is_known, recipe_of, way_of
from multitudes.conversion.resize.counts import changed_counts, changed_tables
from multitudes.conversion.resize.found import recipe_from, text_of
from multitudes.conversion.resize.pruning import ADVICE, SECONDS, pruned
from multitudes.conversion.resize.recipe import Recipe
from multitudes.conversion.resize.roles import groups, is_head_count
from multitudes.conversion.resize.stale import stale_numbers
from multitudes.conversion.resize.unthinned import unthinned_ends
from multitudes.conversion.resize.widths import ROUNDING, Search, Widths
from multitudes.engine.call_form import call_of
from multitudes.engine.inputs import checked_example
from multitudes.engine.modules import Factory, copy_with, named_tensors, owning_module
from multitudes.engine.seeds import checked_seed, seeded
from multitudes.engine.selected_output import selected, selecting, selection_of
from multitudes.engine.undisturbed import undisturbed
from multitudes.errors import ConversionError, MultitudesError, listed
from multitudes.models.network import Network
from multitudes.settings import above, check_value

ENOUGH = 64
"""Entries of a tensor above which its standard deviation means something."""
FEW = 0.1
"""The share of weights in layers whose width no argument sets, up to which such a network is still resized."""


ARGUMENTS = 6
"""The most widths among the arguments of an unknown class of which each is left out in turn, since it may be a count."""


@dataclass(frozen=True)
class Resizing:
    """How a network was resized: its attribute `resizing`."""

    ratio: float
    way: str
    rounded: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Layers with a rounded width: the exact product, and the width."""
    grouped: dict[str, int] = field(default_factory=dict)
    """Layers that Packed divided into groups, and the number of groups."""
    note: str = ""
    """What else follows the width."""
    found: str = field(default="", repr=False, compare=False)
    """How the constructor made it, for files (`multitudes.conversion.resize.found`); "" if another way did."""

    def __str__(self) -> str:
        text = f"resized to {self.ratio:g} of the width by {self.way}"
        if self.rounded:
            shown = [f"{name} {exact:g} → {width}" for name, (exact, width) in self.rounded.items()]
            text += f"; rounded: {', '.join(shown[:3])}" + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
        text += f"; {self.note}" if self.note else ""
        return text + (f"; {len(self.grouped)} layers in groups" if self.grouped else "")


@undisturbed
def resize(
    model: nn.Module | Factory,
    ratio: float,
    example: Any,
    *,
    seed: int | None = None,
    search_seconds: float = SECONDS,
    output: str | int | None = None,
) -> nn.Module:
    """Returns a freshly initialised model with every hidden width times `ratio`. Its attribute `resizing` lists rounded widths.

    search_seconds  limits the search for channels to remove, where the constructor is not known
    output          the one output that the model returns then, if it returns several: its name ("logits"), or its place in a
                    tuple. Widths of the others may change. None returns all, and keeps their widths

    >>> import torch, multitudes as mt
    >>> from multitudes.models import ResNet
    >>> thin = mt.resize(ResNet(18), 0.3, torch.randn(2, 3, 32, 32))
    >>> thin.resizing.rounded["layer4.1.conv2"]
    (153.6, 154)
    """
    check_value("ratio", ratio, Annotated[float, above(0)])
    check_value("search_seconds", search_seconds, Annotated[float, above(0)])
    check_model(model)
    seed = checked_seed(seed)
    model = selected(model, output)
    net = model if isinstance(model, nn.Module) else build(model, 1.0, seed)
    if reasons := refusals(net):
        texts = "; ".join(f"{name or 'the model'}: {why}" for name, why in reasons.items())
        raise ConversionError(f"{type(net).__name__} cannot be resized: {texts}")
    structure = run_example(net, checked_example(net, call_of(net, example), 0), seed)
    return resized(structure, None if isinstance(model, nn.Module) else model, ratio, seed, search_seconds)


def resized(
    structure: Structure, factory: Factory | None, ratio: float, seed: int, search_seconds: float = SECONDS
) -> nn.Module:
    """Resizes an observed model, or calls its factory at this ratio."""
    model = structure.model
    if factory is not None and takes_ratio(factory):
        return _by_factory(structure, _made(factory, ratio, seed), ratio)
    if ratio == 1:
        return reported(structure, reinitialised(model, seed)[0], ratio, "nothing")
    device = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    if device.type not in ("cpu", "meta") and (twin := _on_cpu(structure, seed)) is not None:
        return resized(twin, factory, ratio, seed, search_seconds).to(device)
    way = way_of(model, factory)
    try:
        return _rebuilt(structure, factory, ratio, seed)
    except Exception as error:  # constructors may raise anything
        reason = str(error) if isinstance(error, ConversionError) else f"{type(error).__name__}: {error}"
        failure = f"by {way}: {reason}"
    instead = advice(structure, factory)
    if ratio > 1:
        raise ConversionError(f"{type(model).__name__} cannot be made {ratio:g} times as wide:\n  {failure}\n{instead}")
    try:
        thin = pruned(structure, ratio, seconds=search_seconds)
    except ConversionError as error:
        reasons = str(error).removesuffix(f"\n{ADVICE}")
        raise ConversionError(f"{reasons}\n  {failure}\n{instead}") from error
    return reported(structure, reinitialised(thin, seed, resized_from=model)[0], ratio, "channels")


def _made(factory: Factory, ratio: float, seed: int) -> nn.Module:
    """Calls a factory, which made a network at ratio 1, at another ratio."""
    try:
        return build(factory, ratio, seed)
    except MultitudesError:
        raise
    except Exception as error:  # a constructor may raise anything
        raise ConversionError(
            f"the factory fails at ratio {ratio:g}: {type(error).__name__}: {error}. Round widths to what must divide them, "
            "such as the number of heads or groups: 4 * round(16 * ratio) in place of round(64 * ratio)"
        ) from error


def _by_factory(structure: Structure, new: nn.Module, ratio: float) -> nn.Module:
    """Returns a factory's network if its modules and outputs are those of the given one.

    How wide it is, is the user's word: the layers that the factory leaves as wide as before are reported in the note. A factory
    that ignores its ratio is refused.
    """
    problems = list(_changed(structure, new))
    sizes = [sum(p.numel() for p in net.parameters()) for net in (structure.model, new)]
    if not problems and (sizes[1] - sizes[0]) * (ratio - 1) <= 0 and ratio != 1:
        problems = [f"it has {sizes[1]:,} parameters, and {sizes[0]:,} at ratio 1, so it does not follow the ratio"]
    if problems:
        raise ConversionError(
            f"the factory's network at ratio {ratio:g} is wrong: {'; '.join(problems[:4])}. "
            "The factory must multiply hidden widths by the ratio; inputs, outputs and the number of layers must stay"
        )
    widths = {name: [width_of(net.get_submodule(name)) for net in (structure.model, new)] for name in structure.layers()}
    ends = last_layers(structure)[0]
    wide = [name for name, (old, now) in widths.items() if old == now and abs(old * ratio - old) >= 1 and name not in ends]
    more = f" and {len(wide) - 6} more" if len(wide) > 6 else ""
    note = f"the factory leaves as wide as before: {', '.join(wide[:6])}{more}" if wide else ""
    return reported(structure, new, ratio, "the factory", note, wide)


def _on_cpu(structure: Structure, seed: int) -> Structure | None:
    """Observes a copy of the model on the CPU; None if it does not run there.

    Networks of wrong widths are run to see that they are wrong. On a GPU one index out of range ends the whole process.
    """
    model, inputs = structure.model, structure.inputs
    moved: dict[str, torch.Tensor] = {}
    for name, tensor in named_tensors(model):
        copied = tensor.detach().cpu()
        moved[name] = nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
    try:
        return run_example(copy_with(model, moved), inputs.refill([tensor.cpu() for tensor in inputs.tensors()]), seed)
    except Exception:  # it may hold tensors elsewhere
        return None


@dataclass
class Replay:
    """A recipe, and the widths among its arguments."""

    recipe: Recipe
    search: Search
    widths: Widths
    scaled: dict[float, dict[Path, Any]] = field(default_factory=dict)
    """The widths at ratios that were asked for."""

    def changes(self, ratio: float) -> dict[Path, Any]:
        """Returns the arguments to change for this ratio."""
        if ratio not in self.scaled:
            self.scaled[ratio] = self.search.changes(self.widths, ratio)
        return self.scaled[ratio]


_REPLAYS: WeakKeyDictionary[Any, Replay] = WeakKeyDictionary()
"""By factory: its members are made one by one, and the search is the same for all."""


def _replays_of(structure: Structure, factory: Any) -> Iterator[Replay]:
    """Finds what a model was built with, and yields choices of widths in it, the likely ones first.

    These are widths among its arguments, then with the numbers in the code that it runs; each time, if multipliers are among
    them, also without multipliers, which some constructors treat in their own way if they are below 1. Arguments of an unknown
    class may be counts: then each of them is also left out in turn.
    """
    if factory is not None and factory in _REPLAYS:
        yield _REPLAYS[factory]
        return
    recipe = recipe_of(structure, factory)
    if recipe is None:
        raise ConversionError("what it was built with is not known")
    guessed = not is_known(structure.model, factory)
    failure, built = None, None
    multiplied = any(isinstance(value, float) for value in recipe.numbers().values())
    for code, fractions in itertools.product((False, True), (True, False)):
        if not fractions and not multiplied:
            continue
        left_out: list[frozenset[Path]] = [frozenset()]
        for without in left_out:
            try:
                recipe = recipe.with_code() if code and not recipe.functions else recipe
                search = Search(recipe, structure, fractions=fractions, guessed=guessed, without=without, built=built)
                built = search.full
                widths = search.widths()
            except ConversionError as error:
                failure = failure if without else failure or error
                continue
            yield Replay(recipe, search, widths)
            if without:
                continue
            multiplied = any(isinstance(value, float) for value in widths.paths.values())
            if guessed and not code and len(groups(widths.paths)) <= ARGUMENTS:
                left_out += [frozenset(group) for group in groups(widths.paths)]
    if failure is not None:
        raise failure


def _rebuilt(structure: Structure, factory: Factory | None, ratio: float, seed: int) -> nn.Module:
    """Builds the network again with other widths. Raises ConversionError if that is not possible, or not right."""
    if isinstance(structure.model, Network):
        return _resized_network(structure, structure.model, ratio, seed)
    model = structure.model
    device = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    failures: list[str] = []
    replays = _replays_of(structure, factory)
    while (replay := _next(replays, failures)) is not None:
        try:
            changes = replay.changes(ratio)
            new = _in_place_of(model, functools.partial(_built, replay.recipe, device, seed), changes)
            problems = list(_replay_problems(structure, factory, replay, new, ratio))
        except ConversionError as error:
            problems = [str(error)]
        if not problems:
            if factory is not None:
                _REPLAYS[factory] = replay
            if not is_known(model, factory) and _starts_otherwise(model, new):
                new = reinitialised(new, seed, resized_from=model)[0]
            found = text_of(replay.recipe, changes)
            return reported(structure, new, ratio, way_of(model, factory), replay.widths.note, found=found)
        failures += problems[:3]
    raise ConversionError("; ".join(list(dict.fromkeys(failures))[:3]))


def built_again(model: nn.Module, factory: Factory | None, resizing: Resizing, seed: int) -> nn.Module:
    """Makes the network that a resizing made, from a model like the one that was resized, without a search.

    Raises ConversionError where nothing is known of how it was made, or the constructor is another one now.
    """
    if not resizing.found:
        raise ConversionError("it was not made by a constructor")
    recipe, changes = recipe_from(resizing.found, model, factory)
    device = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    new = _in_place_of(model, functools.partial(_built, recipe, device, seed), changes)
    new.resizing = resizing  # type: ignore[assignment]
    return in_layout_of(model, new)


def _next(replays: Iterator[Replay], failures: list[str]) -> Replay | None:
    """Returns the next choice of widths; None at the end. Raises what hinders the search if no choice has failed before."""
    try:
        return next(replays, None)
    except ConversionError:
        if not failures:
            raise
        return None


def _replay_problems(structure: Structure, factory: Any, replay: Replay, new: nn.Module, ratio: float) -> Iterator[str]:
    """Reports the first kind of problem with a network that was built again: wrong widths, then counts, then stale numbers."""
    model, inputs, widths = structure.model, structure.inputs, replay.widths
    in_code = bool(replay.recipe.functions)
    problems = list(_problems(structure, new, ratio, widths.follows, bool(widths.note)))
    if not problems and (in_code or not is_known(model, factory)):
        search = replay.search
        problems = list(changed_counts(structure, new, ratio, search.by_code(widths), search.features))
    if not problems and in_code:
        problems = list(stale_numbers(model, new, inputs))
    yield from problems


def _starts_otherwise(model: nn.Module, new: nn.Module) -> bool:
    """Whether weights start at another scale than the given ones: these may have been drawn after the constructor ran."""
    tensors = dict(new.named_parameters())
    for name, given in model.named_parameters():
        fresh = tensors[name]
        if given.is_floating_point() and min(given.numel(), fresh.numel()) > ENOUGH and not is_constant(given):
            thinner = max(a / b for a, b in zip(given.shape, fresh.shape, strict=True))
            share = float(fresh.detach().std() / given.detach().std())
            if not 0.5 <= share <= 2 * math.sqrt(max(thinner, 1.0)):
                return True
    return False


def _resized_network(structure: Structure, model: Network, ratio: float, seed: int) -> nn.Module:
    """Makes one of our networks again at another width."""
    device = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    with seeded(seed), device:
        try:
            new, same = (selecting(model.resized(width), selection_of(model)) for width in (ratio, 1.0))
        except Exception as error:  # the constructor of a subclass may raise anything
            raise ConversionError(f"{type(error).__name__}: {error}") from error
    thin = _in_place_of(model, lambda changes: new if changes else same, {("ratio",): ratio})
    problems = list(changes_lost(model, same)) or list(_problems(structure, thin, ratio))
    if problems:
        raise ConversionError("; ".join(problems[:3]))
    return reported(structure, thin, ratio, way_of(model))


def reported(
    structure: Structure,
    new: nn.Module,
    ratio: float,
    way: str,
    note: str = "",
    wide: Collection[str] = (),
    found: str = "",
) -> nn.Module:
    """Sets the attribute `resizing` of the new model, and returns it in the memory layout of the given model.

    `wide` names layers that are left as wide as before, which is no rounding.
    """
    model = structure.model
    ends = last_layers(structure)[0]
    rounded = {}
    for name in structure.layers():
        given, width = width_of(model.get_submodule(name)), width_of(new.get_submodule(name))
        if width != given * ratio and name not in ends and name not in wide and not width == given > 2:
            rounded[name] = (given * ratio, width)
    if not hasattr(new, "resizing"):  # the model may have a module of that name
        note = "; ".join(filter(None, [note, _as_before(model, new, {*ends, *wide})]))
        new.resizing = Resizing(ratio, way, rounded, note=note, found=found)  # type: ignore[assignment]
    return in_layout_of(model, new)


def _as_before(model: nn.Module, new: nn.Module, known: Collection[str]) -> str:
    """Names matrices that are as large as before, but for `known` layers, if they are more than few of the weights; else ""."""
    shapes = {name: p.shape for name, p in model.named_parameters() if sum(size > 1 for size in p.shape) > 1}
    kept = {n: p.numel() for n, p in new.named_parameters() if shapes.get(n) == p.shape and owning_module(n) not in known}
    few = sum(kept.values()) <= FEW * sum(p.numel() for p in new.parameters())
    return "" if few else f"as large as before: {listed(kept)}"


def in_layout_of(model: nn.Module, new: nn.Module) -> nn.Module:
    """Returns the new model with weights in the memory layout of the given model."""
    for layout in (torch.channels_last, torch.channels_last_3d):
        rank = 4 if layout is torch.channels_last else 5
        weights = [t for _, t in named_tensors(model) if t.ndim == rank and min(t.shape[1:]) > 1]
        if weights and all(t.is_contiguous(memory_format=layout) and not t.is_contiguous() for t in weights):
            new = new.to(memory_format=layout)  # type: ignore[call-overload]
    return new


def _built(recipe: Recipe, device: torch.device, seed: int, changes: Mapping[Path, Any]) -> nn.Module:
    """Builds the network of a recipe, with other numbers at some paths."""
    with seeded(seed):
        return recipe.build(changes, device)


def _in_place_of(model: nn.Module, made: Callable[[Mapping[Path, Any]], nn.Module], changes: Mapping[Path, Any]) -> nn.Module:
    """Makes the new model, with the device, dtypes and modes of the given one, and freezes the same parameters.

    As in any fresh member, parameters that are constant in the given model and buffers of the same shape keep their values; but
    not a buffer that the constructor computes: `made` without changes, the network at its own width, gives it the given value.
    """
    new = made(changes)
    tensors = dict(named_tensors(model))
    computed = _computed_buffers(model, new, lambda: made({}))
    for name, new_tensor in named_tensors(new):
        if name not in tensors:
            continue
        tensor = tensors[name]
        new_tensor.data = new_tensor.data.to(tensor.device, tensor.dtype)
        new_tensor.requires_grad_(tensor.requires_grad)
        is_parameter = isinstance(new_tensor, nn.Parameter)
        if is_parameter and tensor.numel() > 1 and is_constant(tensor) and not new_tensor.is_meta:
            new_tensor.data.fill_(tensor.flatten()[0])
        elif not is_parameter and new_tensor.shape == tensor.shape and name not in computed:
            new_tensor.data.copy_(tensor)
    fresh = dict(named_tensors(new))
    for name, copies in copies_in(tensors).items():
        for other in [n for n in copies if n in fresh and name in fresh and fresh[n].shape == fresh[name].shape]:
            fresh[other].data.copy_(fresh[name])
    for part in new.modules():
        if isinstance(part, _NormBase):
            part.reset_running_stats()
    selecting(new, selection_of(model))
    modes = {name: part.training for name, part in model.named_modules()}
    for name, part in new.named_modules():
        part.training = modes.get(name, model.training)
    return new


def _computed_buffers(model: nn.Module, new: nn.Module, same: Callable[[], nn.Module]) -> set[str]:
    """Names the buffers that have another value at the new width, as 1/√width has, and that a constructor computes."""
    norms = {name for name, part in model.named_modules() if isinstance(part, _NormBase)}
    given = {name: buffer for name, buffer in model.named_buffers() if owning_module(name) not in norms}
    theirs = dict(new.named_buffers())
    differ = [name for name, buffer in given.items() if name in theirs and _differ(buffer, theirs[name])]
    if not differ:
        return set()
    full = dict(same().named_buffers())
    return {name for name in differ if name in full and not _differ(given[name], full[name])}


def _differ(buffer: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two buffers of the same shape have other values."""
    if buffer.shape != other.shape or buffer.is_meta or other.is_meta:
        return False
    return not torch.equal(buffer, other.to(buffer.device, buffer.dtype))


def _problems(
    structure: Structure, new: nn.Module, ratio: float, follows: Collection[str] | None = None, heads_follow: bool = False
) -> Iterator[str]:
    """Reports problems with a resized network: what must not change and did, and layers as wide as before."""
    problems = list(_changed(structure, new, heads_follow))
    yield from problems
    if not any(problem.startswith(NOT_THE_SAME) for problem in problems):
        yield from _too_large(structure.model, new, ratio)
        yield from unthinned_ends(structure, new, ratio)
        yield from _unchanged(structure, new, ratio, follows)


NOT_THE_SAME = ("module ", "it does not run: ")
"""How problems begin after which widths cannot be compared."""


def _changed(structure: Structure, new: nn.Module, heads_follow: bool = False) -> Iterator[str]:
    """Reports what a resized network must have in common with the given one and has not: modules, outputs, tables."""
    model = structure.model
    ours, theirs = kinds_of(model), kinds_of(new)
    names = [n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)]
    if names:
        yield f"module {min(names) or '(the model)'} is missing or has another type"
        return
    try:
        changes = list(changed_outputs(model, new, structure.inputs))
    except Exception as error:
        yield f"it does not run: {type(error).__name__}: {error}"
        return
    yield from (change for change in changes if not (heads_follow and "number of heads" in change))
    yield from changed_tables(structure, new)
    yield from fails_in_training(model, new, structure.inputs)


def _too_large(model: nn.Module, new: nn.Module, ratio: float) -> Iterator[str]:
    """Reports a thinner network with nearly as many weights as the given one, or more: other numbers than widths changed."""
    given, thin = (sum(p.numel() for p in net.parameters()) for net in (model, new))
    if ratio < 1 and thin > (1 + ratio) / 2 * given:
        yield f"it would have {thin:,} parameters where the given network has {given:,}"


def _unchanged(structure: Structure, new: nn.Module, ratio: float, follows: Collection[str] | None) -> Iterator[str]:
    """Reports layers whose width should have changed and did not.

    `follows` names the layers that are known to follow the widths: what leaves a narrow one as it is, is its constructor's
    rounding, and every other hidden layer keeps its width.
    """
    model = structure.model
    ends = last_layers(structure)[0]
    heads = {value for part in model.modules() for key, value in vars(part).items() if is_head_count((key,)) and _is_int(value)}
    same = []
    called = structure.layers()
    every = [name for name, part in model.named_modules() if is_layer(part)]  # weights may be used without calling a layer
    for name in called if follows is None else every:
        layer, other = model.get_submodule(name), new.get_submodule(name)
        width = width_of(layer)
        fixed = name in ends or width in heads or abs(width * ratio - width) < 1
        kept = [t.shape for _, t in named_tensors(layer)] == [t.shape for _, t in named_tensors(other)]
        if follows is not None:
            kept = name not in follows or (kept and abs(width * ratio - width) > ROUNDING)
        if kept and not fixed:
            same.append(name)
    excused = without_channels(model, new, structure.inputs, same) if same else set()
    same = [name for name in same if name not in excused]
    if follows is None or not _few(model, new, same):
        yield from (f"{name} is as wide as before" for name in same)


def _few(model: nn.Module, new: nn.Module, names: Sequence[str]) -> bool:
    """Whether layers read thinner inputs or are tables, and hold few weights: then their width is the architecture's constant.

    Attention with heads of a fixed size is such a case. The layers are reported among the rounded ones.
    """
    before, sizes = ([sum(t.numel() for _, t in named_tensors(net.get_submodule(n))) for n in names] for net in (model, new))
    tables = [isinstance(model.get_submodule(name), nn.Embedding) for name in names]
    thinner = all(a > b or table for a, b, table in zip(before, sizes, tables, strict=True))
    return thinner and sum(sizes) < FEW * sum(t.numel() for _, t in named_tensors(new))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
