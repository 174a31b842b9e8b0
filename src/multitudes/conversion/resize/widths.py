"""Find the widths among a constructor's arguments, by trying: double a number, build on the meta device, look what doubles.

A width is a number that doubles the outputs of hidden layers, and nothing else: numbers of classes, of blocks, of input
channels, sizes of kernels and images do other things. Doubling never breaks a divisibility, and costs nothing on the meta
device. Two numbers whose product is a width (`dim` and `mlp_ratio`) would double it twice, so only the one that reaches more
layers is taken. At the ratio that was asked for, widths are rounded to what the constructor and the forward pass accept.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from multitudes.conversion.anatomy.structure import Structure, is_layer, last_layers
from multitudes.conversion.resize import constants
from multitudes.conversion.resize.audit import Run, changed_run, fixed_outputs, kinds_of, run_of, width_of
from multitudes.conversion.resize.constants import Path, Place
from multitudes.conversion.resize.dims import Dims, changed_dims, of_tensors, output_axis, primes, shapes_of
from multitudes.conversion.resize.features import makes_features
from multitudes.conversion.resize.recipe import Recipe
from multitudes.conversion.resize.roles import (
    COUNTS,
    fine_groups,
    groups,
    heads_at,
    is_expert_count,
    is_head_count,
    is_head_width,
    split,
)
from multitudes.engine.modules import named_tensors, owning_module
from multitudes.engine.program import META, Decisions, without_values
from multitudes.errors import ConversionError
from multitudes.models.network import nearest

ROUNDING = 16
"""The most channels that a constructor's own rounding may add: multiples of 8 or 16 are usual."""

FIRST = 8
"""How many numbers are tried that may be channels of the data."""
PAIRS = 60
"""How many pairs of numbers are tried that may be widths together."""

STOPPED = "it does not run at that width"
UNEVEN = "square matrices would no longer be square"


@dataclass
class Widths:
    """The arguments of a recipe that are widths, and what follows from them."""

    paths: dict[Path, Any]
    """The widths: where they stand among the arguments, and their values."""
    follows: set[str]
    """Layers whose width doubles, or nearly so, if the widths are doubled."""
    note: str = ""
    """What else changes with the widths."""


@dataclass
class Search:
    """A search for the widths in a recipe."""

    recipe: Recipe
    structure: Structure
    seconds: float = 8.0
    """How long it may take."""
    fractions: bool = True
    """Whether fractions may be widths; some constructors treat multipliers below 1 in their own way."""
    guessed: bool = False
    """Whether the arguments are those of an unknown class: then last layers keep their width, even if outputs add it up."""
    without: frozenset[Path] = frozenset()
    """Numbers that are no widths."""
    built: nn.Module | None = field(default=None, repr=False)
    """The network of the recipe on the meta device, if an earlier search has built it."""
    started: float = field(default_factory=time.thread_time)
    effects: dict[tuple[Path, ...], Dims | None] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    """Buffers that make features for layers."""

    def __post_init__(self) -> None:
        self.full = self.recipe.build({}, META) if self.built is None else self.built
        self.latest: tuple[Any, nn.Module | None] = None, None
        """The changes and the device of the latest network with other numbers, and the network: often it is asked for again."""
        self.numbers = self.recipe.numbers()
        self.shapes = shapes_of(self.full)
        self.parameters = {name for name, _ in self.full.named_parameters()}
        self.kinds = kinds_of(self.full)
        self.ends = last_layers(self.structure)[0]
        self.layers = [n for n, part in self.full.named_modules() if is_layer(part) and n not in self.ends]
        self.inputs = without_values(self.structure.inputs)
        self.device = META
        self.decisions: AbstractContextManager[Any] = nullcontext()
        """What values decide in runs on the meta device."""
        self.before = self._run(self.full)
        if self.before is None:  # it reads values
            self._run_with_values()
        self.single: dict[Path, Dims | None] = {}
        """The effects of numbers in code, each alone."""
        assert self.before is not None
        outputs = {size for shape in fixed_outputs(self.before.output) for size in shape}
        self.ends = {end for end in self.ends if self.guessed or width_of(self.full.get_submodule(end)) in outputs}

    def _run_with_values(self) -> None:
        """Runs the given network where it is. If it reads one value, as of a mask of ones, the meta device gives this answer.

        Otherwise, networks of other widths run where the given one is.
        """
        decisions, inputs = Decisions(), self.inputs
        self.inputs = self.structure.inputs
        with decisions:
            self.before = self._run(self.structure.model)
        try:
            self.decisions, self.inputs = decisions.on_meta(), inputs
            with self.decisions:
                self.before = run_of(self.full, inputs, copied=False)
        except Exception:
            self.device = next((t.device for _, t in named_tensors(self.structure.model)), torch.device("cpu"))
            self.decisions, self.inputs = nullcontext(), self.structure.inputs

    def widths(self) -> Widths:
        """Finds the widths. Raises ConversionError if there are none."""
        chosen, rest = self._reaching()
        if len(self._following(chosen)) < len(self.layers):
            chosen = self._completed(chosen, rest)
        if not (chosen := self._with_features(chosen, rest)):
            raise ConversionError("no argument was found whose double makes layers twice as wide")
        chosen, note = self._running(self._with_loose(chosen, rest), rest)
        return Widths({path: self.numbers[path] for path in chosen}, self._following(chosen), note)

    def alone(self) -> list[Path]:
        """Returns the numbers that are widths taken alone, and still are together."""
        return self._reaching()[0]

    def by_code(self, widths: Widths) -> set[str]:
        """Names the tensors that follow numbers in code; all of them if one of these numbers cannot change alone."""
        effects = [self.single.get(path) for path in widths.paths if isinstance(path, Place)]
        return set(self.shapes) if None in effects else {name for dims in effects for name, _ in dims or {}}

    def _following(self, chosen: list[Path]) -> set[str]:
        """Names the hidden layers whose width doubles with these numbers."""
        net = self._doubled(chosen) if chosen else None
        if net is None:
            return set()
        return {name for name in self.layers if _follows(self.full.get_submodule(name), net.get_submodule(name))}

    def changes(self, widths: Widths, ratio: float) -> dict[Path, Any]:
        """Returns the scaled widths, as near as the constructor and the forward pass accept; and numbers that must follow."""
        problem = ""
        for companion in self._companions(widths):
            paths = {**widths.paths, **companion}
            scaled, wrong = self._scaled(paths, ratio)
            if scaled:
                return scaled
            problem = problem or wrong
            if self._left() < 0:
                break
        raise ConversionError(problem)

    def _companions(self, widths: Widths) -> Iterator[dict[Path, Any]]:
        """Yields numbers that may have to follow the widths: none, widths of heads, then each that divides a width and sizes no
        parameter, as the width of rotary embeddings does, which must not exceed that of a head."""
        yield {}
        if of_heads := {
            path: value for path, value in self.numbers.items() if is_head_width(path) and path not in widths.paths
        }:
            yield of_heads
        whole = [value for value in widths.paths.values() if isinstance(value, int)]
        for path, value in self.numbers.items():
            divides = isinstance(value, int) and value > 1 and any(width % value == 0 for width in whole)
            counts = is_head_count(path) or is_expert_count(path)
            if divides and not counts and path not in widths.paths and self._sizes_no_parameter((path,)):
                yield {path: value}

    def _sizes_no_parameter(self, group: tuple[Path, ...]) -> bool:
        """Whether doubled numbers change nothing or buffers alone, as the size of rotary embeddings does."""
        dims = self.effect(group)
        return dims is not None and not self.parameters & {name for name, _ in dims}

    def _scaled(self, paths: dict[Path, Any], ratio: float) -> tuple[dict[Path, Any], str]:
        """Scales numbers by the ratio. Returns them rounded as the network accepts them; or none, and what is wrong."""
        problem = "its widths cannot be rounded so that they are legal and near the ratio"
        uneven: dict[Path, Any] = {}
        for multiple, scaled in self._roundings(paths, ratio):
            wrong = self.wrong_at(scaled)
            if not wrong:
                return (self._exact(paths, ratio, scaled) if multiple != 1 else scaled), ""
            uneven = uneven or (scaled if wrong == UNEVEN else {})
            problem = wrong
        return uneven, problem

    def _roundings(self, paths: dict[Path, Any], ratio: float) -> Iterator[tuple[int, dict[Path, Any]]]:
        seen = []
        for multiple in (1, 0, 2, 3, 4, 6, 8, 12, 16, 32, 64):
            scaled = {}
            for path, value in paths.items():
                divisor = max(multiple, 1) * (self.heads(path) if multiple != 1 else 1)
                scaled[path] = value * ratio if isinstance(value, float) else nearest(value * ratio, divisor)
            far = any(_is_far(paths[path], value, ratio) for path, value in scaled.items())
            if scaled not in seen and not far:
                seen.append(scaled)
                yield multiple, scaled

    def _exact(self, paths: dict[Path, Any], ratio: float, rounded: dict[Path, Any]) -> dict[Path, Any]:
        """Returns rounded widths with as many exact ones as possible, since not all must be divisible."""
        scaled = dict(rounded)
        for group in fine_groups(paths):
            exact = {p: nearest(paths[p] * ratio) for p in group if not isinstance(paths[p], float)}
            trial = {**scaled, **exact}
            if trial != scaled and self._left() > 0 and not self.wrong_at(trial):
                scaled = trial
        return scaled

    def heads(self, path: Path) -> int:
        """Returns the number of heads that a width must be divisible by."""
        return heads_at(path, self.numbers)

    def wrong_at(self, scaled: dict[Path, Any]) -> str:
        """Says what is wrong with the network of these widths; "" if nothing is."""
        try:
            net = self.recipe.build(scaled, self.device)
        except Exception as error:  # constructors may raise anything
            return f"its constructor fails at that width: {type(error).__name__}: {error}"
        if kinds_of(net) != self.kinds:
            return "its constructor adds or removes modules at that width"
        problems = self._problems(net)
        return "; ".join(problems) or ("" if self._is_even(net) else UNEVEN)

    def _is_even(self, net: nn.Module) -> bool:
        """Whether matrices that are square stay square: a width that heads do not divide makes them uneven."""
        shapes = shapes_of(net)
        pairs = [(shape, shapes[name]) for name, shape in self.shapes.items() if owning_module(name) not in self.ends]
        return all(b[0] == b[1] for a, b in pairs if len(a) == len(b) == 2 and a[0] == a[1])

    def _run(self, net: nn.Module) -> Run | None:
        """Runs a network; None if it cannot run on the meta device."""
        try:
            return run_of(net, self.inputs, copied=net is self.structure.model)
        except Exception:
            if not any(tensor.is_meta for tensor in self.inputs.tensors()):
                raise
            return None

    def _problems(self, net: nn.Module) -> list[str]:
        assert self.before is not None
        try:
            with self.decisions:
                after = run_of(net, self.inputs, copied=False)
        except Exception as error:
            return [f"{STOPPED}: {type(error).__name__}: {error}"]
        return changed_run(self.before, after)

    def _left(self) -> float:
        return self.started + self.seconds - time.thread_time()

    def _doubled(self, paths: Iterable[Path], device: torch.device = META) -> nn.Module | None:
        """Builds the network with these numbers doubled; None if the constructor fails or makes other modules."""
        return self._built({path: 2 * self.numbers[path] for path in paths}, device)

    def _built(self, changes: dict[Path, Any], device: torch.device = META) -> nn.Module | None:
        """Builds the network with other numbers; None if the constructor fails or makes other modules."""
        if self._left() < 0:
            raise ConversionError(f"finding its widths takes more than {self.seconds:g} s")
        if self.latest[0] != (changes, device):
            self.latest = (changes, device), self._new(changes, device)
        return self.latest[1]

    def _new(self, changes: dict[Path, Any], device: torch.device) -> nn.Module | None:
        try:
            net = self.recipe.build(changes, device)
        except Exception:  # constructors may raise anything
            return None
        return net if kinds_of(net) == self.kinds and shapes_of(net).keys() == self.shapes.keys() else None

    def effect(self, paths: Iterable[Path]) -> Dims | None:
        """Returns the sizes that change if these numbers are doubled; None if modules change too."""
        key = tuple(paths)
        if key not in self.effects:
            net = self._doubled(key)
            self.effects[key] = None if net is None else changed_dims(self.shapes, shapes_of(net))
        return self.effects[key]

    def _reaching(self) -> tuple[list[Path], list[tuple[Path, ...]]]:
        """Returns the numbers that are widths taken alone, and groups of numbers that are not."""
        reach, rest = self._widths_alone()
        chosen: list[Path] = []
        covered: set[tuple[str, int]] = set()
        queue = sorted(reach, key=lambda item: (-len(item[1]), len(item[0])))
        while queue:
            group, dims = queue.pop(0)
            if covered & dims.keys():
                joint = self.effect([*chosen, *group])
                if joint is None or not self._is_width(joint):
                    parts = constants.split(group) if isinstance(group[0], Place) else []
                    queue = [(part, self.effect(part) or {}) for part in parts] + queue
                    rest += [] if parts else [group]
                    continue
            chosen += group
            covered |= dims.keys()
        return chosen, rest

    def _widths_alone(self) -> tuple[list[tuple[tuple[Path, ...], Dims]], list[tuple[Path, ...]]]:
        """Returns groups of numbers that are widths taken alone, with their effects, and groups that are not."""
        reach: list[tuple[tuple[Path, ...], Dims]] = []
        rest: list[tuple[Path, ...]] = []
        self.single = self._effects_alone([p for p in self.numbers if isinstance(p, Place) and not is_head_count(p)])
        queue = [self._in_code(g, rest) for g in groups(self.numbers) if self._may_be_width(g)]
        while queue:
            group = queue.pop(0)
            if not group:
                continue
            code = isinstance(group[0], Place)
            dims = self.effect(group)
            if dims is not None and self._is_width(dims, inputs=code):
                reach.append((group, dims))
            else:
                parts = (constants.split(group) if code else split(group)) if dims is None or dims else []
                queue = [part for part in parts if self._may_be_width(part)] + queue
                if not parts or dims is None:
                    rest.append(group)
        return reach, rest

    def _in_code(self, group: tuple[Path, ...], rest: list[tuple[Path, ...]]) -> tuple[Path, ...]:
        """Leaves out the numbers in code that change no size, or that of a kernel or an output, and puts them into `rest`.

        So are those that are no size and double none, as in ``4 * width + 5``. A group of arguments is returned as it is.
        """
        if not isinstance(group[0], Place):
            return group
        kept, failing = list[Path](), list[Path]()
        group = tuple(path for path in group if path in self.single)
        for path in group:
            dims, pairs = self.single[path], (self.single[path] or {}).values()
            shrinks = any(after < before for before, after in pairs)  # a divisor, or a number of groups
            sizes = self.numbers[path] in self.sizes or any(after == 2 * before for before, after in pairs)
            if dims and sizes and not shrinks and self._are_channels(dims):
                kept.append(path)
            elif dims is None and self.numbers[path] in self.sizes:
                failing.append(path)
        joint = self.effect([*kept, *failing]) if failing else None
        if joint and self._is_width(joint):
            needed = self._needed([*kept, *failing], failing)
            rest += constants.by_value(path for path in group if path not in needed)
            return tuple(needed)
        rest += constants.by_value(path for path in group if path not in kept)
        return tuple(kept)

    def _needed(self, paths: list[Path], doubtful: list[Path]) -> list[Path]:
        """Leaves out numbers among the doubtful ones without which the same sizes change, as the length of a table of sines."""
        for part in constants.by_value(doubtful):
            fewer = [path for path in paths if path not in part]
            without, together = self.effect(fewer), self.effect(paths)
            alike = of_tensors(without, self.parameters) == of_tensors(together, self.parameters)
            if without == together or (alike and self._check(fewer) in ([], self._check(paths))):
                paths = fewer
        return paths

    def _effects_alone(self, places: list[Path]) -> dict[Path, Dims | None]:
        """Returns the effect of every number alone, by few builds.

        Numbers that are sizes of tensors are each multiplied by a prime of its own: a size that grows by some of the primes
        follows their numbers. All other numbers, which may be numbers of blocks, are doubled, fewer and fewer at a time.
        """
        sizes = [path for path in places if self.numbers[path] in self.sizes and self.numbers[path] > ROUNDING]
        effects = self._times_primes(sizes)
        queue = [[path for path in places if path not in effects]]
        while queue:
            part = queue.pop()
            if part and (len(part) == 1 or self.effect(part) == {}):
                effects.update(dict.fromkeys(part, self.effect(part)))
            elif part:
                queue += [part[: len(part) // 2], part[len(part) // 2 :]]
        return effects

    def _times_primes(self, places: list[Path]) -> dict[Path, Dims | None]:
        """Multiplies each number by a prime of its own, and returns the effects that this shows; halves them where it fails."""
        if len(places) < 2:
            return {}
        factors = dict(zip(primes(len(places)), places, strict=True))
        net = self._built({path: factor * self.numbers[path] for factor, path in factors.items()})
        if net is None:
            return self._times_primes(places[: len(places) // 2]) | self._times_primes(places[len(places) // 2 :])
        effects: dict[Path, Dims] = {path: {} for path in places}
        explained = True
        for dim, (before, after) in changed_dims(self.shapes, shapes_of(net)).items():
            own = [factor for factor in factors if after % (before * factor) == 0]
            explained &= before * math.prod(own) == after
            for prime in own:
                effects[factors[prime]][dim] = (before, 2 * before)
        return {path: dims for path, dims in effects.items() if dims or explained}

    def _completed(self, chosen: list[Path], rest: list[tuple[Path, ...]]) -> list[Path]:
        """Adds numbers that are widths only together: with those that were chosen, or in pairs.

        A number in code that changes nothing alone may be a threshold, which has to move with a width.
        """
        for group in rest:
            effect = self.effect(group)
            if (
                effect != {}
                and self._is_exact(group)
                and self._are_channels(effect or {})
                and self._adds([*chosen, *group], chosen)
            ):
                chosen = list(dict.fromkeys([*chosen, *group]))
        failing = [g for g in rest if self.effect(g) is None and self._is_exact(g) and not set(g) <= set(chosen)]
        thresholds = [group for group in rest if isinstance(group[0], Place) and self.effect(group) == {}]
        whole = [path for path in chosen if not isinstance(self.numbers[path], float)]  # what grows by a ratio grows with them
        bases = [whole, chosen] if whole != chosen else [chosen]
        for (one, other), base in itertools.islice(itertools.product(_pairs(failing, thresholds), bases), PAIRS):
            paths = list(dict.fromkeys([*base, *one, *other]))
            if self._adds(paths, chosen):
                return self._completed(paths, [g for g in rest if g not in (one, other)])
        return chosen

    def _with_loose(self, chosen: list[Path], rest: list[tuple[Path, ...]]) -> list[Path]:
        """Adds widths of loose matrices alone: parameters of modules that are no layers, as stacked experts are."""
        for group in rest:
            dims = self.effect([*chosen, *group]) if self._widens_loose(group, chosen) else None
            if dims is not None and self._is_width(dims) and dims.keys() > (self.effect(chosen) or {}).keys():
                chosen = [*chosen, *group]
        return chosen

    def _with_features(self, chosen: list[Path], rest: list[tuple[Path, ...]]) -> list[Path]:
        """Adds widths of fixed features that layers read: numbers of units in a reservoir, of random Fourier features."""
        for group in rest:
            dims = self.effect(group) or {}
            if self._are_channels(dims) and makes_features(dims, self.full) and not self._check([*chosen, *group]):
                chosen = [*chosen, *group]
                self.features |= {name for name, _ in dims} - self.parameters
        return chosen

    def _widens_loose(self, group: tuple[Path, ...], chosen: list[Path]) -> bool:
        """Whether doubled numbers double channels of loose tensors alone, at least one of which the widths reach too.

        Channels are the last axis, or one of the last two of stacked matrices; tables of positions have one entry in front.
        """
        dims, reached = self.effect(group), self.effect(chosen)
        if not dims or not reached or any(re.search(COUNTS, str(path[-1]).lower()) for path in group):
            return False
        for (name, axis), (before, after) in dims.items():
            shape, module = self.shapes[name], self.full.get_submodule(owning_module(name))
            stacked = len(shape) == 3 and axis == 1 and shape[0] > 1 and (name, 2) not in dims
            channels = axis == len(shape) - 1 or stacked
            if name not in self.parameters or width_of(module) or after != 2 * before or not channels:
                return False
        return any(name == other for name, _ in dims for other, _ in reached)

    def _adds(self, paths: list[Path], chosen: list[Path]) -> bool:
        """Whether these numbers are widths together, and reach more than those that were chosen."""
        dims = self.effect(paths)
        before = (self.effect(chosen) if chosen else {}) or {}
        if dims is None or not self._is_width(dims):
            return False
        return {dim for dim in dims if self._is_output(*dim)} > {dim for dim in before if self._is_output(*dim)}

    @functools.cached_property
    def sizes(self) -> set[int]:
        """Sizes of tensors; of those up to 3, which kernels, groups and tables have too, the widths of layers alone."""
        widths = {width_of(self.full.get_submodule(name)) for name in self.layers} - {1}
        every = [(name, axis, size) for name, shape in self.shapes.items() for axis, size in enumerate(shape)]
        return {size for name, axis, size in every if (size > 3 or size in widths) and not self._is_kernel(name, axis)}

    def _is_exact(self, group: tuple[Path, ...]) -> bool:
        """Whether numbers are fractions, or widths of tensors by value."""
        return all(isinstance(self.numbers[p], float) or self.numbers[p] in self.sizes for p in group)

    def _may_be_width(self, group: tuple[Path, ...]) -> bool:
        """Whether some number of a group divides the width of a tensor, or is a fraction of usual size."""
        for path in group:
            value = self.numbers[path]
            if is_head_count(path) or is_expert_count(path) or path in self.without:
                continue
            if isinstance(path, Place):
                return True
            if isinstance(value, float):
                if self.fractions and 0.1 <= value <= 1e4 and math.isfinite(value):
                    return True
            elif value in self.sizes or (value > 3 and (not self.fractions or any(s % value == 0 for s in self.sizes))):
                return True
        return False

    def _is_width(self, dims: Dims, inputs: bool = False) -> bool:
        """Whether a change of sizes is what a doubled width does; with `inputs`, layers may read more and give no more."""
        if any(not before <= after <= min(2.1 * before + 8, 3 * before - 1) for before, after in dims.values()):
            return False
        return self._are_channels(dims) and (inputs or any(self._is_output(*dim) for dim in dims))

    def _are_channels(self, dims: Dims) -> bool:
        """Whether only numbers of hidden channels change: no kernels, no rows of tables, and no outputs of the network."""
        for name, axis in dims:
            module, key = owning_module(name), name.rpartition(".")[2]
            layer = self.full.get_submodule(module) if module in self.kinds else None
            if self._is_kernel(name, axis) or (name in self.structure.tables and axis == 0):
                return False
            if module in self.ends and name in self.parameters and axis == output_axis(layer, key):
                return False
        return True

    def _is_kernel(self, name: str, axis: int) -> bool:
        """Whether an axis of a tensor is the side of a convolution's kernel."""
        module = owning_module(name)
        layer = self.full.get_submodule(module) if module in self.kinds else None
        return axis > 1 and name.endswith(".weight") and isinstance(layer, _ConvNd)

    def _is_output(self, name: str, axis: int) -> bool:
        """Whether an axis of a tensor is the width of a layer; buffers, such as knots for each input, do not count."""
        module, key = owning_module(name), name.rpartition(".")[2]
        layer = self.full.get_submodule(module) if module in self.kinds else None
        width = 1 if name in self.structure.tables else output_axis(layer, key)
        return name in self.parameters and layer is not None and is_layer(layer) and axis == width

    def _running(self, chosen: list[Path], rest: list[tuple[Path, ...]]) -> tuple[list[Path], str]:
        """Drops numbers whose doubling changes the outputs, and adds sizes of heads so that the number of heads stays."""
        problems = self._check(chosen)
        for path in self._first_inputs(chosen) if any(STOPPED in problem for problem in problems) else []:
            fewer = [other for other in chosen if other != path]
            others = self._check(fewer) if fewer else problems  # without any width, nothing is wrong, and nothing scaled
            if not any(STOPPED in problem for problem in others):
                chosen, problems = fewer, others
                break
        if not problems:
            return chosen, ""
        inputs = [group for group in rest if self._widens_inputs(group)]
        silent = [group for group in rest if self._sizes_no_parameter(group)]
        failing = [group for group in rest if self.effect(group) is None and self._is_exact(group)]
        for more in [*inputs, tuple(path for group in inputs for path in group), *silent, *failing]:
            if more and not self._check([*chosen, *more]):
                return [*chosen, *more], ""
        for group in groups(chosen)[::-1]:
            fewer = [path for path in chosen if path not in group]
            if fewer and not self._check(fewer):
                return self._refilled(fewer, rest), ""
        if all("heads" in problem for problem in problems):
            return chosen, "the size of attention heads stays, their number follows the width"
        raise ConversionError(problems[0])

    def _refilled(self, chosen: list[Path], rest: list[tuple[Path, ...]]) -> list[Path]:
        """Adds widths that gave way to a number that was dropped."""
        for group in rest:
            dims = self.effect(group)
            if dims and self._is_width(dims) and self._adds([*chosen, *group], chosen) and not self._check([*chosen, *group]):
                chosen = [*chosen, *group]
        return chosen

    def _widens_inputs(self, group: tuple[Path, ...]) -> bool:
        """Whether doubled numbers double the inputs of layers and nothing else: another part of the network makes these."""
        dims = self.effect(group) or {}
        for (name, axis), (before, after) in dims.items():
            layer = self.full.get_submodule(owning_module(name))
            is_input = width_of(layer) > 0 and len(self.shapes[name]) > 1 and axis == 1 - output_axis(layer, "weight")
            if not is_input or after != 2 * before:
                return False
        return bool(dims)

    def _first_inputs(self, chosen: list[Path]) -> list[Path]:
        """Returns numbers in code that only inputs of layers follow, in the order in which these run: the first are data."""
        order = self.structure.order
        first: list[tuple[int, Path]] = []
        for path in chosen:
            dims = self.single.get(path) or {}
            if dims and not any(self._is_output(*dim) for dim in dims):
                first.append((min(order.get(owning_module(name), len(order)) for name, _ in dims), path))
        return [path for _, path in sorted(first, key=lambda item: item[0])[:FIRST]]

    def _check(self, paths: list[Path]) -> list[str]:
        net = self._doubled(paths, self.device)
        return ["its constructor fails"] if net is None else self._problems(net)


def _follows(layer: nn.Module, doubled: nn.Module) -> bool:
    """Whether a layer's width doubles, or nearly so; of a narrow layer or one of unknown width, whether any size changes."""
    width = width_of(layer)
    return width_of(doubled) >= 1.5 * width if width > ROUNDING else shapes_of(layer) != shapes_of(doubled)


def _pairs(
    failing: list[tuple[Path, ...]], others: list[tuple[Path, ...]]
) -> Iterator[tuple[tuple[Path, ...], tuple[Path, ...]]]:
    """Yields pairs of groups, the largest groups first, then each group with some others."""
    largest = sorted(failing, key=len, reverse=True)
    yield from itertools.combinations(largest, 2)
    yield from itertools.product(largest, others)


def _is_far(value: float, scaled: float, ratio: float) -> bool:
    """Whether a rounded width is nearer to the given width than to the one that was asked for, or beyond the given width."""
    moved = math.log(scaled / value) / math.log(ratio)
    return abs(value * ratio - value) >= 1 and (abs(moved) < 0.5 or (moved < 0 and value > ROUNDING))
