"""Video frames around anchor frames: ImageNet-Vid-Robust and YTBB-Robust.

Shankar et al., "Do image classifiers generalize across time?", https://arxiv.org/abs/1906.02168
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.imagenet import class_groups, imagenet_class, read_mapping
from multitudes.data.images import NORMAL_IMAGENET, image_files
from multitudes.data.sources import Root, find_file, top_folder
from multitudes.data.ytbb import ANNOTATIONS, AnchorSet, read_anchor_sets, ytbb_classes
from multitudes.errors import FileError, InputError

PAGE = "https://modestyachts.github.io/natural-perturbations-website/"
PMSETS = "metadata/pmsets.json"


class Frames(NamedTuple):
    """Video frames, each with its anchor frame and all its labels."""

    data: Data
    """The frames as a dataset; each anchor comes before the frames around it. Targets are the first label of each frame."""

    anchors: Tensor
    """Row of each frame's anchor, ``[N]``. For an anchor this is its own row."""

    labels: tuple[tuple[int, ...], ...]
    """All correct labels of each frame."""

    def correct(self, answers: Tensor) -> Tensor:
        """Checks each predicted class ``[N]`` against all labels of its frame, as the publishers do.

        `scores.shift.stability` takes the result together with `anchors`.
        """
        if answers.shape != self.anchors.shape:
            raise InputError(
                f"answers= has shape {list(answers.shape)}: give one class for each of the {len(self.anchors)} frames"
            )
        return torch.tensor([int(a) in labels for a, labels in zip(answers.tolist(), self.labels, strict=True)])


def frames(root: Root = None, *, size: int = 224, resize: int | None = None) -> Frames:
    """ImageNet-Vid-Robust or YTBB-Robust: video frames around anchor frames, to test stability over time. Needs Pillow.

    Reads the folder `root`, which is the dataset's own, or the folder imagenet-vid-robust or ytbb-robust in MULTITUDES_DATA. A
    folder with metadata/pmsets.json is ImageNet-Vid-Robust, one with anchor_labels.json is YTBB-Robust. Frames are read on
    access; `size`, `resize` and the normalisation are those of `folder`. `data.groups` maps ImageNet's
    classes to the classes of the videos:

    >>> videos = frames("imagenet-vid-robust")  # doctest: +SKIP
    >>> probs = grouped(mt.predict(ens, videos.data).probs, videos.data.groups, by="max")  # doctest: +SKIP
    >>> videos.correct(probs.argmax(-1)).float().mean()  # doctest: +SKIP
    """
    top = top_folder("frames", root)
    places = [top / name for name in ("imagenet-vid-robust", "ytbb-robust")] if root is None else [top]
    for place in places:
        if (place / PMSETS).is_file():
            return _frames(place, _vid_anchor_sets(place), _vid_classes(place), size, resize)
        if find_file(place, ANNOTATIONS):
            return _frames(place, read_anchor_sets(place), ytbb_classes(place), size, resize)
    raise FileError(
        f"frames: looked in {' and '.join(map(str, places))} for {PMSETS} (ImageNet-Vid-Robust) or "
        f"{ANNOTATIONS.split('|')[0]} (YTBB-Robust). Get one of them from {PAGE}"
    )


def _frames(place: Path, sets: Iterable[AnchorSet], classes: dict[str, list[int]], size: int, resize: int | None) -> Frames:
    paths: list[Path] = []
    anchors: list[int] = []
    labels: list[tuple[int, ...]] = []
    for anchor_set in sets:
        first = len(paths)
        for name, known in zip((anchor_set.anchor, *anchor_set.frames), anchor_set.labels, strict=True):
            if not known or max(known) >= len(classes) or min(known) < 0:
                raise FileError(
                    f"{place}: {name} has labels {list(known)}, not 0 to {len(classes) - 1}. Get the metadata again from {PAGE}"
                )
            paths.append(place / name)
            anchors.append(first)
            labels.append(known)
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise FileError(f"{len(missing)} of {len(paths)} frames are missing, first {missing[0]}. Get them from {PAGE}")
    if not paths:
        raise FileError(f"the metadata in {place} lists no frames: get it again from {PAGE}")
    data = Data(
        image_files(paths, size, resize),
        torch.tensor([known[0] for known in labels]),
        place.name,
        tuple(classes),
        *NORMAL_IMAGENET,
        groups=class_groups(classes),
    )
    return Frames(data, torch.tensor(anchors), tuple(labels))


def _vid_anchor_sets(place: Path) -> list[AnchorSet]:
    """Anchors of ImageNet-Vid-Robust with the frames around them; every frame has its own labels."""
    labels = read_mapping(place / "metadata" / "labels.json")
    sets = read_mapping(place / PMSETS)
    unlabelled = [name for anchor, others in sets.items() for name in (anchor, *others) if name not in labels]
    if unlabelled:
        raise FileError(
            f"{place / 'metadata' / 'labels.json'} has no labels for {unlabelled[0]}, which metadata/pmsets.json lists: "
            f"the files do not belong together. Get them again from {PAGE}"
        )
    return [
        AnchorSet(anchor, tuple(others), tuple(tuple(int(x) for x in labels[name]) for name in (anchor, *others)))
        for anchor, others in sets.items()
    ]


def _vid_classes(place: Path) -> dict[str, list[int]]:
    """Maps each of the thirty video classes, in order, to its ImageNet classes."""
    index = read_mapping(place / "misc" / "imagenet_vid_class_index.json")
    groups = read_mapping(place / "misc" / "wnid_map.json")
    try:
        numbers = {index[key][0]: int(key) for key in index}
        classes: dict[str, list[int]] = {str(index[str(k)][1]): [] for k in range(len(index))}
        for wordnet_id, group in groups.items():
            number = imagenet_class(wordnet_id)
            if number is not None:
                classes[list(classes)[numbers[group]]].append(number)
    except (KeyError, IndexError, TypeError) as error:
        raise FileError(f"the files in {place / 'misc'} contradict each other: {error}. Get them again from {PAGE}") from error
    return classes
