"""`multitudes export` on a trained run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from multitudes.shell.commands import app, exit_code

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_a_run_is_exported(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "a.onnx"
    words = ["train", "--job", "fashion", "--method", "multihead(members=2)", "--epochs", "1", "--out", str(run)]
    assert CliRunner().invoke(app, words).exit_code == 0
    done = CliRunner().invoke(app, ["export", str(run), "--calibrated", "--coverage", "0.9", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert shown["members"] == 2
    assert "abstain" in shown["outputs"]
    about = json.loads({entry.key: entry.value for entry in onnx.load(out).metadata_props}["multitudes"])
    assert len(about["labels"]) == 10
    assert about["threshold"]["score"] == "confidence"
    assert about["temperature"]["mixture"] > 0
    assert about["inputs"][0]["std"]
    refused = exit_code(lambda: app(["export", str(run), "--out", str(out)], standalone_mode=False))
    assert refused == 1


def test_the_ending_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code(lambda: app(["export", str(tmp_path), "--out", str(tmp_path / "a.txt")], standalone_mode=False))
    assert code == 2
    assert "must end in .onnx or .pt2" in capsys.readouterr().err
