"""Rows of items as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from multitudes.errors import FileError
from multitudes.shell.reproduce.catalog import ITEMS
from multitudes.shell.reproduce.comparison import Cell, cell, compared, markdown, rich_table
from multitudes.shell.reproduce.item import Column, Item, Scale, printed
from multitudes.shell.reproduce.results import Measured, Result, load, load_all

ITEM = Item(
    name="packed/table-0", title="a table", protocol="One.", scales={"small": Scale(time="seconds")},
    printed=printed("row | Acc\nSingle | 94.0\nDeep | 95.5"),
    columns={"Acc": Column("accuracy", 100), "Size": Column("relative/parameters")},
)  # fmt: skip


def row(label: str, accuracy: float, seed: int = 0) -> Result:
    run = Measured(seed=seed, scores={"accuracy": accuracy}, cost={"parameters": 8.0, "single_parameters": 4.0})
    return Result(item=ITEM.name, scale="small", label=label, runs=(run,))


def test_runs_with_other_seeds_are_added(tmp_path: Path) -> None:
    row("Single", 0.5).save(tmp_path)
    row("Single", 0.7, seed=1).save(tmp_path)
    file = row("Single", 0.6).save(tmp_path)  # replaces seed 0
    assert [(run.seed, run.scores["accuracy"]) for run in load(file).runs] == [(0, 0.6), (1, 0.7)]


def test_a_run_that_is_read_again_keeps_its_date_its_device_and_what_follows_from_other_rows(tmp_path: Path) -> None:
    first = replace(row("Single", 0.5).runs[0], date="2026-01-01", versions={"device": "GPU"}, measured={"better/nll": 1.0})
    Result(item=ITEM.name, scale="small", label="Single", runs=(first,)).save(tmp_path)
    again = replace(first, date="2026-02-02", versions={"device": "CPU"}, measured={"minutes": 2.0})
    file = Result(item=ITEM.name, scale="small", label="Single", runs=(again,)).save(tmp_path)
    kept = load(file).runs[0]
    assert kept.date == "2026-01-01" and kept.versions == {"device": "GPU"}
    assert kept.measured == {"better/nll": 1.0, "minutes": 2.0}
    other = replace(again, scores={"accuracy": 0.6})
    new = load(Result(item=ITEM.name, scale="small", label="Single", runs=(other,)).save(tmp_path)).runs[0]
    assert new.date == "2026-02-02" and new.measured == {"minutes": 2.0}


def test_ours_stand_beside_theirs(tmp_path: Path) -> None:
    for one in (row("Deep", 0.957), row("Single", 0.938), row("Single", 0.944, seed=1)):
        one.save(tmp_path)
    found = load_all(tmp_path, ITEM, "small")
    assert [one.label for one in found] == ["Single", "Deep"]
    cells = compared(ITEM, found)
    assert cells["Single"]["Acc"].shown() == "94.1 ± 0.4" and cells["Single"]["Acc"].difference() == "+0.1"
    assert cells["Deep"]["Size"].ours == 2.0 and cells["Deep"]["Size"].theirs is None
    assert markdown(ITEM, found).splitlines()[2] == "| Single | 94.1 ± 0.4 | 94.0 | 2 |"


def test_a_terminal_names_every_row_also_one_without_the_first_column(tmp_path: Path) -> None:
    row("Single", 0.94).save(tmp_path)
    bare = Measured(seed=0, scores={}, cost={"parameters": 8.0, "single_parameters": 4.0})
    Result(item=ITEM.name, scale="small", label="Deep", runs=(bare,)).save(tmp_path)
    table = rich_table(ITEM, load_all(tmp_path, ITEM, "small"))
    assert list(table.columns[0].cells) == ["Single", "", "Deep"]
    assert list(table.columns[4].cells) == ["+0.0", "", ""], "94 is printed as 94.0"
    assert Cell(93.96, None, ITEM.printed.rows["Single"]["Acc"], 1).difference() == "+0.0", "not −0.0"


def test_numbers_without_theirs_have_the_digits_that_runs_agree_on() -> None:
    assert Cell(93.3912, 0.2078, None, 3).shown() == "93.39 ± 0.21"
    assert Cell(0.25951, 0.0119, None, 3).shown() == "0.260 ± 0.012"
    assert Cell(12_345.6, 250.0, None, 3).shown() == "12,346 ± 250" and Cell(0.5, 0.0, None, 3).shown() == "0.5"


def test_a_count_says_of_how_many_runs() -> None:
    runs = tuple(Measured(seed=seed, scores={"better": float(seed != 1)}) for seed in range(3))
    result = Result(item=ITEM.name, scale="small", label="Deep", runs=runs)
    assert cell(result, Column("better", over="count"), None).shown() == "2 of 3"


def test_scores_of_old_files_have_their_present_names(tmp_path: Path) -> None:
    old = Measured(seed=0, scores={"accuracy": 0.9, "auroc/msp": 0.8, "oodmi": 0.1}, ood=("svhn",))
    file = Result(item=ITEM.name, scale="small", label="Single", runs=(old,)).save(tmp_path)
    run = load(file).runs[0]
    assert run.scores["svhn/auroc/msp"] == 0.8 and run.value(Column("ood/auroc/msp", 100)) == 80


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = row("Single", 0.5).save(tmp_path)
    for text in ("{}", '{"format": 1, "item": "a", "scale": "small", "label": "b", "runs": []}'):
        file.write_text(text)
        with pytest.raises(FileError, match="holds no row"):
            load(file)
    file.write_text("{}")
    with pytest.raises(FileError, match="holds no row"):
        load(file)


def test_published_rows_say_what_their_items_say() -> None:
    """What is printed, and what differs, may be corrected later: then in the files too. Every run says what it was."""
    results = Path(__file__).parents[3] / "results"
    found = [one for item in ITEMS.values() for scale in ("small", "full") for one in load_all(results, item, scale)]
    assert len(found) > 200
    for one in found:
        item = ITEMS[one.item]
        assert one.differs == item.at(one.scale).differs, f"{one.item}, {one.label}"
        beside = {name: number.value for name, number in item.beside(one.label, one.scale).items()}
        assert one.printed == beside, f"{one.item}, {one.label}"
        assert all(run.budget and run.date and run.versions and run.command for run in one.runs), f"{one.item}, {one.label}"


def test_published_scores_are_those_that_the_paper_means() -> None:
    """AUPR with the other set as positive, or FPR95 the other way round, would be tens of points away."""
    results = Path(__file__).parents[3] / "results"
    item = ITEMS["packed/table-1"]
    cells = [row for row in compared(item, load_all(results, item, "small")).values() if row["Acc"].theirs is not None]
    assert len(cells) == 12
    for name, most in (("Acc", 2), ("AUPR", 3), ("AUC", 5), ("FPR95", 10), ("Params (M)", 0.1)):
        apart = [abs(row[name].ours - row[name].theirs.value) for row in cells]  # type: ignore[operator, union-attr]
        assert sum(apart) / len(apart) < most, name
