"""YTBB-Robust: which anchors and frames the reviews leave, and their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data.pictures import picture

import multitudes as mt
from multitudes import data
from multitudes.data.ytbb import reviewed, ytbb_classes

CLASSES = {str(k): f"class{k}" for k in range(24)}
ANCHOR_MARKS = ["good", "bad", "unsure", "class5"]
PAIR_MARKS = ["similar", "dissimilar", "bad-anchor", "correct"]


def key(video: str, frame: int) -> str:
    """A frame as the reviews name it."""
    return f"some/where/{video}_1000/frame-{frame}.jpg"


def reviews(marks: list[str], rows: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """A file of reviews."""
    return {"labels": marks, "annotations": [{"key": k, "labels": [marks.index(m) for m in found]} for k, found in rows]}


def write(folder: Path, anchors: list[tuple[str, list[str]]], pairs: list[tuple[str, list[str]]]) -> Path:
    """The files of the reviews, in the metadata folder."""
    (folder / "metadata").mkdir(exist_ok=True)
    for name, content in {
        "anchor_labels": reviews(ANCHOR_MARKS, anchors),
        "pmk_labels": reviews(PAIR_MARKS, pairs),
        "ytbb_class_index": CLASSES,
        "rev_class_idx_map": {"0": [3, 4], "5": [7]},
    }.items():
        (folder / "metadata" / f"{name}.json").write_text(json.dumps(content))
    rows = ["ytid,time_ms,label", "a,1000,0", "b,1000,22", "c,1000,23", "d,1000,1"]
    (folder / "metadata" / "ytbb_robustness_test_anchors_full.csv").write_text("\n".join(rows) + "\n")
    return folder


def pair(video: str, frame: int, *marks: str) -> tuple[str, list[str]]:
    """A review of a frame against the anchor, frame 20."""
    return f"{key(video, 20)},{key(video, frame)}", list(marks)


def test_good_anchors_with_the_frames_that_are_alike(tmp_path: Path) -> None:
    write(
        tmp_path,
        [(key("a", 20), ["good", "class5"]), (key("b", 20), ["good", "unsure"]), (key("c", 20), ["good"]), (key("d", 20), [])],
        [
            pair("a", 22, "similar", "correct"), pair("a", 12, "similar"), pair("a", 21, "similar", "dissimilar"),
            pair("a", 23, "correct"), pair("a", 31, "similar"), pair("b", 21, "similar"), pair("c", 19, "similar"),
            pair("d", 21, "similar"),
        ],
    )  # fmt: skip
    first, second = reviewed(tmp_path)
    assert first.anchor == "ytbb_videos/a_1000/frame-20.jpg"
    assert first.frames == ("ytbb_videos/a_1000/frame-12.jpg", "ytbb_videos/a_1000/frame-22.jpg")
    assert first.labels == ((0, 5),) * 3  # the video's label first, then what reviewers saw
    assert (second.anchor, second.labels) == ("ytbb_videos/c_1000/frame-20.jpg", ((22,),) * 2)  # 22 and 23 are swapped


def test_an_anchor_marked_bad_with_a_frame_is_left_out(tmp_path: Path) -> None:
    anchors = [(key("a", 20), ["good"]), (key("c", 20), ["good"])]
    write(tmp_path, anchors, [pair("a", 21, "similar"), pair("a", 22, "bad-anchor"), pair("c", 21, "similar")])
    assert [around.anchor for around in reviewed(tmp_path)] == ["ytbb_videos/c_1000/frame-20.jpg"]


def test_the_last_review_counts(tmp_path: Path) -> None:
    anchors = [(key("a", 20), ["bad"]), (key("a", 20), ["good"])]
    write(tmp_path, anchors, [pair("a", 21, "similar"), pair("a", 21, "dissimilar")])
    assert [around.frames for around in reviewed(tmp_path)] == [()]


def test_frames_reads_them(tmp_path: Path) -> None:
    write(tmp_path, [(key("a", 20), ["good"])], [pair("a", 21, "similar")])
    for frame in (20, 21):
        picture(tmp_path / "ytbb_videos" / "a_1000" / f"frame-{frame}.jpg")
    found = data.frames(tmp_path, size=8)
    assert (found.anchors.tolist(), found.data.targets.tolist(), len(found.data.classes or ())) == ([0, 0], [0, 0], 24)
    assert found.data.groups is not None
    assert found.data.groups[[3, 4, 7, 8]].tolist() == [0, 0, 5, -1]
    assert found.data.raw([1]).shape == (1, 3, 8, 8)


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write(tmp_path, [(key("e", 20), ["good"])], [pair("e", 21, "similar")])
    with pytest.raises(mt.FileError, match=r"the anchor e_1000/frame-20\.jpg is in no row"):
        reviewed(tmp_path)
    write(tmp_path, [(key("a", 20), ["good"])], [("some/a_1000/frame-20.jpg,some/a_1000/odd.jpg", ["similar"])])
    with pytest.raises(mt.FileError, match=r"not VIDEO/frame-NUMBER\.jpg"):
        reviewed(tmp_path)
    (tmp_path / "metadata" / "pmk_labels.json").write_text('{"labels": []}')
    with pytest.raises(mt.FileError, match=r"pmk_labels\.json holds no reviews"):
        reviewed(tmp_path)
    (tmp_path / "metadata" / "ytbb_robustness_test_anchors_full.csv").write_text("ytid,label\na,1\n")
    with pytest.raises(mt.FileError, match="lacks a column"):
        reviewed(tmp_path)
    (tmp_path / "metadata" / "ytbb_class_index.json").write_text('{"1": "b"}')
    with pytest.raises(mt.FileError, match="do not fit together"):
        ytbb_classes(tmp_path)
    (tmp_path / "metadata" / "ytbb_class_index.json").unlink()
    with pytest.raises(mt.FileError, match=r"hold no ytbb_class_index\.json"):
        ytbb_classes(tmp_path)
