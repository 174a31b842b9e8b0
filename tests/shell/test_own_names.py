"""The user's own modules and runs, looked up before they are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

import multitudes as mt
from multitudes.shell import own_names
from multitudes.shell.jobs import JOBS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)


def test_the_built_in_jobs_are_those_that_there_are() -> None:
    assert set(own_names.BUILT_IN) == set(JOBS)
    for name in JOBS:
        own_names.check_job(name)


@pytest.mark.parametrize("source", ["def job(): ...", "from elsewhere import job", "from elsewhere import *", "job = make()"])
def test_a_name_that_a_file_may_have_is_not_refused(source: str) -> None:
    Path("own.py").write_text(source)
    own_names.check_job("own:job")


def test_modules_are_found_in_packages_in_the_folder_of_a_run_and_among_installed_ones(tmp_path: Path) -> None:
    Path("nets/deeper").mkdir(parents=True)
    Path("nets/deeper/own.py").write_text("def job(): ...")
    own_names.check_job("nets.deeper.own:job")
    own_names.check_job("nets.made_later:job")  # the package may make it
    own_names.check_import("torch.nn:Linear", "--model")
    Path("away").mkdir()
    Path("away/mine.py").write_text("def job(): ...")
    own_names.check_job("mine:job", str(tmp_path / "away"))
    with pytest.raises(mt.InputError, match="no module 'mine'"):
        own_names.check_job("mine:job")


def test_a_file_without_a_job_is_told_of_the_starter() -> None:
    Path("nets.py").write_text("def resnet(): ...")
    with pytest.raises(mt.InputError, match="--job nets:job, with a function in it that returns a Job: `multitudes init`"):
        own_names.check_job("nets")


def test_all_that_is_missing_is_named_with_what_is_meant() -> None:
    Path("runs/packed").mkdir(parents=True)
    with pytest.raises(mt.InputError, match=r"runs/pakced and other do not exist: give runs\. Did you mean runs/packed\?"):
        own_names.check_there([Path("runs/pakced"), Path("other"), Path("runs")], "give runs")
