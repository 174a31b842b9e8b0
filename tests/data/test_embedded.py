"""The included datasets: complete, balanced, small, with their licences."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch

from multitudes import data
from multitudes.data import embedded

FOLDER = resources.files("multitudes.data")


@pytest.mark.parametrize(("split", "each"), [("train", 600), ("validation", 100), ("test", 200)])
def test_fashion_has_each_class_alike(split: str, each: int) -> None:
    found = data.fashion(split)
    assert torch.bincount(found.targets).tolist() == [each] * 10
    assert (found.shape, found.inputs.dtype) == ((1, 28, 28), torch.uint8)
    x = found.batch(slice(None))[0]
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05


def test_no_image_is_in_two_parts() -> None:
    parts = {
        split: {image.numpy().tobytes() for image in data.fashion(split).inputs} for split in ("train", "validation", "test")
    }
    assert not parts["train"] & parts["validation"]
    assert not parts["train"] & parts["test"]
    assert not parts["validation"] & parts["test"]


def test_labels_belong_to_their_images() -> None:
    """The nearest class mean is right for two of three, which wrong labels could not be."""
    train, test = data.fashion("train"), data.fashion("test")
    means = torch.stack([train.raw(train.targets == k).mean(0).flatten() for k in range(10)])
    answers = torch.cdist(test.raw(slice(None)).flatten(1), means).argmin(1)
    assert float((answers == test.targets).float().mean()) > 0.65


def test_digits_are_drawn_larger_and_normalised_as_fashion() -> None:
    found, fashion = data.digits(), data.fashion("test")
    assert (len(found), found.shape) == (1797, (1, 28, 28))
    assert torch.equal(found.mean, fashion.mean)
    assert torch.equal(found.std, fashion.std)
    zero, one = (found.raw(found.targets == k).mean(0)[0] for k in (0, 1))
    assert float(zero[12:16, 12:16].mean()) < 0.2 < 0.5 < float(one[12:16, 12:16].mean())


def test_digits_go_from_black_to_white() -> None:
    """Their 16 is white, 255; how often black, nearly black and white occur, and the mean, within the rounding of halves."""
    pixels = data.digits().inputs
    counts = torch.bincount(pixels.flatten().long(), minlength=256)
    assert int(pixels.max()) == 255
    assert counts[[0, 1, 255]].tolist() == pytest.approx([424_507, 12_371, 9_848], rel=0.002)
    assert float(pixels.double().mean()) == pytest.approx(77.8405, abs=0.01)


def test_all_files_are_known_licensed_and_small() -> None:
    files = {path.name: len(path.read_bytes()) for path in FOLDER.joinpath("files").iterdir()}
    assert files.keys() == embedded.SHA256.keys()
    assert sum(files.values()) < 6_000_000
    licences = FOLDER.joinpath("LICENSES.md").read_text()
    assert [name for name in files if name not in licences] == []


def test_nothing_in_them_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    load = np.load
    monkeypatch.setattr(np, "load", lambda *a, **k: (asked.append(k.get("allow_pickle")), load(*a, **k))[1])
    data.digits()
    data.fashion()
    data.uci("yacht")
    assert asked == [False, False, False]
