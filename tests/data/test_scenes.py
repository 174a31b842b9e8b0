"""Scenes: labels that lie where the shapes are, a border that does not count, the same from the same seed."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from multitudes import data
from multitudes.data.scenes import SHAPES, _ignore_borders


def test_a_seed_gives_the_same_and_splits_differ() -> None:
    first = data.scenes(examples=3)
    again, other, test = data.scenes(examples=3), data.scenes(examples=3, seed=1), data.scenes("test", examples=3)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)
    assert not torch.equal(first.inputs, test.inputs)


def test_sizes_classes_and_the_ignored_label() -> None:
    found = data.scenes("validation", size=32)
    assert (len(found), found.shape, tuple(found.targets.shape)) == (100, (3, 32, 32), (100, 32, 32))
    assert found.classes == ("ground", *SHAPES)
    assert found.ignore == 255
    assert found.targets.unique().tolist() == [0, 1, 2, 3, 4, 255]
    share = torch.bincount(found.targets.flatten(), minlength=256) / found.targets.numel()
    assert float(share[1:5].min()) > 0.01
    assert 0.3 < float(share[0]) < 0.8


def test_the_border_is_one_pixel_on_either_side() -> None:
    labels = torch.zeros(1, 5, 6, dtype=torch.long)
    labels[0, :, 3:] = 2
    assert _ignore_borders(labels)[0].tolist() == [[0, 0, 255, 255, 2, 2]] * 5


def test_pixels_look_alike_inside_and_differ_across_borders() -> None:
    """Neighbours with one label differ by noise and shade only; labels that lay elsewhere would not see to that."""
    found = data.scenes(examples=60)
    raw, labels = found.raw(slice(None)), found.targets
    step = (raw[..., 1:] - raw[..., :-1]).abs().amax(1)
    inside = (labels[..., 1:] == labels[..., :-1]) & (labels[..., 1:] != 255)
    across = F.max_pool2d((labels == 255).float(), 1)[..., 1:].bool() & (labels[..., :-1] == 255)
    assert float(step[inside].mean()) < 0.1
    assert float(step[across].mean()) > 1.5 * float(step[inside].mean())
    assert float((step[inside] > 0.3).float().mean()) < 0.001


def test_networks_see_numbers_around_zero() -> None:
    x, _ = data.scenes().batch(slice(None))
    assert abs(float(x.mean())) < 0.1
    assert abs(float(x.std()) - 1) < 0.1
