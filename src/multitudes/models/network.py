"""Network: base class of the models. It stores the constructor's arguments, so that a network can be rebuilt at any width."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import nn

from multitudes.errors import InputError

N = TypeVar("N", bound="Network")


class Network(nn.Module):
    """A network that stores its constructor's arguments; every hidden width is multiplied by `width`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        width = arguments["width"]
        if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width < math.inf:
            raise InputError(f"{type(self).__name__}(width={width!r}): give a number above 0, the factor on all hidden widths")
        self.arguments = {k: v for k, v in arguments.items() if k not in ("self", "__class__")} | {"width": float(width)}

    def resized(self: N, ratio: float) -> N:
        """Returns the same architecture with every hidden width times `ratio`, newly initialised."""
        return type(self)(**{**self.arguments, "width": self.arguments["width"] * ratio})

    def scaled(self, width: int, multiple: int = 1) -> int:
        """Multiplies a hidden width by `width` and rounds it to the nearest multiple of `multiple`."""
        return nearest(width * self.arguments["width"], multiple)


def he_init(parts: Iterable[nn.Module]) -> None:
    """Initialises convolutions by He's rule (fan-out), their biases with zero, norms and linear layers as torch does."""
    for part in parts:
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, (nn.BatchNorm2d, nn.Linear)):
            part.reset_parameters()


def nearest(width: float, multiple: int = 1) -> int:
    """Rounds a width to the nearest positive multiple of `multiple`; halves go up."""
    return max(1, math.floor(width / multiple + 0.5)) * multiple
