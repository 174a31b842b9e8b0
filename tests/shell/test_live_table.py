"""Watching a sweep: trials as they stand, read from their folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

import multitudes as mt
from multitudes.report.row import Row
from multitudes.scores.scores import Scores
from multitudes.shell.budget import Budget
from multitudes.shell.live_table import SweepTable, watching
from multitudes.shell.trial import Trial


def tried(folder: Path, name: str) -> Trial:
    return Trial(task="fashion", name=name, method=mt.Single(), seed=7, budget=Budget(3, "epochs"), folder=folder / name)


def shown(watch: SweepTable) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(watch)
    return console.export_text()


ROW = Row(name="b", method="B()", scores=Scores({"accuracy": 0.8125, "nll": 0.5}, task="classes"), seconds=12.3)


def test_a_trial_waits_learns_and_ends(tmp_path: Path) -> None:
    watch = SweepTable([tried(tmp_path, name) for name in ("a", "b", "c", "d")])
    _, b, c, d = watch.wanted
    for one in (c, d):
        one.folder.mkdir()
        (one.folder / "config.json").write_text(json.dumps({"recipe": {"epochs": 3}}))
    (c.folder / "metrics.jsonl").write_text('{"epoch": 1, "val_accuracy": 0.1}\n{"epoch": 2, "val_accuracy": 0.4321}\n')
    watch.update(b, ROW)
    watch.update(d, mt.RunError("no luck"))
    text = shown(watch)
    lines = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in text.splitlines()
        if "│" in line
    }
    assert lines["a"] == ["7", "waiting", "", "", ""]
    assert lines["b"] == ["7", "done", "0.812", "0.500", "12"]
    assert lines["c"] == ["7", "epoch 2/3", "0.432", "", ""]
    assert lines["d"] == ["7", "RunError", "", "", ""]
    assert "1 of 4 trials" in text


def test_half_written_files_are_nothing_yet(tmp_path: Path) -> None:
    watch = SweepTable([tried(tmp_path, "a")])
    watch.wanted[0].folder.mkdir()
    (watch.wanted[0].folder / "config.json").write_text('{"recipe": {"epo')
    assert "waiting" in shown(watch)
    (watch.wanted[0].folder / "config.json").write_text('{"recipe": {"epochs": 3}}')
    (watch.wanted[0].folder / "metrics.jsonl").write_text('{"epoch": 1, "val_acc')
    assert "epoch 0/3" in shown(watch)


def test_without_a_terminal_a_line_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tried(tmp_path, "a"), tried(tmp_path, "b")
    with watching([one, two]) as watch:
        watch.update(one, ROW)
        watch.update(two, mt.RunError("no luck"))
    assert capsys.readouterr().err == "1/2 a (seed 7): 12 s of training\n2/2 b (seed 7): RunError\n"
    assert set(watch.outcomes) == {one, two}


def test_a_live_table_goes_when_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with watching([tried(tmp_path, "a")], live=True) as watch:
        watch.update(watch.wanted[0], ROW)
    assert "trials" in capsys.readouterr().err
