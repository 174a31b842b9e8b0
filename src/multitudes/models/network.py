"""Network: what our models have in common. Each knows its arguments, so that it can be made again, at any width."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import nn

from multitudes.errors import InputError

N = TypeVar("N", bound="Network")


class Network(nn.Module):
    """A network with its arguments, `width` among them, by which every hidden width is multiplied."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        width = arguments["width"]
        if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width < math.inf:
            raise InputError(f"{type(self).__name__}(width={width!r}): give a number above 0, by which widths are multiplied")
        self.arguments = {k: v for k, v in arguments.items() if k not in ("self", "__class__")}

    def resized(self: N, ratio: float) -> N:
        """The same architecture with every hidden width times `ratio`, newly initialised."""
        return type(self)(**{**self.arguments, "width": self.arguments["width"] * ratio})

    def scaled(self, width: int, multiple: int = 1) -> int:
        """A hidden width as it is at this network's `width`, to the nearest multiple of what must divide it."""
        return nearest(width * self.arguments["width"], multiple)


def he(parts: Iterable[nn.Module]) -> None:
    """He initialisation of convolutions by their outputs, biases at zero; norms and linear layers as torch starts them."""
    for part in parts:
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, (nn.BatchNorm2d, nn.Linear)):
            part.reset_parameters()


def nearest(width: float, multiple: int = 1) -> int:
    """The nearest positive multiple of what must divide a width; halves go up."""
    return max(1, math.floor(width / multiple + 0.5)) * multiple
