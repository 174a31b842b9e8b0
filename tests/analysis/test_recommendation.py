"""Recommendation: limits, the code to type, the table, and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.analysis.recommendation import LEVELS, SIZES, TIMES, Candidate, Limit, Recommendation
from multitudes.conversion.cost import Cost, CostRow

pytestmark = pytest.mark.slow

SINGLE = CostRow(1000, 5000, 4096, 0.002)


def costing(times: float, memory: float = 1.0) -> Cost:
    """A cost with this multiple of the single network's latency, and of its memory."""
    return Cost(CostRow(2000, 20000, int(4096 * memory), 0.002 * times), SINGLE)


def listed(*candidates: Candidate, **changed: Any) -> Recommendation:
    """A recommendation with these candidates."""
    return replace(Recommendation("Net", "finetune", Limit(1.5, True), Limit(2e9, False), candidates), **changed)


FAST = Candidate(mt.Masksembles(members=4), "fits", "keeps all weights", "finetune", costing(1.2), compact=True, nll=0.79)
SLOW = Candidate(mt.MCDropout(members=10), "too slow", "latency of 3.9 × > 1.5 ×", "none", costing(3.9), distance=0.1)
NEW = Candidate(mt.Deep(members=4), "needs training", "scratch, since ...", "scratch")
REFUSED = Candidate(mt.EMP(patch=("a", "b")), "refused", "nothing there\n  a: no", axis=[0, None])


@pytest.mark.parametrize(
    ("given", "units", "amount"),
    [
        (1.5, TIMES, 3.0), (2, TIMES, 4.0), ("1.5x", TIMES, 3.0), ("1.5 ×", TIMES, 3.0), ("20 ms", TIMES, 0.02),
        ("0.5s", TIMES, 0.5), ("300 us", TIMES, 3e-4), ("300 µs", TIMES, 3e-4), ("1e-3 s", TIMES, 1e-3), (1e-05, TIMES, 2e-05),
        ("2 GB", SIZES, 2e9), ("512 MiB", SIZES, 2.0**29), ("3 kb", SIZES, 3000), ("7 B", SIZES, 7), ("2x", SIZES, 4.0),
    ],
)  # fmt: skip
def test_a_bare_number_is_a_multiple_and_a_unit_makes_it_an_amount(given: Any, units: dict[str, float], amount: float) -> None:
    limit = Limit.read("latency", given, units, "20 ms")
    assert limit is not None
    assert limit.amount(2.0) == pytest.approx(amount)
    assert Limit.read("latency", None, units, "20 ms") is None


@pytest.mark.parametrize("given", [0, -1, True, math.nan, math.inf, "20", "fast", "1.2.3 ms", "ms", "2 GB", "-1 ms", [1], ""])
def test_wrong_limits_are_refused(given: Any) -> None:
    with pytest.raises(mt.InputError, match=r"latency=1\.5.*latency='20 ms'.*us, µs, ms, s"):
        Limit.read("latency", given, TIMES, "20 ms")


def test_a_note_names_methods_whose_latency_is_far_above_their_arithmetic() -> None:
    """As of Packed on a small network: one network's multiply-adds, several times its latency."""
    times = {mt.Packed(): (1, 3.0), mt.MultiHead(): (1, 1.9), mt.Deep(): (4, 4.2), mt.MIMO(): (0.5, 1.1)}
    candidates = [
        Candidate(method, "fits", "", "scratch", Cost(CostRow(1000, int(5000 * work), 4096, 0.002 * latency), SINGLE))
        for method, (work, latency) in times.items()
    ]
    assert [candidate.overhead for candidate in candidates] == pytest.approx([3.0, 1.9, 1.05, 1.1])
    assert NEW.overhead == 0
    assert "Packed: latency is far above multiply-adds" in str(listed(*candidates))
    assert "note" not in str(listed(*candidates[1:]))


def test_the_code_to_type() -> None:
    """It has `members` and the settings that are not defaults, and it runs."""
    assert FAST.code == "mt.ensemble(model, mt.Masksembles(members=4), x)  # train it, then .compact()"
    copies = Candidate(mt.Packed(members=4, gamma=2), "fits", "", start="copies", axis=1)
    assert copies.code == "mt.ensemble(model, mt.Packed(members=4, gamma=2), x, start='copies', batch_axis=1)"
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(3, 4)
    assert eval(FAST.code, {"mt": mt, "model": model, "x": x}).method == FAST.method


def test_ratios_are_over_the_single_network() -> None:
    assert [SLOW.ratio(name) for name in ("latency", "memory", "parameters", "multiply_adds")] == pytest.approx([3.9, 1, 2, 4])
    assert NEW.ratio("latency") is None


def test_the_best_is_the_first_if_it_fits() -> None:
    found = listed(FAST, SLOW)
    assert found.best == FAST.method
    assert found.why == f"{FAST.code}\nkeeps all weights"


def test_if_nothing_fits_it_gives_the_reasons() -> None:
    found = listed(SLOW, NEW, replace(SLOW, verdict="too large", cost=None), REFUSED)
    assert found.best is None
    assert found.why == (
        "nothing fits: too slow 1, needs training 1, too large 1, refused 1; "
        "the lowest latency is 3.90 × the single network's; training='scratch' would allow more methods"
    )
    assert listed().best is None
    assert str(found).endswith(found.why)


def test_the_table_has_a_row_for_each_candidate_and_the_code_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    text = str(listed(FAST, SLOW, NEW, REFUSED))
    assert text.splitlines()[0].split() == ["model", "Net"]
    assert "at most 1.5 ×; the single network has 2 ms" in text
    assert "at most 1.9 GiB; the single network has 4.0 KiB" in text
    rows = [line for line in text.splitlines() if "│" in line]
    cells = [cell.strip() for cell in rows[0].split("│")]
    assert cells[1:7] == ["Masksembles(members=4).compact()", "1.20 ×", "1.00 ×", "2.00 ×", "4.00 ×", "finetune"]
    for said in ("3.90 ×", "too slow: latency of 3.9 × >", "needs training: scratch", "refused: nothing there a: no"):
        assert said in text
    assert text.splitlines()[-1] == FAST.code
    assert all(len(line) <= 140 for line in text.splitlines()[:-1])


def test_json_round_trip() -> None:
    found = listed(FAST, SLOW, NEW, REFUSED, memory=None)
    assert Recommendation.from_json(found.json()) == found
    first = json.loads(found.json())["candidates"][0]
    assert first["method"] == "Masksembles"
    assert first["settings"]["members"] == 4
    assert first["code"] == FAST.code
    assert first["cost"]["ensemble"]["latency"] == pytest.approx(0.0024)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"candidates": [{"method": "Nobody"}]}'])
def test_other_json_is_a_file_error(text: str) -> None:
    with pytest.raises(mt.FileError, match="JSON of a Recommendation"):
        Recommendation.from_json(text)


def test_levels_of_training_are_in_order() -> None:
    assert list(LEVELS) == ["none", "head", "finetune", "scratch"]
