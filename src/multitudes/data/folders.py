"""Image folders with a subfolder per class: ImageNet and its variants, Textures, your own images; and ObjectNet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from multitudes.data.dataset import Data
from multitudes.data.imagenet import class_groups, imagenet_class, read_mapping, wordnet_ids
from multitudes.data.images import NORMAL_IMAGENET, image_files, list_images
from multitudes.data.random_crop import RandomCrop
from multitudes.data.sources import VARIABLE, Root, Source, top_folder
from multitudes.errors import FileError, InputError

OBJECTNET = Source("objectnet", "https://objectnet.dev", "objectnet-1.0.zip", ("objectnet-1.0", "objectnet"))
FOLDER_LABELS, IMAGENET_NAMES, CLASS_IDS, ID_NAMES = MAPPINGS = (
    "folder_to_objectnet_label.json",
    "objectnet_to_imagenet_1k.json",
    "pytorch_to_imagenet_2012_id.json",
    "imagenet_to_label_2012_v2",
)
"""ObjectNet's files in mappings/: the label of each folder, ImageNet names of each label, id of each class, name of each id."""


def folder(
    root: str | os.PathLike[str],
    *,
    classes: str | Mapping[str, int] | None = None,
    size: int = 224,
    resize: int | None = None,
    border: int = 0,
    crop: RandomCrop | None = None,
    name: str | None = None,
) -> Data:
    """Images in one subfolder per class, read on access and normalised like ImageNet. Needs Pillow.

    root     path of the folder; a relative path that does not exist is looked for in MULTITUDES_DATA
    classes  None: classes are the subfolders, sorted by name (by value if all are numbers). "imagenet": subfolders are WordNet
             ids or class numbers of ImageNet's 1000 classes, as in ImageNet, -A, -O, -R, -V2 and -Sketch. A mapping from
             subfolder to class index: other subfolders are left out
    size     side of the centre crop, after the shorter side is resized to `resize` (by default 8/7 of `size`)
    border   pixels removed on every side before resizing
    crop     for training: RandomCrop() cuts a random part out of each image, another one in every epoch, and resizes it to
             `size`. In `fit` it follows from the recipe's seed, the epoch and the image, so that runs can be resumed

    >>> ood = folder("textures")  # doctest: +SKIP
    """
    place = find_folder(Path(root).expanduser())
    subfolders = sorted(part for part in place.iterdir() if part.is_dir() and not part.name.startswith("."))
    if not subfolders:
        raise FileError(f"{place} has no subfolders: put the images of each class into a subfolder")
    index, names = _class_index(place, [part.name for part in subfolders], classes)
    images = {part.name: list_images(part) for part in subfolders if part.name in index}
    empty = [name for name, paths in images.items() if not paths]
    if empty:
        raise FileError(f"{place} has no images in the subfolders {_some(empty)}: add images, or remove these subfolders")
    return Data(
        image_files([path for paths in images.values() for path in paths], size, resize, border, crop),
        torch.tensor([index[name] for name, paths in images.items() for _ in paths]),
        name or place.name,
        names,
        *NORMAL_IMAGENET,
    )


def objectnet(root: Root = None, *, size: int = 224, resize: int | None = None) -> Data:
    """ObjectNet: photographs of the objects that ImageNet has too, in unusual places and poses. Needs Pillow.

    Reads images/ and mappings/ from the folder objectnet-1.0 or objectnet in `root` or MULTITUDES_DATA. The red border of the
    images is removed; `size`, `resize` and the normalisation are those of `folder`. The field `groups` maps ImageNet's classes
    to ObjectNet's:

    >>> probs = grouped(mt.predict(ens, objectnet()).probs, objectnet().groups)  # doctest: +SKIP
    """
    top = OBJECTNET.folder(root, [f"mappings/{name}" for name in MAPPINGS])
    objects = _imagenet_classes(top / "mappings")
    subfolders = {str(label): str(name) for name, label in read_mapping(top / "mappings" / FOLDER_LABELS).items()}
    missing = [label for label in objects if label not in subfolders]
    if missing:
        raise FileError(f"{top / 'mappings' / FOLDER_LABELS} has no folder for {_some(missing)}: unpack ObjectNet again")
    data = folder(
        top / "images",
        classes={subfolders[label]: index for index, label in enumerate(objects)},
        size=size,
        resize=resize,
        border=2,
        name="objectnet",
    )
    return replace(data, classes=tuple(objects), groups=class_groups(objects))


def _imagenet_classes(mappings: Path) -> dict[str, list[int]]:
    """Maps each ObjectNet label, in sorted order, to its ImageNet classes."""
    names = read_mapping(mappings / IMAGENET_NAMES)
    class_of_id = {int(number): int(index) for index, number in read_mapping(mappings / CLASS_IDS).items()}
    lines = (mappings / ID_NAMES).read_text(encoding="utf-8").splitlines()
    try:
        return {
            label: [class_of_id[lines.index(name) + 1] for name in str(names[label]).split("; ")] for label in sorted(names)
        }
    except (ValueError, KeyError) as error:
        raise FileError(f"the files in {mappings} contradict each other: {error}. Unpack ObjectNet again") from error


def find_folder(path: Path) -> Path:
    """Returns the folder, or the folder of that name in MULTITUDES_DATA."""
    paths = [path]
    if not path.is_absolute() and os.environ.get(VARIABLE):
        paths.append(top_folder("folder", None) / path)
    for candidate in paths:
        if candidate.is_dir():
            return candidate
    raise FileError(f"there is no folder {' or '.join(map(str, paths))}: give its path, absolute or relative to {VARIABLE}")


def _class_index(place: Path, folders: list[str], classes: Any) -> tuple[dict[str, int], tuple[str, ...]]:
    """Class index of each subfolder, and the class names."""
    if classes is None:
        ordered = sorted(folders, key=int) if all(n.isdecimal() and n.isascii() for n in folders) else folders
        return {name: index for index, name in enumerate(ordered)}, tuple(ordered)
    if isinstance(classes, str):
        if classes != "imagenet":
            raise InputError(f"classes={classes!r}: give 'imagenet', or a mapping from subfolder to class index")
        return _imagenet_index(place, folders), wordnet_ids()
    missing = [name for name in classes if name not in folders]
    if missing or not classes:
        raise FileError(
            f"{place} has no subfolders {_some(missing)}: remove them from classes="
            if missing
            else "classes= is empty: name at least one subfolder"
        )
    names = {index: name for name, index in reversed(list(classes.items()))}
    return dict(classes), tuple(names.get(index, str(index)) for index in range(max(names) + 1))


def _imagenet_index(place: Path, folders: list[str]) -> dict[str, int]:
    index = {name: imagenet_class(name) for name in folders}
    unknown = [name for name, number in index.items() if number is None]
    if unknown:
        raise FileError(
            f"the subfolders {_some(unknown)} of {place} are not named by a WordNet id or number of an ImageNet class. "
            "Leave classes= out, or give a mapping from subfolder to class index"
        )
    return {name: number for name, number in index.items() if number is not None}


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")
