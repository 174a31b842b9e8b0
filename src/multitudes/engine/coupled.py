"""Shared BatchNorm in training under vmap: one set of statistics over the rows of all members.

Inside vmap a layer sees the rows of one member. Two custom operators work across members: `member_sum` sums a tensor
over members, and `member_count` returns the number of members. Their results have no member axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define("member_sum(Tensor x) -> Tensor")
_library.define("member_count(Tensor x) -> Tensor")


@torch.library.impl(_library, "member_sum", "CompositeImplicitAutograd")
def _member_sum(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.impl(_library, "member_count", "CompositeImplicitAutograd")
def _member_count(x: Tensor) -> Tensor:
    return x.new_ones(())


@torch.library.register_vmap("multitudes::member_sum", lib=_library)  # type: ignore[untyped-decorator]
def _(info: Any, dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, None]:
    return (x.sum(dims[0]) if dims[0] is not None else x.clone()), None


@torch.library.register_vmap("multitudes::member_count", lib=_library)  # type: ignore[untyped-decorator]
def _(info: Any, dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, None]:
    return x.new_full((), x.shape[dims[0]] if dims[0] is not None else 1), None


class CoupledNorms(TorchFunctionMode):
    """Makes the given BatchNorm layers use statistics over the rows of all members, in a with-block."""

    def __init__(self, norms: list[nn.Module]) -> None:
        super().__init__()
        self.marks = [mark for norm in norms for mark in (norm.running_mean, norm.weight) if mark is not None]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            return self._norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _norm(
        self,
        x: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training or not any(t is mark for mark in self.marks for t in (mean, weight)):
            return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
        dtype, x = x.dtype, x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        axes = [0, *range(2, x.ndim)]
        count = torch.ops.multitudes.member_count(x) * (x.numel() // x.shape[1])
        batch_mean = torch.ops.multitudes.member_sum(x.sum(axes)) / count
        shape = [1, -1, *(1 for _ in axes[1:])]
        centred = x - batch_mean.view(shape)
        batch_variance = torch.ops.multitudes.member_sum((centred * centred).sum(axes)) / count
        if mean is not None and variance is not None:
            with torch.no_grad():
                mean.mul_(1 - momentum).add_(batch_mean.detach() * momentum)
                variance.mul_(1 - momentum).add_(batch_variance.detach() * (count / (count - 1)) * momentum)
        y = centred * (batch_variance + eps).rsqrt().view(shape)
        y = y if weight is None else y * weight.view(shape)
        return (y if bias is None else y + bias.view(shape)).to(dtype)
