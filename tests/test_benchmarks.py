"""The benchmark of speeds: what it times is work, and what it draws is what it measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def contender(speed: Any, keeps: int, factor: float = 1.0) -> Any:
    """A network that computes only the first rows that it is given."""
    net = nn.Linear(784, 10)

    def run(x: Tensor) -> Tensor:
        return net(x[:keeps]) * factor

    return speed.Contender("one", net, run, lambda x, y: (run(x), y[:keeps]))


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_contender_that_computes_nothing_is_not_timed(part: Any, mode: str) -> None:
    """As a layer that divides one row among four members: no row is left, and the loss is the mean of nothing."""
    speed = part("speed")
    cell = speed.Cell("mlp", 4, mode, "cpu", "fp32")
    x, y = speed.example(cell)
    speed.check_work(contender(speed, 4), cell, x, y)
    for keeps, factor in ((0, 1.0), (4, float("nan"))):
        with pytest.raises(ValueError, match=f"{keeps} (predictions|outputs) of 4 rows, or .*not finite"):
            speed.check_work(contender(speed, keeps, factor), cell, x, y)


def test_a_prediction_has_every_row(part: Any) -> None:
    speed = part("speed")
    cell = speed.Cell("mlp", 4, "infer", "cpu", "fp32")
    with pytest.raises(ValueError, match="3 predictions of 4 rows"):
        speed.check_work(contender(speed, 3), cell, *speed.example(cell))


def test_a_ratio_is_the_median_of_those_within_a_round(part: Any) -> None:
    """A slow round of all contenders is no slow contender."""
    times = {"single": [1.0, 10.0, 2.0], "packed": [2.0, 20.0, 4.0]}
    row = part("speed")._with_times({"contender": "packed"}, times, 8)
    assert row == {"contender": "packed", "ms": 4.0, "per_s": 2000, "of_single": 2.0}
    assert part("speed")._with_times({"contender": "deep", "error": "x"}, times, 8) == {"contender": "deep", "error": "x"}


def test_a_wider_network_is_made_wider_by_the_method_too(part: Any) -> None:
    make = part("speed").made("mlp", 0.5)
    assert [make().get_parameter("layers.0.weight").shape[0], make(width=0.25).get_parameter("layers.0.weight").shape[0]] == [
        512,
        128,
    ]


def test_cells_that_would_take_too_long_are_left_out(part: Any) -> None:
    """Cost is taken to grow as the members; of the single network every cell has its own."""
    growth = part("growth")
    last = {("deep", "train"): (2.0, 8), ("single", "train"): (2.0, 8)}
    assert growth._expected(last, "deep", "train", 16) == growth.CALLS * 4.0
    assert growth._expected(last, "deep", "infer", 16) == growth._expected(last, "single", "train", 16) == 0.0


def test_a_figure_knows_whether_it_is_current(part: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = part("figures")
    about = {"growth": "members", "device": "cpu", "network": "resnet18", "batch": 8, "precision": "fp32", "width": 1.0}
    rows = [
        {**about, "mode": mode, "contender": name, "members": count, "of_single": float(count)}
        for mode in ("infer", "train")
        for name in figures.CURVES
        for count in (1, 2, 4)
    ]
    shown = figures.drawn([], rows)
    assert list(shown) == ["members"]
    assert not figures.are_current(tmp_path, shown)
    figures.write(tmp_path, shown)
    assert figures.are_current(tmp_path, shown)
    assert {path.name for path in tmp_path.iterdir()} == {"members.svg", "members-dark.svg"}
    rows[-1]["of_single"] = 5.0
    assert not figures.are_current(tmp_path, figures.drawn([], rows))


def test_the_slowest_method_decides_the_goal_of_compiling(part: Any) -> None:
    goals = part("goals")
    rows = [
        {"device": "cuda", "mode": "infer", "contender": name, "of_single": ratio}
        for name, ratio in (("single", 1.0), ("deep", 1.2), ("packed", 1.7))
    ]
    first, *others = goals.compile_lines(rows)
    assert "packed" in first and "1.70 | missed" in first
    assert all("not measured" in line for line in others)


def test_ratios_of_the_paper_are_those_of_its_table(part: Any) -> None:
    table = part("precisions").precisions([])
    assert "| Packed-Ensembles-(2, 4, 1) | 4.84 / 2.69 |  | 2.28 / 1.68 |  |  |" in table
