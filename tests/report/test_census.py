"""Results of a census: lines of JSON, rates, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from multitudes.errors import FileError
from multitudes.report.census import OUTCOMES, Rate, Result, counts, rates, read_results
from multitudes.report.census_page import SYMBOLS, census_page, write_page


def result(network: str, method: str, outcome: str = "ok", library: str = "own", **more: object) -> Result:
    return Result(library=library, family=network, network=network, method=method, outcome=outcome, **more)  # type: ignore[arg-type]


RESULTS = [
    result("mlp", "Deep", conversion=0.4, seconds=2.0, memory=3 * 2**20),
    result("mlp", "Packed", "refused", reason="no <channels>\nand a second line"),
    result("mlp", "EMP", "impossible", reason="no norm"),
    result("lstm", "Deep", "wrong", reason="values: output 0 of member 1 differs"),
    result("lstm", "EMP", "timeout", reason="60 s were over"),
    result("resnet", "Deep", "not built", library="timm", reason="ImportError"),
    result("vit", "MIMO", library="timm", conversion=1.6, notes=("gradients in training mode: random",)),
]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """The last line of a pair counts, a line that is cut off does not."""
    file = tmp_path / "a.jsonl"
    assert read_results(file) == {}
    lines = [r.line() for r in RESULTS]
    file.write_text("\n".join([*lines, result("mlp", "Deep", "error").line(), '{"library": "ow']))
    found = read_results(file)
    assert len(found) == len(RESULTS)
    assert found["own", "mlp", "Deep"].outcome == "error"
    assert found["timm", "vit", "MIMO"].conversion == 1.6
    file.write_text("nothing\n" + lines[0])
    with pytest.raises(FileError, match="line 1"):
        read_results(file)


def test_rates_leave_out_what_cannot_be() -> None:
    """By hand: of Deep one of two by hand and none of timm's count; EMP's impossible pair is left out."""
    found = rates(RESULTS)
    assert found["Deep"] == {"timm": Rate(0, 0, 1), "own": Rate(1, 2, 0)}
    assert found["Packed"]["own"] == Rate(0, 1, 0)
    assert found["MIMO"]["timm"].share == 1.0
    assert found["all other methods"]["own"] == Rate(0, 1, 1)
    assert str(found["Deep"]["own"]) == "1/2"
    assert found["Deep"]["timm"].share is None
    assert counts(RESULTS)["ok"] == 2


def test_the_page_has_every_pair_and_every_reason(tmp_path: Path) -> None:
    text = write_page(RESULTS, tmp_path / "folder" / "census.html").read_text()
    assert text == census_page(RESULTS)
    assert "<strong>40.0%</strong> of 5 pairs (4 networks, 4 methods)" in text
    assert "1 conversion broke a comparison" in text
    assert "no &lt;channels&gt;\nand a second line" in text
    assert "http" not in text.replace('http-equiv="Content', "").replace("no network requests", "")
    links, targets = set(re.findall(r'href="#(pair-\d+)"', text)), set(re.findall(r'id="(pair-\d+)"', text))
    assert links == targets
    assert len(links) == 6
    for outcome in ("ok", "refused", "wrong", "timeout", "impossible", "not built"):
        assert f'aria-label="{outcome}">{SYMBOLS[outcome]}<' in text
    assert "converted in 0.4 s, 2.0 s in all, 3.0 MiB at the peak" in text
    assert "Not compared: gradients in training mode: random" in text


def test_every_outcome_has_a_sign_of_its_own() -> None:
    assert set(SYMBOLS) == set(OUTCOMES)
    assert len(set(SYMBOLS.values())) == len(SYMBOLS)


def test_a_page_of_nothing() -> None:
    assert "No pair of network and method was tried" in census_page([])


def test_only_all_pairs_are_a_hundred_percent() -> None:
    assert [Rate(ok, 266, 0).percent for ok in (266, 265, 0)] == ["100%", "99%", "0%"]
    assert Rate(0, 0, 3).percent == "–"
