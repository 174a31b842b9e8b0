"""Conversion to Data: torch's pairs, Hugging Face's dicts, images and arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import multitudes as mt
from multitudes import data
from multitudes.data import Data

VECTORS = torch.arange(12.0).view(6, 2)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


class Columns:
    """Looks like a Hugging Face dataset: dicts by index, columns by name, features with class names."""

    class Names:
        names = ["cat", "dog"]

    features = {"image": object(), "label": Names()}
    column_names = ["image", "label"]

    def __init__(self, images: list[Any], labels: list[int]) -> None:
        self.columns: dict[str, list[Any]] = {"image": images, "label": labels}
        self.read = 0

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        self.read += 1
        return {name: column[key] for name, column in self.columns.items()}


def grey(value: int) -> Image.Image:
    """A grey image, 5 wide and 3 high."""
    return Image.new("L", (5, 3), value)


@pytest.mark.parametrize("lazy", [False, True])
def test_pairs_of_torch_are_taken(lazy: bool) -> None:
    found = data.of(Subset(TensorDataset(VECTORS, LABELS), [4, 2, 0]), lazy=lazy, mean=[1, 2], std=[2, 2])
    assert found.targets.tolist() == [1, 2, 0]
    assert found.batch(slice(None))[0].tolist() == [[3.5, 3.5], [1.5, 1.5], [-0.5, -0.5]]
    assert found.name == "Subset"


def test_lazily_each_item_is_read_anew() -> None:
    class Growing(Dataset[Any]):
        def __init__(self) -> None:
            self.calls = 0

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            self.calls += 1
            return torch.tensor([float(self.calls)]), index

    lazy = data.of(Growing(), lazy=True, targets=[0, 1])
    assert float(lazy.batch([0])[0]) < float(lazy.batch([0])[0])
    kept = data.of(Growing())
    assert torch.equal(kept.batch([0])[0], kept.batch([0])[0])


def test_dicts_with_images_as_hugging_face_has_them() -> None:
    dataset = Columns([grey(10), grey(20), grey(30)], [1, 0, 1])
    found = data.of(dataset, input="image", target="label", lazy=True)
    assert dataset.read == 1  # the column of labels needs no images
    assert (found.classes, found.targets.tolist(), found.shape) == (("cat", "dog"), [1, 0, 1], (1, 3, 5))
    assert found.in_memory().inputs[:, 0, 0, 0].tolist() == [10, 20, 30]  # type: ignore[index]
    torch.testing.assert_close(found.raw([1])[0], torch.full((1, 3, 5), 20 / 255))


def test_colours_come_first_in_an_image() -> None:
    image = Image.new("RGBA", (4, 2), (1, 2, 3, 255))
    found = data.of([(image, 0)])
    assert (found.shape, found.inputs[0, :, 0, 0].tolist()) == ((3, 2, 4), [1, 2, 3])  # type: ignore[index]


def test_arrays_and_lists_stay_as_they_are() -> None:
    found = data.of([(np.array([1.0, 2.0], np.float32), 3.5), ([3.0, 4.0], 4.5)])
    assert (found.batch([0, 1])[0].tolist(), found.targets.tolist()) == ([[1, 2], [3, 4]], [3.5, 4.5])


def test_data_passes_through() -> None:
    mine = Data(VECTORS, LABELS, "mine")
    assert data.of(mine).inputs is VECTORS
    assert data.of(mine, mean=[1, 2], std=[2, 2]).batch([0])[0].tolist() == [[-0.5, -0.5]]


def test_arguments_replace_the_fields_of_data() -> None:
    """Tensors too, which have no truth value, and zeros."""
    mine = Data(VECTORS, LABELS, "mine", ["a", "b", "c"], mean=[1, 2], std=[2, 2])
    found = data.of(mine, mean=torch.zeros(2), std=torch.ones(2))
    assert torch.equal(found.batch(slice(None))[0], VECTORS)
    assert (found.name, found.classes, found.targets.tolist()) == ("mine", ("a", "b", "c"), LABELS.tolist())
    assert data.of(mine, mean=np.zeros(2), std=np.ones(2)).batch([1])[0].tolist() == [[2, 3]]
    found = data.of(mine, targets=torch.tensor([2, 2, 2, 1, 0, 0]), name="ours", classes=["x", "y", "z"])
    assert (found.name, found.classes, found.targets.tolist()) == ("ours", ("x", "y", "z"), [2, 2, 2, 1, 0, 0])
    assert data.of(mine, targets=[0] * 6).targets.tolist() == [0] * 6
    assert data.of(mine, ignore=0).ignore == 0


def test_the_ignored_label_is_kept_or_given() -> None:
    """Of Data, of torch's parts and sums of Data, and of any other dataset."""
    labels = torch.tensor([0, 255, 1, 1, 255, 0])
    mine = Data(VECTORS, labels, "mine", ["a", "b"], mean=[1, 2], std=[2, 2], ignore=255)
    for dataset, rows in {
        mine: [0, 1, 2, 3, 4, 5],
        Subset(mine, [4, 0]): [4, 0],
        Subset(Subset(mine, range(1, 5)), [3]): [4],
        ConcatDataset([mine, Subset(mine, [1])]): [0, 1, 2, 3, 4, 5, 1],
    }.items():
        found = data.of(dataset)
        assert (found.ignore, found.classes, found.targets.tolist()) == (255, ("a", "b"), labels[rows].tolist())
        assert torch.equal(found.raw(slice(None)), VECTORS[rows])
        assert torch.equal(found.batch(slice(None))[0], mine.batch(rows)[0])
    pairs = TensorDataset(VECTORS, labels)
    assert data.of(pairs, classes=["a", "b"], ignore=255).ignore == 255
    mixed = data.of(ConcatDataset([mine, pairs]))
    assert (len(mixed), mixed.ignore, mixed.classes) == (12, None, None)


class Stream(IterableDataset[Any]):
    """A dataset without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(VECTORS[0], 0)])


WRONG = {
    "a stream": (lambda: data.of(Stream()), r"data\.of\(list\(dataset\)\)"),
    "empty": (lambda: data.of([]), "empty list"),
    "no such key": (
        lambda: data.of(Columns([grey(1)], [0])),
        "'image', 'label' .* 0.*input=",
    ),
    "several inputs": (lambda: data.of([(VECTORS[0], VECTORS[1], 0)]), r"3 entries.*target=2"),
    "no target": (lambda: data.of([(VECTORS[0],)]), "a tuple .* 1"),
    "other sizes": (lambda: data.of([(VECTORS[0], 0), (VECTORS[0, :1], 1)]), r"input 1 .*\[1\].*\[2\]"),
    "text": (lambda: data.of([("a word", 0)]), "an input is a str"),
    "places in Data": (lambda: data.of(Data(VECTORS, LABELS), input=1, target=0), "input=1 .*target=0"),
    "a key in Data": (lambda: data.of(Data(VECTORS, LABELS), target="label"), "target='label'"),
    "Data in memory, lazily": (lambda: data.of(Data(VECTORS, LABELS), lazy=True), "lazy=True"),
    "other targets for Data": (lambda: data.of(Data(VECTORS, LABELS), targets=[1]), r"6 inputs.* targets .*\[1\]"),
    "sums that differ": (
        lambda: data.of(ConcatDataset([Data(VECTORS, LABELS, ignore=9), Data(VECTORS, LABELS)])),
        r"ignore \(9 and None\)",
    ),
    "label too large": (lambda: data.of(TensorDataset(VECTORS, LABELS), classes=["a", "b"]), "target 2 of example 2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_unfit_datasets_are_refused(case: str) -> None:
    call, noun = WRONG[case]
    with pytest.raises(mt.InputError, match=noun):
        call()
