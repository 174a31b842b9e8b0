"""YTBB-Robust's reviews: good anchor frames, and the similar frames around them.

An anchor is used if reviewers marked it good and neither bad nor unsure. A frame is used if it is marked similar and has no
mark in AGAINST. A frame has the labels of its anchor: the label of the video, and the labels that reviewers added.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from multitudes.data.imagenet import read_mapping
from multitudes.data.sources import find_file
from multitudes.errors import FileError

ANNOTATIONS = "metadata/anchor_labels.json|anchor_labels.json"
AGAINST = {
    "dissimilar", "problematic", "incorrect", "dont know", "deformation", "background-change", "occlusion-increased",
    "blur-increase", "bad-anchor",
}  # fmt: skip
NEAR = 10
"""Largest distance of a frame from its anchor, in frames."""


class AnchorSet(NamedTuple):
    """An anchor frame and the frames around it, with the labels of each frame. `labels` begins with those of the anchor."""

    anchor: str
    frames: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]


def read_anchor_sets(place: Path) -> list[AnchorSet]:
    """Reads the anchors that reviewers marked as good, each with the similar frames around it."""
    names = {name: number for number, name in enumerate(ytbb_classes(place))}
    video_labels = _video_labels(_file(place, "ytbb_robustness_test_anchors_full.csv"))
    anchors = {_key(key): marks for key, marks in _marks(_file(place, "anchor_labels.json")).items()}
    pairs = {tuple(map(_key, key.split(","))): marks for key, marks in _marks(_file(place, "pmk_labels.json")).items()}
    bad = {pair[0] for pair, marks in pairs.items() if "bad-anchor" in marks}
    sets = []
    for anchor, marks in sorted(anchors.items()):
        if "good" not in marks or marks & {"bad", "unsure"} or anchor in bad:
            continue
        similar = [b for (a, b), m in pairs.items() if a == anchor and "similar" in m and not m & AGAINST and _near(a, b)]
        video = anchor.split("/")[0]
        if video not in video_labels:
            raise FileError(
                f"{place}: the anchor {anchor} is in no row of ytbb_robustness_test_anchors_full.csv: get both files again"
            )
        label = video_labels[video]
        labels = (label, *sorted({names[mark] for mark in marks if mark in names} - {label}))
        frames = tuple(f"ytbb_videos/{name}" for name in sorted(similar, key=_frame_number))
        sets.append(AnchorSet(f"ytbb_videos/{anchor}", frames, (labels,) * (1 + len(frames))))
    return sets


def ytbb_classes(place: Path) -> dict[str, list[int]]:
    """Maps each YTBB class, in order, to its ImageNet classes."""
    index = read_mapping(_file(place, "ytbb_class_index.json"))
    groups = read_mapping(_file(place, "rev_class_idx_map.json"))
    try:
        return {str(index[str(k)]): [int(x) for x in groups.get(str(k), [])] for k in range(len(index))}
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{place}: ytbb_class_index.json and rev_class_idx_map.json contradict each other: {error}. Get both again"
        ) from error


def _file(place: Path, name: str) -> Path:
    path = find_file(place, f"metadata/{name}|{name}")
    if path is None:
        raise FileError(f"{place} and its metadata folder have no {name}: download it there")
    return path


def _marks(path: Path) -> dict[str, set[str]]:
    """Reads the reviewers' marks, by the key of the reviewed frame or pair of frames. The last review of a key counts."""
    reviews: Mapping[str, Any] = read_mapping(path)
    try:
        return {str(row["key"]): {str(reviews["labels"][k]) for k in row["labels"]} for row in reviews["annotations"]}
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(f"{path} lacks labels or annotations: {error}. Download it again") from error


def _video_labels(path: Path) -> dict[str, int]:
    """Reads the label of each video. Labels 22 and 23 are swapped, as the class index has them."""
    swapped = {22: 23, 23: 22}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(f"{row['ytid']}_{row['time_ms']}", int(row["label"])) for row in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} lacks a column or a number: {error}. Download it again") from error
    return {key: swapped.get(label, label) for key, label in rows}


def _key(path: str) -> str:
    """Folder and file name of a frame, VIDEO_MILLISECONDS/frame-NUMBER.jpg."""
    return "/".join(path.strip().split("/")[-2:])


def _frame_number(key: str) -> int:
    try:
        return int(key.rsplit("frame-", 1)[1].split(".")[0])
    except (IndexError, ValueError) as error:
        raise FileError(f"the frame {key!r} must be named VIDEO/frame-NUMBER.jpg: download the metadata again") from error


def _near(anchor: str, frame: str) -> bool:
    return 0 < abs(_frame_number(anchor) - _frame_number(frame)) <= NEAR
