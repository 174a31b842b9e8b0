"""Image folders: the class of each subfolder, ImageNet's classes by id or number, and ObjectNet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data import small_sets as small
from data.small_sets import BLUE, GREEN, RED, picture

from multitudes import data


def test_classes_are_the_folders_in_order(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "b.png", GREEN)
    picture(tmp_path / "cat" / "a.png", RED)
    picture(tmp_path / "ant" / "deep" / "c.png", BLUE)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "readme.txt").write_text("")
    animals = data.folder(tmp_path, size=8)
    assert (animals.classes, animals.targets.tolist(), animals.name) == (("ant", "cat"), [0, 1, 1], tmp_path.name)
    assert animals.raw(slice(None)).mean((2, 3)).tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert animals.mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert animals.std.tolist() == pytest.approx([0.229, 0.224, 0.225])
    assert animals.subset([2]).raw([0])[0, :, 0, 0].tolist() == [0, 1, 0]
    assert animals.in_memory().inputs.dtype == torch.uint8  # type: ignore[union-attr]


def test_numbers_are_in_order_of_size(tmp_path: Path) -> None:
    for name in ("10", "2", "0"):
        picture(tmp_path / name / "a.png")
    numbers = data.folder(tmp_path, size=8)
    assert numbers.classes == ("0", "2", "10")
    assert sorted(numbers.targets.tolist()) == [0, 1, 2]
    by_number = data.folder(tmp_path, classes="imagenet", size=8)
    assert sorted(by_number.targets.tolist()) == [0, 2, 10]
    assert len(by_number.classes or ()) == 1000


def test_a_part_of_imagenets_folders_keeps_imagenets_numbers(tmp_path: Path) -> None:
    for name in ("n15075141", "n01498041"):
        picture(tmp_path / name / "a.JPEG", GREEN)
    part = data.folder(tmp_path, classes="imagenet")
    assert (part.targets.tolist(), part.shape) == ([6, 999], (3, 224, 224))


def test_a_mapping_says_which_folders_and_what_they_are(tmp_path: Path) -> None:
    for name in ("sofa", "chair", "lamp"):
        picture(tmp_path / name / "a.png")
    furniture = data.folder(tmp_path, classes={"sofa": 2, "chair": 0}, size=8)
    assert (furniture.targets.tolist(), furniture.classes) == ([0, 2], ("chair", "1", "sofa"))


def test_the_environment_names_the_folder_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "textures" / "dotted" / "a.png")
    monkeypatch.setenv("MULTITUDES_DATA", str(tmp_path))
    assert data.folder("textures", size=8).classes == ("dotted",)


def test_objectnet_has_the_objects_of_imagenet(tmp_path: Path) -> None:
    root = small.objectnet(tmp_path)
    objects = data.objectnet(root, size=16, resize=32)
    assert (objects.name, objects.classes, objects.targets.tolist()) == ("objectnet", ("Chair", "Mug"), [0, 1])
    assert objects.groups is not None
    assert {k: int(objects.groups[k]) for k in (423, 765, 504, 0)} == {423: 0, 765: 0, 504: 1, 0: -1}
    assert objects.subset([1]).groups is objects.groups
    assert data.objectnet(root, size=32, resize=32).raw([0])[0, 0].max() == 0  # no red is left
