"""Items: printed tables, and what every item of every paper says."""

from __future__ import annotations

import pytest

from multitudes.errors import InputError
from multitudes.shell.reproduce.catalog import ITEMS, PAPERS, find_item, function_name, split_job, work_of
from multitudes.shell.reproduce.item import SCALES, Item, Number, printed


def test_a_printed_table_is_read_as_typed() -> None:
    table = printed("method | Acc | ECE\nSingle | 94.0 | -\nDeep | 11,173,962 | 0.02 ± 0.001")
    assert table.columns == ("Acc", "ECE")
    assert table.rows["Single"] == {"Acc": Number("94.0", 94.0)}
    assert table.rows["Deep"] == {"Acc": Number("11173962", 11173962.0), "ECE": Number("0.02", 0.02, 0.001)}
    assert len(table) == 3 and table.of("MIMO") == {}


@pytest.mark.parametrize("text", ["a | b\nx | 1 | 2", "a | b\nx | 1\nx | 2"])
def test_a_crooked_table_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        printed(text)


@pytest.mark.parametrize("item", ITEMS.values(), ids=list(ITEMS))
def test_an_item_is_whole(item: Item) -> None:
    """It names its paper, its protocol and its scales in order; its rows are those printed; its functions exist."""
    assert item.paper in PAPERS and item.title and item.protocol.endswith(".")
    assert list(item.scales) == [scale for scale in SCALES if scale in item.scales]
    assert {label for at in item.scales.values() for label in at.rows} <= set(item.rows)
    assert "smoke" not in item.scales or item.scales["smoke"].time == "seconds"
    for at in item.scales.values():
        jobs = {job for place in item.rows.values() for job in place.jobs}
        assert set(at.jobs) <= jobs, "a job that no row is trained in"
    if any(at.jobs for at in item.scales.values()):
        assert set(item.printed.rows) <= set(item.rows), "a printed row that is not trained"
    if item.printed.rows and item.columns:
        assert set(item.printed.columns) <= set(item.columns), "a printed column that is not ours"
    if item.source:
        assert item.source in ITEMS
        shared = [scale for scale, at in item.scales.items() if at.jobs]
        assert all(job in ITEMS[item.trained(job)].at(scale).jobs for scale in shared for job in item.at(scale).jobs)


@pytest.mark.parametrize("item", ITEMS.values(), ids=list(ITEMS))
def test_the_functions_of_an_item_exist(item: Item) -> None:
    names = {at.work or function_name(item) for at in item.scales.values() if not (item.source and at.jobs)}
    for name in names | ({item.draws} - {""}):
        assert callable(work_of(item, name)), name


@pytest.mark.parametrize("item", [item for item in ITEMS.values() if len(item.printed)], ids=lambda item: item.name)
def test_no_printed_number_stands_beside_other_images(item: Item) -> None:
    """Neither beside networks trained at smoke, on clothes, nor beside corruptions that we generate."""
    for scale, at in item.scales.items():
        beside = {name for label in item.printed.rows for name in item.beside(label, scale)}
        if at.jobs and scale == "smoke":
            assert not beside, "smoke trains on other images"
        if at.jobs and scale != "full":
            corrupted = {name for name, column in item.columns.items() if column.score in ("cAcc", "cNLL", "cECE")}
            assert not beside & corrupted, "generated corruptions are not the published files"
        if at.jobs and scale == "full" and not at.apart:
            assert beside == set(item.printed.columns), "the paper's protocol is compared with all that is printed"


def test_a_misspelt_item_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'packed/table-1'"):
        find_item("packed/tabel-1")
    with pytest.raises(InputError, match="is a paper: type one of its items, packed/table-1"):
        find_item("packed")


def test_jobs_of_items_have_names() -> None:
    item, job, scale = split_job("packed/table-1/cifar10-resnet18@small")
    assert (item.name, job, scale) == ("packed/table-1", "cifar10-resnet18", "small")
    with pytest.raises(InputError, match="cifar10-resnet18"):
        split_job("packed/table-1/cifar10-resnet19@small")
    with pytest.raises(InputError, match="did you mean 'small'"):
        split_job("packed/table-1/cifar10-resnet18@smal")
