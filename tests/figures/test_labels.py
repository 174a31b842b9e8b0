"""Labels beside discs: near their disc, without overlap, within the room."""

from __future__ import annotations

import math
import random

import pytest

from multitudes.figures.labels import GAP, Box, Disc, distance, place

ROOM = Box(0, 0, 320, 240)


def overlap(one: Box, other: Box) -> bool:
    return min(one.right, other.right) > max(one.left, other.left) and min(one.top, other.top) > max(one.bottom, other.bottom)


def test_a_disc_alone_has_its_label_to_the_right() -> None:
    (box,) = place([Disc(100, 100, 10, 40, 12)], ROOM)
    assert box == pytest.approx((110 + GAP, 94, 150 + GAP, 106))


def test_a_disc_at_the_right_edge_has_its_label_elsewhere() -> None:
    (box,) = place([Disc(300, 100, 10, 40, 12)], ROOM)
    assert box.right <= ROOM.right
    assert distance(Disc(300, 100, 10, 40, 12), box) > 0


@pytest.mark.parametrize("seed", range(12))
def test_a_crowd_is_labelled_without_overlap(seed: int) -> None:
    draw = random.Random(seed)
    discs = [
        Disc(draw.uniform(30, 290), draw.uniform(20, 220), draw.uniform(2, 12), draw.uniform(30, 70), 11) for _ in range(14)
    ]
    boxes = place(discs, ROOM)
    assert len(boxes) == len(discs)
    for index, (disc, box) in enumerate(zip(discs, boxes, strict=True)):
        assert (box.right - box.left, box.top - box.bottom) == pytest.approx((disc.width, disc.height))
        assert box.left >= ROOM.left and box.bottom >= ROOM.bottom and box.right <= ROOM.right and box.top <= ROOM.top
        assert not any(overlap(box, other) for other in boxes[index + 1 :])
        assert min(distance(other, box) for other in discs) >= 0
        assert distance(disc, box) < 70


def test_distance_is_from_the_edge() -> None:
    disc = Disc(0, 0, 5, 1, 1)
    assert distance(disc, Box(8, -1, 9, 1)) == 3
    assert distance(disc, Box(30, 40, 50, 60)) == math.hypot(30, 40) - 5
    assert distance(disc, Box(-1, -1, 1, 1)) == -5


def test_labels_are_placed_even_without_room() -> None:
    assert len(place([Disc(5, 5, 4, 40, 12)] * 5, Box(0, 0, 20, 20))) == 5
    assert place([], ROOM) == []
