"""Thin a network by channels: every layer loses the same share of its channels, by torch-pruning.

Fang, Ma, Song, Mi, Wang, "DepGraph: Towards Any Structural Pruning", CVPR 2023, https://arxiv.org/abs/2301.12900

torch-pruning finds the channels that must go together (residuals, concatenation, groups). This module decides how many stay,
and which. A result that runs may still be wrong, so the width of every layer is checked afterwards.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from multitudes.conversion.anatomy.known_layers import norm_hook
from multitudes.conversion.anatomy.structure import Structure, is_layer, last_layers
from multitudes.conversion.resize.audit import (
    changed_outputs,
    fails_in_training,
    inputs_of,
    reads_wrong_channels,
    run_of,
    width_of,
)
from multitudes.conversion.resize.raw_inputs import RawInputs
from multitudes.conversion.resize.stale import stale_numbers
from multitudes.conversion.resize.unthinned import unthinned_ends
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.modules import detached_copy, owning_module
from multitudes.engine.program import Tracer
from multitudes.errors import ConversionError, listed
from multitudes.models.network import nearest

Chooser = Callable[[Tensor, int], list[int]]
"""choose(importance, count): the channels to keep, `count` of them."""

SECONDS = 10.0
"""How long the search for channels that can be removed may take."""

ADVICE = "Instead of the model, give a factory that makes it at any width:  lambda ratio: Net(width=round(64 * ratio))"


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that can only be removed together."""

    layer: Any
    """The layer that torch-pruning starts from; its output channels are those of the group."""
    handler: Any
    """The function of torch-pruning that removes channels from this layer."""
    layers: frozenset[str]
    """All layers whose output channels belong to the group."""
    multiple: int
    """The number of channels must be a multiple of this number: of heads or groups."""


def first_channels(importance: Tensor, keep: int) -> list[int]:
    """Chooses the first channels. If weights are initialised anew, any choice is as good."""
    return list(range(keep))


def is_transformers(model: nn.Module) -> bool:
    """Whether a model is from the transformers library, and has its configuration."""
    return hasattr(getattr(model, "config", None), "to_dict") and hasattr(model, "base_model_prefix")


@torch.enable_grad()
def pruned(structure: Structure, ratio: float, choose: Chooser = first_channels, seconds: float = SECONDS) -> nn.Module:
    """Returns a copy in which every layer but the last ones keeps `ratio` of its channels, with their weights."""
    model, inputs = structure.model, structure.inputs
    new = detached_copy(model, {}).eval()
    for parameter in new.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    ends = last_layers(structure)[0]
    if is_transformers(model) and run_of(model, inputs).maps:  # finding its channels may take forever
        raise ConversionError(
            f"{type(model).__name__} cannot be thinned by channels: its attention is from the transformers library.\n{ADVICE}"
        )
    expected: dict[str, int] = {name: width_of(model.get_submodule(name)) for name in ends}
    if hooks := [name for name, part in model.named_modules() if norm_hook(part) is not None]:
        raise ConversionError(
            f"{type(model).__name__} cannot be thinned by channels: hooks compute the weights of {listed(hooks)}.\n{ADVICE}"
        )
    wrong = []
    try:
        with warnings.catch_warnings(), deadline(seconds, _largest(model, inputs)):
            warnings.filterwarnings("ignore", module="torch_pruning")  # its guesses are checked afterwards
            read = _thin(new, ratio, inputs, ends, expected, choose)
    except OutOfTimeError:
        wrong = [
            f"finding channels that go together takes more than {seconds:g} s. Allow more by mt.Packed(search_seconds=60), "
            "mt.resize(model, ratio, x, search_seconds=60)"
        ]
    except Exception:  # torch-pruning may raise anything; what it says is about itself
        wrong = ["forward mixes or reshapes its channels in a way that cannot be followed"]
    try:
        wrong = wrong or [*_tie_again(model, new), *_wrong(structure, new, expected), *unthinned_ends(structure, new, ratio)]
        if choose is not first_channels and not wrong:
            wrong = list(reads_wrong_channels(model, new, read, inputs))
        elif not wrong:
            wrong = list(stale_numbers(model, new, inputs))
    except Exception as error:  # the thinned network may raise anything
        wrong = [f"the thinned network does not run: {type(error).__name__}: {error}"]
    if wrong:
        reasons = "\n  ".join(wrong[:12])
        raise ConversionError(f"{type(model).__name__} cannot be thinned to {ratio:g} by channels:\n  {reasons}\n{ADVICE}")
    modules = dict(model.named_modules())
    for name, part in new.named_modules():
        part.training = modules[name].training
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(model.get_parameter(name).requires_grad)
    return new


class OutOfTimeError(Exception):
    """A computation has taken longer than it may."""


class LostTrackError(Exception):
    """torch-pruning counts more channels than the network has entries: products of activations make them multiply."""


def _largest(model: nn.Module, inputs: Inputs) -> float:
    """Returns the most channels that there can be: the entries of a row of an activation, or a side of a weight."""
    try:
        shapes = [shape for shapes in Tracer(model).program(inputs).shapes for shape in shapes]
    except Exception:  # values decide what runs
        return math.inf
    sides = [size for parameter in model.parameters() for size in parameter.shape]
    rows = max(len(inputs.tensors()[0]) if inputs.tensors()[0].ndim else 1, 1)
    return max([*sides, *(math.prod(shape) // rows for shape in shapes)], default=math.inf)


@contextmanager
def deadline(seconds: float, most: float = math.inf) -> Iterator[None]:
    """Ends the computation in a with-block by OutOfTimeError after some seconds, at the next call of a Python function.

    Ends it by LostTrackError as soon as torch-pruning follows more than `most` channels, which it would do for hours. No thread
    or signal is needed. Under a profiler, which needs the same hook of Python, there is no deadline.
    """
    end = time.thread_time() + seconds

    def check(frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        if time.thread_time() > end:
            raise OutOfTimeError
        if frame.f_code.co_filename.endswith("index_mapping.py") and len(frame.f_locals.get("idxs", ())) > most:
            raise LostTrackError

    if sys.getprofile() is not None:
        yield
        return
    sys.setprofile(check)
    try:
        yield
    finally:
        sys.setprofile(None)


def _thin(
    model: nn.Module,
    ratio: float,
    inputs: Inputs,
    ends: set[str],
    expected: dict[str, int],
    choose: Chooser,
) -> dict[str, list[int]]:
    """Removes channels from every group, in place, and records in `expected` the width that each layer should have.

    Returns the input channels that each layer still reads, by name.
    """
    graph = _graph(model, inputs)
    layers: list[nn.Module] = [part for part in model.modules() if isinstance(part, (_ConvNd, nn.Linear))]
    read = {layer: list(range(inputs_of(layer))) for layer in layers}
    for group in _groups(graph, model, ends):
        count = width_of(group.layer)
        keep = min(count, nearest(count * ratio, group.multiple))
        expected.update(dict.fromkeys(group.layers, keep))
        if keep < count:
            _prune(graph, group, keep, choose, read)
    for part in model.modules():
        if isinstance(part, nn.RMSNorm) and part.weight is not None:  # torch-pruning knows its weight alone
            part.normalized_shape = tuple(part.weight.shape)
    return {name: read[part] for name, part in model.named_modules() if part in read}


def _graph(model: nn.Module, inputs: Inputs) -> Any:
    import torch_pruning as tp

    graph = tp.DependencyGraph()

    def forward(net: nn.Module, _: Any) -> list[Tensor]:
        call = fresh_inputs(inputs)
        with RawInputs(graph):
            return tree.tensors(net(*call.args, **call.kwargs))

    return graph.build_dependency(model, example_inputs=inputs.tensors(), forward_fn=forward)


def _groups(graph: Any, model: nn.Module, ends: set[str]) -> list[ChannelGroup]:
    """Lists the groups of channels that can be removed; channels of the last layers cannot."""
    names = {module: name for name, module in model.named_modules()}
    groups = []
    for items in graph.get_all_groups(
        ignored_layers=[model.get_submodule(name) for name in ends],
        root_module_types=[_ConvNd, nn.Linear, nn.Embedding],
    ):
        outputs = [i.dep.target.module for i in items if graph.is_out_channel_pruning_fn(i.dep.handler)]
        root = items[0].dep
        layers = frozenset(names[module] for module in outputs if module in names and is_layer(module))
        groups.append(ChannelGroup(root.target.module, root.handler, layers, _multiple(items)))
    return groups


def _multiple(items: Any) -> int:
    """Returns the number that must divide a group's number of channels: its modules have heads or groups."""
    multiple = 1
    for item in items:
        module = item.dep.target.module
        if isinstance(module, nn.MultiheadAttention):
            multiple = math.lcm(multiple, module.num_heads)
        elif isinstance(module, nn.GroupNorm):
            multiple = math.lcm(multiple, module.num_groups)
        elif isinstance(module, _ConvNd) and module.groups not in (1, module.out_channels):
            multiple = math.lcm(multiple, module.groups)
    return multiple


def _prune(graph: Any, group: ChannelGroup, keep: int, choose: Chooser, read: dict[nn.Module, list[int]]) -> None:
    """Keeps `keep` channels of a group, as `choose` selects, and removes the others.

    Each head, or block of a grouped convolution, keeps the same positions. Updates `read`, the input channels that each layer
    still reads.
    """
    import torch_pruning as tp

    count = width_of(group.layer)
    whole = graph.get_pruning_group(group.layer, group.handler, list(range(count)))
    importance = tp.importance.GroupMagnitudeImportance(p=2)(whole)
    if importance is None or importance.numel() != count or importance.is_meta:
        importance = torch.ones(count)
    blocks = group.multiple
    size = count // blocks
    chosen = choose(importance.detach().view(blocks, size).sum(0), keep // blocks)  # torch-pruning wants the same in each
    stay = {block * size + channel for block in range(blocks) for channel in chosen}
    removal = graph.get_pruning_group(group.layer, group.handler, [c for c in range(count) if c not in stay])
    if not graph.check_pruning_group(removal):
        return
    for item in removal:
        layer, removed = item.dep.target.module, set(item.idxs)
        if layer in read and not graph.is_out_channel_pruning_fn(item.dep.handler):
            read[layer] = [channel for place, channel in enumerate(read[layer]) if place not in removed]
    norms = [(i.dep.target.module, set(i.idxs)) for i in removal if isinstance(i.dep.target.module, nn.LayerNorm)]
    before = [dict(norm.named_parameters()) for norm, _ in norms]
    removal.prune()
    for (norm, removed), tensors in zip(norms, before, strict=True):  # torch-pruning shuffles the remaining channels of a norm
        for key, tensor in tensors.items():
            getattr(norm, key).data = tensor.detach()[[c for c in range(len(tensor)) if c not in removed]]


def _tie_again(model: nn.Module, new: nn.Module) -> Iterator[str]:
    """Ties parameters of `new` that are tied in `model`, since torch-pruning unties them. Reports pairs of unlike shape."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied_to = first.setdefault(id(parameter), name)
        if tied_to != name:
            one, other = new.get_parameter(tied_to), new.get_parameter(name)
            if one.shape != other.shape:
                yield f"{name} is tied to {tied_to}, but would lose other channels"
            module, _, key = name.rpartition(".")
            setattr(new.get_submodule(module), key, one)


def _is_depthwise(layer: nn.Module) -> bool:
    """Whether a convolution treats every channel on its own."""
    return isinstance(layer, _ConvNd) and layer.groups == layer.in_channels == layer.out_channels


def _wrong(structure: Structure, new: nn.Module, expected: dict[str, int]) -> Iterator[str]:
    """Reports layers without the expected width, and outputs of another shape."""
    model, layers = structure.model, structure.layers()
    for name in layers:
        layer = new.get_submodule(name)
        label, width = f"{name} ({type(layer).__name__})", width_of(layer)
        if name not in expected:
            if not _is_depthwise(layer):  # it is as wide as what it reads, which may be an output
                yield f"{label} has no channels that could be removed"
        elif expected[name] != width:
            yield f"{label} has {width} channels instead of {expected[name]}"
    read = {owning_module(name) for name in structure.read_elsewhere} - set(layers)
    for name in sorted(name for name in read if is_layer(model.get_submodule(name))):
        if width_of(new.get_submodule(name)) == width_of(model.get_submodule(name)):
            yield f"{name} ({type(model.get_submodule(name)).__name__}) is used without being called, and keeps its width"
    if all(width_of(model.get_submodule(name)) == width_of(new.get_submodule(name)) for name in layers):
        yield "it has no channels to remove: every layer is an output or too narrow"
    yield from changed_outputs(model, new, structure.inputs)
    yield from fails_in_training(model, new, structure.inputs)
