"""Together: the mode under which vmap runs a network, with rules of our own for the layers that matter most.

torch's vmap turns every operation on one member into one on all members. For convolutions, linear layers, attention and
BatchNorm its rules are slow, change the memory layout, or do not know autocast. In their place this mode calls operators
whose rules for vmap keep the layout (`convolution.py`, `layers.py`), casts as autocast would, and draws the noise of dropout.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode

from multitudes.engine.kernels.autocast import KEPT, LOWERED, ON_CPU, ON_CUDA
from multitudes.engine.kernels.convolution import convolution, convolution_of_members
from multitudes.engine.kernels.fused import FUSED, fused, fused_of_members
from multitudes.engine.kernels.grids import grid_sampler, grid_sampler_of_members
from multitudes.engine.kernels.layers import (
    attention,
    attention_of_members,
    batch_norm,
    batch_norm_of_members,
    linear,
    linear_of_members,
)
from multitudes.engine.kernels.noise import DROPOUTS, dropout
from multitudes.engine.kernels.pointwise import NAMES, on_images
from multitudes.engine.kernels.pools import avg_pool2d, avg_pool2d_of_members, max_pool2d, max_pool2d_of_members
from multitudes.engine.kernels.recurrent import is_recurrent, recurrent
from multitudes.engine.kernels.select import index_select, index_select_of_members
from multitudes.engine.kernels.ways import HALF

is_wrapped = functorch.is_functorch_wrapped_tensor

SINGLE = (torch.float32,)
SAMPLINGS, BORDERS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
"""How grids are sampled, and what lies beyond an image, in the order of torch's numbers."""

PLAIN = frozenset({
    "__get__", "__getitem__", "__len__", "contiguous", "detach", "dim", "expand", "flatten", "is_floating_point", "numel",
    "permute", "reshape", "size", "squeeze", "stride", "to", "transpose", "unsqueeze", "view",
})  # fmt: skip
"""Names of functions that run as they are: most calls of a network are of these."""

CONVOLUTIONS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}
"""Convolutions, and the number of axes of their images."""


def _opened(function: Any) -> Callable[..., Any]:
    """Returns a copy of a Python function of torch that runs under a mode instead of being handed to it."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


_attention_inside = _opened(F.multi_head_attention_forward)


def _traceable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, or its twin in a trace: the method `unflatten` is Python that dynamo cannot trace under a mode."""
    return torch.unflatten if torch.compiler.is_compiling() and getattr(func, "__name__", "") == "unflatten" else func


class Reshaped(TorchFunctionMode):
    """Lets `view` copy, in a with-block: what members compute from a common input lies side by side, where views may fail."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (Tensor.reshape if func is Tensor.view else _traceable(func))(*args, **(kwargs or {}))


class Together(TorchFunctionMode):
    """Replaces functions of layers, in a with-block inside vmap.

    dtype   the precision of autocast; None without it
    device  the type of the device
    noise   draws dropout noise once where its input is common to all members
    steps   runs recurrent layers step by step, which takes longer than the loop over members does
    """

    def __init__(self, dtype: torch.dtype | None = None, device: str = "cpu", noise: bool = False, steps: bool = False) -> None:
        super().__init__()
        self.steps = steps
        self.dtype = dtype
        self.policy = {} if dtype is None else ON_CPU if device == "cpu" else ON_CUDA
        self.noise = noise

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in PLAIN:
            return func(*args, **kwargs)
        if self.dtype is not None and (what := self.policy.get(name)) is not None:
            if what == LOWERED:
                args, kwargs = _cast(args, kwargs, SINGLE, self.dtype)
            else:
                given = (args[0] if args else kwargs["input"]).dtype if what == KEPT else None
                args, kwargs = _cast(args, kwargs, HALF, torch.float32)
                if given is not None:
                    return func(*args, **kwargs).to(given)
        if (rule := RULES.get(func)) is not None:
            return rule(*args, **kwargs)
        if func in NAMES and (result := on_images(func, args, kwargs)) is not None:
            return result
        if func is F.multi_head_attention_forward:
            with self, Reshaped():  # a function of functions: the rules apply inside it
                return _attention_inside(*args, **kwargs)
        if func is FUSED:
            return self._fused(*args)
        if self.steps and is_recurrent(func, args):
            return recurrent(func.__name__, self._drop, *args)
        if self.noise and func in DROPOUTS:
            return dropout(DROPOUTS[func], *args, **kwargs)
        return _traceable(func)(*args, **kwargs)

    def _fused(self, x: Tensor, kernel: Tensor, bias: Tensor | None, *more: Any) -> Tensor:
        """Runs a convolution with what follows it; autocast has the convolution in lower precision."""
        if self.dtype is not None:
            (x, kernel, bias), _ = _cast((x, kernel, bias), {}, SINGLE, self.dtype)
        return _run("fused", (x, kernel, bias, *more))

    def _drop(self, x: Tensor, rate: float) -> Tensor:
        """Drops between recurrent layers, as a dropout function would under this mode."""
        return dropout(DROPOUTS[F.dropout], x, rate, True) if self.noise else F.dropout(x, rate, True)


def _cast(
    args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[torch.dtype, ...], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    values = []
    for value in args:
        if isinstance(value, Tensor):
            values.append(value.to(dtype) if value.dtype in given else value)
        else:
            values.append(_cast_list(value, given, dtype) if isinstance(value, list | tuple) else value)
    if not kwargs:
        return tuple(values), kwargs
    return tuple(values), dict(zip(kwargs, _cast_list(list(kwargs.values()), given, dtype), strict=True))


def _cast_list(values: Any, given: tuple[torch.dtype, ...], dtype: torch.dtype) -> Any:
    """Casts the tensors of a list or a tuple that have one of the given precisions."""
    if values and isinstance(values[0], int):
        return values  # a stride, a padding
    return type(values)(_cast(tuple(values), {}, given, dtype)[0])


def _convolution(axes: int) -> Callable[..., Tensor]:
    plain = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[axes]

    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        stride, dilation = _numbers(stride, axes), _numbers(dilation, axes)
        if isinstance(padding, str):
            padding = _padding(padding, weight.shape[2:], dilation)
        if padding is None or input.ndim != axes + 2 or weight.ndim != axes + 2 or weight.is_complex():
            return plain(input, weight, bias, stride, "same" if padding is None else padding, dilation, groups)
        args = (input, weight, bias, stride, _numbers(padding, axes), dilation, groups)
        return _run("convolution", args)

    return convolve


def _numbers(value: Any, axes: int) -> list[int]:
    if isinstance(value, int):
        return [value] * axes
    values = list(value)
    return values * axes if len(values) == 1 else values


def _padding(name: str, kernel: Any, dilation: list[int]) -> list[int] | None:
    """Returns the padding of "valid" or "same" in numbers; None if it is not the same on both sides."""
    if name == "valid":
        return [0] * len(dilation)
    totals = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    return None if any(total % 2 for total in totals) else [total // 2 for total in totals]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _run("linear", (input, weight, bias))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:  # its noise is vmap's business
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    args = (query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return _run("attention", args)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    args = (input, running_mean, running_var, weight, bias, training, momentum, eps)
    return _run("batch_norm", args)


def _index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    if index.ndim != 1 or not input.ndim:
        return torch.index_select(input, dim, index)
    args = (input, dim, index)
    return _run("index_select", args)


def _max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if return_indices:
        return F.max_pool2d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
    how = (_numbers(kernel_size, 2), [] if stride is None else _numbers(stride, 2), _numbers(padding, 2), _numbers(dilation, 2))
    args = (input, *how, ceil_mode)
    if input.ndim != 4:
        return max_pool2d(*args)
    return _run("max_pool2d", args)


def _average_windows(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    how = (_numbers(kernel_size, 2), [] if stride is None else _numbers(stride, 2), _numbers(padding, 2))
    args = (input, *how, ceil_mode, count_include_pad, divisor_override)
    if input.ndim != 4:
        return avg_pool2d(*args)
    return _run("avg_pool2d", args)


def _average_pool(input: Tensor, output_size: Any) -> Tensor:
    """Pools to one pixel as a mean: vmap runs torch's own way member by member if channels come last."""
    sizes = [output_size] if isinstance(output_size, int) else list(output_size)
    if all(size == 1 for size in sizes):
        return input.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(input, output_size)


def _grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    if mode not in SAMPLINGS or padding_mode not in BORDERS or (mode == "bicubic" and input.ndim != 4):
        return F.grid_sample(input, grid, mode, padding_mode, align_corners)
    return _grid_sampler(input, grid, SAMPLINGS.index(mode), BORDERS.index(padding_mode), bool(align_corners))


def _grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _run("grid_sampler", (input, grid, interpolation_mode, padding_mode, align_corners))


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """Normalises groups. On a CPU torch asks for the layout of images, which vmap does not tell if channels come last."""
    contiguous = input.contiguous() if input.device.type == "cpu" else input
    return F.group_norm(contiguous, num_groups, weight, bias, eps)


def _bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Adds up rows of a table, one by one if bags have one size: torch's own way runs member by member."""
    if input.ndim != 2 or mode == "max" or max_norm is not None or scale_grad_by_freq or sparse:
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    rows = F.embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    counted = (input != padding_idx % len(weight)).unsqueeze(-1)
    total = torch.where(counted, rows, 0).sum(1)
    return total if mode == "sum" else total / counted.sum(1).clamp(min=1)


OPERATORS: dict[str, tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, int]]]] = {
    "convolution": (convolution, convolution_of_members), "linear": (linear, linear_of_members),
    "attention": (attention, attention_of_members), "batch_norm": (batch_norm, batch_norm_of_members),
    "index_select": (index_select, index_select_of_members), "max_pool2d": (max_pool2d, max_pool2d_of_members),
    "avg_pool2d": (avg_pool2d, avg_pool2d_of_members), "fused": (fused, fused_of_members),
    "grid_sampler": (grid_sampler, grid_sampler_of_members),
}  # fmt: skip
"""Operators by name: what computes one network's layer, and what computes the layer of all members."""


def _run(name: str, args: tuple[Any, ...]) -> Tensor:
    """Runs an operator: by the dispatcher in a compiled call, else at once, since that takes as long as a small layer."""
    operator = getattr(torch.ops.multitudes, name)
    if torch.compiler.is_compiling():
        return operator(*args)
    plain, of_members = OPERATORS[name]
    current, members = functorch.maybe_current_level(), 0
    dims: list[Any] = [None] * len(args)
    values = list(args)
    for i, value in enumerate(args):
        if isinstance(value, Tensor) and is_wrapped(value):
            if not functorch.is_batchedtensor(value) or functorch.maybe_get_level(value) != current:
                return operator(*args)  # another transform of torch.func around us, or in the network
            dims[i], values[i] = functorch.maybe_get_bdim(value), functorch.get_unwrapped(value)
            if is_wrapped(values[i]):
                return operator(*args)
            members = values[i].shape[dims[i]]
    if current is None or not members:
        return plain(*args)
    y, dim = of_members(members, dims, *values)
    return functorch._add_batch_dim(y, dim, current)


RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    **{function: _convolution(axes) for function, axes in CONVOLUTIONS.items()},
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
    F.batch_norm: _batch_norm,
    F.adaptive_avg_pool2d: _average_pool,
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: _average_windows,
    F.group_norm: _group_norm,
    torch.group_norm: _group_norm,
    torch.ops.aten.group_norm.default: _group_norm,
    F.embedding_bag: _bag,
    F.grid_sample: _grid_sample,
    torch.grid_sampler: _grid_sampler,
    torch.grid_sampler_2d: _grid_sampler,
    torch.grid_sampler_3d: _grid_sampler,
    torch.index_select: _index_select,
    Tensor.index_select: _index_select,
}
"""Functions of layers, and what runs in their place."""
