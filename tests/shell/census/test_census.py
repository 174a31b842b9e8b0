"""The census in processes of its own: limits, resumption, and the part of the sample that needs torch alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import multitudes as mt
from multitudes.report.census import Result, read_results
from multitudes.shell import commands
from multitudes.shell.census import census, command, networks, sample
from multitudes.shell.census.census import Limits, Pair, pairs, run_census

MODULE = """
import os, time, torch
from torch import nn
import multitudes as mt
from multitudes.shell.census.networks import Network

def sleeps():
    time.sleep(600)

def dies():
    os._exit(3)

def fine():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

class Growing(nn.Linear):
    def forward(self, x):
        if torch.is_grad_enabled():  # not when the census looks whether it runs
            torch.ones(2**31)
        return super().forward(x)

def x(model):
    return mt.Inputs(torch.randn(3, 4))

def networks():
    makers = {"sleeps": sleeps, "dies": dies, "fine": fine, "grows": lambda: Growing(4, 3), "broken": lambda: 1 / 0}
    return [Network("census_of_tests", name, name, make, x) for name, make in makers.items()]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of networks that sleep, die or need too much memory."""
    (tmp_path / "census_of_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "census_of_tests"


@pytest.mark.slow
def test_a_pair_has_limits_and_a_census_goes_on(own: str, tmp_path: Path) -> None:
    """The four processes end as they should, and a second run tries what is missing alone."""
    every = [Pair(network, "Deep") for network in networks.networks([own])]
    every += [pair for pair in pairs(networks.networks([own]), ["single"]) if pair.network.name == "broken"]
    file = tmp_path / "a.jsonl"
    new: list[Result] = []
    results = run_census(every, file, workers=2, limits=Limits(seconds=10, gigabytes=2), on_end=new.append)
    found = {(result.network, result.method): result for result in results}
    assert {key: result.outcome for key, result in found.items()} == {
        ("sleeps", "Deep"): "timeout",
        ("dies", "Deep"): "error",
        ("fine", "Deep"): "ok",
        ("grows", "Deep"): "memory",
        ("broken", "Deep"): "not built",
        ("broken", "Single"): "not built",
    }
    assert found["sleeps", "Deep"].reason == "10 s were over at the step: building"
    assert "exit code 3" in found["dies", "Deep"].reason
    fine = found["fine", "Deep"]
    assert fine.memory is not None
    assert 0 < fine.memory < 2**30

    file.write_text("".join(result.line() + "\n" for result in results if result.network != "fine") + '{"library": "cut')
    assert len(read_results(file)) == 5
    file.write_text("".join(result.line() + "\n" for result in results if result.network != "fine"))
    again: list[Result] = []
    assert [r.outcome for r in run_census(every, file, on_end=again.append)] == [r.outcome for r in results]
    assert [result.network for result in again] == ["fine"]


@pytest.mark.slow
def test_the_sample_of_networks_by_hand(tmp_path: Path) -> None:
    """The command, from its arguments to its page."""
    words = ["census", "--libraries", "own", "--sample", "--workers", "2", "--out", str(tmp_path / "c.jsonl"), "--json"]
    result = CliRunner().invoke(commands.app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    found = read_results(tmp_path / "c.jsonl")
    wrong = {(r.network, r.method): r.reason for r in found.values() if r.outcome != "ok"}
    assert wrong == {}
    assert {method for _, _, method in found} == {method for every in sample.SAMPLE["own"].values() for method in every}
    assert sum(tried for row in printed["rates"].values() for _, tried in row.values()) == len(found)
    assert "vit_by_hand" in (tmp_path / "c.html").read_text()


def test_results_are_shown_without_another_try(tmp_path: Path) -> None:
    """Rates of what the file has, finished or not, and the page again; a file without results is refused."""
    out = tmp_path / "census.jsonl"
    rows = [("Packed", "ok"), ("Packed", "refused"), ("Deep", "ok"), ("MIMO", "impossible")]
    results = [
        Result(library="own", family="mlp", network=f"mlp{i}", method=method, outcome=outcome)
        for i, (method, outcome) in enumerate(rows)
    ]
    out.write_text("".join(f"{result.line()}\n" for result in results))
    before = out.read_bytes()
    shown = CliRunner().invoke(commands.app, ["census", "--out", str(out), "--show", "--json"], catch_exceptions=False)
    rates = json.loads(shown.stdout)["rates"]
    assert (rates["Packed"]["own"], rates["Deep"]["own"], rates["MIMO"]["own"]) == ([1, 2], [1, 1], [0, 0])
    assert out.read_bytes() == before and "mlp" in out.with_suffix(".html").read_text()
    with pytest.raises(mt.FileError, match="leave out --show"):
        command.show_census(tmp_path / "none.jsonl")
    assert not (tmp_path / "none.html").exists()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And the rest goes on."""
    monkeypatch.setattr(command, "installed", lambda name: name == "own")
    assert command._chosen([]) == ["own"]
    assert "pip install timm transformers torch-geometric" in capsys.readouterr().err
    assert command._chosen(["own"]) == ["own"]
    assert capsys.readouterr().err == ""


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mt.InputError, match=r"library 'tim'.*'timm'"):
        command.take_census(libraries=["tim"])
    with pytest.raises(mt.InputError, match="method 'paked'"):
        command.take_census(libraries=["own"], methods=["paked"])
    with pytest.raises(mt.InputError, match="'nothing\\*' matches no network"):
        command.take_census(libraries=["own"], only=["mlp", "nothing*"])
    (tmp_path / "x.jsonl").write_text("no json\n{}\n")
    with pytest.raises(mt.errors.FileError, match="line 1"):
        command.take_census(libraries=["own"], out=tmp_path / "x.jsonl")


def test_pairs_follow_networks_and_methods() -> None:
    every = networks.matching(networks.networks(["own"]), ["lstm", "*lstm_b*"])
    assert [pair.key[1:] for pair in pairs(every, ["deep", "Packed"])] == [
        ("lstm", "Deep"), ("lstm", "Packed"), ("lstm_bidirectional", "Deep"), ("lstm_bidirectional", "Packed"),
    ]  # fmt: skip
    assert len(pairs(every)) == 2 * len(mt.Method.all())


@pytest.mark.parametrize("network", networks.networks(["own"]), ids=lambda network: network.name)
def test_networks_by_hand_run(network: networks.Network) -> None:
    """And two that are built from one seed are equal."""
    one, other = networks.made(network, 0), networks.made(network, 0)
    inputs = networks.example(network, one)
    assert (one(*inputs.args) == other(*inputs.args)).all()


def test_the_sample_names_networks_that_exist() -> None:
    names = {network.name for network in networks.networks(["own"])}
    assert set(sample.SAMPLE["own"]) <= names
    assert census.Limits().seconds == 60
