"""YTBB-Robust as its reviewers left it: which anchors are good, and which frames around them are alike.

An anchor counts if it was marked good and neither bad nor unsure, a frame if it was marked similar and nothing speaks against
it. A frame has its anchor's labels: that of the video, and those that reviewers added.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from multitudes.data.imagenet import read_mapping
from multitudes.data.sources import either
from multitudes.errors import FileError

ANNOTATIONS = "metadata/anchor_labels.json|anchor_labels.json"
AGAINST = {
    "dissimilar", "problematic", "incorrect", "dont know", "deformation", "background-change", "occlusion-increased",
    "blur-increase", "bad-anchor",
}  # fmt: skip
NEAR = 10
"""Frames up to so many places before or after the anchor count."""


class Around(NamedTuple):
    """An anchor, the frames around it, and the labels of all, the anchor first."""

    anchor: str
    frames: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]


def reviewed(place: Path) -> list[Around]:
    """The good anchors with the frames around them that are alike."""
    names = {name: number for number, name in enumerate(ytbb_classes(place))}
    first = _video_labels(_file(place, "ytbb_robustness_test_anchors_full.csv"))
    anchors = {_key(key): marks for key, marks in _marks(_file(place, "anchor_labels.json")).items()}
    pairs = {tuple(map(_key, key.split(","))): marks for key, marks in _marks(_file(place, "pmk_labels.json")).items()}
    bad = {pair[0] for pair, marks in pairs.items() if "bad-anchor" in marks}
    found = []
    for anchor, marks in sorted(anchors.items()):
        if "good" not in marks or marks & {"bad", "unsure"} or anchor in bad:
            continue
        alike = [b for (a, b), m in pairs.items() if a == anchor and "similar" in m and not m & AGAINST and _near(a, b)]
        video = anchor.split("/")[0]
        if video not in first:
            raise FileError(f"{place}: the anchor {anchor} is in no row of ytbb_robustness_test_anchors_full.csv")
        labels = (first[video], *sorted({names[mark] for mark in marks if mark in names} - {first[video]}))
        frames = tuple(f"ytbb_videos/{name}" for name in sorted(alike, key=_number))
        found.append(Around(f"ytbb_videos/{anchor}", frames, (labels,) * (1 + len(frames))))
    return found


def ytbb_classes(place: Path) -> dict[str, list[int]]:
    """The classes, in order, with ImageNet's classes for each."""
    index = read_mapping(_file(place, "ytbb_class_index.json"))
    groups = read_mapping(_file(place, "rev_class_idx_map.json"))
    try:
        return {str(index[str(k)]): [int(x) for x in groups.get(str(k), [])] for k in range(len(index))}
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{place}: ytbb_class_index.json and rev_class_idx_map.json do not fit together: {error}") from error


def _file(place: Path, name: str) -> Path:
    found = either(place, f"metadata/{name}|{name}")
    if found is None:
        raise FileError(f"{place} and its metadata folder hold no {name}")
    return found


def _marks(path: Path) -> dict[str, set[str]]:
    """What reviewers marked each key with; the last review of a key counts."""
    found: Mapping[str, Any] = read_mapping(path)
    try:
        return {str(row["key"]): {str(found["labels"][k]) for k in row["labels"]} for row in found["annotations"]}
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(f"{path} holds no reviews (labels, annotations): {error}") from error


def _video_labels(path: Path) -> dict[str, int]:
    """The label of each video; 22 and 23 stand the other way round in the class index."""
    swapped = {22: 23, 23: 22}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(f"{row['ytid']}_{row['time_ms']}", int(row["label"])) for row in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} lacks a column or a number: {error}") from error
    return {key: swapped.get(label, label) for key, label in rows}


def _key(path: str) -> str:
    """The folder and the name of a frame, VIDEO_MILLISECONDS/frame-NUMBER.jpg."""
    return "/".join(path.strip().split("/")[-2:])


def _number(key: str) -> int:
    try:
        return int(key.rsplit("frame-", 1)[1].split(".")[0])
    except (IndexError, ValueError) as error:
        raise FileError(f"a frame is called {key!r}, not VIDEO/frame-NUMBER.jpg") from error


def _near(anchor: str, frame: str) -> bool:
    return 0 < abs(_number(anchor) - _number(frame)) <= NEAR
