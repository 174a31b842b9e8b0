"""Frames of videos around anchor frames: ImageNet-Vid-Robust and YTBB-Robust.

Shankar et al., "Do image classifiers generalize across time?", https://arxiv.org/abs/1906.02168
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.imagenet import groups_of, imagenet_class, read_mapping
from multitudes.data.images import NORMAL_IMAGENET, image_files
from multitudes.data.sources import Root, either, top_folder
from multitudes.data.ytbb import ANNOTATIONS, Around, reviewed, ytbb_classes
from multitudes.errors import FileError, InputError

PAGE = "https://modestyachts.github.io/natural-perturbations-website/"
PMSETS = "metadata/pmsets.json"


class Frames(NamedTuple):
    """Frames, and the anchor that each lies around."""

    data: Data
    """The frames; an anchor comes before the frames around it. A target is the first of a frame's labels."""

    anchors: Tensor
    """The row of each frame's anchor, ``[N]``; an anchor's is its own."""

    labels: tuple[tuple[int, ...], ...]
    """All labels of each frame."""

    def correct(self, answers: Tensor) -> Tensor:
        """Whether each answer ``[N]`` is one of the frame's labels, as the publishers count; for `scores.shift.stability`."""
        if answers.shape != self.anchors.shape:
            raise InputError(f"answers are {list(answers.shape)} for {len(self.anchors)} frames")
        return torch.tensor([int(a) in known for a, known in zip(answers.tolist(), self.labels, strict=True)])


def frames(root: Root = None, *, size: int = 224, resize: int | None = None) -> Frames:
    """The frames of ImageNet-Vid-Robust (metadata/pmsets.json) or YTBB-Robust (anchor_labels.json), read when asked for.

    Networks for ImageNet answer by `grouped(pred.probs, frames.data.groups, by="max")`.
    """
    top = top_folder("frames", root)
    places = [top / name for name in ("imagenet-vid-robust", "ytbb-robust")] if root is None else [top]
    found = [place for place in places if (place / PMSETS).is_file() or either(place, ANNOTATIONS)]
    if not found:
        raise FileError(
            f"frames: looked in {' and '.join(map(str, places))} for {PMSETS} (ImageNet-Vid-Robust) or "
            f"{ANNOTATIONS.split('|')[0]} (YTBB-Robust). Get one of them from {PAGE}"
        )
    place = found[0]
    vid = (place / PMSETS).is_file()
    sets = _pmsets(place) if vid else reviewed(place)
    classes = _vid_classes(place) if vid else ytbb_classes(place)
    return _frames(place, sets, classes, size, resize)


def _frames(place: Path, sets: Iterable[Around], classes: dict[str, list[int]], size: int, resize: int | None) -> Frames:
    paths: list[Path] = []
    anchors: list[int] = []
    labels: list[tuple[int, ...]] = []
    for around in sets:
        first = len(paths)
        for name, known in zip((around.anchor, *around.frames), around.labels, strict=True):
            if not known or max(known) >= len(classes) or min(known) < 0:
                raise FileError(f"{place}: {name} has labels {list(known)}: there are 0 to {len(classes) - 1}")
            paths.append(place / name)
            anchors.append(first)
            labels.append(known)
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise FileError(f"{len(missing)} of {len(paths)} frames are not there, first {missing[0]}. Get them from {PAGE}")
    if not paths:
        raise FileError(f"{place} names no frames")
    data = Data(
        image_files(paths, size, resize), torch.tensor([known[0] for known in labels]), place.name, tuple(classes),
        *NORMAL_IMAGENET, groups=groups_of(classes),
    )  # fmt: skip
    return Frames(data, torch.tensor(anchors), tuple(labels))


def _pmsets(place: Path) -> list[Around]:
    """ImageNet-Vid-Robust: the frames around each anchor, each with labels of its own."""
    labels = read_mapping(place / "metadata" / "labels.json")
    sets = read_mapping(place / PMSETS)
    unlabelled = [name for anchor, others in sets.items() for name in (anchor, *others) if name not in labels]
    if unlabelled:
        raise FileError(f"{place / 'metadata' / 'labels.json'} has no labels for {unlabelled[0]}")
    return [
        Around(anchor, tuple(others), tuple(tuple(int(x) for x in labels[name]) for name in (anchor, *others)))
        for anchor, others in sets.items()
    ]


def _vid_classes(place: Path) -> dict[str, list[int]]:
    """The thirty classes, in order, with ImageNet's classes for each."""
    index = read_mapping(place / "misc" / "imagenet_vid_class_index.json")
    theirs = read_mapping(place / "misc" / "wnid_map.json")
    try:
        numbers = {index[key][0]: int(key) for key in index}
        classes: dict[str, list[int]] = {str(index[str(k)][1]): [] for k in range(len(index))}
        for wordnet_id, group in theirs.items():
            number = imagenet_class(wordnet_id)
            if number is not None:
                classes[list(classes)[numbers[group]]].append(number)
    except (KeyError, IndexError, TypeError) as error:
        raise FileError(f"{place / 'misc'}: the files do not fit together: {error}") from error
    return classes
