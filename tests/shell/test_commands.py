"""The shell: what is typed, what is printed, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import multitudes as mt
from multitudes.report.row import Row
from multitudes.shell import commands as shell

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
    """What a command prints, which ends as it should."""
    found = CliRunner().invoke(shell.app, list(words), catch_exceptions=False)
    assert found.exit_code == code, found.output
    return found.output


def test_help_teaches_by_example() -> None:
    assert "multitudes bench" in typed("--help")
    for command in ("bench", "train", "predict", "score", "report", "plan"):
        text = typed(command, "--help")
        assert f"multitudes {command} " in text
        assert "--json" in text


def test_from_training_to_scores(tmp_path: Path) -> None:
    """Each stage takes what the one before it wrote."""
    said = json.loads(typed("train", *TASK, "--method", "deep(members=2)", "--out", "runs/a", "--epochs", "3", "--json"))
    assert said["epochs"] == 3
    assert json.loads(Path("runs/a/config.json").read_text())["settings"]["members"] == 2
    for name in ("test", "far"):
        found = json.loads(typed("predict", "runs/a", *TASK, "--data", name, "--out", f"{name}.safetensors", "--json"))
        assert found["members"] == 2
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


def test_a_sweep_and_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows and a page; what is there already is shown again at once."""
    sweep = ["bench", *TASK, "--methods", "single,deep(members=2)", "--seeds", "0-1", "--budget", "1 epoch"]
    command = [*sweep, "--out", "runs/s"]
    with pytest.raises(SystemExit):
        shell.main([*command, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["seed"]) for row in said["rows"]] == [
        ("single", 0), ("deep(members=2)", 0), ("single", 1), ("deep(members=2)", 1),
    ]  # fmt: skip
    assert said["rows"][1]["scores"]["nll"] == Row.load("runs/s/deep_members_2-0").scores["nll"]
    assert "deep" in typed(*command)
    page = Path("runs/s/report.html").read_text()
    assert "deep(members=2)" in page
    typed("report", "runs/s/single-0", "runs/s/single-1", "--out", "other.html")
    assert "deep" not in Path("other.html").read_text()


def test_a_plan() -> None:
    assert "Linear" in typed("plan", "jobs_of_shell:own", "--example", "2,6", "--method", "packed(alpha=2)")
    found = json.loads(typed("plan", "jobs_of_shell:own", "--example", "2,6", "--method", "multihead", "--json"))
    assert found["converted"] == ["2"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["bench", "--task", "fasion"], 2, "did you mean 'fashion'?"),
        (["bench", *TASK, "--methods", "paked"], 2, "did you mean 'packed'?"),
        (["bench", *TASK, "--seeds", "a"], 2, "--seeds 'a'"),
        (["bench", *TASK, "--seeds", "4-0"], 2, "--seeds '4-0' names none"),
        (["train", *TASK, "--method", "packed(alpa=2)", "--out", "a"], 2, "did you mean 'alpha'?"),
        (["predict", "nowhere", *TASK, "--out", "a"], 2, "nowhere is no .multitude file"),
        (["predict", "nowhere", *TASK, "--data", "tst", "--out", "a"], 2, "did you mean 'test'?"),
        (["score", "nowhere.safetensors"], 1, "nowhere.safetensors"),
        (["report", "nowhere"], 1, "nowhere"),
        (["plan", "jobs_of_shell:own", "--example", "two"], 2, "--example 'two'"),
        (["plan", "jobs_of_shell:owm", "--example", "2,6"], 2, "did you mean 'own'?"),
        (["plan", "jobs_of_shell:x", "--example", "2,6"], 2, "an nn.Module is needed"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(words)
    found = capsys.readouterr()
    assert ended.value.code == code
    assert says in found.err.replace("\n", " ")
    assert "Traceback" not in found.err
    assert not found.out


def test_usage_and_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(["bench", "--nonsense"])
    assert ended.value.code == 2

    def stop() -> None:
        raise KeyboardInterrupt

    assert shell.status(stop) == 130
    assert "stopped" in capsys.readouterr().err
