"""Places labels beside discs, without overlap if there is room."""

from __future__ import annotations

import math
from typing import NamedTuple

GAP = 3.0
"""Gap between a disc and its label."""


class Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float


class Disc(NamedTuple):
    """A disc, with the width and height of its label."""

    x: float
    y: float
    radius: float
    width: float
    height: float


def place(discs: list[Disc], room: Box) -> list[Box]:
    """Returns a box for each label. Greedy: each label in turn takes the best place that is left."""
    places: list[Box] = []
    for disc in discs:
        costs = {box: _hidden(box, discs, room) + sum(_overlap(box, other) for other in places) for box in _choices(disc)}
        places.append(min(costs, key=costs.__getitem__))  # ties go to the first choice
    return places


def distance(disc: Disc, box: Box) -> float:
    """Returns the distance from the edge of a disc to a box; negative if they overlap."""
    across = max(box.left - disc.x, disc.x - box.right, 0)
    above = max(box.bottom - disc.y, disc.y - box.top, 0)
    return math.hypot(across, above) - disc.radius


def _choices(disc: Disc) -> list[Box]:
    """Returns candidate places for a label, best first: right, above, left, below, diagonal; then the same farther away."""
    boxes = []
    for away in (0.0, 0.8, 1.6, 2.6, 4.0):
        reach = disc.radius + GAP + away * disc.height
        for degrees in (0, 90, 180, 270, 45, 135, 315, 225, 20, 160, 340, 200):
            cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
            x, y = disc.x + (reach + disc.width / 2) * cosine, disc.y + (reach + disc.height / 2) * sine
            boxes.append(Box(x - disc.width / 2, y - disc.height / 2, x + disc.width / 2, y + disc.height / 2))
    return boxes


def _hidden(box: Box, discs: list[Disc], room: Box) -> float:
    """Returns the penalty of a label's box for reaching out of `room` or covering a disc."""
    outside = max(room.left - box.left, 0) + max(box.right - room.right, 0)
    outside += max(room.bottom - box.bottom, 0) + max(box.top - room.top, 0)
    return 1000 * outside + sum(500 * max(1 - distance(disc, box), 0) for disc in discs)


def _overlap(box: Box, other: Box) -> float:
    across = min(box.right, other.right) - max(box.left, other.left) + 2
    along = min(box.top, other.top) - max(box.bottom, other.bottom) + 1
    return 1000 + 100 * across * along if across > 0 and along > 0 else 0.0
