"""Themes: the colours of a figure on a light and on a dark background.

After Okabe and Ito, "Color Universal Design", https://jfly.uni-koeln.de/color/, so that colour-blind readers can tell the runs
apart. Their yellow is too pale on white and their black too dark on black, so each theme adapts the shades. Line styles and
markers differ as well, for prints in grey.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multitudes.errors import InputError

Theme = Literal["light", "dark"]

LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P")


class Style(NamedTuple):
    """Colour, line style and marker of one run."""

    colour: str
    line: str
    marker: str


@dataclass(frozen=True)
class Look:
    """The colours of a theme."""

    paper: str
    """Background."""
    ink: str
    """Text."""
    muted: str
    """Axes, reference lines and other secondary things."""
    grid: str
    """Grid lines."""
    colours: tuple[str, ...]
    """One colour per run."""
    stops: tuple[str, ...]
    """Stops of the colour scale, from the background colour (smallest value) to the largest value."""

    def style(self, index: int) -> Style:
        """Returns the style of a run by its index. The first 24 styles all differ."""
        round_ = index // len(self.colours)
        line, marker = LINES[(index + round_) % len(LINES)], MARKERS[(index + round_) % len(MARKERS)]
        return Style(self.colours[index % len(self.colours)], line, marker)


LOOKS: dict[str, Look] = {
    "light": Look(
        paper="#ffffff", ink="#1c1f24", muted="#6b7280", grid="#e3e6ea",
        colours=("#0072b2", "#d55e00", "#0a9f6a", "#d2709a", "#6e5410", "#2a2650"),
        stops=("#ffffff", "#f6bd9c", "#c2427b", "#2b1052"),
    ),
    "dark": Look(
        paper="#15181d", ink="#e8eaed", muted="#9aa2ad", grid="#2c3139",
        colours=("#56b4e9", "#e66a10", "#0f8f62", "#f5a6bf", "#f0e442", "#e0f4f7"),
        stops=("#15181d", "#57207d", "#cb4478", "#fb9d6a", "#fff6d5"),
    ),
}  # fmt: skip


def look(theme: str) -> Look:
    """Returns the colours of a theme by its name."""
    if theme not in LOOKS:
        raise InputError(f"theme={theme!r} must be {' or '.join(map(repr, LOOKS))}")
    return LOOKS[theme]


def scale(look: Look, steps: int = 256) -> NDArray[np.float64]:
    """Returns RGB colours ``[steps, 3]`` from the smallest to the largest value, perceptually even: equal steps in OKLab.

    Ottosson, "A perceptual color space for image processing", https://bottosson.github.io/posts/oklab/
    """
    stops = _oklab(np.array([[int(stop[i : i + 2], 16) / 255 for i in (1, 3, 5)] for stop in look.stops]))
    lengths = np.concatenate([[0.0], np.linalg.norm(np.diff(stops, axis=0), axis=1).cumsum()])
    way = np.linspace(0, lengths[-1], steps)
    return _rgb(np.column_stack([np.interp(way, lengths, stops[:, axis]) for axis in range(3)]))


CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OPPONENTS = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _oklab(rgb: NDArray[Any]) -> NDArray[Any]:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ CONES.T) @ OPPONENTS.T


def _rgb(lab: NDArray[Any]) -> NDArray[Any]:
    linear = ((lab @ np.linalg.inv(OPPONENTS).T) ** 3 @ np.linalg.inv(CONES).T).clip(0, 1)
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055).clip(0, 1)
