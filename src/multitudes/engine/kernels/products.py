"""Products of all members' matrices without copies.

Pixels: torch.bmm reads 1 × 1 convolutions whose channels lie beside each other, but puts members in front of its result, and
the layers after it would copy that back. Here the result is written where grouped convolutions and BatchNorm want it:
``[B, (M K), ...]``, channels last.

Rows: the gradient of torch.bmm's second matrix is laid out like that matrix, which is a transposed weight. Autograd copies it
into the layout of the weight, on a CPU in more time than the product takes. There it is computed in that layout; a GPU gains
nothing, and waits for the operator.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define(
    "product_of_pixels(Tensor x, Tensor weights) -> Tensor", tags=(torch.Tag.flexible_layout,)
)  # else inputs are copied

LARGE = 2**16
"""Entries of weights from which the copy of their gradient takes longer than to call an operator of our own."""

SMALL = 2**19
"""The gradient of weights is one wide product ``[(M K), (M C)]`` if that has at most so many entries, else a batched one. A
batched product of few entries, each a sum over all pixels, leaves most of a GPU idle."""


@torch.library.impl(_library, "product_of_pixels", "CompositeExplicitAutograd")
def _(x: Tensor, weights: Tensor) -> Tensor:
    y = _result(x, weights)
    torch.bmm(rows_of(x, len(weights)).transpose(0, 1), weights.mT, out=rows_of(y, len(weights)).transpose(0, 1))
    return y


@torch.library.register_fake("multitudes::product_of_pixels", lib=_library)  # type: ignore[untyped-decorator]
def _result(x: Tensor, weights: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], *x.shape[2:], weights.shape[0] * weights.shape[1]).movedim(-1, 1)


def product_of_pixels(x: Tensor, weights: Tensor) -> Tensor:
    """Multiplies each pixel of x ``[B, (M C), ...]`` by members' weights ``[M, K, C]``. Returns ``[B, (M K), ...]``."""
    return torch.ops.multitudes.product_of_pixels(x, weights)


def rows_of(x: Tensor, members: int) -> Tensor:
    """Views ``[B, (M C), ...]``, channels last, as rows ``[N, M, C]``."""
    pixels = x.movedim(1, -1)
    return pixels.reshape(math.prod(pixels.shape[:-1]), members, x.shape[1] // members)


def in_pixels(x: Tensor) -> Tensor:
    """Lays the channels of ``[B, (M C), ...]`` last. If they are, returns x itself, not a view: a compiler would keep both."""
    pixels = x.movedim(1, -1)
    return x if pixels.is_contiguous() else pixels.contiguous().movedim(-1, 1)


def can_be_an_operator(*tensors: Tensor) -> bool:
    """Whether tensors are plain: transforms of torch.func and forward-mode gradients need torch's own operations."""
    if torch.compiler.is_compiling():
        return True
    return forward_ad._current_level < 0 and not any(functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weights = ctx.saved_tensors
    needs_x, needs_weights = ctx.needs_input_grad
    gradient = in_pixels(gradient)
    of_x = product_of_pixels(gradient, weights.mT) if needs_x else None
    return of_x, gradient_of_weights(rows_of(x, len(weights)), rows_of(gradient, len(weights))) if needs_weights else None


def gradient_of_weights(rows: Tensor, gradient: Tensor) -> Tensor:
    """Returns the gradient ``[M, K, C]`` of weights, from rows ``[N, M, C]`` and the gradient of the result ``[N, M, K]``."""
    members, inputs, outputs = rows.shape[1], rows.shape[2], gradient.shape[2]
    if members * members * inputs * outputs > SMALL:
        return torch.bmm(gradient.permute(1, 2, 0), rows.transpose(0, 1))
    wide = gradient.flatten(1).mT @ rows.flatten(1)  # all pairs of members; those of a member with itself count
    return wide.view(members, outputs, members, inputs).diagonal(dim1=0, dim2=2).movedim(-1, 0)


torch.library.register_autograd("multitudes::product_of_pixels", _backward, setup_context=_keep, lib=_library)


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies rows ``[M, B, C]`` by members' weights ``[M, K, C]`` with torch's operations. Returns ``[M, B, K]``."""
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def product_of_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Does the same, with gradients in the layout of the weights where they are large."""
    given = [x, weight] if bias is None else [x, weight, bias]
    trains = torch.is_grad_enabled() and weight.requires_grad and weight.device.type == "cpu" and weight.numel() >= LARGE
    if not trains or torch.compiler.is_compiling() or not can_be_an_operator(*given):
        return plain_product(x, weight, bias)
    return operator_of_rows()(x, weight, bias)


@functools.cache
def operator_of_rows() -> Any:
    """Makes the operator when it is first needed: that takes as long as to import many modules."""
    name = "multitudes::product_of_rows"
    _library.define("product_of_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    torch.library.impl(_library, "product_of_rows", "CompositeExplicitAutograd")(plain_product)
    torch.library.register_fake(name, _result_of_rows, lib=_library)
    torch.library.register_autograd(name, _backward_of_rows, setup_context=_keep_rows, lib=_library)
    return torch.ops.multitudes.product_of_rows


@functools.cache
def tell_counters() -> None:
    """Gives torch's FlopCounterMode the formulas of operators made here; a counter that is made before does not know them."""
    from torch.utils.flop_counter import register_flop_formula

    register_flop_formula(operator_of_rows())(_operations)
    register_flop_formula(torch.ops.multitudes.product_of_pixels)(_operations_of_pixels)


def _result_of_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weight.shape[1])


def _keep_rows(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward_of_rows(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    of_x = torch.bmm(gradient, weight) if needs_x else None
    of_weight = torch.bmm(gradient.mT, x) if needs_weight else None
    return of_x, of_weight, gradient.sum(1) if needs_bias else None


def _operations(x: tuple[int, int, int], weight: tuple[int, int, int], *_: Any, **__: Any) -> int:
    """Counts two operations for each multiply-add; torch counts none for operators that it does not know."""
    return 2 * math.prod(x) * weight[1]


def _operations_of_pixels(x: tuple[int, ...], weights: tuple[int, int, int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * weights[1]
