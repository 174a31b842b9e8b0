"""`multitudes init`: the file it writes is a job that runs, and the command it prints is the next one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import multitudes as mt
from multitudes.report.row import Row
from multitudes.shell import commands
from multitudes.shell.jobs import find_job
from multitudes.shell.starter import write_job


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])


def test_the_file_is_a_job_that_a_network_learns() -> None:
    write_job(Path("first_job_of_mine.py"), force=False)
    job = find_job("first_job_of_mine:job")
    assert job.network()(job.example).shape == (2, 3)
    assert job.test.classes is not None
    assert "first_job_of_mine:job" in Path("first_job_of_mine.py").read_text()


@pytest.mark.slow
def test_the_command_it_prints_runs() -> None:
    told = CliRunner().invoke(commands.app, ["init", "groups_job.py"]).stdout
    (line,) = [line.strip() for line in told.splitlines() if line.strip().startswith("multitudes ")]
    words = shlex.split(line)[1:]
    result = CliRunner().invoke(commands.app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert Row.load("runs/groups_job/deep-0").scores["accuracy"] > 0.8
    assert Path("runs/groups_job/report.html").exists()


def test_it_names_the_module_in_a_folder_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--job jobs_of_mine.second:job" in write_job(Path("jobs_of_mine/second.py"), force=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = write_job(tmp_path / "third_job_of_mine.py", force=False)
    assert command.startswith(f"cd {tmp_path} && multitudes bench --job third_job_of_mine:job")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.txt", "type job.txt.py"),
        ("my-job.py", "type my_job.py"),
        ("2-job.py", "type my_2_job.py"),
        ("class.py", "type my_class.py"),
        ("json.py", "module json already.*my_json.py"),
        ("there.py", "exists already.*--force"),
    ],
)
def test_names_that_python_cannot_import_are_refused(name: str, text: str) -> None:
    Path("there.py").touch()
    with pytest.raises(mt.MultitudesError, match=text):
        write_job(Path(name), force=False)


def test_force_writes_it_again() -> None:
    Path("there.py").write_text("mine")
    write_job(Path("there.py"), force=True)
    assert "def job() -> Job" in Path("there.py").read_text()
