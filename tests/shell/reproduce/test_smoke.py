"""Every item at smoke: it runs, writes its rows and figures, and its numbers are finite. At most six minutes in all."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

from multitudes.shell.reproduce.catalog import ITEMS, PAPERS
from multitudes.shell.reproduce.comparison import compared
from multitudes.shell.reproduce.results import place
from multitudes.shell.reproduce.run import run_item


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_smoke(paper: str, tmp_path: Path) -> None:
    """The items of a paper share their runs, as figures of its tables do."""
    for item in ITEMS.values():
        if item.paper != paper or "smoke" not in item.scales:
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the . members have collapsed")  # one full mask, and members without differences
            results = run_item(item, "smoke", out=tmp_path / "out", runs=tmp_path / "runs")
        at = item.scales["smoke"]
        assert results, item.name
        assert not at.rows or {one.label for one in results} == set(at.rows), item.name
        cells = [one for row in compared(item, results).values() for one in row.values() if one.ours is not None]
        assert cells and all(math.isfinite(one.ours) for one in cells if one.ours is not None), item.name
        assert not item.draws or item.name == "packed/table-1" or any(place(tmp_path / "out", item.name, "smoke").glob("*.png"))
