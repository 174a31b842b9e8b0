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


TASK = ("--task", "jobs_of_shell:small")


def typed(*words: str, code: int = 0) -> str:
    """Runs a command, checks its exit code, and returns its output."""
    result = CliRunner().invoke(commands.app, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_help_has_an_example() -> None:
    for name in ("bench", "train", "predict", "score", "report", "plan", "census"):
        text = typed(name, "--help")
        assert f"multitudes {name} " in text
        assert "--json" in text


def test_from_training_to_scores(tmp_path: Path) -> None:
    """Each command reads the files of the one before."""
    trained = json.loads(typed("train", *TASK, "--method", "deep(members=2)", "--out", "runs/a", "--epochs", "3", "--json"))
    assert trained["epochs"] == 3
    assert json.loads(Path("runs/a/config.json").read_text())["settings"]["members"] == 2
    for name in ("test", "far"):
        predicted = json.loads(typed("predict", "runs/a", *TASK, "--data", name, "--out", f"{name}.safetensors", "--json"))
        assert predicted["members"] == 2
    scores = mt.scores.Scores.from_json(typed("score", "test.safetensors", "--ood", "far=far.safetensors", "--json"))
    best = mt.load("runs/a/best.multitude", __import__("jobs_of_shell").network())
    assert scores["accuracy"] == mt.score(mt.predict(best, __import__("jobs_of_shell").small().test))["accuracy"]
    assert "auroc/msp" in scores
    assert "accuracy" in typed("score", "test.safetensors")
    assert "best.multitude" in typed("train", *TASK, "--out", "runs/b", "--epochs", "1")


def test_your_own_network() -> None:
    typed("train", *TASK, "--model", "jobs_of_shell:own", "--method", "multihead", "--out", "runs/a", "--epochs", "1")
    typed("predict", "runs/a", *TASK, "--model", "jobs_of_shell:own", "--out", "a.safetensors")
    assert mt.Prediction.load("a.safetensors").count == 4


@pytest.mark.slow
def test_a_sweep_and_its_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and a page; finished trials are not run again; `report` takes the folders it is given."""
    command = ["bench", *TASK, "--methods", "single,deep(members=2)", "--budget", "1 epoch", "--out", "runs/s"]
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


def test_a_plan() -> None:
    assert "Linear" in typed("plan", "jobs_of_shell:own", "--example", "2,6", "--method", "packed(alpha=2)")
    found = json.loads(typed("plan", "jobs_of_shell:own", "--example", "2,6", "--method", "multihead", "--json"))
    assert found["converted"] == ["2"]


@pytest.mark.parametrize(
    ("words", "code", "nouns"),
    [
        (["bench", "--task", "fasion"], 2, "task 'fasion'.*'fashion'"),
        (["bench", *TASK, "--methods", "paked"], 2, "method 'paked'.*'packed'"),
        (["bench", *TASK, "--seeds", "a"], 2, "--seeds 'a'"),
        (["bench", *TASK, "--seeds", "4-0"], 2, "--seeds '4-0'"),
        (["train", *TASK, "--method", "packed(alpa=2)", "--out", "a"], 2, "'alpa'.*'alpha'"),
        (["predict", "nowhere", *TASK, "--out", "a"], 2, "nowhere .*multitude"),
        (["predict", "nowhere", *TASK, "--data", "tst", "--out", "a"], 2, "'tst'.*'test'"),
        (["score", "nowhere.safetensors"], 1, "nowhere.safetensors"),
        (["report", "nowhere"], 1, "nowhere"),
        (["plan", "jobs_of_shell:own", "--example", "two"], 2, "--example 'two'"),
        (["plan", "jobs_of_shell:owm", "--example", "2,6"], 2, "'owm'.*'own'"),
        (["plan", "jobs_of_shell:x", "--example", "2,6"], 2, "jobs_of_shell:x .*Module"),
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


def test_usage_and_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["bench", "--nonsense"])
    assert ended.value.code == 2

    def stop() -> None:
        raise KeyboardInterrupt

    assert commands.exit_code(stop) == 130
    assert "stopped" in capsys.readouterr().err
