"""What is looked at in a resized network: that it runs proves nothing.

The outputs keep their shapes, attention its heads; and where weights were kept, each is read with the channel it was made for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.modules import detached_copy, plain_attention

ACROSS_CHANNELS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
"""Norms that give other values when channels are gone, as they should."""


def changed_outputs(model: nn.Module, new: nn.Module, inputs: Inputs) -> Iterator[str]:
    """Outputs that have another shape than before (hidden states beside them may), and attention with other heads."""
    (before, heads), (after, heads_now) = (attention_maps(net, inputs) for net in (model, new))
    found = dict(tree.leaves(after))
    first = next((name for name, leaf in tree.leaves(before) if isinstance(leaf, Tensor)), "")
    for name, tensor in tree.leaves(before):
        shape = getattr(found.get(name), "shape", None)
        hidden = name != first and "hidden_state" in name
        if isinstance(tensor, Tensor) and shape != tensor.shape and not hidden:
            where = f"the output {name}" if name else "the output"
            yield f"{where} is {list(shape or ())} instead of {list(tensor.shape)}"
    if heads != heads_now:
        yield f"softmax is taken over {_heads(heads_now)} maps instead of {_heads(heads)}: attention would have other heads"


def _heads(shapes: list[tuple[int, int, int]]) -> str:
    return "/".join(map(str, sorted({count for count, _, _ in shapes}))) or "no"


def attention_maps(net: nn.Module, inputs: Inputs) -> tuple[Any, list[tuple[int, int, int]]]:
    """The output in eval mode, and each attention's number of maps (rows × heads) and their sizes."""
    watch, own = _Attention(), fresh_inputs(inputs)
    with torch.no_grad(), plain_attention(), watch:
        output = detached_copy(net, {}).eval()(*own.args, **own.kwargs)
    return output, watch.maps


class _Attention(TorchDispatchMode):
    """Notes the shape of every softmax over a map, by itself or inside an attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[tuple[int, int, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        if name.startswith("_scaled_dot_product") and "backward" not in name:
            query, key = args[0], args[1]
            self.maps.append((math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]))
        elif name in ("_softmax", "_safe_softmax") and args[0].ndim > 2:
            self.maps.append((math.prod(args[0].shape[:-2]), *args[0].shape[-2:]))
        return func(*args, **(kwargs or {}))


def reads_wrong_channels(model: nn.Module, new: nn.Module, read: dict[str, list[int]], inputs: Inputs) -> Iterator[str]:
    """Whether weights are in the wrong places: the given network, deaf to the channels that are gone, must say the same.

    `read` has the inputs that each layer still reads. Norms over channels and attention modules are left out on both sides:
    they change with the number of channels.
    """
    if not all(isinstance(part, nn.MultiheadAttention) for part in _attending(model, inputs)):
        yield "its attention is written by hand, and its heads would be mixed"
        return
    dense, thin = (detached_copy(net, {}).double().eval() for net in (model, new))
    for name, kept in read.items():
        _mute_inputs(dense.get_submodule(name), kept)
    for part in [*dense.modules(), *thin.modules()]:
        if isinstance(part, ACROSS_CHANNELS):
            part.forward = lambda x: x  # type: ignore[method-assign]
        elif isinstance(part, nn.MultiheadAttention):
            part.forward = lambda query, *_, **__: (query, None)  # type: ignore[method-assign]
    outputs = []
    for net in (dense, thin):
        own = inputs.refill([t.double() if t.is_floating_point() else t.clone() for t in inputs.tensors()])
        with torch.no_grad(), plain_attention():
            outputs.append(tree.tensors(net(*own.args, **own.kwargs)))
    for a, b in zip(*outputs, strict=True):
        if a.shape == b.shape and not a.is_meta and not torch.allclose(a, b, rtol=1e-6, atol=1e-6 * float(a.abs().max())):
            yield "weights would be read with other channels than those that they were made for"


def inputs_of(layer: Any) -> int:
    """How many channels a linear layer or convolution takes."""
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _mute_inputs(layer: Any, kept: list[int]) -> None:
    """Sets to zero the weights by which a layer reads other channels than these."""
    weight, groups = layer.weight.data, getattr(layer, "groups", 1)
    size = inputs_of(layer) // groups
    for channel in set(range(inputs_of(layer))) - set(kept):
        if getattr(layer, "transposed", False):
            weight[channel] = 0
        else:
            rows, block = weight.shape[0] // groups, channel // size
            weight[block * rows : (block + 1) * rows, channel % size] = 0


def _attending(model: nn.Module, inputs: Inputs) -> list[nn.Module]:
    """The innermost modules in whose forward attention is computed."""
    net, watch, own = detached_copy(model, {}).eval(), _Attention(), fresh_inputs(inputs)
    found: list[nn.Module] = []
    begun: list[int] = []

    def enter(part: nn.Module, args: Any) -> None:
        begun.append(len(watch.maps))

    def leave(part: nn.Module, args: Any, output: Any) -> None:
        if len(watch.maps) > begun.pop() and not any(inner in found for inner in part.modules() if inner is not part):
            found.append(part)

    for part in net.modules():
        part.register_forward_pre_hook(enter)
        part.register_forward_hook(leave)
    with torch.no_grad(), plain_attention(), watch:
        net(*own.args, **own.kwargs)
    return found
