"""Image folders: the class of each, ImageNet's classes by id or number, and what is wrong with a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from data.pictures import picture
from PIL import Image

import multitudes as mt
from multitudes import data
from multitudes.data.folders import MAPPINGS

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def test_classes_are_the_folders_in_order(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "b.png", GREEN)
    picture(tmp_path / "cat" / "a.png", RED)
    picture(tmp_path / "ant" / "deep" / "c.png", BLUE)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "readme.txt").write_text("")
    found = data.folder(tmp_path, size=8)
    assert (found.classes, found.targets.tolist(), found.name) == (("ant", "cat"), [0, 1, 1], tmp_path.name)
    assert found.raw(slice(None)).mean((2, 3)).tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert found.mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert found.std.tolist() == pytest.approx([0.229, 0.224, 0.225])
    assert found.subset([2]).raw([0])[0, :, 0, 0].tolist() == [0, 1, 0]
    assert found.in_memory().inputs.dtype == torch.uint8  # type: ignore[union-attr]


def test_numbers_are_in_order_of_size(tmp_path: Path) -> None:
    for name in ("10", "2", "0"):
        picture(tmp_path / name / "a.png")
    found = data.folder(tmp_path, size=8)
    assert found.classes == ("0", "2", "10")
    assert sorted(found.targets.tolist()) == [0, 1, 2]
    by_number = data.folder(tmp_path, classes="imagenet", size=8)
    assert sorted(by_number.targets.tolist()) == [0, 2, 10]
    assert len(by_number.classes or ()) == 1000


def test_a_part_of_imagenets_folders_keeps_imagenets_numbers(tmp_path: Path) -> None:
    for name in ("n15075141", "n01498041"):
        picture(tmp_path / name / "a.JPEG", GREEN)
    found = data.folder(tmp_path, classes="imagenet")
    assert (found.targets.tolist(), found.shape) == ([6, 999], (3, 224, 224))
    picture(tmp_path / "sofa" / "a.png")
    with pytest.raises(mt.FileError, match="sofa is no WordNet id or number of ImageNet's 1000 classes"):
        data.folder(tmp_path, classes="imagenet")


def test_a_mapping_says_which_folders_and_what_they_are(tmp_path: Path) -> None:
    for name in ("sofa", "chair", "lamp"):
        picture(tmp_path / name / "a.png")
    found = data.folder(tmp_path, classes={"sofa": 2, "chair": 0}, size=8)
    assert (found.targets.tolist(), found.classes) == ([0, 2], ("chair", "1", "sofa"))
    with pytest.raises(mt.FileError, match="no folders bed, which classes= names"):
        data.folder(tmp_path, classes={"bed": 0})
    with pytest.raises(mt.InputError, match="classes='names'"):
        data.folder(tmp_path, classes="names")


def test_wrong_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTITUDES_DATA", raising=False)
    with pytest.raises(mt.FileError, match=r"there is no folder .*nowhere"):
        data.folder(tmp_path / "nowhere")
    with pytest.raises(mt.FileError, match="holds no folders"):
        data.folder(tmp_path)
    picture(tmp_path / "full" / "a.png")
    (tmp_path / "bare").mkdir()
    with pytest.raises(mt.FileError, match="no images in bare"):
        data.folder(tmp_path)


def test_the_environment_names_the_folder_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "textures" / "dotted" / "a.png")
    monkeypatch.setenv("MULTITUDES_DATA", str(tmp_path))
    assert data.folder("textures", size=8).classes == ("dotted",)


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """Three objects, of which ImageNet has two; images with a red border. ImageNet's ids there start at 1 in another order."""
    for name in ("air_freshener", "chair", "mug"):
        path = picture(tmp_path / "objectnet-1.0" / "images" / name / "a.png", RED, (36, 36))
        framed = Image.open(path)
        framed.paste(Image.new("RGB", (32, 32), BLUE), (2, 2))
        framed.save(path)
    mappings = tmp_path / "objectnet-1.0" / "mappings"
    mappings.mkdir()
    contents = [
        {"air_freshener": "Air freshener", "chair": "Chair", "mug": "Mug"},
        {"Mug": "coffee mug", "Chair": "barber chair; rocking chair"},
        {"423": 2, "765": 1, "504": 3},
    ]
    for name, content in zip(MAPPINGS, contents, strict=False):
        (mappings / name).write_text(json.dumps(content))
    (mappings / MAPPINGS[3]).write_text("rocking chair\nbarber chair\ncoffee mug\n")
    return tmp_path


def test_objectnet_is_what_imagenet_has_too(objects: Path) -> None:
    found = data.objectnet(objects, size=16, resize=32)
    assert (found.classes, found.targets.tolist()) == (("Chair", "Mug"), [0, 1])
    assert found.groups is not None
    assert {k: int(found.groups[k]) for k in (423, 765, 504, 0)} == {423: 0, 765: 0, 504: 1, 0: -1}
    assert found.subset([1]).groups is found.groups
    assert data.objectnet(objects, size=32, resize=32).raw([0])[0, 0].max() == 0  # no red is left


def test_objectnets_files_must_fit_together(objects: Path) -> None:
    mappings = objects / "objectnet-1.0" / "mappings"
    (mappings / MAPPINGS[3]).write_text("rocking chair\n")
    with pytest.raises(mt.FileError, match="do not fit together"):
        data.objectnet(objects)
    (mappings / MAPPINGS[0]).write_text('{"a": "b"}')
    (mappings / MAPPINGS[3]).write_text("rocking chair\nbarber chair\ncoffee mug\n")
    with pytest.raises(mt.FileError, match="no folder for Chair, Mug"):
        data.objectnet(objects)
    (mappings / MAPPINGS[3]).unlink()
    with pytest.raises(mt.FileError, match=r"lacks mappings/imagenet_to_label_2012_v2.*objectnet\.dev"):
        data.objectnet(objects)
