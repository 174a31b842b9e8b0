"""Methods of other packages: the example package is found, tried by the laws and run by the shell; broken ones are told."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from laws import LAWS
from laws.trials import LIGHT
from zoo import ZOO

import multitudes as mt
from multitudes import method as registry
from multitudes.shell import typed
from multitudes.shell.parse import method

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "examples" / "own_method"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No plugin was looked for yet; afterwards the registry is as before."""
    for name, empty in {"_asked": set(), "_refused": []}.items():
        monkeypatch.setattr(registry, name, empty)
    yield monkeypatch
    for name in [name for name in sys.modules if name.split(".")[0] in ("own_method", "taken_name")]:
        del sys.modules[name]
    gc.collect()


def installed(patch: pytest.MonkeyPatch, *pairs: tuple[str, str]) -> None:
    """Lets these entry points, names and values, be those of the installed packages."""
    found = [importlib.metadata.EntryPoint(name, value, registry.PLUGINS) for name, value in pairs]
    for module in (registry, typed):
        patch.setattr(module, "entry_points", lambda group: found if group == registry.PLUGINS else [])


def test_a_plugin_is_a_method_with_a_name_in_the_shell(fresh: pytest.MonkeyPatch) -> None:
    """Its module is imported when methods are asked for, not before."""
    fresh.syspath_prepend(str(PACKAGE / "src"))
    installed(fresh, ("norms", "own_method:Norms"))
    assert "norms" in typed.method_names()
    typed.check_methods(["norms(members=3)"], "")
    assert "own_method" not in sys.modules
    assert [kind.__name__ for kind in mt.Method.all()].count("Norms") == 1
    LAWS["member"](method("norms(members=3)"), ZOO["vit"])


@pytest.mark.parametrize("law", LIGHT)
def test_the_example_obeys_the_laws(fresh: pytest.MonkeyPatch, law: str) -> None:
    fresh.syspath_prepend(str(PACKAGE / "src"))
    installed(fresh, ("norms", "own_method:Norms"))
    LAWS[law](method("norms"), ZOO["resnet"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_package:Norms", r"'broken' of a package \(no_such_package:Norms\) cannot be imported: ModuleNotFoundError"),
        ("multitudes.errors:InputError", "is no direct subclass of multitudes.Method: let its entry point name one"),
        ("own_method:Thinner", "is no direct subclass of multitudes.Method: let its entry point name one"),
        ("taken_name:Packed", "has the name of another method, Packed: rename the class"),
    ],
)
def test_a_broken_plugin_is_told_and_left_out(fresh: pytest.MonkeyPatch, tmp_path: Path, value: str, text: str) -> None:
    """Once: what the caller wants goes on, also the methods of the other packages."""
    (tmp_path / "own_method.py").write_text("import multitudes as mt\nclass Thinner(mt.Packed):\n    'Of one of ours.'\n")
    (tmp_path / "taken_name.py").write_text("import multitudes as mt\nclass Packed(mt.Method):\n    'Another one.'\n")
    fresh.syspath_prepend(str(tmp_path))
    installed(fresh, ("broken", value))
    with pytest.warns(UserWarning, match=text):
        assert [kind for kind in mt.Method.all() if kind.__name__ == "Packed"] == [mt.Packed]
    assert [kind for kind in mt.Method.all() if kind.__name__ == "Packed"] == [mt.Packed]


def test_two_plugins_of_one_name_are_told(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files and the shell know methods by their names."""
    for name in ("own_method", "taken_name"):
        (tmp_path / f"{name}.py").write_text("import multitudes as mt\nclass Twin(mt.Method):\n    'One of two.'\n")
    fresh.syspath_prepend(str(tmp_path))
    installed(fresh, ("twin", "own_method:Twin"), ("twin", "taken_name:Twin"))
    with pytest.warns(UserWarning, match="has the name of another method, Twin"):
        assert [kind.__module__ for kind in mt.Method.all() if kind.__name__ == "Twin"] == ["own_method"]


def test_an_entry_point_of_another_name_is_told(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "taken_name.py").write_text("import multitudes as mt\nclass Own(mt.Method):\n    'Mine.'\n")
    fresh.syspath_prepend(str(tmp_path))
    installed(fresh, ("mine", "taken_name:Own"))
    with pytest.warns(UserWarning, match="is called own in the shell: rename its entry point"):
        assert "Own" in [kind.__name__ for kind in mt.Method.all()]


def test_a_plugin_may_ask_for_all_methods(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While it is imported."""
    (tmp_path / "taken_name.py").write_text(
        "import multitudes as mt\nfound = mt.Method.all()\nclass Curious(mt.Method):\n    'Asks.'\n"
    )
    fresh.syspath_prepend(str(tmp_path))
    installed(fresh, ("curious", "taken_name:Curious"))
    assert "Curious" in [kind.__name__ for kind in mt.Method.all()]


def test_the_example_package_installs_and_the_shell_runs_it(tmp_path: Path) -> None:
    """By pip, into a folder: `bench` trains it beside ours, and the report has its row."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(PACKAGE, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run(*pip, "--no-build-isolation", "--no-index", "--target", str(target), str(source), path="")
    arguments = ["bench", "--methods", "single,norms(members=3)", "--budget", "1 epochs", "--out", str(tmp_path / "runs")]
    printed = run(sys.executable, "-m", "multitudes", *arguments, "--job", "small:job", path=str(target), folder=tmp_path)
    assert "norms" in printed.lower()
    assert "Norms(members=3, reduction=&#x27;sum&#x27;, spread=0.5)" in (tmp_path / "runs" / "report.html").read_text()


JOB = """
import torch
from torch import nn
from multitudes.data import Data
from multitudes.shell.jobs import Job

def job():
    data = Data(torch.randn(96, 8), torch.randint(3, (96,)))
    train, test = data.split([64, 32])
    network = lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    return Job(name="noise", network=network, train=train, test=test)
"""


def run(*command: str, path: str, folder: Path = ROOT) -> str:
    if folder != ROOT:
        (folder / "small.py").write_text(JOB)
    places = os.pathsep.join(filter(None, [path, str(ROOT / "src")]))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
