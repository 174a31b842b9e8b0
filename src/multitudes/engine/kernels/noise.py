"""Dropout noise under vmap: drawn once where its input is common to all members.

torch draws noise for every member even if the input is common, and everything after it would be computed M times. So a custom
operator draws it; its result has a member axis only if its input has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DROPOUTS: dict[Callable[..., Any], int | None] = {F.dropout: 0, F.dropout1d: 1, F.dropout2d: None, F.dropout3d: 3}
"""Dropout functions, and the number of trailing axes that share one noise value (None: all but the first two)."""


def dropout(trailing: int | None, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Multiplies by the factors of inverted dropout, one for all entries along the last `trailing` axes."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    trailing = max(input.ndim - 2, 0) if trailing is None else trailing
    noise = torch.ops.multitudes.noise(input.detach(), p, trailing)
    return input.mul_(noise) if inplace else input * noise


_library = torch.library.Library("multitudes", "FRAGMENT")  # custom_op would import the compiler at its first call
_library.define("noise(Tensor x, float p, int trailing) -> Tensor")


@torch.library.impl(_library, "noise", "CompositeExplicitAutograd")
def _noise(x: Tensor, p: float, trailing: int) -> Tensor:
    """Draws factors of inverted dropout, 0 or 1/(1−p), one for all entries along the last `trailing` axes of x."""
    kept = torch.empty(_noise_shape(x, trailing), dtype=x.dtype, device=x.device).bernoulli_(1 - p)
    return kept if p == 1 else kept / (1 - p)


@torch.library.register_fake("multitudes::noise", lib=_library)  # type: ignore[untyped-decorator]
def _(x: Tensor, p: float, trailing: int) -> Tensor:
    return torch.empty(_noise_shape(x, trailing), dtype=x.dtype, device=x.device)


@torch.library.register_vmap("multitudes::noise", lib=_library)  # type: ignore[untyped-decorator]
def _(info: Any, dims: tuple[int | None, ...], x: Tensor, p: float, trailing: int) -> tuple[Tensor, int]:
    return torch.ops.multitudes.noise(x.movedim(dims[0] or 0, 0), p, trailing), 0


def _noise_shape(x: Tensor, trailing: int) -> list[int]:
    return [*x.shape[: x.ndim - trailing], *(1 for _ in range(trailing))]
