"""What a run was told: which commands resume it, and what stays of a command that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import multitudes as mt
from multitudes.shell.told import Told, told_to_train


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has done eight epochs."""
    folder = tmp_path / "packed"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "000008.safetensors").touch()
    (folder / "config.json").write_text("{}")
    Told(job="wine:job", epochs=8).save(folder)
    return folder


def test_resuming_a_misspelt_folder_starts_no_other_job(run: Path) -> None:
    with pytest.raises(mt.InputError, match=r"no run in .*pakced: did you mean .*/packed\? To start one there, give --job"):
        told_to_train(run.parent / "pakced", {"epochs": 1}, resume=True)
    with pytest.raises(mt.InputError, match=r"no run in .*other\. To start"):
        told_to_train(run.parent / "other", {}, resume=True)
    assert told_to_train(run.parent / "new", {"job": "wine:job"}, resume=True).job == "wine:job"
    with pytest.raises(mt.InputError, match=r"no run in .*pakced: did you mean .*/packed\?"):
        told_to_train(run.parent / "pakced", {"job": "wine:job", "epochs": 9}, resume=True)
    for other in ({"seed": 1}, {"method": "deep"}, {"job": "beer:job"}):  # a run that was told otherwise is another one
        assert told_to_train(run.parent / "pakced", {"job": "wine:job", **other}, resume=True) != Told(job="wine:job")
    with pytest.raises(mt.InputError, match="holds runs: packed"):
        told_to_train(run.parent, {}, resume=True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"epochs": 3}, "has done 8 epochs already: type --epochs 8 or more, or choose another --out"),
        ({"lr": 0.5}, "--lr was that of the job, not 0.5"),
        ({"method": "deep"}, "--method was packed, not deep"),
    ],
)
def test_other_options_are_refused(run: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(mt.FileError, match=text):
        told_to_train(run, given, resume=True)
    assert told_to_train(run, {"epochs": 9}, resume=True).epochs == 9


def test_a_refused_command_changes_nothing(run: Path) -> None:
    def refused(folder: Path) -> None:
        with pytest.raises(mt.FileError), Told(epochs=3).saved(folder):
            raise mt.FileError("another run")

    def refused_late(folder: Path) -> None:
        with pytest.raises(mt.FileError), Told(epochs=9).saved(folder):
            (folder / "config.json").write_text('{"epochs": 9}')
            raise mt.FileError("another model")

    refused(run)
    refused_late(run)
    assert (run / "config.json").read_text() == "{}"
    assert Told.load(run) == Told(job="wine:job", epochs=8)
    refused(run.parent / "new")
    assert not list((run.parent / "new").iterdir())


def test_a_run_that_was_accepted_keeps_its_command(run: Path) -> None:
    with pytest.raises(mt.RunError), Told(epochs=9).saved(run):
        (run / "config.json").write_text('{"epochs": 9}')
        raise mt.RunError("the loss is NaN")
    assert Told.load(run) == Told(epochs=9)
