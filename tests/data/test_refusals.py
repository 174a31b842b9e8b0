"""Damaged, missing or unfit files and arguments: each is refused by an error that names it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data import small_sets as small
from data.small_sets import DIGIT_LABELS, DIGITS, HOUSE_LABELS, HOUSES, VID, changed, frame, pair, picture

import multitudes as mt
from multitudes import data
from multitudes.data import embedded
from multitudes.data.imagenet import class_groups, read_mapping, wordnet_ids
from multitudes.data.images import image_files
from multitudes.data.ytbb import read_anchor_sets, ytbb_classes
from multitudes.errors import FileError, InputError, MultitudesError

Case = tuple[Callable[[Path], Any], type[MultitudesError], str]

TEN, HUNDRED, MAPPINGS = "cifar-10-batches-bin", "cifar-100-binary", "objectnet-1.0/mappings"


def digits(at: Path, **files: bytes) -> Any:
    return data.mnist("test", small.mnist(at, packed=False, **files), verify=False)


def houses(at: Path, images: np.ndarray = HOUSES, labels: np.ndarray = HOUSE_LABELS, key: str = "X") -> Any:
    return data.svhn("test", small.svhn(at, images, labels, key))


def foggy(at: Path, **arrays: np.ndarray) -> Any:
    return data.cifar_c(small.cifar_c(at, **arrays))["fog"][1]


def video(at: Path, file: str, content: Any) -> Any:
    return data.frames(changed(small.vid(at), file, content))


def review(at: Path, file: str, content: Any) -> Any:
    root = small.ytbb(at, [(frame("a", 20), ["good"])], [pair("a", 21, "similar")])
    return read_anchor_sets(changed(root, f"metadata/{file}", content))


def toy(at: Path, file: str, content: Any, split: int = 0) -> Any:
    return data.uci("toy", split, changed(small.uci(at), f"toy/{file}", content))


def table(at: Path, content: str) -> Any:
    return data.uci("toy", 0, changed(at, "data.csv", content))


def image(at: Path, content: Any) -> Any:
    picture(at / "a.png")
    return image_files([changed(at, "a.png", content) / "a.png"], 8, 8).take(torch.tensor([0]))


CIFAR: dict[str, Case] = {
    "cifar10 of other bytes": (lambda at: data.cifar10("train", small.cifar10(at)), FileError, r"data_batch_1\.bin.* MD5"),
    "cifar100 of other bytes": (lambda at: data.cifar100("test", small.cifar100(at)), FileError, r"test\.bin.* MD5"),
    "cifar10 truncated": (
        lambda at: data.cifar10("train", changed(small.cifar10(at), f"{TEN}/data_batch_3.bin", 1), verify=False),
        FileError, r"data_batch_3\.bin is damaged: 9,218 bytes",
    ),
    "cifar10 empty": (
        lambda at: data.cifar10("train", changed(small.cifar10(at), f"{TEN}/data_batch_3.bin", b""), verify=False),
        FileError, r"data_batch_3\.bin is damaged: 0 bytes",
    ),
    "cifar10 label": (
        lambda at: data.cifar10(
            "test", changed(small.cifar10(at), f"{TEN}/test_batch.bin", small.cifar_rows([[10]]).tobytes()), verify=False
        ),
        FileError, "label 10.*0 to 9",
    ),
    "cifar100 label": (
        lambda at: data.cifar100(
            "test", changed(small.cifar100(at), f"{HUNDRED}/test.bin", small.cifar_rows([[0, 100]]).tobytes()), verify=False
        ),
        FileError, "label 100.*0 to 99",
    ),
    "cifar10 incomplete": (
        lambda at: data.cifar10("train", changed(small.cifar10(at), f"{TEN}/data_batch_5.bin", None)),
        FileError, r"lacks data_batch_5\.bin.*cifar-10-binary\.tar\.gz from https://www\.cs\.toronto",
    ),
    "cifar100 missing": (lambda at: data.cifar100("train", at), FileError, r"cifar100 .*cifar-100-binary.* for train\.bin"),
    "cifar100 class names": (
        lambda at: data.cifar100("test", changed(small.cifar100(at), f"{HUNDRED}/fine_label_names.txt", "a b"), verify=False),
        FileError, r"fine_label_names\.txt has 2 .*100",
    ),
    "cifar100 labels": (lambda at: data.cifar100("train", at, labels="both"), InputError, "labels='both'.*'fine'.*'coarse'"),
    "cifar10 split": (lambda at: data.cifar10("val", at), InputError, "split='val'.*'train', 'test'"),
}  # fmt: skip

MNIST: dict[str, Case] = {
    "mnist of other bytes": (lambda at: data.mnist("test", small.mnist(at)), FileError, r"t10k-images.*\.gz .*MD5"),
    "fashion_mnist of other bytes": (lambda at: data.fashion_mnist("test", small.mnist(at)), FileError, r"t10k-images.* MD5"),
    "kmnist of other bytes": (lambda at: data.kmnist("test", small.mnist(at)), FileError, r"t10k-images.* MD5"),
    "idx truncated": (lambda at: digits(at, images=small.idx(DIGITS)[:-5]), FileError, r"images.*\[4, 28, 28\].*3,131 bytes"),
    "idx too long": (lambda at: digits(at, labels=small.idx(DIGIT_LABELS) + b"!"), FileError, "labels.*damaged.*5 bytes"),
    "idx of labels as images": (lambda at: digits(at, images=small.idx(DIGIT_LABELS)), FileError, "images.* idx .*00 00 08 01"),
    "idx of another type": (lambda at: digits(at, labels=small.idx(DIGIT_LABELS, kind=9)), FileError, "labels.* idx "),
    "idx of a byte": (lambda at: digits(at, labels=b"\0"), FileError, "labels.* idx "),
    "idx of negative size": (lambda at: digits(at, labels=b"\0\0\x08\x01\xff\xff\xff\xff"), FileError, "labels.*damaged"),
    "mnist label": (lambda at: digits(at, labels=small.idx(DIGIT_LABELS + 1)), FileError, "labels.* label 10.*0 to 9"),
    "mnist fewer labels": (lambda at: digits(at, labels=small.idx(DIGIT_LABELS[:3])), FileError, "4 images .* 3 labels"),
    "mnist without images": (
        lambda at: digits(at, images=small.idx(DIGITS[:0]), labels=small.idx(DIGIT_LABELS[:0])), FileError, "no images",
    ),
    "fashion_mnist missing": (
        lambda at: data.fashion_mnist("train", at),
        FileError, r"train-images-idx3-ubyte\.gz or train-images-idx3-ubyte.*zalandoresearch",
    ),
    "mnist incomplete": (
        lambda at: data.mnist("test", changed(small.mnist(at), "t10k-labels-idx1-ubyte.gz", None)),
        FileError, "lacks t10k-labels",
    ),
    "mnist split": (lambda at: data.mnist("val", at), InputError, "split='val'.*'train', 'test'"),
}  # fmt: skip

SVHN: dict[str, Case] = {
    "mat truncated": (
        lambda at: data.svhn("test", changed(small.svhn(at), "test_32x32.mat", 5000)), FileError, r"test_32x32\.mat.*ufldl",
    ),
    "mat empty": (lambda at: data.svhn("test", changed(at, "test_32x32.mat", b"")), FileError, r"test_32x32\.mat"),
    "mat without X": (lambda at: houses(at, key="Z"), FileError, "X is missing"),
    "mat of other sizes": (lambda at: houses(at, HOUSES[:, :28]), FileError, r"X is \[28, 32, 3, 5\] uint8"),
    "mat of floats": (lambda at: houses(at, HOUSES.astype(np.float64)), FileError, "float64"),
    "svhn label too large": (lambda at: houses(at, labels=HOUSE_LABELS + 1), FileError, "label 11.*1 to 10"),
    "svhn label too small": (lambda at: houses(at, labels=HOUSE_LABELS - 1), FileError, "label 0.*1 to 10"),
    "svhn fewer images": (lambda at: houses(at, HOUSES[:4]), FileError, "4 images .* 5 labels"),
    "svhn missing": (lambda at: data.svhn("train", at), FileError, r"train_32x32\.mat.*http://ufldl\.stanford\.edu"),
    "svhn split": (lambda at: data.svhn("val", at), InputError, "'train', 'test', 'extra'"),
}  # fmt: skip

SHIFTS: dict[str, Case] = {
    "cifar_c of other sizes": (
        lambda at: foggy(at, images=small.CORRUPTED[:, :28]), FileError, r"fog\.npy is \[15, 28, 32, 3\]",
    ),
    "cifar_c of floats": (lambda at: foggy(at, images=small.CORRUPTED.astype(np.float32)), FileError, "fog.*float32"),
    "cifar_c fewer images": (lambda at: foggy(at, images=small.CORRUPTED[:10]), FileError, "10 images .* 15 labels"),
    "cifar_c not five severities": (
        lambda at: foggy(at, images=small.CORRUPTED[:14], labels=small.CORRUPTED_LABELS[:14]), FileError, "14 images.*five",
    ),
    "cifar_c without images": (
        lambda at: foggy(at, images=small.CORRUPTED[:0], labels=small.CORRUPTED_LABELS[:0]), FileError, "no images",
    ),
    "cifar_c of 100 classes": (
        lambda at: foggy(at, labels=small.CORRUPTED_LABELS + 90), FileError, r"labels\.npy.*label 94.*0 to 9",
    ),
    "cifar_c labels in columns": (lambda at: foggy(at, labels=small.CORRUPTED_LABELS[:, None]), FileError, r"\[15, 1\]"),
    "cifar_c pickled": (
        lambda at: data.cifar_c(changed(small.cifar_c(at), "labels.npy", np.array([{}] * 15, object)))["fog"][1],
        FileError, r"labels\.npy",
    ),
    "cifar_c truncated": (
        lambda at: data.cifar_c(changed(small.cifar_c(at), "fog.npy", 100))["fog"][1], FileError, r"fog\.npy",
    ),
    "cifar_c missing": (lambda at: data.cifar_c(at), FileError, r"CIFAR-10-C.*labels\.npy.*https://zenodo\.org/records/2535967"),
    "cifar_c without corruptions": (
        lambda at: data.cifar_c(changed(at, "labels.npy", small.CORRUPTED_LABELS)), FileError, r"gaussian_noise\.npy",
    ),
    "cifar_c of 20 classes": (lambda at: data.cifar_c(at, classes=20), InputError, "classes=20"),
    "imagenet_c without corruptions": (
        lambda at: data.imagenet_c(picture(at / "n01440764" / "a.png").parent.parent),
        FileError, r"gaussian_noise/1.*zenodo\.org/records/2235448",
    ),
}  # fmt: skip

FOLDERS: dict[str, Case] = {
    "no such folder": (lambda at: data.folder(at / "nowhere"), FileError, "nowhere"),
    "no subfolders": (lambda at: data.folder(at), FileError, "subfolders"),
    "a subfolder without images": (
        lambda at: ((at / "bare").mkdir(), data.folder(picture(at / "full" / "a.png").parent.parent)), FileError, "bare",
    ),
    "no class of ImageNet": (
        lambda at: data.folder(picture(at / "sofa" / "a.png").parent.parent, classes="imagenet"), FileError, "sofa.*WordNet id",
    ),
    "classes without a subfolder": (
        lambda at: data.folder(picture(at / "sofa" / "a.png").parent.parent, classes={"bed": 0}), FileError, "bed",
    ),
    "unknown classes": (
        lambda at: data.folder(picture(at / "sofa" / "a.png").parent.parent, classes="names"), InputError, "classes='names'",
    ),
    "objectnet contradicting itself": (
        lambda at: data.objectnet(changed(small.objectnet(at), f"{MAPPINGS}/imagenet_to_label_2012_v2", "rocking chair\n")),
        FileError, "mappings.*barber chair",
    ),
    "objectnet without folders": (
        lambda at: data.objectnet(changed(small.objectnet(at), f"{MAPPINGS}/folder_to_objectnet_label.json", {"a": "b"})),
        FileError, "Chair, Mug",
    ),
    "objectnet incomplete": (
        lambda at: data.objectnet(changed(small.objectnet(at), f"{MAPPINGS}/imagenet_to_label_2012_v2", None)),
        FileError, r"lacks mappings/imagenet_to_label_2012_v2.*objectnet\.dev",
    ),
    "half an image": (lambda at: image(at, 40), FileError, r"a\.png"),
    "no image": (lambda at: image(at, b"no image"), FileError, r"a\.png"),
    "an image that is gone": (lambda at: image(at, None), FileError, r"a\.png.*No such file"),
    "a crop too large": (lambda at: image_files([at / "a.png"], 32, 16), InputError, "size=32 .*resize=16"),
}  # fmt: skip

FRAMES: dict[str, Case] = {
    "a frame is missing": (lambda at: video(at, VID[2], None), FileError, rf"1 of 5 frames.*{VID[2]}"),
    "no list of frames": (
        lambda at: video(at, "metadata/pmsets.json", None), FileError, r"pmsets\.json.*anchor_labels\.json.*modestyachts",
    ),
    "an empty list of frames": (lambda at: video(at, "metadata/pmsets.json", {}), FileError, r"pmsets\.json"),
    "frames without labels": (lambda at: video(at, "metadata/labels.json", {VID[0]: [1]}), FileError, VID[1]),
    "frames with labels too large": (
        lambda at: video(at, "metadata/labels.json", {name: [3] for name in VID}), FileError, r"labels \[3\].*0 to 2",
    ),
    "frames with empty labels": (
        lambda at: video(at, "metadata/labels.json", {name: [] for name in VID}), FileError, r"labels \[\]",
    ),
    "groups of unknown classes": (lambda at: video(at, "misc/wnid_map.json", {wordnet_ids()[0]: "nX"}), FileError, "misc.*nX"),
    "classes with a gap": (
        lambda at: video(at, "misc/imagenet_vid_class_index.json", {"1": ["nA", "bear"]}), FileError, "misc.*'0'",
    ),
    "as many answers as frames": (lambda at: data.frames(small.vid(at)).correct(torch.zeros(4)), InputError, "5 frames"),
    "an anchor without a video": (
        lambda at: read_anchor_sets(small.ytbb(at, [(frame("e", 20), ["good"])], [])), FileError, r"e_1000/frame-20\.jpg",
    ),
    "a frame without a number": (
        lambda at: read_anchor_sets(
            small.ytbb(at, [(frame("a", 20), ["good"])], [(f"{frame('a', 20)},x/a_1000/odd.jpg", ["similar"])])
        ),
        FileError, r"a_1000/odd\.jpg",
    ),
    "reviews without annotations": (lambda at: review(at, "pmk_labels.json", {"labels": []}), FileError, r"pmk_labels\.json"),
    "videos without a column": (
        lambda at: review(at, "ytbb_robustness_test_anchors_full.csv", "ytid,label\na,1\n"), FileError, "anchors_full.*time_ms",
    ),
    "classes of YTBB with a gap": (
        lambda at: review(at, "ytbb_class_index.json", {"1": "b"}), FileError, r"ytbb_class_index\.json.*'0'",
    ),
    "no classes of YTBB": (lambda at: ytbb_classes(at), FileError, r"ytbb_class_index\.json"),
}  # fmt: skip

UCI: dict[str, Case] = {
    "uci missing": (lambda at: data.uci("toy", 0, at), FileError, r"uci\('toy'\).*uci/toy.*data\.txt or data\.csv.*yaringal"),
    "year missing": (
        lambda at: data.uci("year", 0, at), FileError, r"YearPredictionMSD\.txt or data\.csv.*archive\.ics\.uci\.edu",
    ),
    "year split": (lambda at: data.uci("year", 1, at), InputError, "year: split=1.*463,715"),
    "protein split": (lambda at: data.uci("protein", 5, small.csv(at)), InputError, "split=5.*0 to 4"),
    "standard split": (lambda at: data.uci("yacht", 20), InputError, "split=20.*0 to 19"),
    "split below 0": (lambda at: data.uci("yacht", -1), InputError, "split=-1"),
    "split True": (lambda at: data.uci("yacht", True), InputError, "split=True"),
    "split by name": (lambda at: data.uci("yacht", "train"), InputError, "split='train'"),  # type: ignore[arg-type]
    "split without a file": (lambda at: data.uci("toy", 2, small.uci(at)), FileError, r"index_train_2\.txt.*2 splits"),
    "split beyond splits.npz": (
        lambda at: data.uci("toy", 2, small.csv(at, train=[[0], [1]], test=[[2], [3]])),
        InputError, r"split=2.*splits\.npz.*0 to 1",
    ),
    "row indices too large": (lambda at: toy(at, "index_test_0.txt", "3\n30\n"), FileError, r"index_test_0\.txt.*0 to 29"),
    "no index of the target": (lambda at: toy(at, "index_target.txt", None), FileError, r"index_target\.txt.*yaringal"),
    "text as an index": (lambda at: toy(at, "index_target.txt", "one\n"), FileError, r"index_target\.txt"),
    "a ragged table": (lambda at: toy(at, "data.txt", "1 2\n3\n"), FileError, r"data\.txt"),
    "a table with NaN": (lambda at: table(at, "1,2\n3,nan\n4,5\n"), FileError, "row 1 .*NaN"),
    "a table of one column": (lambda at: table(at, "1\n2\n"), FileError, r"data\.csv.*\[2, 1\]"),
    "pickled splits": (
        lambda at: data.uci("toy", 0, small.csv(at, train=np.array([[0, 1], [2]], object), test=[[1]])),
        FileError, r"splits\.npz",
    ),
    "splits beyond the table": (
        lambda at: data.uci("toy", 0, small.csv(at, train=[[0, 30]], test=[[1]])), FileError, r"splits\.npz.*30 rows",
    ),
    "published files of another dataset": (
        lambda at: data.uci("concrete", 0, small.uci(at, "concrete")), FileError, "30 rows of 2 .*concrete has 1,030 of 8",
    ),
    "a row too few": (
        lambda at: data.uci("energy", 0, small.csv(at, embedded.stored("regression.npz")["energy"][:-1])),
        FileError, "energy has 768 of 8",
    ),
    "a column too few": (
        lambda at: data.uci("energy", 0, small.csv(at, embedded.stored("regression.npz")["energy"][:, 1:9])),
        FileError, "energy has 768 of 8",
    ),
}  # fmt: skip

OTHERS: dict[str, Case] = {
    "fashion split": (lambda at: data.fashion("val"), InputError, "split='val'.*'train', 'validation', 'test'"),
    "scenes split": (lambda at: data.scenes("val"), InputError, "split='val'"),
    "scenes size": (lambda at: data.scenes(size=8), InputError, "size=8.*16"),
    "scenes examples": (lambda at: data.scenes(examples=0), InputError, "examples=0"),
    "sinusoids split": (lambda at: data.sinusoids("val"), InputError, "split='val'"),
    "sinusoids examples": (lambda at: data.sinusoids(examples=2.5), InputError, "examples=2.5"),  # type: ignore[arg-type]
    "sinusoids noise": (lambda at: data.sinusoids(noise=-1.0), InputError, "noise=-1"),
    "sinusoids noise NaN": (lambda at: data.sinusoids(noise=math.nan), InputError, "noise=nan"),
    "noisy_function examples": (lambda at: data.noisy_function(examples=True), InputError, "examples=True"),
    "noisy_function split": (lambda at: data.noisy_function("val"), InputError, "split='val'"),
    "groups of other length": (lambda at: data.grouped(torch.zeros(4), torch.zeros(3)), InputError, r"\[3\].*\[4\]"),
    "groups by mean": (lambda at: data.grouped(torch.zeros(3), torch.zeros(3), by="mean"), InputError, "by='mean'"),
    "no class 1000": (lambda at: class_groups({"cat": [1000]}), FileError, "cat .*1000"),
    "no JSON": (lambda at: read_mapping(changed(at, "a.json", "{") / "a.json"), FileError, r"a\.json.* JSON"),
    "JSON of a list": (lambda at: read_mapping(changed(at, "a.json", "[1]") / "a.json"), FileError, r"a\.json.* object"),
}

CASES = CIFAR | MNIST | SVHN | SHIFTS | FOLDERS | FRAMES | UCI | OTHERS


@pytest.mark.parametrize("case", CASES)
def test_unfit_files_and_arguments_are_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTITUDES_DATA", raising=False)
    call, error, noun = CASES[case]
    with pytest.raises(error, match=noun):
        call(tmp_path)


@pytest.mark.parametrize(
    ("package", "call", "error"),
    [
        ("PIL", lambda at: image_files([at / "a.png"], 8, 8), FileError),
        ("PIL", lambda at: data.corrupt(torch.zeros(1, 1, 8, 8), "jpeg_compression", 1), InputError),
        ("scipy.io", lambda at: data.svhn("test", small.svhn(at)), FileError),
    ],
)
def test_a_missing_package_is_named(
    package: str, call: Callable[[Path], Any], error: type[mt.MultitudesError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.svhn(tmp_path)  # which needs scipy itself
    monkeypatch.setattr(small, "svhn", lambda at: at)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(error, match=r"pip install 'multitudes\[data\]'"):
        call(tmp_path)


def test_a_damaged_file_of_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.SHA256, "digits.npz", "0" * 64)
    with pytest.raises(FileError, match=r"digits\.npz.* install multitudes again"):
        data.digits()
