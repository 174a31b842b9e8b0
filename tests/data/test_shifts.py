"""Published corrupted sets: severities one after the other, opened when asked for, damaged files named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.pictures import picture

import multitudes as mt
from multitudes import data

IMAGES = np.random.default_rng(0).integers(0, 256, (15, 32, 32, 3)).astype(np.uint8)
LABELS = np.tile([4, 0, 9], 5)


@pytest.fixture
def corrupted(tmp_path: Path) -> Path:
    """CIFAR-10-C with three images and two corruptions."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", IMAGES)
    np.save(folder / "snow.npy", IMAGES[::-1])
    np.save(folder / "labels.npy", LABELS)
    return tmp_path


def test_severities_follow_one_another(corrupted: Path) -> None:
    found = data.cifar_c(corrupted)
    assert (list(found), list(found["fog"])) == (["fog", "snow"], [1, 2, 3, 4, 5])
    for severity, one in found["fog"].items():
        np.testing.assert_array_equal(one.inputs.numpy(), IMAGES[3 * severity - 3 : 3 * severity].transpose(0, 3, 1, 2))
        assert one.targets.tolist() == [4, 0, 9]
    assert found["snow"][5].name == "cifar10 snow 5"
    np.testing.assert_array_equal(found["snow"][5].inputs.numpy()[2], IMAGES[0].transpose(2, 0, 1))


def test_nothing_is_read_before_it_is_asked_for(corrupted: Path) -> None:
    (corrupted / "CIFAR-10-C" / "fog.npy").write_bytes(b"damaged")
    found = data.cifar_c(corrupted)
    assert len(found["snow"][1]) == 3
    with pytest.raises(mt.FileError, match=r"fog\.npy is not a whole \.npy file"):
        found["fog"][1]
    with pytest.raises(KeyError, match="there is no 6: 1, 2, 3, 4, 5"):
        found["snow"][6]
    with pytest.raises(KeyError, match="there is no 'rain': fog, snow"):
        found["rain"]


def test_a_hundred_classes(tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS + 90)
    assert data.cifar_c(tmp_path, classes=100)["fog"][2].targets.tolist() == [94, 90, 99]
    with pytest.raises(mt.FileError, match="labels from 90 to 99, not 0 to 9"):
        data.cifar_c(tmp_path)["fog"][2]
    with pytest.raises(mt.InputError, match="classes=20"):
        data.cifar_c(tmp_path, classes=20)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:, :28], LABELS, r"\[15, 28, 32, 3\] uint8, not \[N, 32, 32, 3\]"),
        (IMAGES.astype(np.float32), LABELS, "float32, not"),
        (IMAGES[:14], LABELS, "14 images for 15 labels"),
        (IMAGES[:14], LABELS[:14], "14 images for 14 labels of five"),
        (IMAGES[:0], LABELS[:0], "0 images"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(mt.FileError, match=message):
        data.cifar_c(tmp_path)["fog"][1]


def test_files_are_not_unpickled_and_truncated_ones_named(corrupted: Path) -> None:
    folder = corrupted / "CIFAR-10-C"
    np.save(folder / "labels.npy", np.array([{}] * 15, object), allow_pickle=True)
    with pytest.raises(mt.FileError, match=r"labels\.npy is not a whole \.npy file of numbers"):
        data.cifar_c(corrupted)["fog"][1]
    (folder / "fog.npy").write_bytes((folder / "fog.npy").read_bytes()[:-100])
    with pytest.raises(mt.FileError, match=r"fog\.npy is not a whole \.npy file"):
        data.cifar_c(corrupted)["fog"][1]


def test_missing_sets_are_named(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match=r"CIFAR-10-C.*labels\.npy.*https://zenodo\.org/records/2535967"):
        data.cifar_c(tmp_path)
    np.save(tmp_path / "labels.npy", LABELS)
    with pytest.raises(mt.FileError, match="but no corruption"):
        data.cifar_c(tmp_path)


def test_imagenet_c_is_folders_in_folders(tmp_path: Path) -> None:
    for severity in (1, 3):
        picture(tmp_path / "fog" / str(severity) / "n01440764" / "a.JPEG", (severity * 50, 0, 0), (224, 224))
    picture(tmp_path / "snow" / "2" / "n15075141" / "a.JPEG", (0, 0, 0), (224, 224))
    (tmp_path / "extra").mkdir()
    found = data.imagenet_c(tmp_path)
    assert {name: list(severities) for name, severities in found.items()} == {"fog": [1, 3], "snow": [2]}
    one = found["fog"][3]
    assert (one.targets.tolist(), one.shape, one.name) == ([0], (3, 224, 224), "imagenet fog 3")
    assert abs(float(one.raw([0])[0, 0].mean()) * 255 - 150) < 2
    assert found["snow"][2].targets.tolist() == [999]


def test_a_folder_without_corruptions_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "n01440764" / "a.png")
    with pytest.raises(mt.FileError, match=r"no folders such as gaussian_noise/1.*zenodo\.org/records/2235448"):
        data.imagenet_c(tmp_path)
