"""Rebuild a network at another width by running its constructor again: ours, transformers', timm's, or the user's own."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from multitudes.conversion.anatomy.structure import Structure, last_layers
from multitudes.conversion.resize.audit import changed_sizes, changes_lost, run_of, width_of, without_constants
from multitudes.conversion.resize.constants import Path
from multitudes.conversion.resize.pruning import is_transformers
from multitudes.conversion.resize.recipe import Recipe, bound, fields, holds_weights, recorded
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.modules import detached_copy, named_tensors
from multitudes.engine.program import META, without_values
from multitudes.engine.seeds import seeded
from multitudes.engine.selected_output import selection_of
from multitudes.errors import ConversionError

SECONDS = 3.0
"""How long the arguments of a constructor may be looked for."""

Arguments = dict[str, Any]


def recipe_of(structure: Structure, make: Callable[[], nn.Module] | None = None) -> Recipe | None:
    """Returns what a model was built with, proved by building it again; None if that cannot be known.

    `make` is the user's factory without arguments. Raises ConversionError if the constructor makes another network.
    """
    recipe = first_recipe(structure.model, make)
    guessed = not is_known(structure.model, make) and make is None
    return None if recipe is None else _Fit(recipe, structure, guessed).fitted()


def first_recipe(model: nn.Module, make: Callable[[], nn.Module] | None = None) -> Recipe | None:
    """Returns what a model was built with as far as it is recorded; None if nothing is. The arguments may not be all right."""
    kind = type(model)
    if kind.__module__.startswith("torch.nn."):
        return None
    if make is not None:
        recipe = recorded(make, kind)
    elif is_transformers(model):
        recipe = bound(kind, (model.config,), {})
    elif name := timm_architecture(model):
        recipe = timm_recipe(name, kind)
    else:
        recipe = _stored(model)
    return recipe and dataclasses.replace(recipe, output=selection_of(model))


def is_known(model: nn.Module, make: Any = None) -> bool:
    """Whether a model's arguments are known by name: those of transformers and timm are, those of other classes are guessed."""
    return make is None and (is_transformers(model) or bool(timm_architecture(model)))


def way_of(model: nn.Module, make: Any = None) -> str:
    """Says what a model is built again by, for messages."""
    if make is not None:
        return "the factory's arguments"
    if is_transformers(model):
        return "its configuration"
    return "timm's constructor" if timm_architecture(model) else "its constructor"


def timm_architecture(model: Any) -> str | None:
    """Returns the name by which timm makes a network; None for other networks."""
    config = getattr(model, "pretrained_cfg", None) or {}
    name = config.get("architecture") if isinstance(config, dict) else getattr(config, "architecture", None)
    return name if type(model).__module__.startswith("timm.") else None


def timm_recipe(name: str, kind: type[nn.Module]) -> Recipe | None:
    """Returns the recipe of a network of timm as it is by default."""
    return recorded(lambda: _timm_model(name), kind)


def _timm_model(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name)
    return model


def _stored(model: nn.Module) -> Recipe | None:
    """Returns a recipe with the arguments that a model stores under their names, and with defaults; unknown ones are 8."""
    kind = type(model)
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    arguments: Arguments = {}
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            continue
        value = getattr(model, p.name, p.default)
        if holds_weights(value) or (isinstance(value, nn.Module) and p.default is not p.empty):
            value = p.default
        arguments[p.name] = 8 if value is p.empty else value
    return bound(kind, (), arguments)


LIKELY = 4
"""How many ratios of sizes are tried."""
COUNTED = ("depth", "layers", "blocks", "stages")
"""Words in the names of arguments that are numbers of modules, not widths."""


@dataclasses.dataclass
class _Fit:
    """Finds the arguments with which a recipe builds the given model."""

    recipe: Recipe
    structure: Structure
    guessed: bool = False
    """Whether arguments were read from attributes, which may mean something else."""
    started: float = dataclasses.field(default_factory=time.thread_time)

    def fitted(self) -> Recipe:
        """Returns the recipe that builds the given model to the last shape."""
        recipe, lost = self._best(self.recipe, [self.recipe, self.recipe.without_defaults()])
        lost = lost and self._after_a_call(recipe, lost)
        if lost:
            stored = dict(self._stored(recipe))
            recipe, lost = self._best(recipe, [recipe.with_values(stored)], lost)
        before = 0
        while lost and len(lost) != before and time.thread_time() < self.started + SECONDS:
            before = len(lost)
            for likely in (True, False):  # the likely values of all arguments are tried first
                ratios = self._ratios(recipe) if likely else []
                others = {path: list(self._candidates(recipe, path, likely, ratios)) for path in recipe.values()}
                order = others if likely else sorted(others, key=lambda path: len(others[path]))  # a switch has one other value
                for path in order:
                    trials = (recipe.with_values({path: value}) for value in others[path])
                    recipe, lost = self._best(recipe, trials, lost)
            lost = lost and self._after_a_call(recipe, lost)
        if lost:
            raise ConversionError(f"its constructor does not make the given network again: {'; '.join(lost[:2])}")
        if self.guessed or recipe is not self.recipe:
            self._check_values(recipe)
        return recipe

    def _check_values(self, recipe: Recipe) -> None:
        """Checks that the network of a guessed recipe computes what the given model does, with its weights."""
        model, inputs = self.structure.model, self.structure.inputs
        tensors = [tensor for _, tensor in named_tensors(model)]
        if not tensors or any(tensor.is_meta for tensor in tensors):
            return
        with seeded(0):
            twin = recipe.build({}, tensors[0].device)
        dtypes = {name: tensor.dtype for name, tensor in named_tensors(model)}
        for name, tensor in named_tensors(twin):
            tensor.data = tensor.data.to(dtypes.get(name, tensor.dtype))
        moved = without_constants(model)
        twin.load_state_dict(moved.state_dict())
        outputs: list[list[torch.Tensor]] = []
        for net in (moved, twin):
            with seeded(0):
                outputs.append(tree.tensors(run_of(net, inputs).output))
            outputs[-1] += _trained(net, inputs)
        same = [torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in zip(*outputs, strict=False)]
        if len(outputs[0]) != len(outputs[1]) or not all(same):
            raise ConversionError("its constructor makes a network that computes something else: it was changed afterwards")

    def _best(self, recipe: Recipe, trials: Any, lost: list[str] | None = None) -> tuple[Recipe, list[str]]:
        """Returns the recipe among `trials` with the fewest differences to the given model, if fewer than `lost`."""
        for trial in trials:
            if lost == [] or (lost is not None and time.thread_time() > self.started + SECONDS):
                break
            try:
                differences = self._differences(trial)
            except Exception as error:  # constructors may raise anything
                differences = [f"it fails with {type(error).__name__}: {error}"] * 10**6
            if lost is None or len(differences) < len(lost):
                recipe, lost = trial, differences
        return recipe, lost or []

    def _differences(self, recipe: Recipe) -> list[str]:
        """Lists how the network of a recipe differs from the given model."""
        return list(changes_lost(self.structure.model, recipe.build({}, META)))

    def _after_a_call(self, recipe: Recipe, differences: list[str]) -> list[str]:
        """Returns the differences that remain after a call: what the forward pass sets is no difference."""
        if any("(tensor)" in difference for difference in differences):
            return differences
        model, inputs = self.structure.model, self.structure.inputs
        device = next((tensor.device for _, tensor in named_tensors(model)), META)
        net = recipe.build({}, META)
        for place, call in {META: without_values(inputs), device: fresh_inputs(inputs)}.items():
            try:
                with torch.no_grad(), seeded(0):
                    net = net if place == META else recipe.build({}, place)
                    net.eval()(*call.args, **call.kwargs)
            except Exception:  # not every network runs on the meta device
                continue
            differences = list(changes_lost(model, net))
            if not differences:
                break
        return differences

    def _stored(self, recipe: Recipe) -> Iterator[tuple[Path, Any]]:
        """Yields arguments that the model stores under their names with another value than the recipe's."""
        for name, value in {**recipe.added, **recipe.arguments}.items():
            other = getattr(self.structure.model, name, value)
            if _plain(other) and other != value and (value is None or _alike(value, other)):
                yield (name,), other

    def _candidates(self, recipe: Recipe, path: Path, likely: bool, ratios: list[Fraction]) -> Iterator[Any]:
        """Yields other values of an argument: likely ones, or any by value.

        Likely are attributes of that name, numbers of outputs or of blocks, and a size that differs as sizes in the model do.
        """
        value, name = recipe.values()[path], str(path[-1])
        seen: list[Any] = [value]
        counted = any(word in name for word in COUNTED) and (type(value) is int or isinstance(value, (list, tuple)))
        ends = self._lengths() if counted else self._ends() if type(value) is int else []
        others = [*self._attributes(name), *ends, *_scaled(value, ratios)] if likely else self._values(value)
        for other in others:
            if other not in seen and (value is None or _alike(value, other) or (counted and type(other) is int)):
                seen.append(other)
                yield other
        if not likely and isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            for index, entry in enumerate(value):
                for other in self._lengths():
                    if other != entry:
                        yield type(value)([*value[:index], other, *value[index + 1 :]])

    def _ratios(self, recipe: Recipe) -> list[Fraction]:
        """Lists by what sizes of the given model differ from those of the recipe's network, the most frequent first.

        Numbers of tokens and entries of tables are squares of sizes, so their roots are among them.
        """
        try:
            pairs = changed_sizes(self.structure.model, recipe.build({}, META))
        except Exception:  # constructors may raise anything
            return []
        found: Counter[Fraction] = Counter()
        for given, made in pairs:
            ratio = Fraction(given, made)
            above, below = math.isqrt(ratio.numerator), math.isqrt(ratio.denominator)
            found[ratio] += 1
            if (above**2, below**2) == (ratio.numerator, ratio.denominator):
                found[Fraction(above, below)] += 1
        return [ratio for ratio, _ in found.most_common(LIKELY)]

    def _attributes(self, name: str) -> Iterator[Any]:
        for part in self.structure.model.modules():
            other = vars(part).get(name, vars(part).get(f"num_{name}"))
            if other is not None and _plain(other):
                yield other
                if isinstance(other, (list, tuple)) and len(set(other)) == 1:
                    yield other[0]

    def _values(self, value: Any) -> list[Any]:
        if isinstance(value, bool):
            return [not value]
        if isinstance(value, float):
            modules = list(self.structure.model.modules())
            rates = {v for part in modules for v in vars(part).values() if type(v) is float}
            ratios = {part.out_features / part.in_features for part in modules if isinstance(part, nn.Linear)}
            return [*sorted(rates, reverse=True), *sorted(ratios)[:50]]
        if type(value) is int:
            sizes = {size for _, tensor in named_tensors(self.structure.model) for size in tensor.shape}
            return [*self._lengths(), *sorted(sizes)[:200]]
        if isinstance(value, str):
            parts = list(self.structure.model.modules())
            words = {v for part in parts for v in vars(part).values() if isinstance(v, str)}
            return sorted(words | {type(part).__name__ for part in parts})[:50]
        return []

    def _ends(self) -> list[int]:
        """Lists the widths of the last layers: numbers of classes."""
        return sorted({width_of(self.structure.model.get_submodule(end)) for end in last_layers(self.structure)[0]})

    def _lengths(self) -> list[int]:
        """Lists the lengths of containers in the model: numbers of blocks or stages."""
        kinds = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        return sorted({len(part) for part in self.structure.model.modules() if isinstance(part, kinds)})


def _trained(net: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """Returns the outputs of a network in training mode, with dropout from one seed; none if it does not run so."""
    call = fresh_inputs(inputs)
    try:
        with torch.no_grad(), seeded(0):
            return tree.tensors(detached_copy(net, {}).train()(*call.args, **call.kwargs))
    except Exception:  # one row is too few for BatchNorm
        return []


def _scaled(value: Any, ratios: list[Fraction]) -> Iterator[Any]:
    """Yields a whole number, or numbers that are alike, times ratios that leave them whole."""
    if isinstance(value, (list, tuple)) and len(value) and all(type(part) is int for part in value) and len(set(value)) == 1:
        yield from (type(value)([scaled] * len(value)) for scaled in _scaled(value[0], ratios))
    elif type(value) is int and value > 1:
        yield from (int(value * ratio) for ratio in ratios if (value * ratio).denominator == 1)


def _plain(value: Any) -> bool:
    """Whether a value consists of numbers, strings and None."""
    if isinstance(value, (list, tuple, dict)):
        return all(_plain(part) for part in (fields(value) or {}).values())
    return value is None or isinstance(value, (bool, int, float, str))


def _alike(value: Any, other: Any) -> bool:
    """Whether two values may stand for the same argument; a pair may stand for a number, as sizes of images do."""
    if isinstance(value, bool) or isinstance(other, bool):
        return isinstance(value, bool) and isinstance(other, bool)
    numbers = (int, float)
    pair = (list, tuple)
    return (
        type(value) is type(other)
        or (isinstance(value, numbers) and isinstance(other, numbers) and type(value) is float)
        or (isinstance(value, (*numbers, *pair)) and isinstance(other, pair))
        or (isinstance(value, pair) and isinstance(other, pair))
    )
