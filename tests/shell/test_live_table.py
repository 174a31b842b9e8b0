"""The table of a sweep: the state of each trial, read from its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

import multitudes as mt
from multitudes.report.row import Row
from multitudes.scores.scores import Scores
from multitudes.shell.budget import Budget
from multitudes.shell.live_table import SweepTable, live_table
from multitudes.shell.trial import Trial


def trial(folder: Path, name: str) -> Trial:
    return Trial(
        job="fashion", name=name, text=name, method=mt.Single(), seed=7, budget=Budget(3, "epochs"), folder=folder / name
    )


def shown(table: SweepTable, width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(table)
    return console.export_text()


ROW = Row(name="b", method="B()", scores=Scores({"accuracy": 0.8125, "nll": 0.5}, task="classes"), seconds=12.3)


def test_trials_wait_train_end_and_fail(tmp_path: Path) -> None:
    table = SweepTable([trial(tmp_path, name) for name in ("a", "b", "c", "d")])
    _, b, c, d = table.trials
    for one in (c, d):
        one.folder.mkdir()
        (one.folder / "config.json").write_text(json.dumps({"recipe": {"epochs": 3}}))
    (c.folder / "metrics.jsonl").write_text('{"epoch": 1, "val_accuracy": 0.1}\n{"epoch": 2, "val_accuracy": 0.4321}\n')
    table.update(b, ROW)
    table.update(d, mt.RunError("no luck"))
    text = shown(table)
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


def test_each_ood_set_has_a_column_and_numbers_have_an_nll(tmp_path: Path) -> None:
    """A running trial of a regression reports its log density, which is minus its NLL."""
    table = SweepTable([trial(tmp_path, name) for name in ("a", "b")])
    scores = Scores(
        {"nll": 0.5, "lpd": -0.5, "far/auroc/msp": 0.75, "near/auroc/msp": 0.625, "far/fpr95/msp": 0.1}, task="classes"
    )
    table.update(table.trials[0], Row(name="a", method="A()", scores=scores, seconds=1.0))
    table.trials[1].folder.mkdir()
    (table.trials[1].folder / "config.json").write_text(json.dumps({"recipe": {"epochs": 3}}))
    (table.trials[1].folder / "metrics.jsonl").write_text('{"epoch": 1, "val_lpd": -1.25}\n')
    lines = [[cell.strip() for cell in line.split("│")[2:-1]] for line in shown(table).splitlines() if "│" in line]
    assert lines == [["7", "done", "0.500", "0.750", "0.625", "1"], ["7", "epoch 1/3", "1.250", "", "", ""]]
    assert "OOD AUROC far" in shown(table)


def test_scores_are_readable_in_a_narrow_terminal(tmp_path: Path) -> None:
    names = ["packed(alpha=2,gamma=2,members=4)", "single", "batchensemble"]
    table = SweepTable([trial(tmp_path, name) for name in names])
    values = {"accuracy": 0.8125, "nll": 0.5, "ece": 0.0625, "digits/auroc/msp": 0.75, "svhn/auroc/msp": 0.625}
    row = Row(name="a", method="A()", scores=Scores(values, task="classes"), seconds=123.0)
    for one in table.trials[:2]:
        table.update(one, row)
    table.update(table.trials[2], mt.ConversionError("no luck"))
    text = shown(table, width=80)
    assert max(map(len, text.splitlines())) <= 80
    for number in ("0.812", "0.500", "0.062", "0.750", "0.625", "123"):
        assert text.count(number) == 2


def test_half_written_files_count_as_missing(tmp_path: Path) -> None:
    table = SweepTable([trial(tmp_path, "a")])
    table.trials[0].folder.mkdir()
    (table.trials[0].folder / "config.json").write_text('{"recipe": {"epo')
    assert "waiting" in shown(table)
    (table.trials[0].folder / "config.json").write_text('{"recipe": {"epochs": 3}}')
    (table.trials[0].folder / "metrics.jsonl").write_text('{"epoch": 1, "val_acc')
    assert "epoch 0/3" in shown(table)


def test_without_a_terminal_each_trial_prints_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = trial(tmp_path, "a"), trial(tmp_path, "b")
    with live_table([one, two]) as table:
        table.update(one, ROW)
        table.update(two, mt.RunError("no luck"))
    assert capsys.readouterr().err == "1/2 a (seed 7): 12 s of training\n2/2 b (seed 7): RunError\n"
    assert set(table.outcomes) == {one, two}


def test_a_live_table_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with live_table([trial(tmp_path, "a")], live=True) as table:
        table.update(table.trials[0], ROW)
    assert "trials" in capsys.readouterr().err
