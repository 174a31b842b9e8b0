"""UCI sets: the standard splits, the scale of the training part, and the files they come in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import multitudes as mt
from multitudes import data
from multitudes.data.embedded import stored
from multitudes.data.uci import SIZES, drawn, songs

TABLE = np.random.default_rng(0).normal(size=(30, 4)) * [1, 10, 100, 1000] + [0, 5, 50, 500]


def published(folder: Path, splits: int = 2) -> Path:
    """A set as it is published: the target in the second column, a column that is not used, lists of rows."""
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", TABLE)
    np.savetxt(folder / "index_features.txt", [0, 3])
    np.savetxt(folder / "index_target.txt", [1])
    for i in range(splits):
        order = np.random.default_rng(i).permutation(30)
        np.savetxt(folder / f"index_train_{i}.txt", order[:27])
        np.savetxt(folder / f"index_test_{i}.txt", order[27:])
    return folder


def test_splits_are_those_of_the_papers() -> None:
    """The first rows of index_train_0 and the last of index_test_19 as published for the yacht set."""
    train, test = drawn(308, 0)
    assert (len(train), len(test)) == (277, 31)
    assert train[:5].tolist() == [73, 304, 228, 238, 259]
    assert drawn(308, 19)[1][-5:].tolist() == [68, 19, 75, 135, 290]
    assert sorted([*train, *test]) == list(range(308))


@pytest.mark.parametrize(("name", "shapes"), [("yacht", (277, 31, 6)), ("energy", (691, 77, 8))])
def test_two_sets_need_no_files(name: str, shapes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTITUDES_DATA", raising=False)
    train, test = data.uci(name, split=2)
    assert (len(train), len(test), *train.shape) == shapes
    assert train.targets.shape == (shapes[0], 1)
    whole = torch.cat([train.inputs, test.inputs]).unique(dim=0)
    assert len(whole) == len(torch.cat([part.inputs for part in data.uci(name, split=7)]).unique(dim=0))


def test_numbers_are_those_of_the_publisher() -> None:
    """The first row of the yacht file as published, wherever the split put it."""
    train, test = data.uci("yacht")
    rows = torch.cat([torch.cat([part.inputs, part.original(part.targets)], 1) for part in (train, test)])
    first = torch.tensor([-2.3, 0.568, 4.78, 3.99, 3.17, 0.125, 0.11])
    assert int(((rows - first).abs() < 1e-4).all(1).sum()) == 1
    train, test = data.uci("energy")
    rows = torch.cat([torch.cat([part.inputs, part.original(part.targets)], 1) for part in (train, test)])
    first = torch.tensor([0.98, 514.5, 294.0, 110.25, 7.0, 2.0, 0.0, 0.0, 15.55])
    assert int(((rows - first).abs() < 1e-3).all(1).sum()) == 1


def test_the_training_part_gives_the_scale_of_both() -> None:
    train, test = data.uci("energy", split=1)
    x, y = train.batch(slice(None))
    torch.testing.assert_close(x.mean(0), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(8), rtol=1e-4, atol=0)
    torch.testing.assert_close((y.mean(), y.std(correction=0)), (torch.tensor(0.0), torch.tensor(1.0)), rtol=1e-4, atol=1e-5)
    assert torch.equal(test.mean, train.mean)
    assert abs(float(test.batch(slice(None))[0].mean())) > 1e-3
    assert 5 < float(train.original(train.targets).mean()) < 40


def test_published_files_are_read(tmp_path: Path) -> None:
    folder = published(tmp_path / "UCI_Datasets" / "toy" / "data")
    train, test = data.uci("toy", 1, tmp_path)
    rows = np.loadtxt(folder / "index_test_1.txt").astype(int)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[rows][:, [0, 3]], rtol=1e-5)
    np.testing.assert_allclose(test.original(test.targets).numpy(), TABLE[rows][:, 1:2], rtol=1e-4)
    assert len(train) == 27


def test_a_table_is_split_as_the_papers_do_or_as_its_file_says(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "data.csv", TABLE, delimiter=",")
    _, test = data.uci("toy", 3, tmp_path)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[drawn(30, 3)[1], :3], rtol=1e-5)
    np.savez(tmp_path / "splits.npz", train=[[0, 1, 2], [3, 4, 5]], test=[[6], [7]])
    _, test = data.uci("toy", 1, tmp_path)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[[7], :3], rtol=1e-5)
    with pytest.raises(mt.InputError, match=r"split=2: .*splits\.npz has 0 to 1"):
        data.uci("toy", 2, tmp_path)


def test_a_column_that_never_changes_keeps_its_scale(tmp_path: Path) -> None:
    table = TABLE.copy()
    table[:, 1] = 0.1 + 0.2  # whose mean is not exactly itself
    np.savetxt(tmp_path / "data.csv", table, delimiter=",")
    train, _ = data.uci("toy", 0, tmp_path)
    assert float(train.std[1]) == 1
    assert float(train.batch(slice(None))[0][:, 1].abs().max()) < 1e-6


STANDARD = {
    "bostonHousing": (506, 13), "concrete": (1030, 8), "energy": (768, 8), "kin8nm": (8192, 8), "yacht": (308, 6),
    "naval-propulsion-plant": (11934, 16), "power-plant": (9568, 4), "protein-tertiary-structure": (45730, 9),
    "wine-quality-red": (1599, 11), "year": (515345, 90), "YearPredictionMSD": (515345, 90),
}  # fmt: skip
"""Rows and features as published."""


def test_sizes_of_the_standard_sets_are_as_published() -> None:
    assert SIZES == STANDARD


@pytest.mark.parametrize("name", [name for name in STANDARD if name != "yacht"])
def test_a_set_is_not_another_of_the_callers_naming(tmp_path: Path, name: str) -> None:
    """What was expected, what was found, and which set that is."""
    rows, features = STANDARD[name]
    np.savetxt(tmp_path / "data.csv", stored("regression.npz")["yacht"], delimiter=",")
    message = rf"'{name}'\): {tmp_path} holds 308 rows of 6 features, and {name} has {rows:,} of {features}: that is yacht"
    with pytest.raises(mt.FileError, match=message):
        data.uci(name, 0, tmp_path)
    assert len(data.uci("yacht", 0, tmp_path)[0]) == 277
    assert len(data.uci("mine", 0, tmp_path)[0]) == 277


def test_a_standard_set_with_a_row_or_a_column_too_few_is_refused(tmp_path: Path) -> None:
    table = stored("regression.npz")["energy"]
    for part in (table[:-1], table[:, 1:]):
        np.savetxt(tmp_path / "data.csv", part, delimiter=",")
        with pytest.raises(mt.FileError, match="and energy has 768 of 8; the target is one column"):
            data.uci("energy", 0, tmp_path)
    np.savetxt(tmp_path / "data.csv", table, delimiter=",")
    assert torch.equal(data.uci("energy", 4, tmp_path)[1].targets, data.uci("energy", 4)[1].targets)


def test_published_files_of_another_set_are_refused(tmp_path: Path) -> None:
    published(tmp_path / "concrete")
    with pytest.raises(mt.FileError, match="30 rows of 2 features, and concrete has 1,030 of 8"):
        data.uci("concrete", 0, tmp_path)


@pytest.mark.parametrize("name", ["year", "YearPredictionMSD"])
@pytest.mark.parametrize("place", ["uci/year", "YearPredictionMSD", "."])
@pytest.mark.parametrize("file", ["YearPredictionMSD.txt", "data.csv"])
def test_the_years_of_songs_have_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, file: str
) -> None:
    """The first rows and the last, here of a small table; the target comes first in the published file, last in data.csv."""
    monkeypatch.setitem(SIZES, name, (30, 3))
    monkeypatch.setitem(songs.__globals__, "YEAR_TRAIN", 25)
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    table = TABLE if file == "data.csv" else TABLE[:, [3, 0, 1, 2]]
    np.savetxt(tmp_path / place / file, table, delimiter=",")
    np.savez(tmp_path / place / "splits.npz", train=[[0, 1, 2], [3, 4, 5]], test=[[6], [7]])
    train, test = data.uci(name, 0, tmp_path)
    np.testing.assert_allclose(train.inputs.numpy(), TABLE[:25, :3], rtol=1e-5)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[25:, :3], rtol=1e-5)
    np.testing.assert_allclose(test.original(test.targets).numpy(), TABLE[25:, 3:], rtol=1e-4)


def test_the_split_of_the_years_is_the_publishers(tmp_path: Path) -> None:
    train, test = songs(515_345)
    assert (train[0], train[-1], len(train)) == (0, 463_714, 463_715)
    assert (test[0], test[-1], len(test)) == (463_715, 515_344, 51_630)
    for name in ("year", "YearPredictionMSD"):
        with pytest.raises(mt.InputError, match=f"{name}: split=1: it is published with one split, 0: its first 463,715 rows"):
            data.uci(name, 1, tmp_path)
        with pytest.raises(mt.FileError, match=r"YearPredictionMSD\.txt or data\.csv.*archive\.ics\.uci\.edu"):
            data.uci(name, 0, tmp_path)


def test_protein_has_five_splits_wherever_it_lies(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "data.csv", TABLE, delimiter=",")
    with pytest.raises(mt.InputError, match="split=5: the standard splits are 0 to 4"):
        data.uci("protein", 5, tmp_path)


def test_missing_sets_and_splits_are_named(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match=r"uci\('toy'\) is not there.*uci/toy.*data\.txt or data\.csv.*yaringal"):
        data.uci("toy", 0, tmp_path)
    for split in (-1, True, "train", 0.5):
        with pytest.raises(mt.InputError, match="numbered from 0"):
            data.uci("yacht", split)  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="split=20: the standard splits are 0 to 19"):
        data.uci("yacht", 20)
    published(tmp_path / "toy")
    with pytest.raises(mt.FileError, match=r"no index_train_2\.txt: it has 2 splits"):
        data.uci("toy", 2, tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = published(tmp_path / "toy")
    (folder / "index_test_0.txt").write_text("3\n30\n")
    with pytest.raises(mt.FileError, match=r"index_test_0\.txt must hold numbers from 0 to 29"):
        data.uci("toy", 0, tmp_path)
    (folder / "index_target.txt").unlink()
    with pytest.raises(mt.FileError, match=r"there is no .*index_target\.txt"):
        data.uci("toy", 0, tmp_path)
    (folder / "data.txt").write_text("1 2\n3\n")
    with pytest.raises(mt.FileError, match=r"data\.txt is no table of numbers"):
        data.uci("toy", 0, tmp_path)
    (folder / "data.txt").unlink()
    (folder / "data.csv").write_text("1,2\n3,nan\n4,5\n")
    with pytest.raises(mt.FileError, match="row 1 holds a number that is NaN"):
        data.uci("toy", 0, tmp_path)
    (folder / "data.csv").write_text("1\n2\n")
    with pytest.raises(mt.FileError, match=r"\[2, 1\]: at least two rows"):
        data.uci("toy", 0, tmp_path)


def test_a_file_of_splits_is_not_unpickled(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "data.csv", TABLE, delimiter=",")
    np.savez(tmp_path / "splits.npz", train=np.array([[0, 1], [2]], object), test=[[1]])
    with pytest.raises(mt.FileError, match=r"splits\.npz does not hold train and test"):
        data.uci("toy", 0, tmp_path)
    np.savez(tmp_path / "splits.npz", train=[[0, 30]], test=[[1]])
    with pytest.raises(mt.FileError, match=r"names rows that data\.csv, of 30 rows"):
        data.uci("toy", 0, tmp_path)
