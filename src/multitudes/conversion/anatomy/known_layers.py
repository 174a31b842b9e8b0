"""Layers that methods with shared weights can convert: linear layers, convolutions and torch's attention.

This module gives the product without the bias, the weight, and the channel axis of each. A layer is known by its exact type,
or as a subclass that inherits its parent's forward. A subclass with another forward may compute anything: it has an entry in
`TAUGHT`, or is refused by name. It is never treated as its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.prune import is_pruned
from torch.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from multitudes.engine.modules import constant, inside, kept_modes
from multitudes.engine.rows import in_dtype

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Product = Callable[..., Tensor]
"""product(layer, x): the layer's output without its bias."""


def without_fast_path(model: nn.Module, kind: type) -> None:
    """Turns off the fused inference path of torch's encoders, which would read weights without calling layers of this kind."""
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoderLayer) and any(isinstance(inner, kind) for inner in part.modules()):
            part.activation_relu_or_gelu = 0
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False


def _linear(layer: Any, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight)


def _convolution(layer: Any, x: Tensor) -> Tensor:
    return layer._conv_forward(x, layer.weight, None)


def _transposed(layer: Any, x: Tensor, output_size: list[int] | None = None) -> Tensor:
    padding = layer._output_padding(
        x,
        output_size,
        layer.stride,
        layer.padding,
        layer.kernel_size,
        len(layer.kernel_size),
        layer.dilation,
    )
    function = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(layer.kernel_size)]
    return function(x, layer.weight, None, layer.stride, layer.padding, padding, layer.groups, layer.dilation)


PRODUCTS: dict[type[nn.Module], Product] = {
    nn.Linear: _linear,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(TRANSPOSED, _transposed),
}


def _own_weight(layer: Any) -> Tensor:
    return layer.weight


def _standardised(layer: Any) -> Tensor:
    """Weight of timm's StdConv2d: normalised over each output channel."""
    flat = layer.weight.reshape(1, layer.out_channels, -1)
    return F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=layer.eps).reshape_as(layer.weight)


def _scaled(layer: Any) -> Tensor:
    """Weight of timm's ScaledStdConv2d: normalised over each output channel, times a learned gain."""
    flat, gain = layer.weight.reshape(1, layer.out_channels, -1), (layer.gain * layer.scale).view(-1)
    return F.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=layer.eps).reshape_as(layer.weight)


TURNED = "transformers.pytorch_utils.Conv1D"
"""GPT-2's linear layer, whose weight is ``[in, out]``."""

TAUGHT: dict[str, Callable[[Any], Tensor]] = {
    TURNED: _own_weight,
    "torch_geometric.nn.dense.linear.Linear": _own_weight,
    "timm.layers.linear.Linear": _own_weight,
    "timm.layers.conv2d_same.Conv2dSame": _own_weight,
    "timm.layers.std_conv.StdConv2d": _standardised,
    "timm.layers.std_conv.StdConv2dSame": _standardised,
    "timm.layers.std_conv.ScaledStdConv2d": _scaled,
    "timm.layers.std_conv.ScaledStdConv2dSame": _scaled,
}
"""Layers of other libraries that override forward, by qualified name, and the function that computes their weight."""


def _taught(layer: Any, x: Tensor) -> Tensor:
    if not hasattr(layer, "kernel_size"):
        return F.linear(x, layer.weight.T if taught_name(layer) == TURNED else layer.weight)
    if pads_as_tensorflow(layer):
        from timm.layers import pad_same

        x = pad_same(x, layer.kernel_size, layer.stride, layer.dilation)
    weight = TAUGHT[taught_name(layer) or ""](layer)
    return F.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)


def pads_as_tensorflow(layer: Any) -> bool:
    """Whether a layer is a timm convolution that pads by the size of its input, as TensorFlow's "same" does."""
    name = taught_name(layer)
    return name is not None and "Same" in name and bool(getattr(layer, "same_pad", True))


def taught_name(layer: nn.Module) -> str | None:
    """Returns the key of a layer in `TAUGHT`, also if it is converted; None for other layers."""
    return _taught_name(type(layer))


@constant
def _taught_name(kind: type) -> str | None:
    names = (f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__)
    return next((name for name in names if name in TAUGHT), None)


def computes_weight(layer: nn.Module) -> bool:
    """Whether a known layer computes the weight that it multiplies with, or has a forward of its own."""
    return taught_name(layer) is not None or is_parametrized(layer)


def weight_of(layer: Any) -> Tensor:
    """Returns the weight that a known layer multiplies with in eval mode, computed from its parameters."""
    hook, name = norm_hook(layer), taught_name(layer)
    if hook is not None:  # what it wrote into the layer is as old as the last call
        return hook.compute_weight(layer, *([False] if isinstance(hook, SpectralNorm) else []))
    with at_rest(layer):
        return layer.weight if name is None else TAUGHT[name](layer)


@contextmanager
def at_rest(layer: nn.Module) -> Iterator[None]:
    """Puts a layer's parametrizations into eval mode: in training a spectral norm iterates whenever its weight is read."""
    computing = nn.ModuleList(part for name, part in layer.named_children() if name == "parametrizations")
    with kept_modes(computing):
        computing.eval()
        yield


def plain_class(layer: nn.Module) -> type[nn.Module]:
    """Returns the class of a layer before conversion, and without torch's parametrizations."""
    kind: Any = type(layer)
    kind = kind.made_of[1] if hasattr(kind, "made_of") else kind
    return kind.__bases__[0] if hasattr(layer, "parametrizations") else kind


def is_parametrized(layer: nn.Module) -> bool:
    """Whether a layer computes its weight, and nothing else, by torch's parametrizations or the hooks that came before them."""
    return list(getattr(layer, "parametrizations", ())) == ["weight"] or norm_hook(layer) is not None


def norm_hook(layer: nn.Module) -> Any:
    """Returns the hook of `torch.nn.utils.weight_norm` or `spectral_norm` that writes a layer's weight; None without one."""
    hooks = [hook for hook in layer._forward_pre_hooks.values() if isinstance(hook, (WeightNorm, SpectralNorm))]
    return next((hook for hook in hooks if hook.name == "weight"), None)


def without_norm(name: str, layer: nn.Module) -> str | None:
    """Returns what to type so that a layer of this name holds its weight, and computes none; None if it does."""
    place, hook = f"model.get_submodule({name!r})", norm_hook(layer)
    if is_pruned(layer):
        return f"torch.nn.utils.prune.remove({place}, 'weight')"
    if hook is not None:
        return f"torch.nn.utils.remove_{'weight' if isinstance(hook, WeightNorm) else 'spectral'}_norm({place})"
    return (
        f"torch.nn.utils.parametrize.remove_parametrizations({place}, 'weight')" if hasattr(layer, "parametrizations") else None
    )


def product_of(layer: nn.Module) -> Product | None:
    """Returns the product of a known layer, its output without the bias; None for a layer that is not known."""
    kind = plain_class(layer)
    if replaced_forward(layer) or is_pruned(layer):
        return None
    if f"{kind.__module__}.{kind.__qualname__}" in TAUGHT:
        return _taught
    if hasattr(layer, "parametrizations") and not is_parametrized(layer):
        return None
    for parent, product in PRODUCTS.items():
        if isinstance(layer, parent):
            inherited = kind.forward is parent.forward
            return product if inherited and getattr(kind, "_conv_forward", 0) is getattr(parent, "_conv_forward", 0) else None
    return None


def replaced_forward(layer: nn.Module) -> bool:
    """Whether a function was put in place of a layer's forward on the object, which may compute anything."""
    return "forward" in vars(layer) or "_conv_forward" in vars(layer)


def channels(layer: Any) -> tuple[int, int]:
    """Returns the numbers of input and output channels of a known layer."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if taught_name(layer) == TURNED:
        return layer.nx, layer.nf
    return layer.in_channels, layer.out_channels


def along_channels(layer: nn.Module, values: Tensor, x: Tensor) -> Tensor:
    """Reshapes one value per channel to broadcast over `x`, an input or output of the layer.

    Values are ``[C]``, or ``[B, C]`` for one set per row. Rows are the first axis of x, which may have several entries per row.
    """
    trailing = len(getattr(layer, "kernel_size", ()))
    values = in_dtype(values, x.dtype)  # under autocast outputs have a narrower dtype than parameters, and must keep it
    if values.ndim == 1:
        return values.view(-1, *[1] * trailing)
    between = x.ndim - 2 - trailing
    if x.shape[0] != values.shape[0]:
        values = values.repeat_interleave(x.shape[0] // values.shape[0], 0)
    return values.view(x.shape[0], *[1] * between, values.shape[1], *[1] * trailing)


def channel_axis(layer: Any) -> int:
    """Returns the axis of the channels in the inputs and outputs of a known layer, counted from the last."""
    return -1 - len(getattr(layer, "kernel_size", ()))


def is_attention(part: nn.Module) -> bool:
    """Whether a module is torch's attention, with torch's forward."""
    plain = isinstance(part, nn.MultiheadAttention) and type(part).forward is nn.MultiheadAttention.forward
    return plain and not replaced_forward(part)


def known_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields known layers and attention modules by name; layers inside an attention module are left out."""
    attention = [name for name, part in model.named_modules() if isinstance(part, nn.MultiheadAttention)]
    for name, part in model.named_modules():
        within = any(name != outer and inside(name, [outer]) for outer in attention)
        if not within and (is_attention(part) or product_of(part) is not None):
            yield name, part


class FormedAttention(nn.MultiheadAttention):
    """Attention whose projections are computed by `weights()` at each call, instead of read from its parameters."""

    def weights(self) -> tuple[Sequence[Tensor], Tensor]:
        """The weights of query, key and value, and of the output projection."""
        raise NotImplementedError

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Shape: as that of `nn.MultiheadAttention`."""
        swap = self.batch_first and query.dim() == 3
        if swap:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        (q, k, v), out = self.weights()
        output, maps = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            None,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            out,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=True,
            q_proj_weight=q,
            k_proj_weight=k,
            v_proj_weight=v,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (output.transpose(0, 1) if swap else output), maps


def projections(layer: Any) -> tuple[Tensor, ...]:
    """Returns the weights of an attention module's query, key and value, each ``[E, inputs]``."""
    if layer._qkv_same_embed_dim:
        return layer.in_proj_weight.view(3, layer.embed_dim, layer.embed_dim).unbind()
    return layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight


def over_channels(layer: Any, weight: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Multiplies a layer's weight with a value per input channel and a value per output channel."""
    groups = getattr(layer, "groups", 1)
    per_input, per_output = inputs.view(groups, -1), outputs.view(groups, -1)
    turned = isinstance(layer, TRANSPOSED) or taught_name(layer) == TURNED
    first, second = (per_input, per_output) if turned else (per_output, per_input)
    both = first[:, :, None] * second[:, None, :]  # the second axis of a weight has the channels of one group
    return weight * both.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


def restore_layer(layer: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Turns a converted layer back into its class before conversion, with this weight and bias, in place.

    A layer that computes its weight, such as timm's StdConv2d, becomes a plain convolution, and loses its parametrizations.
    """
    kind = type(layer).made_of[1]
    requires_grad = any(p.requires_grad for p in layer.parameters())
    hook = norm_hook(layer)
    if hook is None and is_parametrized(layer):  # torch's own function would use the class that all copies share
        kind = kind.__bases__[0]
        del layer.parametrizations
    if (name := taught_name(layer)) is not None and TAUGHT[name] is not _own_weight:
        kind = nn.Conv2d
        if pads_as_tensorflow(layer):
            from timm.layers import Conv2dSame

            kind = Conv2dSame
        if "Scaled" in name:
            del layer.gain
    layer.__class__ = kind
    if hook is not None:
        (remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm)(layer)
        layer.weight.requires_grad_(requires_grad)
    stored = layer._parameters.get("weight")
    requires_grad = requires_grad if stored is None else stored.requires_grad
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=requires_grad)
    if bias is not None:
        layer.bias = _parameter(bias, layer.bias)


def restore_projections(layer: Any, weights: Sequence[Tensor], out: Tensor) -> None:
    """Turns converted attention back into its class, with these weights for query, key, value and output, in place."""
    layer.__class__ = type(layer).made_of[1]
    if layer._qkv_same_embed_dim:
        layer.in_proj_weight = _parameter(torch.cat(list(weights)), layer.in_proj_weight)
    else:
        for name, weight in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weights, strict=True):
            setattr(layer, name, _parameter(weight, getattr(layer, name)))
    layer.out_proj.weight = _parameter(out, layer.out_proj.weight)


def _parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().clone(), requires_grad=like.requires_grad)
