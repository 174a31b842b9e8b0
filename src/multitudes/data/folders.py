"""Image folders: a folder for each class. ImageNet and its relatives, Textures, ObjectNet, and what users have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from multitudes.data.dataset import Data
from multitudes.data.imagenet import groups_of, imagenet_class, read_mapping, wordnet_ids
from multitudes.data.images import NORMAL_IMAGENET, image_files, listed
from multitudes.data.sources import VARIABLE, Root, Source, top_folder
from multitudes.errors import FileError, InputError

OBJECTNET = Source("objectnet", "https://objectnet.dev", "objectnet-1.0.zip", ("objectnet-1.0", "objectnet"))


def folder(
    root: str | os.PathLike[str],
    *,
    classes: str | Mapping[str, int] | None = None,
    size: int = 224,
    resize: int | None = None,
    border: int = 0,
    name: str | None = None,
) -> Data:
    """Images in a folder for each class, read when asked for; a path that is not there is looked for in MULTITUDES_DATA.

    classes  None: the folders' names in order, numbers by their size. "imagenet": names are WordNet ids or numbers of
             ImageNet's 1000 classes, as in ImageNet, -A, -O, -R, -V2 and -Sketch. A mapping from names to numbers: folders
             that it does not name are left out
    size     the square that is cut from the centre, after the shorter side was brought to `resize` (by default 8/7 of it)
    border   pixels around each image that are cut off before
    """
    place = existing(Path(root).expanduser())
    found = sorted(part for part in place.iterdir() if part.is_dir() and not part.name.startswith("."))
    if not found:
        raise FileError(f"{place} holds no folders: it needs one for each class, with its images inside")
    numbers, names = _numbered(place, [part.name for part in found], classes)
    images = {part: listed(part) for part in found if part.name in numbers}
    empty = [part.name for part, inside in images.items() if not inside]
    if empty:
        raise FileError(f"{place}: no images in {', '.join(empty[:6])}{' ...' if len(empty) > 6 else ''}")
    paths = [path for inside in images.values() for path in inside]
    labels = [numbers[part.name] for part, inside in images.items() for _ in inside]
    return Data(
        image_files(paths, size, resize, border), torch.tensor(labels), name or place.name, names, *NORMAL_IMAGENET
    )  # fmt: skip


def objectnet(root: Root = None, *, size: int = 224, resize: int | None = None) -> Data:
    """ObjectNet's objects that ImageNet has too, without their red border; `groups` says which of ImageNet's classes they are.

    >>> probs = grouped(pred.probs, data.groups)  # doctest: +SKIP
    """
    top = OBJECTNET.folder(root, [f"mappings/{name}" for name in MAPPINGS])
    objects = _objects(top / "mappings")
    named = {str(v): str(k) for k, v in read_mapping(top / "mappings" / MAPPINGS[0]).items()}
    unknown = [label for label in objects if label not in named]
    if unknown:
        raise FileError(f"{top / 'mappings' / MAPPINGS[0]} has no folder for {', '.join(unknown[:6])}")
    found = folder(
        top / "images", classes={named[label]: number for number, label in enumerate(objects)}, size=size, resize=resize,
        border=2, name="objectnet",
    )  # fmt: skip
    return Data(
        found.inputs, found.targets, "objectnet", tuple(objects), found.mean, found.std, groups=groups_of(objects)
    )  # fmt: skip


MAPPINGS = (
    "folder_to_objectnet_label.json", "objectnet_to_imagenet_1k.json", "pytorch_to_imagenet_2012_id.json",
    "imagenet_to_label_2012_v2",
)  # fmt: skip
"""What ObjectNet is published with: its folders' labels, and what ImageNet calls them."""


def _objects(mappings: Path) -> dict[str, list[int]]:
    """ObjectNet's labels, in order, with ImageNet's classes for each."""
    theirs = read_mapping(mappings / MAPPINGS[1])
    by_id = {int(v): int(k) for k, v in read_mapping(mappings / MAPPINGS[2]).items()}
    lines = (mappings / MAPPINGS[3]).read_text(encoding="utf-8").splitlines()
    try:
        return {
            label: [by_id[lines.index(one) + 1] for one in str(theirs[label]).split("; ")]
            for label in sorted(theirs)
        }  # fmt: skip
    except (ValueError, KeyError) as error:
        raise FileError(f"{mappings}: the files do not fit together: {error}") from error


def existing(path: Path) -> Path:
    """A folder, or the folder of that name in MULTITUDES_DATA."""
    if path.is_dir():
        return path
    looked = [path]
    if not path.is_absolute() and os.environ.get(VARIABLE):
        looked.append(top_folder("folder", None) / path)
        if looked[-1].is_dir():
            return looked[-1]
    raise FileError(f"there is no folder {' nor '.join(map(str, looked))}: relative paths are looked for in {VARIABLE} too")


def _numbered(place: Path, folders: list[str], classes: Any) -> tuple[dict[str, int], tuple[str, ...]]:
    """The class number of each folder, and the classes' names."""
    if classes is None:
        ordered = sorted(folders, key=int) if all(n.isdecimal() and n.isascii() for n in folders) else folders
        return {name: number for number, name in enumerate(ordered)}, tuple(ordered)
    if isinstance(classes, str):
        if classes != "imagenet":
            raise InputError(f"classes={classes!r}: say 'imagenet', or give a mapping from folders' names to numbers")
        return _as_imagenet(place, folders), wordnet_ids()
    missing = [name for name in classes if name not in folders]
    if missing or not classes:
        raise FileError(f"{place} has no folders {', '.join(missing[:6])}, which classes= names" if missing else "classes={}")
    names = {number: name for name, number in reversed(list(classes.items()))}
    return dict(classes), tuple(names.get(number, str(number)) for number in range(max(names) + 1))


def _as_imagenet(place: Path, folders: list[str]) -> dict[str, int]:
    numbers = {name: imagenet_class(name) for name in folders}
    unknown = [name for name, number in numbers.items() if number is None]
    if unknown:
        raise FileError(
            f"{place}: {', '.join(unknown[:6])} {'is' if len(unknown) == 1 else 'are'} no WordNet id or number of ImageNet's "
            "1000 classes: leave classes= out, or give a mapping from folders' names to numbers"
        )
    return {name: number for name, number in numbers.items() if number is not None}
