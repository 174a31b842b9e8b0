"""UCI datasets: the standard splits, the scale of the training part, and their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data import small_sets as small
from data.small_sets import TABLE

from multitudes import data
from multitudes.data.embedded import stored
from multitudes.data.uci import SIZES, draw_split, year_split
from multitudes.errors import FileError, InputError


def test_splits_are_those_of_the_papers() -> None:
    """The first rows of index_train_0 and the last of index_test_19 as published for the yacht set."""
    train, test = draw_split(308, 0)
    assert (len(train), len(test)) == (277, 31)
    assert train[:5].tolist() == [73, 304, 228, 238, 259]
    assert draw_split(308, 19)[1][-5:].tolist() == [68, 19, 75, 135, 290]
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
    small.uci(tmp_path, "UCI_Datasets/toy/data")
    folder = tmp_path / "UCI_Datasets" / "toy" / "data"
    train, test = data.uci("toy", 1, tmp_path)
    rows = np.loadtxt(folder / "index_test_1.txt").astype(int)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[rows][:, [0, 3]], rtol=1e-5)
    np.testing.assert_allclose(test.original(test.targets).numpy(), TABLE[rows][:, 1:2], rtol=1e-4)
    assert len(train) == 27


def test_a_table_is_split_as_the_papers_do_or_as_its_file_says(tmp_path: Path) -> None:
    small.csv(tmp_path)
    _, test = data.uci("toy", 3, tmp_path)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[draw_split(30, 3)[1], :3], rtol=1e-5)
    small.csv(tmp_path, train=[[0, 1, 2], [3, 4, 5]], test=[[6], [7]])
    _, test = data.uci("toy", 1, tmp_path)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[[7], :3], rtol=1e-5)


def test_a_column_that_never_changes_keeps_its_scale(tmp_path: Path) -> None:
    table = TABLE.copy()
    table[:, 1] = 0.1 + 0.2  # whose mean is not exactly itself
    train, _ = data.uci("toy", 0, small.csv(tmp_path, table))
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
    """The error has the expected and the actual numbers, and the dataset with these numbers."""
    rows, features = STANDARD[name]
    small.csv(tmp_path, stored("regression.npz")["yacht"])
    with pytest.raises(FileError, match=rf"'{name}'.*308 rows of 6 .*{name} has {rows:,} of {features}.*yacht"):
        data.uci(name, 0, tmp_path)
    assert len(data.uci("yacht", 0, tmp_path)[0]) == 277
    assert len(data.uci("mine", 0, tmp_path)[0]) == 277


def test_a_standard_set_may_be_read_from_a_file(tmp_path: Path) -> None:
    for columns in (9, 10):  # with the heating load alone, and with both
        root = small.csv(tmp_path, stored("regression.npz")["energy"][:, :columns])
        assert torch.equal(data.uci("energy", 4, root)[1].targets, data.uci("energy", 4)[1].targets)
    assert torch.equal(data.uci("energy", 4, root, targets=2)[1].targets, data.uci("energy", 4, targets=2)[1].targets)


def test_both_targets_of_energy() -> None:
    """Heating and cooling load: the first is that of the standard protocol, the second has the published mean and deviation."""
    one, two = data.uci("energy", 3), data.uci("energy", 3, targets=2)
    for part, both in zip(one, two, strict=True):
        assert torch.equal(part.batch(slice(None))[0], both.batch(slice(None))[0])
        assert torch.equal(part.targets, both.targets[:, :1])
        assert both.targets.shape == (len(part), 2)
    cooling = torch.cat([part.original(part.targets)[:, 1] for part in two]).double()
    assert cooling.mean().item() == pytest.approx(24.587760, abs=2e-6)
    assert cooling.std().item() == pytest.approx(9.513306, abs=2e-6)
    assert (cooling.min().item(), cooling.max().item()) == pytest.approx((10.9, 48.03))
    assert cooling.quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist() == pytest.approx([15.62, 22.08, 33.1325])
    torch.testing.assert_close(two[0].targets.std(0, correction=0), torch.ones(2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("targets", [1, 2])
def test_targets_in_their_own_units(targets: int) -> None:
    """With standardise="inputs", inputs are as before and targets as published."""
    both, inputs = (data.uci("energy", 1, targets=targets, standardise=what) for what in ("both", "inputs"))
    for scaled, own in zip(both, inputs, strict=True):
        assert torch.equal(scaled.batch(slice(None))[0], own.batch(slice(None))[0])
        torch.testing.assert_close(own.targets, scaled.original(scaled.targets), rtol=1e-5, atol=1e-4)
        assert own.original(own.targets) is own.targets
        assert (own.target_mean, own.target_std) == (None, None)


def test_targets_of_published_files(tmp_path: Path) -> None:
    """The second target is the column that is neither a feature nor the target; an own table has its targets last."""
    small.uci(tmp_path, "UCI_Datasets/toy/data")
    rows = np.loadtxt(tmp_path / "UCI_Datasets" / "toy" / "data" / "index_test_1.txt").astype(int)
    _, test = data.uci("toy", 1, tmp_path, targets=2, standardise="inputs")
    np.testing.assert_allclose(test.targets.numpy(), TABLE[rows][:, [1, 2]], rtol=1e-5)
    with pytest.raises(FileError, match=r"targets=3.*data\.txt"):
        data.uci("toy", 1, tmp_path, targets=3)
    (tmp_path / "other").mkdir()
    _, test = data.uci("mine", 0, small.csv(tmp_path / "other"), targets=2, standardise="inputs")
    np.testing.assert_allclose(test.targets.numpy(), TABLE[draw_split(30, 0)[1], 2:], rtol=1e-5)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[draw_split(30, 0)[1], :2], rtol=1e-5)


def test_a_second_target_that_is_not_there(tmp_path: Path) -> None:
    """The file lacks it, or the dataset has only one."""
    root = small.csv(tmp_path, stored("regression.npz")["energy"][:, :9])
    with pytest.raises(FileError, match=r"targets=2.*one target.*heating and cooling load"):
        data.uci("energy", 0, root, targets=2)
    with pytest.raises(InputError, match=r"yacht does not have targets=2.*energy has two"):
        data.uci("yacht", targets=2)
    for wrong in ({"targets": 0}, {"standardise": "targets"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            data.uci("yacht", **wrong)


@pytest.mark.parametrize(
    ("name", "place", "file"),
    [
        ("year", "uci/year", "YearPredictionMSD.txt"),
        ("year", "YearPredictionMSD", "data.csv"),
        ("YearPredictionMSD", ".", "YearPredictionMSD.txt"),
    ],
)
def test_the_years_of_songs_have_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, file: str
) -> None:
    """The first rows and the last, here of a small table; the target comes first in the published file, last in data.csv."""
    monkeypatch.setitem(SIZES, name, (30, 3))
    monkeypatch.setitem(year_split.__globals__, "YEAR_TRAIN", 25)
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    table = TABLE if file == "data.csv" else TABLE[:, [3, 0, 1, 2]]
    np.savetxt(tmp_path / place / file, table, delimiter=",")
    np.savez(tmp_path / place / "splits.npz", train=[[0, 1, 2], [3, 4, 5]], test=[[6], [7]])
    train, test = data.uci(name, 0, tmp_path)
    np.testing.assert_allclose(train.inputs.numpy(), TABLE[:25, :3], rtol=1e-5)
    np.testing.assert_allclose(test.inputs.numpy(), TABLE[25:, :3], rtol=1e-5)
    np.testing.assert_allclose(test.original(test.targets).numpy(), TABLE[25:, 3:], rtol=1e-4)


def test_the_split_of_the_years_is_the_publishers() -> None:
    train, test = year_split(515_345)
    assert (train[0], train[-1], len(train)) == (0, 463_714, 463_715)
    assert (test[0], test[-1], len(test)) == (463_715, 515_344, 51_630)
