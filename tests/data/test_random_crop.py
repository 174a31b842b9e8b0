"""Random resized crops: their distribution, what happens if none fits, and that they follow from seed, epoch and image."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interruption import interrupted
from scipy.stats import ks_2samp, kstest

import multitudes as mt
from multitudes import data
from multitudes.data import Augment, RandomCrop
from multitudes.training.feed import Feed
from multitudes.training.fingerprint import dataset_fingerprint

Box = tuple[int, int, int, int]


def boxes(width: int, height: int, count: int = 4000, crop: RandomCrop | None = None) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([(crop or RandomCrop()).box(width, height, rng) for _ in range(count)])


def by_rejection(width: int, height: int, count: int = 4000) -> np.ndarray:
    """The definition in plain Python: sides from a share of the area and a ratio, until they fit; a place for them."""
    rng, found = random.Random(1), []
    while len(found) < count:
        share, ratio = rng.uniform(0.08, 1), (4 / 3) ** rng.uniform(-1, 1)
        wide = round((share * width * height * ratio) ** 0.5)
        high = round((share * width * height / ratio) ** 0.5)
        if wide <= width and high <= height:
            left, top = rng.randint(0, width - wide), rng.randint(0, height - high)
            found.append((left, top, left + wide, top + high))
    return np.array(found)


@pytest.mark.parametrize("size", [(400, 400), (500, 375), (300, 450)])
def test_crops_are_distributed_as_defined(size: tuple[int, int]) -> None:
    """Areas, ratios and places as in an independent implementation; all inside the image and within their ranges."""
    ours, theirs = boxes(*size), by_rejection(*size)

    def traits(found: np.ndarray) -> dict[str, np.ndarray]:
        left, top, right, bottom = found.T
        wide, high = right - left, bottom - top
        return {"area": wide * high / math.prod(size), "ratio": wide / high, "left": left, "bottom": bottom}

    for name, values in traits(ours).items():
        assert ks_2samp(values, traits(theirs)[name]).pvalue > 0.01, name
    assert ours.min() >= 0
    assert bool((ours[:, 2:] <= size).all())
    assert bool((ours[:, 2:] > ours[:, :2]).all())
    assert 0.08 * 0.98 < traits(ours)["area"].min() < 0.1
    largest = min(1, size[0] / size[1] / 0.75, size[1] / size[0] / 0.75)
    assert 0.95 * largest < traits(ours)["area"].max() <= 1.01 * largest
    assert 0.75 * 0.98 < traits(ours)["ratio"].min() < 0.76
    assert 1.3 < traits(ours)["ratio"].max() < 4 / 3 * 1.02


def test_small_crops_have_the_exact_distribution() -> None:
    """If all fit, areas are uniform and logarithms of ratios too."""
    left, top, right, bottom = boxes(4000, 4000, crop=RandomCrop(scale=(0.1, 0.4))).T
    assert kstest((right - left) * (bottom - top) / 4000**2, "uniform", (0.1, 0.3)).pvalue > 0.01
    low = math.log(3 / 4)
    assert kstest(np.log((right - left) / (bottom - top)), "uniform", (low, -2 * low)).pvalue > 0.01


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
        ((1, 100), (0, 49, 1, 50)),
        ((100, 100), (0, 0, 100, 100)),
    ],
)
def test_if_none_fits_it_is_the_centre(size: tuple[int, int], expected: Box) -> None:
    """The largest part whose ratio is allowed: 10 high and 13 wide, or 10 wide and 13 high; the whole of a square."""

    class Largest(np.random.Generator):
        """Draws the upper end, so that no crop fits but that of the whole square."""

        def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
            return high

    assert RandomCrop().box(*size, Largest(np.random.PCG64(0))) == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of two classes; red rises from left to right, green from top to bottom, blue is the image's number."""
    from PIL import Image

    for number in range(12):
        place = tmp_path / "images" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        high, wide = 40, 60
        red, green = np.meshgrid(np.linspace(0, 255, wide), np.linspace(0, 255, high))
        image = np.stack([red, green, np.full_like(red, 20 * number)], -1).astype(np.uint8)
        Image.fromarray(image).save(place / f"{number:02d}.png")
    return tmp_path / "images"


def test_the_crop_is_cut_out_and_resized(folder: Path) -> None:
    """The corners of each crop have the colours of the box's corners."""
    train = data.folder(folder, size=24, crop=RandomCrop())
    x = train.raw(range(12), seed=5) * 255
    assert x.shape == (12, 3, 24, 24)
    for index in range(12):
        left, top, right, bottom = RandomCrop().box(60, 40, np.random.default_rng([5, index]))
        expected = torch.tensor([left / 59, (right - 1) / 59, top / 39, (bottom - 1) / 39]) * 255
        actual = torch.stack([x[index, 0, 12, 0], x[index, 0, 12, -1], x[index, 1, 0, 12], x[index, 1, -1, 12]])
        assert (actual - expected).abs().max() < 6  # half a pixel of the crop, and rounding
    assert torch.equal(x[:, 2, 0, 0] / 20, torch.tensor([0.0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]))


def test_crops_follow_from_the_seed_and_the_image(folder: Path) -> None:
    """Whatever the order, the subset or the sum; another seed gives others, and so does no seed, which draws one."""
    train = data.folder(folder, size=16, crop=RandomCrop())
    whole = train.raw(range(12), seed=1)
    assert torch.equal(train.raw([7, 2], seed=1), whole[[7, 2]])
    assert torch.equal(train.subset([4, 7]).raw([1], seed=1), whole[[7]])
    assert torch.equal((train + train.subset([3])).raw([12, 3], seed=1), whole[[3, 3]])
    assert not torch.equal(train.raw([7], seed=2), whole[[7]])
    torch.manual_seed(0)
    one, two = train[7][0], train[7][0]
    assert not torch.equal(one, two)
    torch.manual_seed(0)
    assert torch.equal(train[7][0], one)


def test_without_crop_it_is_the_centre_as_before(folder: Path) -> None:
    plain = data.folder(folder, size=16)
    assert torch.equal(plain.raw([3], seed=1), plain.raw([3], seed=2))


@pytest.mark.parametrize("augment", [None, Augment(crop=0, flip=True)])
def test_an_epoch_can_be_read_again(folder: Path, augment: Augment | None) -> None:
    """The same crops for the same seed and epoch; others in another epoch, and for a member with batches of its own."""
    train = data.folder(folder, size=16, crop=RandomCrop())

    def inputs(epoch: int, seed: int = 0, own: bool = False) -> torch.Tensor:
        feed = Feed(train, batch=4, seed=seed, members=2, own=own, device=torch.device("cpu"), augment=augment)
        read = [(x.tensors()[0], y) for x, y in feed.epoch(epoch)]
        return torch.cat([x for x, _ in read], 1 if own else 0)

    first = inputs(1)
    assert torch.equal(inputs(1), first)

    def sums(x: torch.Tensor) -> set[float]:
        """A number for each image, which a flip does not change."""
        return {round(float(value), 3) for value in x.double().sum((1, 2, 3))}

    assert sums(first).isdisjoint(sums(inputs(2)))
    assert sums(first).isdisjoint(sums(inputs(1, seed=1)))
    both = inputs(1, own=True)
    assert sums(both[0]).isdisjoint(sums(both[1]))


def test_a_run_on_crops_resumes(folder: Path, tmp_path: Path) -> None:
    """Interrupted after the first of two epochs, it ends with the same weights; with other crops it is refused."""
    train = data.folder(folder, size=16, crop=RandomCrop())
    recipe = mt.Recipe(epochs=2, batch=4, lr=0.01, augment=Augment(crop=0))

    def ensemble() -> mt.Ensemble:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
        )
        return mt.ensemble(net, mt.Deep(members=2), torch.zeros(2, 3, 16, 16), seed=0)

    whole, cut, again = ensemble(), ensemble(), ensemble()
    mt.fit(whole, train, recipe, progress=False)
    with interrupted(len(train) // 4 + 1):
        mt.fit(cut, train, recipe, out=tmp_path / "run", progress=False)
    others = data.folder(folder, size=16, crop=RandomCrop(scale=(0.5, 1)))
    with pytest.raises(mt.FileError, match="scale"):
        mt.fit(ensemble(), others, recipe, out=tmp_path / "run", resume=True, progress=False)
    mt.fit(again, train, recipe, out=tmp_path / "run", resume=True, progress=False)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_the_crop_is_part_of_the_fingerprint(folder: Path) -> None:
    plain, cropped = data.folder(folder, size=16), data.folder(folder, size=16, crop=RandomCrop())
    assert "RandomCrop" not in dataset_fingerprint(plain)
    assert "RandomCrop" in dataset_fingerprint(cropped)
    assert "RandomCrop" in dataset_fingerprint(torch.utils.data.Subset(cropped, [0]))


REFUSED = {
    "no crop": (lambda at: data.folder(at, crop=True), r"crop=True.*RandomCrop\(\)"),
    "a centre too": (lambda at: data.folder(at, crop=RandomCrop(), size=16, resize=20), "resize=20"),
    "one crop for ever": (lambda at: data.folder(at, crop=RandomCrop()).in_memory(), "at random"),
    "scale above 1": (lambda _: RandomCrop(scale=(0.5, 2)), "at most 1"),
    "turned round": (lambda _: RandomCrop(ratio=(2, 1)), "the smaller first"),
    "one number": (lambda _: RandomCrop(scale=(0.5,)), "two numbers"),
    "zero": (lambda _: RandomCrop(scale=(0, 1)), "above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, folder: Path) -> None:
    act, says = REFUSED[case]
    with pytest.raises(mt.InputError, match=says):
        act(folder)
