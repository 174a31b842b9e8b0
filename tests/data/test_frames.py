"""Frames around anchors: rows, anchors and labels as the files of ImageNet-Vid-Robust and YTBB-Robust have them."""

from __future__ import annotations

from pathlib import Path

import torch
from data import small_sets as small
from data.small_sets import frame, pair, picture
from pytest import MonkeyPatch

from multitudes import data
from multitudes.data.ytbb import read_anchor_sets
from multitudes.scores.shift import stability


def test_an_anchor_comes_before_the_frames_around_it(tmp_path: Path) -> None:
    frames = data.frames(small.vid(tmp_path), size=8)
    assert frames.anchors.tolist() == [0, 0, 0, 3, 3]
    assert frames.data.targets.tolist() == [1, 1, 1, 2, 2]
    assert frames.labels == ((1,), (1,), (1,), (2, 0), (2, 0))
    assert (frames.data.raw(slice(None))[:, 0, 0, 0] * 25.5).round().tolist() == [1, 0, 2, 4, 5]
    assert frames.data.classes == ("bear", "cat", "dog")
    assert frames.data.groups is not None
    assert frames.data.groups[6:11].tolist() == [-1, 2, 2, 0, -1]


def test_any_label_of_a_frame_is_right_and_all_frames_must_be(tmp_path: Path) -> None:
    frames = data.frames(small.vid(tmp_path))
    correct = frames.correct(torch.tensor([1, 1, 0, 2, 0]))
    assert correct.tolist() == [True, True, False, True, True]
    assert stability(correct, frames.anchors) == 0.5


def test_the_environment_names_the_folder_around(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    (tmp_path / "imagenet-vid-robust").mkdir()
    small.vid(tmp_path / "imagenet-vid-robust")
    monkeypatch.setenv("MULTITUDES_DATA", str(tmp_path))
    assert len(data.frames().data) == 5


def test_good_anchors_with_the_similar_frames(tmp_path: Path) -> None:
    small.ytbb(
        tmp_path,
        [
            (frame("a", 20), ["good", "class5"]), (frame("b", 20), ["good", "unsure"]), (frame("c", 20), ["good"]),
            (frame("d", 20), []),
        ],
        [
            pair("a", 22, "similar", "correct"), pair("a", 12, "similar"), pair("a", 21, "similar", "dissimilar"),
            pair("a", 23, "correct"), pair("a", 31, "similar"), pair("b", 21, "similar"), pair("c", 19, "similar"),
            pair("d", 21, "similar"),
        ],
    )  # fmt: skip
    first, second = read_anchor_sets(tmp_path)
    assert first.anchor == "ytbb_videos/a_1000/frame-20.jpg"
    assert first.frames == ("ytbb_videos/a_1000/frame-12.jpg", "ytbb_videos/a_1000/frame-22.jpg")
    assert first.labels == ((0, 5),) * 3  # the video's label first, then the reviewers'
    assert (second.anchor, second.labels) == ("ytbb_videos/c_1000/frame-20.jpg", ((22,),) * 2)  # 22 and 23 are swapped


def test_an_anchor_marked_bad_with_a_frame_is_left_out(tmp_path: Path) -> None:
    anchors = [(frame("a", 20), ["good"]), (frame("c", 20), ["good"])]
    small.ytbb(tmp_path, anchors, [pair("a", 21, "similar"), pair("a", 22, "bad-anchor"), pair("c", 21, "similar")])
    assert [found.anchor for found in read_anchor_sets(tmp_path)] == ["ytbb_videos/c_1000/frame-20.jpg"]


def test_the_last_review_counts(tmp_path: Path) -> None:
    anchors = [(frame("a", 20), ["bad"]), (frame("a", 20), ["good"])]
    small.ytbb(tmp_path, anchors, [pair("a", 21, "similar"), pair("a", 21, "dissimilar")])
    assert [found.frames for found in read_anchor_sets(tmp_path)] == [()]


def test_frames_reads_ytbb(tmp_path: Path) -> None:
    small.ytbb(tmp_path, [(frame("a", 20), ["good"])], [pair("a", 21, "similar")])
    for number in (20, 21):
        picture(tmp_path / "ytbb_videos" / "a_1000" / f"frame-{number}.jpg")
    frames = data.frames(tmp_path, size=8)
    assert (frames.anchors.tolist(), frames.data.targets.tolist(), len(frames.data.classes or ())) == ([0, 0], [0, 0], 24)
    assert frames.data.groups is not None
    assert frames.data.groups[[3, 4, 7, 8]].tolist() == [0, 0, 5, -1]
    assert frames.data.raw([1]).shape == (1, 3, 8, 8)
