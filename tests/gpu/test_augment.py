"""Augmentation on CUDA: from a generator on the CPU it is what the CPU does, and one on the device repeats itself."""

from __future__ import annotations

import pytest
import torch
from pictures import pictures

from multitudes.data.augment import Augment
from multitudes.data.corruptions import corrupt
from multitudes.data.rand_augment import RandAugment

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

MEDIUM = Augment(mixup=0.5, cutmix=0.2, rand_augment=RandAugment(), smoothing=0.1, classes=10)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("whole", [True, False])
def test_the_device_does_what_the_cpu_does(seed: int, whole: bool) -> None:
    """Up to a level of 255 where sums are rounded otherwise."""
    images = pictures(64) if whole else pictures(64).float() / 255
    targets = torch.arange(64) % 10
    expected, soft = MEDIUM(images, targets, torch.Generator().manual_seed(seed))
    found, given = MEDIUM(images.cuda(), targets.cuda(), torch.Generator().manual_seed(seed))
    assert found.is_cuda
    off = (found.cpu().float() - expected.float()).abs() > (1.01 if whole else 1.01 / 255)
    assert float(off.float().mean()) < 0.005
    torch.testing.assert_close(given.cpu(), soft)


def test_a_generator_of_the_device() -> None:
    images, targets = pictures(64).cuda(), torch.arange(64, device="cuda") % 10
    first, again = (MEDIUM(images, targets, torch.Generator("cuda").manual_seed(3)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], images)


def test_a_class_that_does_not_exist_is_nan() -> None:
    """Without waiting for the device."""
    _, soft = Augment(smoothing=0.1, classes=3)(pictures(2).cuda(), torch.tensor([1, 5], device="cuda"), torch.Generator())
    assert soft.isnan().any(1).tolist() == [False, True]


def test_corrupted_images_come_back_to_the_device() -> None:
    images = pictures()
    found = corrupt(images.cuda(), "snow", 3)
    assert found.is_cuda
    assert torch.equal(found.cpu(), corrupt(images, "snow", 3))
