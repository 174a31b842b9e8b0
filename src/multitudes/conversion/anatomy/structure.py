"""The structure of a model, observed by running the example: the order of its layers, its last layers, its blocks.

The order of registration does not show this (a head may be registered first). So the example is run once through a copy
with gradients on, and the autograd graph is walked back from the outputs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

from multitudes.conversion.anatomy.graph import outputs_first, walk
from multitudes.conversion.anatomy.parameter_reads import ParameterReads, Roles
from multitudes.engine import tree
from multitudes.engine.draws import unwritten_names
from multitudes.engine.inputs import Inputs, cast_advice, fresh_inputs
from multitudes.engine.listening import Quick
from multitudes.engine.modules import (
    EVERY_MODULES,
    as_same_kind,
    copy_with,
    detached_copy,
    join_name,
    light_copy,
    named_parts,
    named_tensors,
    owning_module,
    tensors_of,
)
from multitudes.engine.program import shape_inputs, shapes_only
from multitudes.engine.seeds import seeded
from multitudes.engine.writes import Writes
from multitudes.errors import InputError

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
PRODUCT_NODES = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "LinearBackward0", "ConvolutionBackward0", "CdistBackward0")
"""Autograd nodes of products with a matrix."""
SEEN_THROUGH = """View UnsafeView Reshape ReshapeAlias Expand Select Slice Unsqueeze Squeeze Permute Transpose T ToCopy Repeat
    Clone Index IndexSelect Narrow Split SplitWithSizes Unbind Alias UpsampleBicubic2D UpsampleBilinear2D""".split()
"""Autograd nodes of operations that only move, repeat or interpolate entries."""
ENTRYWISE = "Add Sub Mul Cat Stack Embedding Where".split()
"""Autograd nodes of operations that work entry by entry."""
LARGE = 1_000_000
"""Models with more parameters than this are observed without copies of them."""
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Structure:
    """A model, and how the example ran through a copy of it."""

    model: nn.Module
    order: dict[str, int]
    """Time of the first call of each module, by name; modules that were never called are missing."""
    output_nodes: tuple[Any, ...]
    """Autograd nodes of the outputs."""
    produced_by: dict[Any, tuple[str, int]]
    """For the autograd node of each module output: the module's name, and the time when its call ended."""
    names: dict[int, str]
    """Names of the copy's parameters, by `id`."""
    inputs_of: dict[str, list[tuple[Any, ...]]]
    """For each call of a module, the autograd nodes of its input tensors."""
    read_elsewhere: set[str]
    """Parameters that are read outside the forward of their own module."""
    functional_dropout: set[str]
    """Modules whose forward calls a dropout function with a rate above 0; dropout modules do not count."""
    summed_axes: dict[str, int | None]
    """Parameters that are factors of products and nothing else, and the axis that these sum over (`ParameterReads`)."""
    weight_roles: dict[str, Roles]
    """How products use the axes of parameters, where it is known (`ParameterReads`)."""
    tables: set[str]
    """Parameters whose rows are looked up, as those of nn.Embedding."""
    weight_nodes: set[Any]
    """Autograd nodes of tensors that are computed from parameters and constants alone, such as a weight times a fixed mask."""
    takes_tensor: set[str]
    """Modules whose every call has a floating tensor as its first argument."""
    inputs: Inputs
    """The example."""
    output_shapes: dict[str, list[int]] = field(default_factory=dict)
    """Shapes of the output tensors, by name: "0" and "1" for a tuple, "" for one tensor."""
    outputs: tuple[Tensor, ...] | None = field(default=None, compare=False, repr=False)
    """The output tensors; None if the model was observed without values."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Outputs that an ensemble does not return, and their types: caches and other objects (`tree.left_out`)."""
    parameters: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """The parameters of the copy that was observed, for further runs (`probe_of`)."""
    shares: bool = False
    """Whether these share the memory of the model's own: in eval mode no forward writes into them."""
    worked_out: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was worked out from this structure by further runs of the example, by name: each is run once."""

    def started(self, name: str) -> int | None:
        """Returns the time of the first call of a module, or of a module inside it; None if none was called."""
        times = [time for n, time in self.order.items() if name == "" or n == name or n.startswith(f"{name}.")]
        return min(times, default=None)

    def layers(self) -> list[str]:
        """Names the modules that are layers (see `is_layer`), in the order in which they run."""
        names = [n for n, module in self.model.named_modules() if is_layer(module) and n in self.order]
        return sorted(names, key=self.order.__getitem__)

    def walk_back(self, stop: Callable[[str, int], bool], loose: bool = False) -> tuple[set[str], set[str]]:
        """Walks from the outputs back to the module outputs for which `stop(name, time)` is true.

        `time` is when the module's call ended. Returns these modules, and the parameters met on the way. With `loose` the walk
        also stops at products with a loose matrix: a parameter of a module that contains layers. Such a product is a layer too.
        """
        return self._walk(self.output_nodes, stop, loose)

    def feeding(self, stop: Callable[[str, int], bool]) -> set[str]:
        """Names the parameters upstream of the modules for which `stop(name, time)` is true."""
        return self._walk([node for node, origin in self.produced_by.items() if stop(*origin)], lambda *_: False, False)[1]

    def _walk(self, nodes: Iterable[Any], stop: Callable[[str, int], bool], loose: bool) -> tuple[set[str], set[str]]:
        def is_module(node: Any) -> bool:
            return node in self.produced_by and stop(*self.produced_by[node])

        def is_loose(node: Any) -> bool:
            return loose and node.name() in PRODUCT_NODES and bool(self._factors(node, loose))

        reached: set[str] = set()
        met: set[str] = set()
        for node in walk(nodes, stop=lambda node: is_module(node) or is_loose(node)):
            if is_module(node):
                reached.add(self.produced_by[node][0])
            else:
                met |= self._factors(node, loose)
        return reached, met

    def _factors(self, node: Any, loose: bool) -> set[str]:
        """Names the parameters that an operation reads; with `loose` also those that a product's factors are computed from."""
        names = {name for source, _ in node.next_functions if (name := self._parameter(source))}
        if loose and node.name() in PRODUCT_NODES:
            names |= {name for source, _ in node.next_functions for name in self._weights(source)}
        return names

    @functools.cached_property
    def used_parameters(self) -> set[str]:
        """Names of the parameters that the outputs depend on."""
        leaves = (id(getattr(node, "variable", None)) for node in walk(self.output_nodes))
        return {self.names[leaf] for leaf in leaves if leaf in self.names}

    def unregistered_weights(self) -> list[list[int]]:
        """Lists the shapes of parameters that the outputs depend on, but the model does not register."""
        leaves = [getattr(node, "variable", None) for node in walk(self.output_nodes)]
        return [list(leaf.shape) for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in self.names]

    def _weights(self, node: Any) -> set[str]:
        """Names the parameters that a node is computed from; none if it also depends on a module's output."""
        names: set[str] = set()
        for source in walk([node]):
            if source in self.produced_by:
                return set()
            names |= {self.names[i] for i in [id(getattr(source, "variable", None))] if i in self.names}
        return names

    def _parameter(self, node: Any) -> str | None:
        while node is not None and node.name() in ("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0"):
            node = node.next_functions[0][0]
        variable = getattr(node, "variable", None)
        return None if variable is None else self.names.get(id(variable))


def is_layer(module: nn.Module) -> bool:
    """Whether a module holds a matrix and has no parameters in submodules. torch's attention is a layer too."""
    if isinstance(module, NORMS) or not any(p.ndim >= 2 for p in own_tensors(module).values()):
        return False
    inner = any(isinstance(p, nn.Parameter) and owning_module(n) != "" for n, p in named_tensors(module))
    return not inner or isinstance(module, nn.MultiheadAttention)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is one of torch's norms, or has "norm" in its class name and nothing but vectors as tensors."""
    if isinstance(module, NORMS):
        return True
    own = own_tensors(module)
    vectors = own.keys() == dict(named_tensors(module)).keys() and bool(own) and all(t.ndim <= 1 for t in own.values())
    return vectors and "norm" in type(module).__name__.lower()


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a module itself, not of modules inside it; parametrized ones are included."""
    inner = getattr(module, "parametrizations", None)
    parts = named_parts(inner) if isinstance(inner, nn.Module) else []
    return dict(tensors_of([("", module), *((join_name("parametrizations", name), part) for name, part in parts)]))


def observe(model: nn.Module, inputs: Inputs, values: bool = True) -> Structure:
    """Runs the example through a copy of the model in eval mode, and records its structure.

    The copy of a large model has the memory of the given parameters, if forward writes into none, and keeps nothing for
    backward, if forward computes no gradients. Without `values` a large model runs on the meta device, where it can.
    """
    if sum(p.numel() for p in model.parameters()) > LARGE:
        for way in ("light",) if values else ("meta", "light"):
            try:
                return _observe(model, inputs, way)
            except InputError:
                raise
            except Exception:  # forward needs values or gradients, writes into parameters, or fails
                continue
    return _observe(model, inputs, "whole")


def _probe(model: nn.Module, inputs: Inputs, way: str) -> tuple[nn.Module, Inputs, contextlib.ExitStack]:
    """Returns a copy of the model to observe, a call for it, and what surrounds the call."""
    around = contextlib.ExitStack()
    if way == "meta":
        probe, call = shapes_only(model), shape_inputs(inputs)
        around.enter_context(Quick())
    else:
        probe = light_copy(model) if way == "light" else detached_copy(model, {})
        call = fresh_inputs(inputs)
    if way == "light":
        around.enter_context(Writes(dict(probe.named_parameters()), refuse=True))
        around.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, _none_kept))
    for parameter in probe.parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)
    return probe.eval(), call, around


def _none_kept(_: None) -> Tensor:
    raise RuntimeError("forward computes gradients")


def _observe(model: nn.Module, inputs: Inputs, way: str) -> Structure:
    """Observes a "whole" copy of the model, a "light" one, or one on the "meta" device."""
    probe, call, around = _probe(model, inputs, way)
    order: dict[str, int] = {}
    produced_by: dict[Any, tuple[str, int]] = {}
    inputs_of: dict[str, list[tuple[Any, ...]]] = {}
    clock = itertools.count()
    other_first: set[str] = set()

    def enter(name: str, arguments: Any) -> None:
        order.setdefault(name, next(clock))
        first = next(iter([*arguments[0], *arguments[1].values()]), None)
        if not (isinstance(first, Tensor) and first.is_floating_point()):
            other_first.add(name)
        nodes = tuple(tensor.grad_fn for tensor in tree.tensors(arguments) if tensor.grad_fn is not None)
        inputs_of.setdefault(name, []).append(nodes)

    def leave(name: str, output: Any) -> None:
        now = next(clock)
        for tensor in tree.tensors(output):
            if tensor.grad_fn is not None:
                produced_by.setdefault(tensor.grad_fn, (name, now))  # the hook of the innermost module runs first

    for name, module in probe.named_modules():
        module.register_forward_pre_hook(lambda _, args, kwargs, name=name: enter(name, (args, kwargs)), with_kwargs=True)
        module.register_forward_hook(lambda _, __, output, name=name: leave(name, output))
    reading = ParameterReads(probe, call.tensors())
    with torch.enable_grad(), _without_calls_of(model), around, reading:
        output = probe(*call.args, **call.kwargs)
    new_buffers = sorted(dict(probe.named_buffers()).keys() - dict(model.named_buffers()).keys())
    if new_buffers:
        raise InputError(f"forward registers {', '.join(new_buffers)} on its first call: run the model once, then convert it")
    reading.add(*_other_reads(model, inputs, way))
    structure = Structure(
        model=model,
        order=order,
        output_nodes=tuple(tensor.grad_fn for tensor in tree.tensors(output) if tensor.grad_fn is not None),
        produced_by=produced_by,
        names={id(parameter): name for name, parameter in probe.named_parameters()},
        inputs_of=inputs_of,
        read_elsewhere=reading.read_elsewhere,
        functional_dropout=reading.functional_dropout,
        summed_axes=reading.summed_axes(),
        weight_roles=reading.weight_roles(),
        tables=reading.tables,
        weight_nodes=reading.weight_nodes,
        takes_tensor=order.keys() - other_first,
        inputs=inputs,
        output_shapes={path: list(leaf.shape) for path, leaf in tree.leaves(output) if isinstance(leaf, torch.Tensor)},
        outputs=None if way == "meta" else tuple(t.detach() for t in tree.tensors(output)),
        left_out=tree.left_out(output),
        parameters={n: p.detach() for n, p in (model if way == "meta" else probe).named_parameters()},
        shares=way != "whole",
    )
    shapes = structure.unregistered_weights()
    if shapes:
        raise InputError(
            f"forward uses weights of shapes {shapes} that the model does not register: put layers into an nn.ModuleList and "
            "weights into an nn.ParameterList; a function or lambda that forward calls must not refer to the model"
        )
    return structure


def _other_reads(model: nn.Module, inputs: Inputs, way: str) -> Iterator[ParameterReads]:
    """Yields what copies of the model read in eval mode without gradients, and in training mode: other code may run there.

    A large model runs on the meta device, where it can. Of modes in which it does not run nothing is known.
    """
    ways = ("whole",) if way == "whole" else ("meta", "whole")
    for training in (False, True):
        for each in ways:
            with contextlib.suppress(Exception):  # one row is too few for BatchNorm, or values decide what runs
                yield _reads(model, inputs, each, training)
                break


def _reads(model: nn.Module, inputs: Inputs, way: str, training: bool) -> ParameterReads:
    """Returns what a copy of the model reads in training mode, or in eval mode without gradients."""
    probe, call, around = _probe(model, inputs, way)
    reading = ParameterReads(probe.train(training), call.tensors())
    with torch.set_grad_enabled(training), seeded(0), around, reading:
        probe(*call.args, **call.kwargs)
    return reading


@contextlib.contextmanager
def _without_calls_of(model: nn.Module) -> Iterator[None]:
    """Refuses calls of the model's own modules in a with-block, before they run, and changes of their attributes.

    A copy of the model must use its own.
    """
    names = {id(module): name for name, module in model.named_modules()}

    def refuse(module: nn.Module, _: Any) -> None:
        if id(module) in names:
            raise InputError(
                f"a copy of the model calls {names[id(module)] or 'the model'} of the given model, which members would then "
                "share and change: a function or lambda that forward calls must not refer to the model; make it a method"
            )

    hook, before = register_module_forward_pre_hook(refuse), _attributes(model)
    try:
        yield
    finally:  # a copy that reads its own attribute may fail by that
        hook.remove()
        now = _attributes(model)
        changed = [name for name, held in now.items() if name not in before or not _same(before[name], held)]
        if changed:
            raise InputError(
                f"a copy of the model sets {changed[0]} of the given model, and reads its own: a hook or function that sets it "
                "must refer to the model by self, not by a variable outside of its class"
            )


def _attributes(model: nn.Module) -> dict[str, list[Any]]:
    """Returns the attributes of a model's modules that are no modules, parameters or buffers, each with what it holds."""
    found = {}
    for name, part in named_parts(model):
        for key, value in vars(part).items():
            if key not in EVERY_MODULES:
                inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
                found[join_name(name, key)] = [value, *inner]
    return found


def _same(held: list[Any], now: list[Any]) -> bool:
    return len(held) == len(now) and all(a is b for a, b in zip(held, now, strict=True))


def rerun(structure: Structure, run: Callable[[nn.Module, Inputs], Any]) -> Any:
    """Returns `run(probe, inputs)` on a copy of the model in eval mode: of a large one on the meta device, if it runs there."""
    if structure.shares:
        with contextlib.suppress(Exception):  # values decide what runs
            return run(shapes_only(structure.model).eval(), shape_inputs(structure.inputs))
    return run(probe_of(structure), fresh_inputs(structure.inputs))


def probe_of(structure: Structure) -> nn.Module:
    """Returns a copy of the model for one more run in eval mode.

    The parameters of all such copies share the memory of those that were observed: forward may write into them.
    """
    values, unwritten = {}, unwritten_names(structure.model)
    for name, tensor in named_tensors(structure.model):
        value = structure.parameters.get(name)
        own = tensor.detach() if value is not None or name in unwritten else tensor.detach().clone()
        values[name] = as_same_kind(tensor, own if value is None else value)
    return copy_with(structure.model, values).eval()


def run_example(model: nn.Module, inputs: Inputs, seed: int, values: bool = True) -> Structure:
    """Observes a model on the user's example (see `observe`). Raises InputError if the model fails on it."""
    try:
        with seeded(seed):
            return observe(model, inputs, values)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the model fails on the example {inputs}: {type(error).__name__}: {error}. Give a batch that the model takes"
            f"{_advice(model, inputs, error)}"
        ) from error


def _advice(model: nn.Module, inputs: Inputs, error: Exception) -> str:
    """Says what to type in place of an example on which the model fails; "" if that is not known."""
    said, tables = str(error), [part for part in model.modules() if isinstance(part, nn.Embedding)]
    floats = [tensor for tensor in inputs.tensors() if tensor.is_floating_point()]
    dtypes = {parameter.dtype for parameter in model.parameters()}
    cast = cast_advice(floats, [*dtypes] * len(floats)) if len(dtypes) == 1 and "dtype" in said else ""
    if cast:
        return f", {cast}"
    if tables and floats and "indices" in said:
        return ", whole numbers for the embedding: x.long()"
    if tables and isinstance(error, IndexError):
        return f", ids from 0 to {min(part.num_embeddings for part in tables) - 1}, or make the embedding larger"
    if isinstance(error, TypeError) and "missing" in said and "argument" in said:
        return ", with every argument of its forward: mt.Inputs(first, second)"
    for change, text in FORMS.items():
        with contextlib.suppress(Exception):
            observe(model, inputs.refill([change(tensor) for tensor in inputs.tensors()]))
            return text
    return ": inputs of the shapes, and in the order, that its forward takes"


FORMS: dict[Callable[[Tensor], Tensor], str] = {
    lambda x: x[None]: ", rows first: x[None] for one example",
    lambda x: x[:, None]: ", with an axis of channels: x[:, None]",
    lambda x: x.movedim(-1, 1): ", channels before height and width: x.movedim(-1, 1)",
    lambda x: x.movedim(-1, 0)[None]: ", rows first, then channels: x.movedim(-1, 0)[None] for one example",
    lambda x: x.flatten(1): ", one row of numbers for each example: x.flatten(1)",
    lambda x: x.flatten()[None]: ", rows first: x.flatten()[None] for one example",
}
"""Other forms of an example, on which a model that fails may run, and what to type for them."""


def last_layers(structure: Structure) -> tuple[set[str], set[str]]:
    """Names the last layers before the outputs, and the parameters after these layers that belong to no layer."""
    layers = set(structure.layers())
    return structure.walk_back(lambda module, _: module in layers, loose=True)


def output_layers(structure: Structure) -> set[str]:
    """Names the last layers before the outputs, without embeddings, which a residual stream carries there."""
    last = last_layers(structure)[0]
    return {name for name in last if not isinstance(structure.model.get_submodule(name), nn.Embedding)} or last


def heads(structure: Structure) -> tuple[set[str], set[str]]:
    """Returns the classifier that a timm model's configuration names; for other models the output layers and loose matrices."""
    named = _classifier_of_timm(structure)
    return (named, set()) if named is not None else (output_layers(structure), last_layers(structure)[1])


def _classifier_of_timm(structure: Structure) -> set[str] | None:
    config = getattr(structure.model, "pretrained_cfg", None)
    named = config.get("classifier") if isinstance(config, dict) else getattr(config, "classifier", None)
    if not named:
        return None
    heads = {named} if isinstance(named, str) else set(named)
    modules = dict(structure.model.named_modules())
    return heads if all(name in modules and list(modules[name].parameters()) for name in heads) else None


def blocks(model: nn.Module) -> list[str]:
    """Names the blocks of a network: the elements of containers, such as nn.Sequential, that have layers inside.

    Of nested blocks only the innermost count. In a network without such elements, each layer is a block.
    """
    names = []
    for name, module in model.named_modules():
        if not isinstance(module, CONTAINERS):
            continue
        for key, part in module.named_children():
            if any(is_layer(inner) for inner in part.modules() if inner is not part):
                names.append(join_name(name, key))
    innermost = [n for n in names if not any(other.startswith(f"{n}.") for other in names)]
    return innermost or [name for name, module in model.named_modules() if is_layer(module)]


def last_third(structure: Structure) -> str:
    """Names the module with which the last third of the network begins.

    This module and the modules that run after it hold at least a third of the blocks. If they hold more than two thirds, the
    search continues among the children of this module.
    """
    names = blocks(structure.model)

    def count_blocks(module: str) -> int:
        return sum(n == module or module == "" or n.startswith(f"{module}.") for n in names)

    def search(module: str, after: int) -> str:
        prefix = f"{module}." if module else ""
        inside = structure.model.get_submodule(module).named_children()
        children = [prefix + key for key, _ in inside if structure.started(prefix + key) is not None]
        for child in sorted(children, key=structure.started, reverse=True):  # type: ignore[arg-type]
            here = count_blocks(child)
            if 3 * (after + here) >= len(names):
                too_large = 3 * (after + here) > 2 * len(names) and child not in names
                return search(child, after) if too_large else child
            after += here
        return module

    return search("", 0)


def block_starts(structure: Structure) -> set[str]:
    """Names the first layers of every residual block, except on its shortcut.

    A residual sum joins branches that fork at a common tensor; the branch with the fewest layers is the shortcut. Blocks are
    found in the autograd graph, so it does not matter how the network is written.
    """
    order = outputs_first(structure.output_nodes)
    place = {node: index for index, node in enumerate(order)}
    users: dict[Any, int] = {}
    for node in order:
        for source, _ in node.next_functions:
            users[source] = users.get(source, 0) + 1
    layers = set(structure.layers())
    layer_of = {node: name for node, (name, _) in structure.produced_by.items() if name in layers}
    starts: set[str] = set()
    for node in order:
        summands = _summands(node, users)
        if len(summands) < 2:
            continue
        upstream = [set(outputs_first((summand,))) for summand in summands]
        fork = min((place[n] for n in set.intersection(*upstream)), default=len(order))
        branches = [{n: layer_of[n] for n in nodes if place[n] < fork and n in layer_of} for nodes in upstream]
        fewest = min(len(set(branch.values())) for branch in branches)
        for branch in branches if fork < len(order) else ():
            if len(set(branch.values())) > fewest:
                starts |= {name for n, name in branch.items() if not (set(outputs_first((n,))) - {n}) & branch.keys()}
    return starts


def _summands(node: Any, users: dict[Any, int]) -> list[Any]:
    """Lists the nodes that a sum adds; an inner sum that nothing else reads counts as its parts. Empty for other nodes."""
    kind = node.name().removesuffix("Backward0").removesuffix("Backward1")
    parts = [source for source, _ in node.next_functions if source is not None]
    if kind in ("Sum", "Mean") and len(parts) == 1 and parts[0].name() in ("StackBackward0", "CatBackward0"):
        return [source for source, _ in parts[0].next_functions if source is not None]
    if kind not in ("Add", "Sub", "Lerp", "Addcmul"):
        return []
    summands = []
    for part in parts:
        inner = _summands(part, users) if users.get(part) == 1 else []
        summands += inner or [part]
    return [part for part in summands if "AccumulateGrad" not in part.name()]


def additive_parameters(structure: Structure) -> set[str]:
    """Names the parameters that are only added to data, multiplied with it entry by entry, or concatenated with it.

    These are tokens, positions and scales. A weight that is multiplied by a fixed mask, and then used, is none of them.
    """
    consumers: dict[Any, list[Any]] = {}
    for node in outputs_first(structure.output_nodes):
        for source, _ in node.next_functions:
            consumers.setdefault(source, []).append(node)
    names = set()
    for leaf in consumers:
        name = structure.names.get(id(getattr(leaf, "variable", None)))
        if name is not None and _only_entrywise(leaf, consumers, structure.weight_nodes):
            names.add(name)
    return names


def _only_entrywise(leaf: Any, consumers: dict[Any, list[Any]], weights: Collection[Any]) -> bool:
    """Whether every operation on data that reads a parameter works entry by entry.

    The parameter may be read directly, reshaped, or after entrywise operations that make another weight of it.
    """
    queue, seen = [leaf], set()
    while queue:
        for user in consumers.get(queue.pop(), []):
            kind = user.name().removesuffix("Backward0").removesuffix("Backward1")
            if kind not in (*SEEN_THROUGH, *ENTRYWISE):
                return False
            if user not in seen and (kind in SEEN_THROUGH or user in weights):
                seen.add(user)
                queue.append(user)
    return True
