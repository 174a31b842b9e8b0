"""The shell: what commands print, and how they end."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import multitudes as mt
from multitudes.report.row import Row
from multitudes.shell import commands, steps

MODULE = """
import torch
from torch import nn
import multitudes as mt
from multitudes.data import Data
from multitudes.shell.jobs import Job
from multitudes.models import MLP

g = torch.Generator().manual_seed(0)
x = torch.randn(128, 6, generator=g)
y = (x @ torch.randn(6, 3, generator=g)).argmax(1)

def network():
    return MLP(6, (16,), 3)

def own():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(10, 4), nn.Linear(7, 2)

    def forward(self, ids, numbers):
        return self.last(torch.cat([self.embed(ids).mean(1), numbers], 1))

def small():
    return Job(name="small", network=network, train=Data(x[:64], y[:64]), test=Data(x[64:96], y[64:96]),
               validation=Data(x[96:], y[96:]), ood={"far": Data(x[:20] + 9, y[:20])},
               recipe=mt.Recipe(epochs=2, batch=16, lr=0.05))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs_of_shell.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(__import__("sys").path))


JOB = ("--job", "jobs_of_shell:small")


def typed(*words: str, code: int = 0) -> str:
    """Runs a command, checks its exit code, and returns its output."""
    result = CliRunner().invoke(commands.app, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_help_has_an_example() -> None:
    for name in ("init", "bench", "train", "predict", "score", "report", "plan", "census", "reproduce"):
        text = typed(name, "--help")
        assert f"multitudes {name} " in text
        assert "--json" in text


@pytest.mark.slow
def test_a_sweep_and_its_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and a page; finished trials are not run again; `report` takes the folders it is given."""
    command = ["bench", *JOB, "--methods", "single,deep(members=2)", "--budget", "1 epoch", "--out", "runs/s"]
    with pytest.raises(SystemExit):
        commands.main([*command, "--json"])
    output = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["seed"]) for row in output["rows"]] == [("single", 0), ("deep(members=2)", 0)]
    assert output["rows"][1]["scores"]["nll"] == Row.load("runs/s/deep_members_2-0").scores["nll"]
    assert "deep(members=2)" in Path("runs/s/report.html").read_text()

    pages: list[list[str]] = []
    monkeypatch.setattr(steps, "report", lambda rows, out, **options: pages.append([row.name for row in rows]) or out)
    monkeypatch.setattr("multitudes.shell.trial.fit", None)
    assert "deep" in typed(*command)
    assert "other.html" in typed("report", "runs/s/single-0", "--out", "other.html")
    assert pages == [["deep(members=2)", "single"], ["single"]]


def test_a_plan_of_several_inputs() -> None:
    """Ids stay below the number of different ones, else the embedding would fail."""
    words = ["plan", "jobs_of_shell:Words", "--method", "deep", "--json"]
    found = json.loads(typed(*words, "--example", "8x16:int64:10", "--example", "numbers=8x3"))
    assert found["converted"] == ["embed", "last"]
    with pytest.raises(mt.InputError, match="index out of range"):
        typed(*words, "--example", "8x16:int64:100", "--example", "8x3")


def test_a_plan() -> None:
    assert "Linear" in typed("plan", "jobs_of_shell:own", "--example", "2,6", "--method", "packed(alpha=2)")
    found = json.loads(typed("plan", "jobs_of_shell:own", "--example", "2,6", "--method", "multihead", "--json"))
    assert found["converted"] == ["2"]
    assert json.loads(typed("plan", *JOB, "--method", "multihead", "--json"))["refused"] == []


@pytest.mark.parametrize(
    ("words", "code", "nouns"),
    [
        (["bench", "--job", "fasion"], 2, "job 'fasion'.*'fashion'"),
        (["bench", *JOB, "--methods", "paked"], 2, "method 'paked'.*'packed'"),
        (["bench", *JOB, "--epochs", "5"], 2, "bench has no --epochs: type --budget '5 epochs'"),
        (["bench", *JOB, "--seeds", "a"], 2, "--seeds 'a'"),
        (["bench", *JOB, "--seeds", "4-0"], 2, "--seeds '4-0'"),
        (["train", *JOB, "--method", "packed(alpa=2)", "--out", "a"], 2, "alpa=.*type alpha="),
        (["train", *JOB, "--method", "packed(draws=True)", "--out", "a"], 2, "draws=.*no such setting.*members"),
        (["train", *JOB, "--model", "jobs_of_shell:nosuch", "--out", "a"], 2, "'nosuch'. Known: Words, network, own, small "),
        (["train", "--job", "jobs_of_shell", "--out", "a"], 2, "a file of yours: type .*jobs_of_shell:job.*multitudes init"),
        (["train", "--job", "jobs_of_shell:own", "--out", "a"], 2, "Job, not a Sequential.*multitudes init"),
        (["train", "--job", "cifar10", "--root", "nowhere", "--out", "a"], 1, "cifar10.*nowhere"),
        (["train", *JOB, "--resume", "--force", "--out", "a"], 2, "--force .*--resume"),
        (["predict", "nowhere", *JOB, "--out", "a.csv"], 2, "nowhere.*multitude"),
        (["predict", ".", "--out", "a.csv"], 2, "does not say its job: give --job"),
        (["predict", ".", *JOB, "--data", "tst", "--out", "a.csv"], 2, "'tst'.*'test'"),
        (["predict", ".", *JOB, "--out", "a.txt"], 2, "a.txt must end in .safetensors or .csv"),
        (["score", "a.csv"], 2, "a.csv is a table"),
        (["score", "nowhere.safetensors"], 2, "nowhere.safetensors"),
        (["report", "nowhere"], 2, "nowhere does not exist: give folders of runs"),
        (["report", ".", "--out", "a.txt"], 2, "--out a.txt must end in .html or .htm: type --out a.html"),
        (["report", "nowhere", "there", "--out", "jobs_of_shell.py"], 2, "nowhere and there do not exist"),
        (["init", "jobs_of_shell.py"], 1, "jobs_of_shell.py exists already: .*--force, or choose another name $"),
        (["plan", "jobs_of_shell:own", "--example", "two"], 2, "--example 'two'"),
        (["plan", "jobs_of_shell:owm", "--example", "2,6"], 2, "'owm'.*'own'"),
        (["plan"], 2, "MODULE:FACTORY is missing: .*--example, or --job"),
        (["plan", "jobs_of_shell:own"], 2, "--example is missing"),
        (["plan", "jobs_of_shell:own", "--example", "2,11"], 2, r"fails .*Type --example with a shape .*ids $"),
        (["plan", "jobs_of_shell:x", "--example", "2,6"], 2, "jobs_of_shell:x .*Module"),
        (["census", "--methods", "deep", "--methods=packed"], 2, "--methods is given 2 times: it takes one value"),
    ],
)
def test_errors_are_one_line(words: list[str], code: int, nouns: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(words)
    printed = capsys.readouterr()
    assert ended.value.code == code
    assert re.search(nouns, printed.err.replace("\n", " "))
    assert "Traceback" not in printed.err
    assert not printed.out


@pytest.mark.parametrize("words", [["score", "runs/x"], ["predict", "runs/x", *JOB, "--out", "a.csv"]])
def test_the_runs_of_a_folder_are_named(words: list[str]) -> None:
    """A sweep's folder is not a run, though a job is given; an unfinished run has no row."""
    for name, file in (("packed-0", "row.json"), ("deep-0", "config.json")):
        (Path("runs/x") / name).mkdir(parents=True)
        (Path("runs/x") / name / file).touch()
    with pytest.raises(mt.InputError, match=r"runs/x holds runs: deep-0, packed-0\. .*such as runs/x/deep-0"):
        typed(*words)


def test_texts_name_options_of_the_command() -> None:
    """Arguments of Python become options, unless they have a value: then they are part of a line of Python."""
    told = commands.in_flags("pass resume=True, or another out=. Give root=, not Recipe(lr=0.1) or f(out=path)", ["train"])
    assert told == "pass --resume, or another --out. Give --root, not Recipe(lr=0.1) or f(out=path)"
    wrong = "Job(nam=...): there is no such setting: type name=. Settings: name"
    assert commands.in_flags(wrong, ["train"]) == wrong, "the mistake is in the job's file"
    line = "To predict numbers: mt.ensemble(..., task='regression')"
    assert commands.in_flags(line, ["train"]) == "To predict numbers: Job(..., task='regression')"
    assert commands.in_flags("Give root=.", ["score"]) == "Give root=.", "score has no such option"


def test_data_that_is_missing_is_asked_for_by_an_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MULTITUDES_DATA", raising=False)
    with pytest.raises(SystemExit):
        commands.main(["train", "--job", "cifar10", "--out", "a"])
    text = capsys.readouterr().err
    assert "--root" in text
    assert "root=" not in text


def test_the_version() -> None:
    assert typed("--version").split() == ["multitudes", mt.__version__]


def test_usage_and_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["bench", "--nonsense"])
    assert ended.value.code == 2

    def stop() -> None:
        raise KeyboardInterrupt

    assert commands.exit_code(stop) == 130
    assert "stopped" in capsys.readouterr().err


def test_an_option_of_the_recipe_is_told_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    for words, line in (
        (["train", "--patience", "3", "--out", "a"], "--patience: set it in the recipe of your job, mt.Recipe(patience=...)"),
        (["train", "--batch-size=8", "--out", "a"], "--batch-size: set it in the recipe of your job, mt.Recipe(batch=...)"),
        (["train", "--learning-rate", "1", "--out", "a"], "--learning-rate: type --lr"),
    ):
        with pytest.raises(SystemExit, match="2"):
            commands.exit_code(lambda words=words: commands.app(words), words)  # type: ignore[misc]
        assert line in " ".join(capsys.readouterr().err.split())
