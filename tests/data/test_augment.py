"""Augmentation against loops over images; chance is the generator's alone, and nothing given is written to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pictures import pictures
from torch import Tensor

from multitudes.data.augment import Augment, Pair, crop, cutmix, flip, mixup, smooth
from multitudes.data.rand_augment import RandAugment
from multitudes.errors import InputError

KINDS = [torch.uint8, torch.float32, torch.float64, torch.bfloat16]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(dtype: torch.dtype = torch.float32, count: int = 16, height: int = 9, width: int = 12) -> Tensor:
    """Images of one kind; floats are normalised ones, below zero too."""
    images = pictures(count, 3, height, width)
    return images if dtype == torch.uint8 else ((images.float() / 255 - 0.5) / 0.25).to(dtype)


MEDIUM = Augment(mixup=0.5, cutmix=0.2, rand_augment=RandAugment(magnitude=9, n=2, std=1), smoothing=0.1, classes=100)


@pytest.mark.parametrize(
    ("padding", "fill", "mode", "dtype"),
    [
        (0, "zero", "constant", torch.float32),
        (1, "zero", "constant", torch.uint8),
        (4, "zero", "constant", torch.bfloat16),
        (1, "reflect", "reflect", torch.float64),
        (4, "reflect", "reflect", torch.float32),
        (4, "reflect", "reflect", torch.uint8),
    ],
)
def test_crop_by_a_loop(padding: int, fill: Any, mode: Any, dtype: torch.dtype) -> None:
    """Every image is one of the crops of itself padded, all crops about as often."""
    images = batch(dtype, 200, 6, 7)
    found = crop(images, rng(), padding, fill)
    assert found.dtype == dtype
    padded = np.pad(images.double().numpy(), ((0, 0), (0, 0), (padding, padding), (padding, padding)), mode=mode)
    places = list(itertools.product(range(2 * padding + 1), repeat=2))
    seen: dict[tuple[int, int], int] = dict.fromkeys(places, 0)
    for image, result in zip(padded, found.double().numpy(), strict=True):
        hits = [(y, z) for y, z in places if (image[:, y : y + 6, z : z + 7] == result).all()]
        assert len(hits) == 1
        seen[hits[0]] += 1
    for axis in (0, 1):
        ends = {place[axis] for place, times in seen.items() if times}
        assert ends == set(range(2 * padding + 1))


def test_flip_mirrors_every_other_image() -> None:
    images = batch(count=1000)
    found = flip(images, rng())
    turned = torch.tensor([not torch.equal(a, b) for a, b in zip(images, found, strict=True)])
    assert torch.equal(found[turned], images[turned].flip(-1))
    assert 0.45 < float(turned.float().mean()) < 0.55


@pytest.mark.parametrize("dtype", KINDS)
def test_mixup_is_a_weighted_sum(dtype: torch.dtype) -> None:
    """Of each image and its partner, by the weight that targets have."""
    images, targets = batch(dtype), torch.arange(16)
    found, pair = mixup(images, targets, 0.5, rng(1))
    weight = float(pair.weight)
    assert 0.02 < weight < 0.98
    assert torch.equal(pair.first, targets)
    assert sorted(pair.second.tolist()) == targets.tolist()
    assert not torch.equal(pair.second, targets)
    expected = weight * images.double() + (1 - weight) * images[pair.second].double()
    assert found.dtype == dtype
    slack = {torch.uint8: 0.501, torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 0.03}[dtype]
    torch.testing.assert_close(found.double(), expected, atol=slack, rtol=0)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_weights_of_mixup_are_of_a_beta_distribution(alpha: float) -> None:
    """Mean 1/2 and variance 1 / (4 (2 α + 1)), both ends as likely."""
    images, targets, generator = batch(count=2, height=1, width=1), torch.arange(2), rng()
    weights = torch.stack([mixup(images, targets, alpha, generator)[1].weight for _ in range(2000)])
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(weights.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


@pytest.mark.parametrize("dtype", KINDS)
def test_cutmix_pastes_one_box(dtype: torch.dtype) -> None:
    """Inside it is the partner, outside the image, for all images the same box, whose area is what targets weigh."""
    generator, targets, areas = rng(), torch.arange(16), []
    images = batch(dtype, height=20, width=30)
    for _ in range(20):
        found, pair = cutmix(images, targets, 1.0, generator)
        assert found.dtype == dtype
        other = images[pair.second]
        box = ((found == other) & (found != images)).any(0).any(0)
        rows, columns = box.any(1), box.any(0)
        assert torch.equal(torch.where(box, other, images), found)
        assert torch.equal(rows[:, None] & columns, box)
        for line in (rows, columns):
            assert int(line.int().diff().abs().sum()) + int(line[0]) + int(line[-1]) in (0, 2)
        assert float(pair.weight) == pytest.approx(1 - float(box.float().mean()), abs=1e-6)
        areas.append(float(box.float().mean()))
    assert max(areas) > 0.3 > 0.1 > min(areas)


def test_boxes_of_cutmix_have_the_shape_of_images_and_lie_everywhere() -> None:
    """Every pixel is covered now and then, the middle more often than corners."""
    images, generator = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 16, 24), rng()
    covered, areas = torch.zeros(16, 24), []
    for _ in range(600):
        found, pair = cutmix(images, torch.arange(2), 1.0, generator)
        areas.append(1 - float(pair.weight))
        covered += (found[0, 0] != 0) if int(pair.second[0]) else 0
    assert float(covered.min()) > 0
    assert 0.26 < np.mean(areas) < 0.34  # 0.32 for sides of √(1 − λ) with λ uniform, less what is lost to whole pixels
    assert float(covered[8, 12]) > 2 * float(covered[[0, 0, -1, -1], [0, -1, 0, -1]].max())
    sides = torch.stack([covered[:8].sum() / covered.sum(), covered[:, :12].sum() / covered.sum()])
    torch.testing.assert_close(sides, torch.full((2,), 0.5), atol=0.06, rtol=0)


def test_soft_targets_of_a_pair() -> None:
    pair = Pair(torch.tensor([0, 2]), torch.tensor([1, 2]), torch.tensor(0.75))
    assert pair.soft(3).tolist() == [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]]
    values = Pair(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor(0.25))
    assert values.soft().tolist() == [2.5, 3.5]


def test_smooth_spreads_over_all_classes() -> None:
    found = smooth(torch.tensor([3, 0]), 5, 0.1)
    expected = torch.full((2, 5), 0.02)
    expected[0, 3] = expected[1, 0] = 0.92
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(smooth(torch.eye(5)[[3, 0]], 5, 0.1), expected)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    logits = torch.randn(2, 5)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, found), loss(logits, torch.tensor([3, 0])))


def test_the_pipeline_is_its_parts_in_order() -> None:
    """Crop, flip, mixup, smoothing, from one generator."""
    images, targets, generator = batch(), torch.arange(16) % 10, rng(2)
    by_hand, pair = mixup(flip(crop(images, generator, 2), generator), targets, 0.4, generator)
    found, soft = Augment(crop=2, mixup=0.4, smoothing=0.2, classes=10)(images, targets, rng(2))
    assert torch.equal(found, by_hand)
    torch.testing.assert_close(soft, smooth(pair.soft(10), 10, 0.2))


def test_all_off_is_the_batch_itself() -> None:
    images, targets = batch(), torch.arange(16)
    found, same = Augment(crop=0, flip=False)(images, targets, rng())
    assert torch.equal(found, images)
    assert torch.equal(same, targets)


@pytest.mark.parametrize("dtype", KINDS)
def test_by_default_classes_stay_classes(dtype: torch.dtype) -> None:
    images, targets = batch(dtype), torch.arange(16)
    found, same = Augment()(images, targets, rng())
    assert torch.equal(same, targets)
    assert found.dtype == dtype
    assert torch.equal(found, flip(crop(images, generator := rng(), 4), generator))


@pytest.mark.parametrize("switch", [0.0, 0.3, 1.0])
def test_the_switch_chooses_between_mixing_and_cutting(switch: float) -> None:
    """A batch of zeros and ones has values in between only when it is mixed."""
    images = torch.arange(4.0).clamp(max=1)[:, None, None, None].expand(4, 1, 16, 16)
    augment, generator = Augment(crop=0, flip=False, mixup=1.0, cutmix=1.0, switch=switch, classes=4), rng()
    mixed = []
    for _ in range(200):
        found, soft = augment(images, torch.arange(4), generator)
        torch.testing.assert_close(soft.sum(1), torch.ones(4))
        if not torch.equal(found, images):
            mixed.append(bool(((found > 0) & (found < 1)).any()))
    assert np.mean(mixed) == pytest.approx(1 - switch, abs=0.09)


def test_soft_targets_and_values_are_mixed_as_they_are() -> None:
    images, generator = batch(), rng()
    labels = torch.rand(16, 7)
    _, found = Augment(mixup=1.0)(images, labels, generator)
    assert found.shape == (16, 7)
    torch.testing.assert_close(found.mean(0), labels.mean(0))
    _, found = Augment(mixup=1.0)(images, labels[:, 0], generator)
    assert found.shape == (16,)


@pytest.mark.parametrize("seed", range(4))
def test_repeated_calls_are_identical_and_nothing_is_written_to(seed: int) -> None:
    """Whatever the global generator does meanwhile, which is not touched either."""
    images, targets = batch(torch.uint8, height=32, width=32), torch.arange(16)
    kept, state = images.clone(), torch.get_rng_state()
    first = MEDIUM(images, targets, rng(seed))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = MEDIUM(images, targets, rng(seed)), MEDIUM(images, targets, rng(seed + 10))
    assert torch.equal(images, kept)
    assert torch.equal(targets, torch.arange(16))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_settings_survive_json() -> None:
    for augment in (MEDIUM, Augment()):
        assert Augment(**json.loads(json.dumps(augment.settings()))) == augment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": -1}, r"Augment\(crop=-1\)"),
        ({"crop": True}, "crop=True"),
        ({"fill": "grey"}, "'zero' or 'reflect'"),
        ({"flip": 1}, "True or False"),
        ({"mixup": -0.1}, "mixup=-0.1"),
        ({"cutmix": float("nan")}, "cutmix=nan"),
        ({"mixup": float("inf")}, "mixup=inf"),
        ({"switch": 1.5}, "switch=1.5"),
        ({"rand_augment": "m9"}, r"rand_augment.*RandAugment or None"),
        ({"rand_augment": {"n": 0}}, r"RandAugment\(n=0\)"),
        ({"smoothing": 1.0}, "smoothing=1.0"),
        ({"classes": 1}, "classes=1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Augment(**settings)


@pytest.mark.parametrize(
    ("augment", "arguments", "message"),
    [
        (Augment(), {"images": torch.zeros(3, 8, 8)}, r"\[3, 8, 8\]"),
        (Augment(), {"images": torch.zeros(16, 3, 8, 8, dtype=torch.int64)}, "torch.int64"),
        (Augment(), {"images": [1]}, "list"),
        (Augment(), {"generator": 0}, r"generator= is a int"),
        (Augment(), {"targets": torch.zeros(3)}, r"targets= .*16 images.*\[3\]"),
        (Augment(), {"targets": torch.zeros(16, 8, 8)}, r"\[16, 8, 8\]"),
        (Augment(mixup=0.5), {}, "classes=10"),
        (Augment(smoothing=0.1), {}, "classes=10"),
        (Augment(smoothing=0.1, classes=9), {}, "0 to 15.*classes=9"),
        (Augment(smoothing=0.1, classes=16), {"targets": torch.arange(16) - 1}, "-1 to .*classes=16"),
        (Augment(smoothing=0.1), {"targets": torch.zeros(16)}, "soft targets"),
        (Augment(smoothing=0.1, classes=9), {"targets": torch.zeros(16, 3)}, r"soft targets \[B, 9\]"),
        (Augment(fill="reflect", crop=9), {}, "padding=9.* 9"),
        (Augment(rand_augment=RandAugment()), {}, "not yet normalised"),
    ],
)
def test_bad_batches_are_refused(augment: Augment, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        augment(**({"images": batch(), "targets": torch.arange(16), "generator": rng()} | arguments))


@pytest.mark.parametrize(
    ("call", "noun"),
    [
        (lambda: mixup(batch(), torch.arange(16), 0, rng()), "alpha=0"),
        (lambda: cutmix(batch(), torch.arange(16), 0, rng()), "alpha=0"),
        (lambda: mixup(batch(), torch.arange(3), 1.0, rng()), "16 images .*3 targets"),
        (lambda: cutmix(batch(), torch.arange(3), 1.0, rng()), "16 images .*3 targets"),
        (lambda: crop(batch(), rng(), 1.5), r"padding=1\.5"),  # type: ignore[arg-type]
        (lambda: crop(batch(), rng(), 1, "grey"), "fill='grey'"),  # type: ignore[arg-type]
        (lambda: smooth(torch.arange(3), 3, 1), "smoothing=1"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], Any], noun: str) -> None:
    with pytest.raises(InputError, match=noun):
        call()
