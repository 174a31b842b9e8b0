"""Audit a resized network: a network that runs may still be wrong.

Its outputs must have the same shapes, its attention the same heads. Weights that were kept must multiply the same channels
as before.
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
"""Norms over several channels: their outputs change, rightly, if channels are removed."""


def changed_outputs(model: nn.Module, new: nn.Module, inputs: Inputs) -> Iterator[str]:
    """Reports outputs whose shape changed, and a changed number of attention heads. Hidden states may change their shape."""
    (before, heads), (after, heads_now) = (attention_maps(net, inputs) for net in (model, new))
    outputs = dict(tree.leaves(after))
    first = next((name for name, leaf in tree.leaves(before) if isinstance(leaf, Tensor)), "")
    for name, tensor in tree.leaves(before):
        shape = getattr(outputs.get(name), "shape", None)
        hidden = name != first and "hidden_state" in name
        if isinstance(tensor, Tensor) and shape != tensor.shape and not hidden:
            where = f"the output {name}" if name else "the output"
            yield f"{where} is {list(shape or ())} instead of {list(tensor.shape)}"
    if heads != heads_now:
        yield f"attention would have another number of heads: softmax over {_heads(heads_now)} maps instead of {_heads(heads)}"


def _heads(shapes: list[tuple[int, int, int]]) -> str:
    return "/".join(map(str, sorted({count for count, _, _ in shapes}))) or "no"


def attention_maps(net: nn.Module, inputs: Inputs) -> tuple[Any, list[tuple[int, int, int]]]:
    """Returns the output in eval mode, and a triple per attention: number of maps (rows × heads), their height and width."""
    softmaxes, call = _SoftmaxShapes(), fresh_inputs(inputs)
    with torch.no_grad(), plain_attention(), softmaxes:
        output = detached_copy(net, {}).eval()(*call.args, **call.kwargs)
    return output, softmaxes.maps


class _SoftmaxShapes(TorchDispatchMode):
    """Records the shape of every softmax over attention maps, plain or inside an attention kernel."""

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
    net, softmaxes, call = detached_copy(model, {}).eval(), _SoftmaxShapes(), fresh_inputs(inputs)
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
