"""Jobs: networks and data to compare methods on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import multitudes as mt
from multitudes import data
from multitudes.models import MLP
from multitudes.shell import parse
from multitudes.shell.jobs import JOBS, TABLE_1, Job, find_job
from multitudes.training.recipes import find


@pytest.mark.parametrize("name", ["fashion", "yacht", "energy"])
def test_an_embedded_job_fits_together(name: str) -> None:
    """The network takes the data and returns outputs of the task's shape."""
    job = find_job(name)
    assert job.name == name
    assert job.about.endswith(".")
    output = job.network()(job.example)
    assert output.shape == (2, 10 if job.task == "classes" else 2)
    assert job.validation is not None
    for other in job.ood.values():
        assert other.shape == job.test.shape
        assert torch.equal(other.mean, job.test.mean)


def test_parts_do_not_overlap() -> None:
    job = find_job("yacht")
    assert job.validation is not None
    parts = [{tuple(row.tolist()) for row in part.inputs} for part in (job.train, job.validation, job.test)]
    assert len(job.train) + len(job.validation) + len(job.test) == 308
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_all_methods_with_the_settings_of_the_job() -> None:
    job = find_job("fashion")
    assert job.methods()[0] == "single"
    assert {*parse.methods_by_name()} - {*job.methods()} == {"laplace", "snapshot", "swag"}
    assert job.method("mimo") == mt.MIMO(members=2)
    assert job.method("mimo(members=3)") == mt.MIMO(members=3)
    assert job.method("deep") == mt.Deep()


def test_your_own_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_jobs.py").write_text(
        "import torch\nfrom multitudes.data import Data\nfrom multitudes.models import MLP\n"
        "from multitudes.shell.jobs import Job\n"
        "def mine():\n    d = Data(torch.randn(8, 3), torch.arange(8) % 2)\n"
        "    return Job(name='mine', network=lambda: MLP(3, (4,), 2), train=d, test=d)\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert find_job("my_jobs:mine").name == "mine"
    with pytest.raises(mt.InputError, match=r"my_jobs:wrong .*Job.* int"):
        find_job("my_jobs:wrong")


def test_an_unknown_job_is_refused() -> None:
    with pytest.raises(mt.InputError, match=r"job 'fasion'.*'fashion'"):
        find_job("fasion")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match="cifar-10-batches-bin"):
        JOBS["cifar10"](tmp_path)


def test_the_settings_of_table_1_are_those_of_its_recipe() -> None:
    """The two are written twice: by name for the shell, and as methods in the recipe."""
    for method in find("packed/cifar10-resnet18").methods:
        name = type(method).__name__.lower()
        assert parse.method(name, **TABLE_1.get(name, {})) == method


def test_an_example_is_two_inputs() -> None:
    d = data.Data(torch.randn(8, 3), torch.arange(8))
    assert Job(name="a", network=lambda: MLP(3, (4,), 2), train=d, test=d).example.shape == (2, 3)


def test_corruptions_need_classes() -> None:
    """They would be scored only after all training."""
    job = find_job("yacht")
    with pytest.raises(mt.InputError, match=r"corruptions= .*classification.*gaussian"):
        replace(job, corruptions=("fog",))


def test_the_demo_is_trained_until_it_fits() -> None:
    """Its network has a hundred times as many weights as there are images, and its last epoch is scored."""
    job = find_job("fashion")
    assert sum(p.numel() for p in job.network().parameters()) > 100 * len(job.train)
    assert job.epoch == "last"


def test_datasets_of_torch_become_data() -> None:
    pairs = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]))
    job = Job(name="pairs", network=lambda: MLP(2, (4,), 2), train=pairs, test=pairs, ood={"far": pairs})  # type: ignore[arg-type]
    assert job.example.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert job.train.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert job.ood["far"].inputs.shape == (6, 2)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"network": MLP(2, (4,), 2)}, r"network= must be a function.*lambda: Net\(\)"),
        ({"train": torch.zeros(6, 2)}, r"train= must be a dataset, not a Tensor: multitudes.data.Data\(inputs, targets\)"),
        ({"ood": {"far": torch.zeros(6, 2)}}, r"ood\['far'\] must be a dataset"),
        ({"recipe": {"epochs": 3}}, "recipe must be a Recipe"),
        ({"task": "class"}, "task='class'.*classes"),
        ({"val": None}, r"Job\(val=\.\.\.\).*type validation="),
    ],
)
def test_a_wrong_field_is_named(wrong: dict[str, object], text: str) -> None:
    few = data.Data(torch.zeros(6, 2), torch.zeros(6, dtype=torch.long))
    right = {"name": "few", "network": lambda: MLP(2, (4,), 2), "train": few, "test": few}
    with pytest.raises(mt.InputError, match=text):
        Job(**{**right, **wrong})


@pytest.mark.parametrize("name", ["validation", "test", "ood"])
def test_a_dataset_of_another_normalisation_is_refused(name: str) -> None:
    """The network would see inputs that are shifted and stretched. Without a mean they would not be normalised at all."""
    train = data.Data(torch.zeros(6, 2), torch.zeros(6, dtype=torch.long), name="mine", mean=[1.0, 2.0], std=[1.0, 3.0])
    right = {"name": "few", "network": lambda: MLP(2, (4,), 2), "train": train, "test": train, "validation": train}
    for change in ({"std": [1.0, 3.5]}, {"mean": [1.0, 2.1]}, {"mean": None, "std": None}):
        other = replace(train, **change)
        wrong = {"ood": {"far": other}} if name == "ood" else {name: other}
        with pytest.raises(mt.InputError, match=rf"{name}.* is normalised otherwise than train.*mine\.like\(train\)"):
            Job(**{**right, **wrong})
        like = other.like(train)
        assert Job(**{**right, **({"ood": {"far": like}} if name == "ood" else {name: like})}).train is train


NUMBERS, KINDS, LABELS = torch.zeros(6, 2), torch.zeros(6, 1, dtype=torch.long), torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize(
    "several",
    [
        torch.utils.data.TensorDataset(NUMBERS, KINDS, LABELS),
        [((number, kind), label) for number, kind, label in zip(NUMBERS, KINDS, LABELS, strict=True)],
        [((number[0], number[1]), label) for number, label in zip(NUMBERS, LABELS, strict=True)],
        [({"number": number, "kind": kind}, label) for number, kind, label in zip(NUMBERS, KINDS, LABELS, strict=True)],
        [(mt.Inputs(number, kind=kind), label) for number, kind, label in zip(NUMBERS, KINDS, LABELS, strict=True)],
        [{"number": n, "kind": kind, "labels": label} for n, kind, label in zip(NUMBERS, KINDS, LABELS, strict=True)],
    ],
    ids=["three", "pair", "scalars", "dict", "inputs", "labels"],
)
def test_several_inputs_stay_as_they_are(several: Any) -> None:
    job = Job(name="few", network=lambda: MLP(2, (4,), 2), train=several, test=several, ood={"far": several})
    assert job.test is several and job.classes is None and not job.has_images
    parts = job.inputs(3)
    tensors = parts.tensors() if isinstance(parts, mt.Inputs) else [*(parts.values() if isinstance(parts, dict) else parts)]
    assert len(tensors) == 2 and all(len(one) == 3 for one in tensors)
    with pytest.raises(mt.InputError, match="corruptions= are for images"):
        replace(job, corruptions=("fog",))


def test_targets_of_a_dict_have_a_name() -> None:
    items = [{"number": number, "answer": label} for number, label in zip(NUMBERS, LABELS, strict=True)]
    with pytest.raises(mt.InputError, match=r"items of test= have no targets: .*labels.*they have number, answer"):
        Job(name="few", network=lambda: MLP(2, (4,), 2), train=items, test=items).inputs(2)  # type: ignore[arg-type]


def test_a_list_of_numbers_is_one_input() -> None:
    job = Job(name="few", network=lambda: MLP(2, (4,), 2), train=[([0.0, 1.0], 0)], test=[([0.0, 1.0], 0)])  # type: ignore[arg-type]
    assert job.train.inputs.tolist() == [[0.0, 1.0]]
