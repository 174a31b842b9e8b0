"""The road from `train` to `report`: each command finds what it needs in the folder that the command before it left."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import multitudes as mt
from multitudes.report.row import Row
from multitudes.shell import commands, steps
from multitudes.shell.told import Told

MODULE = """
import torch
from torch import nn
import multitudes as mt
from multitudes.data import Data
from multitudes.shell.jobs import Job

g = torch.Generator().manual_seed(0)
x = torch.randn(128, 6, generator=g)
y = (x @ torch.randn(6, 3, generator=g)).argmax(1)

def network():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

def own():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

def small():
    return Job(name="small", network=network, train=Data(x[:64], y[:64]),
               test=Data(x[64:96], y[64:96], classes=["a", "b", "c"]),
               validation=Data(x[96:], y[96:]), ood={"far": Data(x[:20] + 9, y[:20])},
               recipe=mt.Recipe(epochs=2, batch=16, lr=0.05))

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.first, self.last = nn.Embedding(4, 6), nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, numbers, kind):
        hidden = self.first(torch.cat([numbers, self.kind(kind)], 1)).relu()
        return {"hidden": hidden, "logits": self.last(hidden)}

def both():
    items = [{"numbers": row, "kind": torch.tensor(int(label) % 2), "labels": label} for row, label in zip(x, y)]
    return Job(name="both", network=Both, train=items[:64], test=items[64:96], validation=items[96:],
               ood={"far": torch.utils.data.TensorDataset(x[:20] + 9, y[:20] % 2, y[:20])}, output="logits",
               recipe=mt.Recipe(epochs=1, batch=16))

def numbers():
    data = Data(x, x[:, :3])
    return Job(name="numbers", network=network, train=data, test=data, task="regression", tau_output=4.0)
"""
JOB = ("--job", "jobs_of_road:small")


def typed(*words: str, code: int = 0) -> str:
    """Runs a command, checks its exit code, and returns its output."""
    result = CliRunner().invoke(commands.app, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the job's module, and two runs: of the job's network, and of another one."""
    place = tmp_path_factory.mktemp("road")
    (place / "jobs_of_road.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("sys.path", [str(place), *sys.path])
        typed("train", *JOB, "--method", "deep(members=2)", "--out", "runs/a", "--epochs", "3")
        typed("train", *JOB, "--model", "jobs_of_road:own", "--method", "multihead", "--out", "runs/b", "--name", "heads")
    return place


@pytest.fixture(autouse=True)
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a copy of the folder of its own."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])


def test_training_leaves_a_row_of_the_test_set() -> None:
    """Its scores are those of the best epoch's file, run by hand."""
    row = Row.load("runs/a")
    module = __import__("jobs_of_road")
    pred = mt.predict(mt.load("runs/a/best.multitude", module.network()), module.small().test)
    assert row.scores["accuracy"] == mt.score(pred)["accuracy"]
    assert row.scores["nll"] == pytest.approx(mt.score(pred)["nll"], abs=1e-6)
    assert "far/auroc/msp" in row.scores
    assert (row.name, row.settings["budget"]) == ("deep(members=2)", "3 epochs")
    assert row.command == (
        "multitudes train --job jobs_of_road:small --method 'deep(members=2)' --seed 0 --epochs 3 --out runs/a"
    )
    assert Row.load("runs/b").name == "heads"


def test_a_job_of_several_inputs() -> None:
    """From its plan to its tables, with a network that returns hidden states too."""
    words = ("--job", "jobs_of_road:both")
    assert json.loads(typed("plan", *words, "--method", "multihead", "--json"))["converted"] == ["last"]
    typed("train", *words, "--method", "packed(members=2, alpha=1)", "--out", "both")
    typed("predict", "both", "--out", "both.csv")
    typed("predict", "both", "--data", "far", "--out", "far.csv")
    assert [len(Path(name).read_text().splitlines()) for name in ("both.csv", "far.csv")] == [33, 21]
    row = Row.load(Path("both"))
    assert "far/auroc/entropy" in row.scores and row.cost["latency"] > 0


def test_nothing_is_repeated_on_the_way_to_the_scores() -> None:
    """`predict` knows job and network of each run; `score` takes files and folders."""
    for name in ("test", "far"):
        told = json.loads(typed("predict", "runs/a", "--data", name, "--out", f"{name}.safetensors", "--json"))
        assert told["members"] == 2
    of_files = json.loads(typed("score", "test.safetensors", "--ood", "far=far.safetensors", "--json"))["scores"]
    of_folder = json.loads(typed("score", "runs/a", "--json"))["scores"]
    assert {key: of_folder[key] for key in of_files} == pytest.approx(of_files, abs=1e-6)
    assert "nll" in json.loads(typed("score", "runs/a", "--intervals", "5", "--json"))["intervals"]
    typed("predict", "runs/b/last.multitude", "--out", "b.safetensors")
    assert mt.Prediction.load("b.safetensors").count == 4


def test_predictions_of_another_split_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test set may hold examples of the training then."""
    predict = ("predict", "runs/a", "--out", "a.csv", "--force")
    assert "changed" not in typed(*predict)
    module = sys.modules["jobs_of_road"]
    monkeypatch.setattr(module, "x", module.x.flip(0))
    monkeypatch.setattr(module, "y", module.y.flip(0))
    assert "the training and validation data of the job changed since runs/a was trained" in typed(*predict)


def test_the_temperature_of_the_run_is_applied() -> None:
    """Probabilities are those of the mixture, p^(1/T) over their sum, with the T that the validation set gives by hand."""
    module = __import__("jobs_of_road")
    job, ens = module.small(), mt.load("runs/a/best.multitude", module.network())
    mixture = mt.calibrate(mt.predict(ens, job.validation)).mixture
    assert mixture is not None and abs(mixture - 1) > 0.01
    powers = mt.predict(ens, job.test).probs ** (1 / mixture)
    probs = powers / powers.sum(1, keepdim=True)
    typed("predict", "runs/a", "--calibrated", "--out", "test.csv")
    lines = list(csv.DictReader(Path("test.csv").read_text().splitlines()))
    assert [float(line["probability_a"]) for line in lines] == pytest.approx(probs[:, 0].tolist(), abs=1e-4)
    scores = json.loads(typed("score", "runs/a", "--calibrated", "--json"))["scores"]
    nll = -probs[torch.arange(32), job.test.targets].log().mean()
    assert scores["nll"] == pytest.approx(float(nll), abs=1e-4)
    assert "far/auroc/msp" in scores


def test_a_temperature_is_that_of_a_run_and_of_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["predict", "runs/a/last.multitude", "--out", "a.csv"], ["score", "runs/a/last.multitude"]):
        with pytest.raises(mt.InputError, match="has no temperature: --calibrated needs the folder of a run"):
            typed(*words, "--calibrated")
    other = replace(__import__("jobs_of_road").small(), epoch="last")
    monkeypatch.setattr("jobs_of_road.small", lambda: other)
    with pytest.raises(mt.InputError, match="its temperature to the best epoch, and the job now has epoch='last'"):
        typed("predict", "runs/a", "--calibrated", "--out", "a.csv")


def test_a_prediction_has_the_noise_of_the_job() -> None:
    """The precision of an observation is 4, so its variance is 1/4, in the file as in the row."""
    job = __import__("jobs_of_road").numbers()
    mt.save(mt.ensemble(job.network(), mt.Deep(members=2), job.example, task="regression"), "numbers.multitude")
    typed("predict", "numbers.multitude", "--job", "jobs_of_road:numbers", "--out", "numbers.safetensors")
    assert mt.Prediction.load("numbers.safetensors").aleatoric.unique().tolist() == [0.25]


def test_a_table_of_an_ood_set_has_no_targets() -> None:
    """Their labels count classes of another set; predictions have the names of the ensemble's classes."""
    typed("predict", "runs/a", "--data", "far", "--out", "far.csv")
    header, first, *_ = csv.reader(Path("far.csv").read_text().splitlines())
    assert header[:2] == ["example", "prediction"]
    assert first[1] in ("a", "b", "c")


def test_scores_are_asked_of_one_finished_run() -> None:
    with pytest.raises(mt.InputError, match=r"runs holds runs: a, b. Give one of them, such as runs/a"):
        typed("score", "runs")
    Path("runs/a/row.json").unlink()
    with pytest.raises(mt.InputError, match=r"runs/a holds no scores: `multitudes train --resume --out runs/a`"):
        typed("score", "runs/a")


def test_a_run_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is looked for where the run was started, too."""
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "runs/a/command.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "folder": str(tmp_path)}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "jobs_of_road")
    typed("predict", "../runs/a", "--out", "a.csv")
    assert sys.modules["jobs_of_road"].__file__ == str(tmp_path / "jobs_of_road.py")


def test_a_wrong_network_is_answered_with_the_options() -> None:
    with pytest.raises(mt.FileError, match=r"--job jobs_of_road:small --model jobs_of_road:own: give --job and --model"):
        typed("predict", "runs/a", "--model", "jobs_of_road:own", "--out", "a.csv")


def test_a_table_has_one_line_per_example() -> None:
    """Its numbers are the members' mean probabilities and their entropies, computed by hand."""
    typed("predict", "runs/a", "--out", "a.csv")
    header, *lines = csv.reader(Path("a.csv").read_text().splitlines())
    assert header[:4] == ["example", "target", "prediction", "confidence"]
    assert header[-3:] == ["probability_a", "probability_b", "probability_c"]
    assert len(lines) == 32
    module = __import__("jobs_of_road")
    ens = mt.load("runs/a/best.multitude", module.network())
    with torch.no_grad():
        members = torch.stack([ens.member(m).eval()(module.x[64:96]) for m in range(2)]).softmax(2).double()
    probs = members.mean(0)
    names = ["a", "b", "c"]
    by_name = {name: [line[place] for line in lines] for place, name in enumerate(header)}
    assert by_name["prediction"] == [names[i] for i in probs.argmax(1)]
    assert by_name["target"] == [names[i] for i in module.y[64:96]]
    for place, name in enumerate(names):
        assert [float(v) for v in by_name[f"probability_{name}"]] == pytest.approx(probs[:, place].tolist(), abs=1e-6)
    entropy, own = -(probs * probs.log()).sum(1), -(members * members.log()).sum(2).mean(0)
    assert [float(v) for v in by_name["entropy"]] == pytest.approx(entropy.tolist(), abs=1e-6)
    assert [float(v) for v in by_name["mutual_information"]] == pytest.approx((entropy - own).tolist(), abs=1e-6)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The reports of a test: rows and options of each. Figures, which take seconds, are not drawn."""
    written: list[dict[str, Any]] = []

    def report(rows: list[Row], out: Path, **options: Any) -> Path:
        written.append({"names": [row.name for row in rows], **options})
        out.write_text("a page")
        return out

    monkeypatch.setattr(steps, "report", report)
    return written


def test_existing_files_stay_without_force(pages: list[dict[str, Any]]) -> None:
    for words in (["predict", "runs/a", "--out", "there.csv"], ["report", "runs/a", "--out", "there.html"]):
        there = Path(words[-1])
        there.write_text("mine")
        with pytest.raises(mt.FileError, match=f"{there} exists already.*--force"):
            typed(*words)
        assert there.read_text() == "mine"
        typed(*words, "--force")
        assert there.read_text() != "mine"


@pytest.mark.slow
def test_a_run_is_replaced_by_force_only() -> None:
    with pytest.raises(mt.FileError, match=r"--resume.*--force.*--out"):
        typed("train", *JOB, "--method", "single", "--out", "runs/a")
    Path("runs/a/notes.txt").write_text("mine")
    typed("train", *JOB, "--method", "single", "--out", "runs/a", "--force")
    assert Row.load("runs/a").name == "single"
    assert Path("runs/a/notes.txt").read_text() == "mine", "only files of the run are removed"


@pytest.mark.slow
def test_a_run_is_resumed_without_repetition() -> None:
    """As if it had been stopped before it was scored."""
    scores = Row.load("runs/b").scores
    Path("runs/b/row.json").unlink()
    assert json.loads(typed("train", "--resume", "--out", "runs/b", "--json"))["epochs"] == 2
    assert Row.load("runs/b").scores["nll"] == scores["nll"]
    with pytest.raises(mt.FileError, match=r"runs/b holds another run: --method was multihead, not packed"):
        typed("train", "--resume", "--out", "runs/b", "--method", "packed")


def test_a_report_names_what_it_leaves_out(pages: list[dict[str, Any]]) -> None:
    """A folder without a row is an error; an unfinished run beside finished ones is named."""
    Path("runs/b/row.json").unlink()
    with pytest.raises(mt.FileError, match=r"no row in runs/b: .*multitudes train --resume --out"):
        typed("report", "runs/a", "runs/b")
    told = json.loads(CliRunner().invoke(commands.app, ["report", "runs", "--json"]).stdout)
    assert told["notes"] == ["runs/b is left out: its training or its scoring is not finished"]
    assert [page["names"] for page in pages] == [["deep(members=2)"]]


def test_a_report_has_the_names_of_the_runs_own_job(pages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the job's module it has none, and says so."""
    typed("report", "runs")
    assert pages[0] == {
        "names": ["deep(members=2)", "heads"], "title": "Methods on small.", "classes": ("a", "b", "c"),
    }  # fmt: skip
    monkeypatch.delitem(sys.modules, "jobs_of_road")
    monkeypatch.setattr("sys.path", [path for path in sys.path if not Path(path, "jobs_of_road.py").exists()])
    Path("jobs_of_road.py").unlink()
    for file in Path("runs").rglob("command.json"):
        file.unlink()
    told = json.loads(CliRunner().invoke(commands.app, ["report", "runs", "--out", "other.html", "--json"]).stdout)
    assert "no images and class names" in told["notes"][0]
    assert "jobs_of_road:small is not in the current folder. Give --job" in told["notes"][0]
    assert set(pages[1]) == {"names"}


def test_a_report_runs_no_module_from_elsewhere(pages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row names a function to call; one of an installed module, or of a folder that came with the rows, is not called."""
    called: list[str] = []
    module = ModuleType("this_is_installed")
    module.make = lambda: called.append("ran")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "this_is_installed", module)
    for file in Path("runs").rglob("row.json"):
        row = Row.load(file.parent)
        replace(row, settings={**row.settings, "job": "this_is_installed:make"}).save(file.parent)
    told = json.loads(CliRunner().invoke(commands.app, ["report", "runs", "--json"]).stdout)
    assert "this_is_installed:make is not in the current folder" in told["notes"][0]
    assert (called, set(pages[0])) == ([], {"names"})


@pytest.mark.slow
def test_the_page_of_two_runs() -> None:
    typed("report", "runs")
    page = Path("report.html").read_text()
    assert "Methods on small." in page
    assert "multitudes train --job jobs_of_road:small --method multihead" in page


def test_a_short_try_has_a_shorter_warm_up() -> None:
    """`train --epochs 2` of a job with a longer warm-up runs: it was refused, and no option could help."""
    recipe = mt.Recipe(epochs=40, warmup=4, lr=0.1)
    short = steps.changed_recipe(recipe, Told(epochs=2))
    assert (short.epochs, short.warmup, short.lr) == (2, 0.2, 0.1)
    assert steps.changed_recipe(recipe, Told(epochs=5, lr=0.5)).warmup == 4
