"""Frames around anchors: rows, anchors and labels as ImageNet-Vid-Robust's files say them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from data.pictures import picture

import multitudes as mt
from multitudes import data
from multitudes.data.imagenet import wordnet_ids
from multitudes.scores.shift import stability

NAMES = [f"val/video{v}/{f:06d}.png" for v in (0, 1) for f in range(3)]
FILES: dict[str, Any] = {
    "metadata/pmsets.json": {NAMES[1]: [NAMES[0], NAMES[2]], NAMES[4]: [NAMES[5]]},
    "metadata/labels.json": {**{name: [1] for name in NAMES[:3]}, **{name: [2, 0] for name in NAMES[3:]}},
    "misc/imagenet_vid_class_index.json": {"0": ["nA", "bear"], "1": ["nB", "cat"], "2": ["nC", "dog"]},
    "misc/wnid_map.json": {wordnet_ids()[7]: "nC", wordnet_ids()[8]: "nC", wordnet_ids()[9]: "nA"},
}


@pytest.fixture
def vid(tmp_path: Path) -> Path:
    """Two anchors: the middle one of three frames, and one with a single frame after it."""
    for number, name in enumerate(NAMES):
        picture(tmp_path / name, (10 * number, 0, 0))
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changed: Any) -> None:
    """The publisher's JSON files, some of them otherwise."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(changed.get(Path(name).stem, content)))


def test_an_anchor_comes_before_the_frames_around_it(vid: Path) -> None:
    found = data.frames(vid, size=8)
    assert found.anchors.tolist() == [0, 0, 0, 3, 3]
    assert found.data.targets.tolist() == [1, 1, 1, 2, 2]
    assert found.labels == ((1,), (1,), (1,), (2, 0), (2, 0))
    assert (found.data.raw(slice(None))[:, 0, 0, 0] * 25.5).round().tolist() == [1, 0, 2, 4, 5]
    assert found.data.classes == ("bear", "cat", "dog")


def test_imagenets_classes_are_grouped(vid: Path) -> None:
    groups = data.frames(vid).data.groups
    assert groups is not None
    assert groups[6:11].tolist() == [-1, 2, 2, 0, -1]


def test_any_label_of_a_frame_is_right_and_all_frames_must_be(vid: Path) -> None:
    found = data.frames(vid)
    correct = found.correct(torch.tensor([1, 1, 0, 2, 0]))
    assert correct.tolist() == [True, True, False, True, True]
    assert stability(correct, found.anchors) == 0.5
    with pytest.raises(mt.InputError, match="for 5 frames"):
        found.correct(torch.zeros(4))


def test_the_environment_names_the_folder_around(vid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vid.rename(vid.parent / "imagenet-vid-robust")
    monkeypatch.setenv("MULTITUDES_DATA", str(vid.parent))
    assert len(data.frames().data) == 5


def test_missing_frames_and_files_are_named(vid: Path, tmp_path: Path) -> None:
    (vid / NAMES[2]).unlink()
    with pytest.raises(mt.FileError, match=rf"1 of 5 frames are not there, first .*{NAMES[2]}"):
        data.frames(vid)
    (vid / "metadata" / "pmsets.json").unlink()
    with pytest.raises(
        mt.FileError, match=r"pmsets\.json \(ImageNet-Vid-Robust\) or .*anchor_labels\.json \(YTBB.*modestyachts"
    ):
        data.frames(vid)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": {NAMES[0]: [1]}}, f"has no labels for {NAMES[1]}"),
        ({"labels": {name: [3] for name in NAMES}}, r"has labels \[3\]: there are 0 to 2"),
        ({"labels": {name: [] for name in NAMES}}, r"has labels \[\]"),
        ({"wnid_map": {wordnet_ids()[0]: "nX"}}, "do not fit together"),
        ({"imagenet_vid_class_index": {"1": ["nA", "bear"]}}, "do not fit together"),
        ({"pmsets": {}}, "must map names to values"),
    ],
)
def test_files_that_do_not_fit_are_named(vid: Path, changed: dict[str, Any], message: str) -> None:
    write(vid, **changed)
    with pytest.raises(mt.FileError, match=message):
        data.frames(vid)
