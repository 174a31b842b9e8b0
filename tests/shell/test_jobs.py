"""Jobs: networks and data to compare methods on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import multitudes as mt
from multitudes import data
from multitudes.models import MLP
from multitudes.shell import parse as spoken
from multitudes.shell.jobs import JOBS, TABLE_1, Job, job
from multitudes.training.recipes import find


@pytest.mark.parametrize("name", ["fashion", "yacht", "energy"])
def test_what_is_embedded(name: str) -> None:
    """The network takes the data, and gives what the task wants."""
    what = job(name)
    assert what.name == name
    assert what.about.endswith(".")
    output = what.network()(what.example)
    assert output.shape == (2, 10 if what.task == "classes" else 2)
    assert what.validation is not None
    for other in what.ood.values():
        assert other.shape == what.test.shape
        assert torch.equal(other.mean, what.test.mean)


def test_parts_do_not_overlap() -> None:
    what = job("yacht")
    assert what.validation is not None
    parts = [{tuple(row.tolist()) for row in part.inputs} for part in (what.train, what.validation, what.test)]
    assert len(what.train) + len(what.validation) + len(what.test) == 308
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_all_methods_with_the_settings_of_the_job() -> None:
    what = job("fashion")
    assert what.methods()[0] == "single"
    assert len(what.methods()) == len(mt.Method.all())
    assert what.method("mimo") == mt.MIMO(members=2)
    assert what.method("mimo(members=3)") == mt.MIMO(members=3)
    assert what.method("deep") == mt.Deep()


def test_one_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_jobs.py").write_text(
        "import torch\nfrom multitudes.data import Data\nfrom multitudes.models import MLP\n"
        "from multitudes.shell.jobs import Job\n"
        "def mine():\n    d = Data(torch.randn(8, 3), torch.arange(8) % 2)\n"
        "    return Job(name='mine', network=lambda: MLP(3, (4,), 2), train=d, test=d)\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert job("my_jobs:mine").name == "mine"
    with pytest.raises(mt.InputError, match="gives a int"):
        job("my_jobs:wrong")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(mt.InputError, match=r"no task 'fasion': did you mean 'fashion'\?"):
        job("fasion")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match="cifar-10-batches-bin"):
        JOBS["cifar10"](tmp_path)


def test_the_settings_of_table_1_are_those_of_its_recipe() -> None:
    """Written twice, by name for the shell and as methods for who trains by the paper."""
    for method in find("packed/cifar10-resnet18").methods:
        name = type(method).__name__.lower()
        assert spoken.method(name, **TABLE_1.get(name, {})) == method


def test_an_example_is_two_inputs() -> None:
    d = data.Data(torch.randn(8, 3), torch.arange(8))
    assert Job(name="a", network=lambda: MLP(3, (4,), 2), train=d, test=d).example.shape == (2, 3)
