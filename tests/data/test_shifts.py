"""Published corrupted datasets: severities one after the other, read on access."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data import small_sets as small
from data.small_sets import CORRUPTED, changed, picture

from multitudes import data
from multitudes.errors import FileError


def test_severities_follow_one_another(tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10-C").mkdir()
    small.cifar_c(tmp_path / "CIFAR-10-C")
    shifted = data.cifar_c(tmp_path)
    assert (list(shifted), list(shifted["fog"])) == (["fog", "snow"], [1, 2, 3, 4, 5])
    for severity, one in shifted["fog"].items():
        np.testing.assert_array_equal(one.inputs.numpy(), CORRUPTED[3 * severity - 3 : 3 * severity].transpose(0, 3, 1, 2))
        assert one.targets.tolist() == [4, 0, 9]
    assert shifted["snow"][5].name == "cifar10 snow 5"
    np.testing.assert_array_equal(shifted["snow"][5].inputs.numpy()[2], CORRUPTED[0].transpose(2, 0, 1))


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    shifted = data.cifar_c(changed(small.cifar_c(tmp_path), "fog.npy", b"damaged"))
    assert len(shifted["snow"][1]) == 3
    with pytest.raises(FileError, match=r"fog\.npy"):
        shifted["fog"][1]
    with pytest.raises(KeyError, match=r"6.* 1, 2, 3, 4, 5"):
        shifted["snow"][6]
    with pytest.raises(KeyError, match=r"'rain'.* fog, snow"):
        shifted["rain"]


def test_a_hundred_classes(tmp_path: Path) -> None:
    small.cifar_c(tmp_path, labels=small.CORRUPTED_LABELS + 90)
    assert data.cifar_c(tmp_path, classes=100)["fog"][2].targets.tolist() == [94, 90, 99]


def test_imagenet_c_is_folders_in_folders(tmp_path: Path) -> None:
    for severity in (1, 3):
        picture(tmp_path / "fog" / str(severity) / "n01440764" / "a.JPEG", (severity * 50, 0, 0), (224, 224))
    picture(tmp_path / "snow" / "2" / "n15075141" / "a.JPEG", (0, 0, 0), (224, 224))
    (tmp_path / "extra").mkdir()
    (tmp_path / "readme.txt").write_text("")
    shifted = data.imagenet_c(tmp_path)
    assert {name: list(severities) for name, severities in shifted.items()} == {"fog": [1, 3], "snow": [2]}
    one = shifted["fog"][3]
    assert (one.targets.tolist(), one.shape, one.name) == ([0], (3, 224, 224), "imagenet fog 3")
    assert abs(float(one.raw([0])[0, 0].mean()) * 255 - 150) < 2
    assert shifted["snow"][2].targets.tolist() == [999]
