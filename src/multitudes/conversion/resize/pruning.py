"""Thinning by channels: a network of unknown make loses the same share of channels everywhere, by torch-pruning.

Fang, Ma, Song, Mi, Wang, "DepGraph: Towards Any Structural Pruning", CVPR 2023, https://arxiv.org/abs/2301.12900

torch-pruning finds which channels hang together (residuals, concatenation, groups); how many stay, and which, is decided
here. That the result runs proves nothing, so the width of every layer is looked at afterwards.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from multitudes.conversion.anatomy.structure import Structure, is_layer, last_layers
from multitudes.conversion.resize.audit import attention_maps, changed_outputs, inputs_of, reads_wrong_channels
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.modules import detached_copy
from multitudes.errors import ConversionError
from multitudes.models.network import nearest

Chooser = Callable[[Tensor, int], list[int]]
"""Which channels stay: given the importance of each, and how many are to stay."""

ADVICE = "Give a factory in its place, which makes the network at any width:  lambda ratio: Net(width=round(64 * ratio))"


@dataclass(frozen=True)
class Group:
    """Channels that can only go together."""

    layer: Any
    """The layer that they are counted by."""
    handler: Any
    """What torch-pruning calls to take channels from it."""
    layers: frozenset[str]
    """All layers whose outputs they are."""
    multiple: int
    """What must divide their number: heads, groups."""


def first_channels(importance: Tensor, keep: int) -> list[int]:
    """The first ones: which does not matter where weights start anew."""
    return list(range(keep))


def is_transformers(model: nn.Module) -> bool:
    """Whether a model is one of the transformers library, which knows its configuration."""
    return hasattr(getattr(model, "config", None), "to_dict") and hasattr(model, "base_model_prefix")


@torch.enable_grad()
def pruned(structure: Structure, ratio: float, choose: Chooser = first_channels) -> nn.Module:
    """Copies a model with `ratio` of the channels of every layer but the last ones; remaining channels keep their weights."""
    model, inputs = structure.model, structure.inputs
    new = detached_copy(model, {}).eval()
    for parameter in new.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    ends = last_layers(structure)[0]
    if is_transformers(model) and attention_maps(model, inputs)[1]:  # finding its channels may take forever
        raise ConversionError(
            f"{type(model).__name__} cannot be thinned by channels: its attention is that of transformers.\n{ADVICE}"
        )
    expected: dict[str, int] = {name: width_of(model.get_submodule(name)) for name in ends}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch_pruning")  # its guesses are looked at afterwards
            read = _thin(new, ratio, inputs, ends, expected, choose)
        wrong = [*_tied_again(model, new), *_wrong(structure, new, expected)]
        if choose is not first_channels and not wrong:
            wrong = list(reads_wrong_channels(model, new, read, inputs))
    except Exception as error:  # whatever torch-pruning trips over: the network cannot be taken apart by channels
        wrong = [f"what is left of it does not run: {type(error).__name__}: {error}"]
    if wrong:
        found = "\n  ".join(wrong[:12])
        raise ConversionError(f"{type(model).__name__} cannot be thinned to {ratio:g} by channels:\n  {found}\n{ADVICE}")
    given = dict(model.named_modules())
    for name, part in new.named_modules():
        part.training = given[name].training
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(model.get_parameter(name).requires_grad)
    return new


def _thin(
    model: nn.Module,
    ratio: float,
    inputs: Inputs,
    ends: set[str],
    expected: dict[str, int],
    choose: Chooser,
) -> dict[str, list[int]]:
    """Takes channels from every group; says how wide each layer should be now, and which of its inputs each still reads."""
    graph = _graph(model, inputs)
    layers: list[nn.Module] = [part for part in model.modules() if isinstance(part, (_ConvNd, nn.Linear))]
    read = {layer: list(range(inputs_of(layer))) for layer in layers}
    for group in _groups(graph, model, ends):
        count = width_of(group.layer)
        keep = min(count, nearest(count * ratio, group.multiple))
        expected.update(dict.fromkeys(group.layers, keep))
        if keep < count:
            _prune(graph, group, keep, choose, read)
    return {name: read[part] for name, part in model.named_modules() if part in read}


def _graph(model: nn.Module, inputs: Inputs) -> Any:
    import torch_pruning as tp

    def call(net: nn.Module, _: Any) -> list[Tensor]:
        own = fresh_inputs(inputs)
        return tree.tensors(net(*own.args, **own.kwargs))

    return tp.DependencyGraph().build_dependency(model, example_inputs=inputs.tensors(), forward_fn=call)


def _groups(graph: Any, model: nn.Module, ends: set[str]) -> list[Group]:
    """All groups of channels that may go; those that reach the outputs may not."""
    names = {module: name for name, module in model.named_modules()}
    found = []
    for items in graph.get_all_groups(
        ignored_layers=[model.get_submodule(name) for name in ends], root_module_types=[_ConvNd, nn.Linear, nn.Embedding]
    ):
        outputs = [i.dep.target.module for i in items if graph.is_out_channel_pruning_fn(i.dep.handler)]
        root = items[0].dep
        layers = frozenset(names[module] for module in outputs if module in names and is_layer(module))
        found.append(Group(root.target.module, root.handler, layers, _multiple(items)))
    return found


def _multiple(items: Any) -> int:
    """What the number of channels of a group must be divided by."""
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


def _prune(graph: Any, group: Group, keep: int, choose: Chooser, read: dict[nn.Module, list[int]]) -> None:
    """Takes from a group all channels but those chosen, as many from each head, or block of a grouped convolution."""
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
    gone = graph.get_pruning_group(group.layer, group.handler, [c for c in range(count) if c not in stay])
    if not graph.check_pruning_group(gone):
        return
    for item in gone:
        layer, lost = item.dep.target.module, set(item.idxs)
        if layer in read and not graph.is_out_channel_pruning_fn(item.dep.handler):
            read[layer] = [channel for place, channel in enumerate(read[layer]) if place not in lost]
    norms = [(i.dep.target.module, set(i.idxs)) for i in gone if isinstance(i.dep.target.module, nn.LayerNorm)]
    before = [dict(norm.named_parameters()) for norm, _ in norms]
    gone.prune()
    for (norm, lost), tensors in zip(norms, before, strict=True):  # torch-pruning leaves what stays in any order
        for key, tensor in tensors.items():
            getattr(norm, key).data = tensor.detach()[[c for c in range(len(tensor)) if c not in lost]]


def width_of(layer: nn.Module) -> int:
    """How many channels a layer gives out; 0 for a layer of another kind."""
    for name in ("out_channels", "out_features", "embedding_dim", "embed_dim"):
        if isinstance(found := getattr(layer, name, None), int):
            return found
    return 0


def _tied_again(model: nn.Module, new: nn.Module) -> Iterator[str]:
    """Gives layers that have one tensor in common one again: torch-pruning has made two of it."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        with_it = first.setdefault(id(parameter), name)
        if with_it != name:
            one, other = new.get_parameter(with_it), new.get_parameter(name)
            if one.shape != other.shape:
                yield f"{name} is tied to {with_it}, and would lose other channels"
            module, _, key = name.rpartition(".")
            setattr(new.get_submodule(module), key, one)


def _wrong(structure: Structure, new: nn.Module, expected: dict[str, int]) -> Iterator[str]:
    """Names layers without the expected width, and outputs of another shape."""
    model, layers = structure.model, structure.layers()
    for name in layers:
        layer = new.get_submodule(name)
        what, width = f"{name} ({type(layer).__name__})", width_of(layer)
        if name not in expected:
            yield f"{what} stays as it is: its channels could not be told apart"
        elif expected[name] != width:
            yield f"{what} has {width} channels instead of {expected[name]}"
    if all(width_of(model.get_submodule(name)) == width_of(new.get_submodule(name)) for name in layers):
        yield "it has no channels to lose: every layer gives an output, or is too narrow"
    yield from changed_outputs(model, new, structure.inputs)
