"""Small datasets in the publishers' formats. Each function writes files below a folder and returns the folder for `root=`."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from multitudes.data.folders import MAPPINGS
from multitudes.data.imagenet import wordnet_ids

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
RNG = np.random.default_rng(0)
DIGITS, DIGIT_LABELS = RNG.integers(0, 256, (4, 28, 28)).astype(np.uint8), np.array([3, 0, 9, 1], np.uint8)
HOUSES, HOUSE_LABELS = RNG.integers(0, 256, (5, 32, 32, 3)).astype(np.uint8), np.array([1, 10, 9, 5, 10], np.uint8)
CORRUPTED, CORRUPTED_LABELS = RNG.integers(0, 256, (15, 32, 32, 3)).astype(np.uint8), np.tile([4, 0, 9], 5)
TABLE = RNG.normal(size=(30, 4)) * [1, 10, 100, 1000] + [0, 5, 50, 500]


def picture(path: Path, colour: tuple[int, int, int] = RED, size: tuple[int, int] = (40, 30)) -> Path:
    """Writes an image of one colour; a .png is kept to the last bit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def changed(root: Path, file: str, content: Any) -> Path:
    """Overwrites a file by bytes, text, an array or JSON; an int cuts that many bytes off its end, None deletes it."""
    path = root / file
    if content is None:
        path.unlink()
    elif isinstance(content, int):
        path.write_bytes(path.read_bytes()[:-content])
    elif isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    else:
        path.write_bytes(content if isinstance(content, bytes) else _text(content).encode())
    return root


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def cifar_rows(labels: list[list[int]], seed: int = 0) -> np.ndarray:
    """Rows of labels and an image of random bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072))
    return np.concatenate([np.array(labels), pixels], 1).astype(np.uint8)


def cifar10(root: Path) -> Path:
    """CIFAR-10 with three images a file, in the folder that its archive unpacks to."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for i in range(1, 6):
        cifar_rows([[i], [0], [9]], i).tofile(folder / f"data_batch_{i}.bin")
    cifar_rows([[7], [8]], 6).tofile(folder / "test_batch.bin")
    return root


def cifar100(root: Path) -> Path:
    """CIFAR-100 with two images; the coarse label comes before the fine one."""
    folder = root / "cifar-100-binary"
    folder.mkdir()
    cifar_rows([[19, 99], [3, 40]]).tofile(folder / "train.bin")
    cifar_rows([[0, 1]]).tofile(folder / "test.bin")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{k}" for k in range(20)) + "\n")
    return root


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    """An array as an idx file."""
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def mnist(root: Path, stem: str = "t10k", packed: bool = True, images: bytes = b"", labels: bytes = b"") -> Path:
    """The idx files of one split."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in (("images-idx3", images or idx(DIGITS)), ("labels-idx1", labels or idx(DIGIT_LABELS))):
        path = root / f"{stem}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return root


def svhn(root: Path, images: np.ndarray = HOUSES, labels: np.ndarray = HOUSE_LABELS, key: str = "X") -> Path:
    """SVHN's test set: a .mat file of X [32, 32, 3, N] and y [N, 1]."""
    arrays = {key: images.transpose(1, 2, 3, 0), "y": labels[:, None]}
    savemat(root / "test_32x32.mat", arrays, do_compression=True)
    return root


def cifar_c(root: Path, images: np.ndarray = CORRUPTED, labels: np.ndarray = CORRUPTED_LABELS) -> Path:
    """CIFAR-10-C with three images and two corruptions."""
    np.save(root / "fog.npy", images)
    np.save(root / "snow.npy", images[::-1])
    np.save(root / "labels.npy", labels)
    return root


def objectnet(root: Path) -> Path:
    """Three objects with a red border, two of them in ImageNet. ImageNet's ids there start at 1 in another order."""
    for name in ("air_freshener", "chair", "mug"):
        path = picture(root / "objectnet-1.0" / "images" / name / "a.png", RED, (36, 36))
        framed = Image.open(path)
        framed.paste(Image.new("RGB", (32, 32), BLUE), (2, 2))
        framed.save(path)
    mappings = root / "objectnet-1.0" / "mappings"
    mappings.mkdir()
    contents = [
        {"air_freshener": "Air freshener", "chair": "Chair", "mug": "Mug"},
        {"Mug": "coffee mug", "Chair": "barber chair; rocking chair"},
        {"423": 2, "765": 1, "504": 3},
        "rocking chair\nbarber chair\ncoffee mug\n",
    ]
    for name, content in zip(MAPPINGS, contents, strict=True):
        changed(mappings, name, content)
    return root


VID = [f"val/video{v}/{f:06d}.png" for v in (0, 1) for f in range(3)]
"""Frames of ImageNet-Vid-Robust."""


def vid(root: Path) -> Path:
    """ImageNet-Vid-Robust with two anchors: the middle one of three frames, and one with a single frame after it."""
    for number, name in enumerate(VID):
        picture(root / name, (10 * number, 0, 0))
    for folder in ("metadata", "misc"):
        (root / folder).mkdir()
    changed(root, "metadata/pmsets.json", {VID[1]: [VID[0], VID[2]], VID[4]: [VID[5]]})
    changed(root, "metadata/labels.json", {**{name: [1] for name in VID[:3]}, **{name: [2, 0] for name in VID[3:]}})
    changed(root, "misc/imagenet_vid_class_index.json", {"0": ["nA", "bear"], "1": ["nB", "cat"], "2": ["nC", "dog"]})
    changed(root, "misc/wnid_map.json", {wordnet_ids()[7]: "nC", wordnet_ids()[8]: "nC", wordnet_ids()[9]: "nA"})
    return root


Review = tuple[str, list[str]]
ANCHOR_MARKS = ["good", "bad", "unsure", "class5"]
PAIR_MARKS = ["similar", "dissimilar", "bad-anchor", "correct"]


def frame(video: str, number: int) -> str:
    """A frame as the reviews of YTBB-Robust name it."""
    return f"some/where/{video}_1000/frame-{number}.jpg"


def pair(video: str, number: int, *marks: str) -> Review:
    """A review of a frame against the anchor, frame 20."""
    return f"{frame(video, 20)},{frame(video, number)}", list(marks)


def ytbb(root: Path, anchors: list[Review], pairs: list[Review]) -> Path:
    """The reviews of YTBB-Robust, in its metadata folder; no frames."""

    def reviews(marks: list[str], rows: list[Review]) -> dict[str, Any]:
        return {"labels": marks, "annotations": [{"key": k, "labels": [marks.index(m) for m in own]} for k, own in rows]}

    (root / "metadata").mkdir(exist_ok=True)
    changed(root, "metadata/anchor_labels.json", reviews(ANCHOR_MARKS, anchors))
    changed(root, "metadata/pmk_labels.json", reviews(PAIR_MARKS, pairs))
    changed(root, "metadata/ytbb_class_index.json", {str(k): f"class{k}" for k in range(24)})
    changed(root, "metadata/rev_class_idx_map.json", {"0": [3, 4], "5": [7]})
    rows = ["ytid,time_ms,label", "a,1000,0", "b,1000,22", "c,1000,23", "d,1000,1"]
    return changed(root, "metadata/ytbb_robustness_test_anchors_full.csv", "\n".join(rows) + "\n")


def uci(root: Path, name: str = "toy") -> Path:
    """A UCI dataset with two splits as published: target in the second column, one column unused, lists of rows."""
    folder = root / name
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", TABLE)
    np.savetxt(folder / "index_features.txt", [0, 3])
    np.savetxt(folder / "index_target.txt", [1])
    for i in range(2):
        order = np.random.default_rng(i).permutation(30)
        np.savetxt(folder / f"index_train_{i}.txt", order[:27])
        np.savetxt(folder / f"index_test_{i}.txt", order[27:])
    return root


def csv(root: Path, table: np.ndarray = TABLE, **splits: Any) -> Path:
    """A table as data.csv, with splits.npz if splits are given."""
    np.savetxt(root / "data.csv", table, delimiter=",")
    if splits:
        np.savez(root / "splits.npz", **splits)
    return root
