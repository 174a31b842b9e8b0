"""Audit a resized network: a network that runs may still be wrong.

Its outputs must have the same shapes, its attention the same heads. Weights that were kept must multiply the same channels
as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.listening import Listening, result_of
from multitudes.engine.modules import detached_copy, named_tensors, plain_attention
from multitudes.engine.seeds import seeded
from multitudes.engine.writes import on_copy

ACROSS_CHANNELS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
"""Norms over several channels: their outputs change, rightly, if channels are removed."""


HIDDEN = ("hidden_state", "past_key_values", "mems")
"""Words in the names of outputs that are hidden states or caches of attention."""

Maps = list[tuple[int, int, int]]
"""A triple per attention: number of maps (rows × heads), their height and width."""

CHOICES = ("_softmax", "_log_softmax", "logsumexp", "topk", "argmax", "argmin")
"""Operations that weigh the entries of an axis against each other, or choose among them: experts, components, slots, codes."""


RESHAPES = ("view", "_unsafe_view", "reshape", "_reshape_alias")


class Run(NamedTuple):
    """What a network does in eval mode."""

    output: Any
    maps: Maps
    """The attention maps on the way."""
    choices: list[int]
    """Of each operation that chooses, the number of entries it chooses among."""
    splits: list[tuple[tuple[int, ...], tuple[int, ...]]]
    """The shapes before and after each reshape that splits an axis."""


def changed_outputs(model: nn.Module, new: nn.Module, inputs: Inputs) -> Iterator[str]:
    """Reports outputs whose shape changed, and a changed number of attention heads. Hidden states may change their shape."""
    yield from changed_run(run_of(model, inputs), run_of(new, inputs))


def changed_run(run: Run, new_run: Run) -> list[str]:
    """Lists what differs between the runs of two networks: see `changed_outputs`."""
    changes = []
    heads, heads_now = run.maps, new_run.maps
    outputs = dict(tree.leaves(new_run.output))
    for name, tensor in _fixed(run.output).items():
        shape = getattr(outputs.get(name), "shape", None)
        if shape != tensor.shape:
            where = f"the output {name}" if name else "the output"
            changes.append(f"{where} is {list(shape or ())} instead of {list(tensor.shape)}")
    if [count for count, *_ in heads] != [count for count, *_ in heads_now]:
        changes.append(
            f"attention would have another number of heads: softmax over {_heads(heads_now)} maps instead of {_heads(heads)}"
        )
    for before, after in zip(run.choices, new_run.choices, strict=False):
        if before != after:
            changes.append(
                f"it would choose among {after} instead of {before} (by a softmax, topk or argmax): a count is no width"
            )
            break
    return changes


def fixed_outputs(output: Any) -> list[torch.Size]:
    """Returns the shapes of outputs that do not follow the width of the network."""
    return [tensor.shape for tensor in _fixed(output).values()]


def _fixed(output: Any) -> dict[str, Tensor]:
    """Returns the output tensors by name, without hidden states and caches of attention beside the first output."""
    tensors = {name: leaf for name, leaf in tree.leaves(output) if isinstance(leaf, Tensor)}
    first = next(iter(tensors), "")
    return {n: t for n, t in tensors.items() if n == first or not any(word in n for word in HIDDEN)}


def _heads(maps: Maps) -> str:
    return "/".join(map(str, sorted({count for count, _, _ in maps}))) or "no"


def run_of(net: nn.Module, inputs: Inputs, copied: bool = True) -> Run:
    """Runs a network, or by default a copy of it, in eval mode, and records its attention maps, choices and splits."""

    def run(probe: nn.Module) -> Run:
        shapes, call = _Shapes(), fresh_inputs(inputs)
        with torch.no_grad(), plain_attention(), shapes:
            output = probe.eval()(*call.args, **call.kwargs)
        return Run(output, shapes.maps, shapes.choices, shapes.splits)

    return on_copy(net, run) if copied else run(net)


class _Shapes(Listening):
    """Records the shape of every softmax over attention maps, plain or inside an attention kernel, of choices and splits."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: Maps = []
        self.choices: list[int] = []
        self.splits: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        if name.startswith("_scaled_dot_product") and "backward" not in name:
            query, key = args[0], args[1]
            self.maps.append((math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]))
        elif name in ("_softmax", "_safe_softmax") and args[0].ndim > 2 and args[1] % args[0].ndim >= args[0].ndim - 2:
            self.maps.append((math.prod(args[0].shape[:-2]), *args[0].shape[-2:]))
        if name in CHOICES and (count := _choice(name, args)):
            self.choices.append(count)
        result = result_of(func, args, kwargs or {})
        if name in RESHAPES and result.ndim > args[0].ndim:
            self.splits.append((tuple(args[0].shape), tuple(result.shape)))
        return result


def _choice(name: str, args: Any) -> int:
    """Returns the number of entries that an operation chooses among; 0 for attention over channels, which follow the width.

    That is a softmax over one of the last axes of heads, or over a square map.
    """
    place = 2 if name == "topk" else 1
    axis = args[place] if len(args) > place else -1
    axis = axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis
    shape = args[0].shape
    if not isinstance(axis, int) or not shape:
        return 0
    axis %= len(shape)
    last = axis >= len(shape) - 2
    attends = name == "_softmax" and last and (len(shape) > 3 or (len(shape) == 3 and shape[1] == shape[2]))
    return 0 if attends else int(shape[axis])


def reads_wrong_channels(model: nn.Module, new: nn.Module, read: dict[str, list[int]], inputs: Inputs) -> Iterator[str]:
    """Reports kept weights that multiply other channels than before.

    The full network with zero weights for removed channels must give the same output as the new one. `read` lists the input
    channels that each layer still reads. Norms over channels and attention modules are bypassed in both networks, since their
    outputs depend on the number of channels.
    """
    if not all(isinstance(part, nn.MultiheadAttention) for part in _modules_with_attention(model, inputs)):
        yield "its attention is not nn.MultiheadAttention, so its heads would be mixed"
        return
    dense, thin = (detached_copy(net, {}).double().eval() for net in (model, new))
    for name, channels in read.items():
        _mute_inputs(dense.get_submodule(name), channels)
    for part in [*dense.modules(), *thin.modules()]:
        if isinstance(part, ACROSS_CHANNELS):
            part.forward = lambda x: x  # type: ignore[method-assign]
        elif isinstance(part, nn.MultiheadAttention):
            part.forward = lambda query, *_, **__: (query, None)  # type: ignore[method-assign]
    outputs = []
    for net in (dense, thin):
        call = inputs.refill([t.double() if t.is_floating_point() else t.clone() for t in inputs.tensors()])
        with torch.no_grad(), plain_attention():
            outputs.append(tree.tensors(net(*call.args, **call.kwargs)))
    for a, b in zip(*outputs, strict=True):
        if a.shape == b.shape and not a.is_meta and not torch.allclose(a, b, rtol=1e-6, atol=1e-6 * float(a.abs().max())):
            yield "kept weights would multiply other channels than in the given model"


def width_of(layer: nn.Module) -> int:
    """Returns the number of output channels of a layer; 0 if it has no such number."""
    for name in ("out_channels", "out_features", "embedding_dim", "embed_dim"):
        if isinstance(width := getattr(layer, name, None), int):
            return width
    return 0


def inputs_of(layer: Any) -> int:
    """Returns the number of input channels of a linear layer or convolution."""
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _mute_inputs(layer: Any, channels: list[int]) -> None:
    """Sets the weights of all input channels except `channels` to zero."""
    weight, groups = layer.weight.data, getattr(layer, "groups", 1)
    size = inputs_of(layer) // groups
    for channel in set(range(inputs_of(layer))) - set(channels):
        if getattr(layer, "transposed", False):
            weight[channel] = 0
        else:
            rows, block = weight.shape[0] // groups, channel // size
            weight[block * rows : (block + 1) * rows, channel % size] = 0


def _modules_with_attention(model: nn.Module, inputs: Inputs) -> list[nn.Module]:
    """Lists the innermost modules whose forward computes attention."""
    net, softmaxes, call = detached_copy(model, {}).eval(), _Shapes(), fresh_inputs(inputs)
    innermost: list[nn.Module] = []
    maps_before: list[int] = []

    def enter(part: nn.Module, args: Any) -> None:
        maps_before.append(len(softmaxes.maps))

    def leave(part: nn.Module, args: Any, output: Any) -> None:
        new_maps = len(softmaxes.maps) > maps_before.pop()
        if new_maps and not any(inner in innermost for inner in part.modules() if inner is not part):
            innermost.append(part)

    for part in net.modules():
        part.register_forward_pre_hook(enter)
        part.register_forward_hook(leave)
    with torch.no_grad(), plain_attention(), softmaxes:
        net(*call.args, **call.kwargs)
    return innermost


def without_channels(model: nn.Module, new: nn.Module, inputs: Inputs, names: Sequence[str]) -> set[str]:
    """Names the layers whose width is none of the network's channels.

    These are layers that work along another axis (the channels of their input are thinner, and they are not), and layers that
    do not see the data: they compute a table from positions.
    """
    other = inputs.refill([_another(tensor) for tensor in inputs.tensors()])
    runs = [_calls(net, call, names) for net, call in ((model, inputs), (new, inputs), (model, other))]
    no_channels = set()
    for name in names:
        before, after, elsewhere = (run.get(name) for run in runs)
        if before is None or after is None or elsewhere is None:
            continue
        shapes = [[tensor.shape for _, tensor in named_tensors(net.get_submodule(name))] for net in (model, new)]
        along = shapes[0] == shapes[1] and before[0].shape != after[0].shape
        no_data = not before[1].is_meta and torch.equal(before[1], elsewhere[1]) and torch.equal(before[0], elsewhere[0])
        if along or no_data:
            no_channels.add(name)
    return no_channels


def _another(tensor: Tensor) -> Tensor:
    """Returns other values of about the same range, whatever the given ones are: an example may be all ones, or all zeros."""
    other = tensor.flip(0).roll(1, -1) if tensor.ndim else tensor
    if not (other.is_floating_point() or other.is_complex()):
        return other
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(other.shape, generator=generator).to(other)
    return other * (0.8 + 0.2 * noise) if other.is_meta or bool(other.any()) else noise


def _calls(net: nn.Module, inputs: Inputs, names: Sequence[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the input and output of some layers."""
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            calls[name] = (args[0], output)

    def run(probe: nn.Module) -> None:
        call = fresh_inputs(inputs)
        for name in names:
            probe.get_submodule(name).register_forward_hook(lambda _, args, output, name=name: keep(name, args, output))
        with torch.no_grad(), plain_attention():
            probe.eval()(*call.args, **call.kwargs)

    on_copy(net, run)
    return calls


def fails_in_training(model: nn.Module, new: nn.Module, inputs: Inputs) -> Iterator[str]:
    """Reports a resized network that does not run in training mode where the given one does."""
    wrong = _error_in_training(new, inputs)
    if wrong and not _error_in_training(model, inputs):
        yield f"it does not run in training mode: {wrong}"


def _error_in_training(net: nn.Module, inputs: Inputs) -> str:
    """Returns the error of a call in training mode; "" if there is none."""

    def run(probe: nn.Module) -> None:
        call = fresh_inputs(inputs)
        with torch.no_grad(), seeded(0):
            probe.train()(*call.args, **call.kwargs)

    try:
        on_copy(net, run)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def kinds_of(net: nn.Module) -> dict[str, str]:
    """Returns the class of every module by its full name: torch makes a class anew for each parametrized layer."""
    return {name: f"{type(part).__module__}.{type(part).__qualname__}" for name, part in net.named_modules()}


def changes_lost(model: nn.Module, same: nn.Module) -> Iterator[str]:
    """Reports changes made to the model after construction, which `same`, the model rebuilt at ratio 1, does not have."""
    before, after = _described(model), _described(same)
    for name in sorted(before.keys() | after.keys()):
        ours, theirs = before.get(name, {"": "nothing"}), after.get(name, {"": "lost"})
        keys = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
        if keys:
            keys = [""] if name not in before or name not in after else sorted(keys)[:2]
            shown = [", ".join(_shown(key, values) for key in keys) for values in (theirs, ours)]
            yield f"{name or 'the model'} would be {shown[0]} instead of {shown[1]}"


def changed_sizes(model: nn.Module, same: nn.Module) -> Iterator[tuple[int, int]]:
    """Yields the whole numbers, among attributes and shapes, in which the model differs from `same`: its own, and the other."""
    before, after = _described(model), _described(same)
    for name in before.keys() & after.keys():
        for key in before[name].keys() & after[name].keys():
            ours, theirs = (list(_whole(values[name][key])) for values in (before, after))
            if len(ours) == len(theirs):
                yield from ((a, b) for a, b in zip(ours, theirs, strict=True) if a != b and a > 0 and b > 0)


def _whole(value: Any) -> Iterator[int]:
    """Yields the whole numbers of an attribute: itself, or those in a list."""
    if type(value) is int:
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _whole(part)


def _shown(key: str, values: dict[str, Any]) -> str:
    """Writes one entry of a description, at most 80 characters."""
    text = f"{key}={values.get(key)!r}" if key else str(values[""])
    return text if len(text) <= 80 else f"{text[:77]}..."


def _described(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Describes modules by type, attributes and number of hooks, and tensors by shape, under their names."""
    descriptions: dict[str, dict[str, Any]] = {}
    for name, part in model.named_modules():
        attributes = {k: _comparable(v) for k, v in vars(part).items() if k[0] != "_" and k not in ("training", "resizing")}
        hooks = sum(len(value) for key, value in vars(part).items() if key.endswith("_hooks"))
        description = {"": f"{type(part).__name__}({part.extra_repr()})", "hooks": hooks or None, **attributes}
        descriptions[name] = {key: value for key, value in description.items() if value is not None}
    return descriptions | {f"{name} (tensor)": {"": list(tensor.shape)} for name, tensor in named_tensors(model)}


def _comparable(value: Any) -> Any:
    """Returns the comparable part of an attribute: numbers, strings, functions by name, and collections of these."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_comparable, value)) if type(value) in (list, tuple) else None
    if isinstance(value, dict):
        entries = {str(key): _comparable(part) for key, part in value.items()}
        return {key: part for key, part in entries.items() if part is not None}  # tensors by device are a cache
    if isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", None)


def without_constants(model: nn.Module) -> nn.Module:
    """Copies a model and moves its constant parameters, such as a branch of zeros, behind which a change would hide.

    They grow: a single number may be a temperature, which must not become negative.
    """
    moved = detached_copy(model, {})
    generator = torch.Generator().manual_seed(0)
    for parameter in moved.parameters():
        values = parameter.detach()
        if values.is_floating_point() and values.numel() and bool((values == values.flatten()[0]).all()):
            values.add_(0.1 * torch.randn(values.shape, generator=generator).abs().to(values))
    return moved
