"""CIFAR's binary versions, from small files of the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import multitudes as mt
from multitudes import data


def rows(labels: list[list[int]], seed: int = 0) -> np.ndarray:
    """Rows of labels and an image of random bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072))
    return np.concatenate([np.array(labels), pixels], 1).astype(np.uint8)


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """CIFAR-10 with three images a file, in the folder that its archive unpacks to."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i in range(1, 6):
        rows([[i], [0], [9]], i).tofile(folder / f"data_batch_{i}.bin")
    rows([[7], [8]], 6).tofile(folder / "test_batch.bin")
    return tmp_path


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """CIFAR-100 with two images; a coarse label comes before the fine one."""
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    rows([[19, 99], [3, 40]]).tofile(folder / "train.bin")
    rows([[0, 1]]).tofile(folder / "test.bin")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{k}" for k in range(20)) + "\n")
    return tmp_path


def test_cifar10_reads_its_files_in_order(ten: Path) -> None:
    train = data.cifar10("train", ten, verify=False)
    assert train.targets.tolist() == [1, 0, 9, 2, 0, 9, 3, 0, 9, 4, 0, 9, 5, 0, 9]
    assert (train.shape, train.classes and train.classes[9]) == ((3, 32, 32), "truck")
    expected = rows([[4], [0], [9]], 4)[1, 1:].reshape(3, 32, 32)
    np.testing.assert_array_equal(train.inputs.numpy()[10], expected)
    assert data.cifar10("test", ten / "cifar-10-batches-bin", verify=False).targets.tolist() == [7, 8]


def test_cifar100_has_fine_and_coarse_labels(hundred: Path) -> None:
    fine = data.cifar100("train", hundred, verify=False)
    assert (fine.targets.tolist(), len(fine.classes or ())) == ([99, 40], 100)
    coarse = data.cifar100("train", hundred, labels="coarse", verify=False)
    assert (coarse.targets.tolist(), (coarse.classes or ())[3]) == ([19, 3], "coarse3")
    np.testing.assert_array_equal(fine.inputs.numpy()[1].reshape(-1), rows([[19, 99], [3, 40]])[1, 2:])
    with pytest.raises(mt.InputError, match="labels='both'"):
        data.cifar100("train", hundred, labels="both")


def test_images_are_normalised_by_the_training_images(ten: Path, hundred: Path) -> None:
    """Mean and standard deviation over the published training images, to four digits."""
    for split in ("train", "test"):
        found = data.cifar10(split, ten, verify=False)
        assert found.mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465])
        assert found.std.tolist() == pytest.approx([0.2470, 0.2435, 0.2616])
        found = data.cifar100(split, hundred, verify=False)
        assert found.mean.tolist() == pytest.approx([0.5071, 0.4865, 0.4409])
        assert found.std.tolist() == pytest.approx([0.2673, 0.2564, 0.2762])


def test_other_files_than_the_published_are_refused(ten: Path, hundred: Path) -> None:
    with pytest.raises(mt.FileError, match=r"data_batch_1\.bin is not the published file"):
        data.cifar10("train", ten)
    with pytest.raises(mt.FileError, match=r"test\.bin is not the published file"):
        data.cifar100("test", hundred)


def test_a_truncated_file_is_named(ten: Path) -> None:
    path = ten / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(mt.FileError, match=r"data_batch_3\.bin is damaged: 9,218 bytes"):
        data.cifar10("train", ten, verify=False)
    path.write_bytes(b"")
    with pytest.raises(mt.FileError, match=r"data_batch_3\.bin is damaged: 0 bytes"):
        data.cifar10("train", ten, verify=False)


def test_labels_out_of_range_are_named(ten: Path, hundred: Path) -> None:
    rows([[10]]).tofile(ten / "cifar-10-batches-bin" / "test_batch.bin")
    with pytest.raises(mt.FileError, match="a label 10: there are 0 to 9"):
        data.cifar10("test", ten, verify=False)
    rows([[0, 100]]).tofile(hundred / "cifar-100-binary" / "test.bin")
    with pytest.raises(mt.FileError, match="a label 100: there are 0 to 99"):
        data.cifar100("test", hundred, verify=False)


def test_missing_files_and_splits_are_named(ten: Path, tmp_path: Path) -> None:
    (ten / "cifar-10-batches-bin" / "data_batch_5.bin").unlink()
    with pytest.raises(mt.FileError, match=r"lacks data_batch_5\.bin.*cifar-10-binary\.tar\.gz from https://www\.cs\.toronto"):
        data.cifar10("train", ten)
    with pytest.raises(mt.FileError, match=r"cifar100 is not there: looked in .*cifar-100-binary.* for train\.bin"):
        data.cifar100("train", tmp_path)
    with pytest.raises(mt.InputError, match="split='val'"):
        data.cifar10("val", ten)


def test_names_that_are_not_as_many_are_refused(hundred: Path) -> None:
    (hundred / "cifar-100-binary" / "fine_label_names.txt").write_text("a\nb\n")
    with pytest.raises(mt.FileError, match="names 2 classes, not 100"):
        data.cifar100("train", hundred, verify=False)
