"""What the items of Packed-Ensembles run."""

from __future__ import annotations

from pathlib import Path

import pytest

from multitudes.shell.reproduce.catalog import find_item
from multitudes.shell.reproduce.run import run_item


@pytest.mark.slow
def test_a_figure_of_a_table_shows_the_rows_that_were_trained(tmp_path: Path) -> None:
    """Fig. 1 is of Table 1's runs: they are read, not trained again, and both write their rows."""
    places = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    first = run_item(find_item("packed/table-1"), "smoke", **places)
    trained = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("last.multitude")}
    assert len(first) == len(trained) == 3
    second = run_item(find_item("packed/fig-1"), "smoke", **places)
    assert {one.label for one in second} == {one.label for one in first}
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("last.multitude")} == trained
    assert (tmp_path / "out" / "packed" / "fig-1" / "smoke" / "speed.png").is_file()
    assert first[0].printed == {} and first[0].runs[0].budget == "1 epochs" and first[0].runs[0].versions["torch"]
