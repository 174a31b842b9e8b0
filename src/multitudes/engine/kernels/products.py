"""Matrix products of all members whose channels lie beside each other, without a copy.

``[N, M, C]`` times ``[M, K, C]`` gives ``[N, M, K]``: a row of a pixel holds the channels of all members, as grouped
convolutions and BatchNorm have them. torch.bmm reads such rows, but puts members in front of its result, and every layer after
it would copy that back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define("product_of_rows(Tensor rows, Tensor weights) -> Tensor")

SMALL = 2**19
"""Entries of the product of all members' inputs with all members' outputs up to which one wide product gives the gradient of
weights faster than a batched one: that has few entries to compute, each a sum over all pixels."""


@torch.library.impl(_library, "product_of_rows", "CompositeExplicitAutograd")
def _(rows: Tensor, weights: Tensor) -> Tensor:
    y = rows.new_empty(rows.shape[0], rows.shape[1], weights.shape[1])
    torch.bmm(rows.transpose(0, 1), weights.mT, out=y.transpose(0, 1))
    return y


@torch.library.register_fake("multitudes::product_of_rows", lib=_library)  # type: ignore[untyped-decorator]
def _(rows: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], rows.shape[1], weights.shape[1])


def product_of_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Multiplies rows ``[N, M, C]`` by each member's weights ``[M, K, C]``. Returns ``[N, M, K]``."""
    return torch.ops.multitudes.product_of_rows(rows, weights)


def can_be_an_operator(*tensors: Tensor) -> bool:
    """Whether tensors are plain: transforms of torch.func and forward-mode gradients need torch's own operations."""
    if torch.compiler.is_compiling():
        return True
    return forward_ad._current_level < 0 and not any(functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    rows, weights = ctx.saved_tensors
    needs_rows, needs_weights = ctx.needs_input_grad
    gradient = gradient.contiguous()
    of_rows = product_of_rows(gradient, weights.mT) if needs_rows else None
    return of_rows, gradient_of_weights(rows, gradient) if needs_weights else None


def gradient_of_weights(rows: Tensor, gradient: Tensor) -> Tensor:
    """Returns the gradient ``[M, K, C]`` of weights, from rows ``[N, M, C]`` and the gradient of the result ``[N, M, K]``."""
    members, inputs, outputs = rows.shape[1], rows.shape[2], gradient.shape[2]
    if members * members * inputs * outputs > SMALL:
        return torch.bmm(gradient.permute(1, 2, 0), rows.transpose(0, 1))
    wide = gradient.flatten(1).mT @ rows.flatten(1)  # all pairs of members; those of a member with itself count
    return wide.view(members, outputs, members, inputs).diagonal(dim1=0, dim2=2).movedim(-1, 0)


torch.library.register_autograd("multitudes::product_of_rows", _backward, setup_context=_keep, lib=_library)
