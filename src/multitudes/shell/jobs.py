"""Jobs: a network, its datasets and its recipe, on which methods are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from multitudes import data, models
from multitudes.conversion.convert import ensemble as convert
from multitudes.data import Data
from multitudes.engine.call_form import LABELS
from multitudes.engine.inputs import Inputs
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.method import Method
from multitudes.methods.layers.one_run import OneRun
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.tasks import checked_task
from multitudes.prediction.values import CLASSES
from multitudes.settings import Settings, check_value, explained
from multitudes.shell.own_names import unknown_job
from multitudes.shell.parse import import_by_name, method, methods_by_name, own_code
from multitudes.shell.reproduce.catalog import item_job
from multitudes.shell.typed import unknown_name
from multitudes.training.paper_recipe import Entry
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import recipe

Root = str | PathLike[str] | None


@explained
@dataclass(frozen=True, kw_only=True, eq=False)
class Job(Settings):
    """A network and datasets to compare methods on.

    To use your own, write a function that returns a Job and type `--job MODULE:FUNCTION`; `multitudes init` writes one to
    start from. Datasets may be Data, or torch datasets of pairs (input, target); where the network takes several inputs, torch
    datasets as `mt.fit` takes them: TensorDataset(x1, x2, y), pairs ((x1, x2), y), items {"x1": ..., "x2": ..., "labels": ...}.
    """

    name: str
    """Name of the data, shown in the report."""

    network: Callable[[], nn.Module]
    """Makes the network that methods turn into ensembles."""

    train: Data | Dataset[Any]
    """Dataset that methods are trained on."""

    test: Data | Dataset[Any]
    """Dataset that methods are scored on."""

    validation: Data | Dataset[Any] | None = None
    """Dataset on which the best epoch is chosen and a temperature is fitted, which the page shows beside the scores without it,
    and which `predict --calibrated` and `score --calibrated` apply. None: the last epoch is used, without a temperature."""

    epoch: Literal["best", "last"] = "best"
    """Which epoch the scores are of. With a validation set the report shows the other one beside it."""

    ood: Mapping[str, Data | Dataset[Any]] = field(default_factory=dict)
    """Out-of-distribution sets by name. They have the normalisation of training: `data.notmnist("test").like(train)`."""

    recipe: Recipe = field(default_factory=Recipe)
    """How each method is trained. `train --epochs 5 --lr 0.1` and `bench --budget '5 epochs'` change it."""

    task: str = "classes"
    """What the network's outputs mean: "classes", "binary", "multilabel", "gaussian" or "regression", as in `mt.ensemble`."""

    output: str | int | None = None
    """The one output of the network that counts, if it returns several: its name or place, as in `mt.ensemble`."""

    class_axis: int | None = None
    """The axis of the classes in the network's output: 1, or -1 for tokens ``[B, T, K]``, as in `mt.ensemble`."""

    tau_output: float | None = None
    """For task "regression", the precision of an observation in the targets' own units, with which all methods score `nll`."""

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that replace a method's defaults in this job, by the method's name in the shell."""

    rows: Mapping[str, Entry] = field(default_factory=dict)
    """What is compared, by name, in place of methods alone: each row has its method, recipe and network, arguments of
    `mt.ensemble` (start=, keep=, at=) and of `mt.predict`. `--methods` names rows then."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the rows' networks that depend on the data, such as inputs=13."""

    scoring: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `mt.score`: bins=, drop=, level=."""

    shifts: Mapping[str, Any] = field(default_factory=dict)
    """Shifted test sets by name, as published: {severity: dataset} for a corruption, else a dataset."""

    measure: Callable[[Ensemble, Prediction], Mapping[str, float]] | None = None
    """Returns further numbers of a trained ensemble and its prediction of the test set, which its row keeps as `measured`."""

    corruptions: tuple[str, ...] = ()
    """Corruptions of the test images, each applied at five severities."""

    corrupted: int = 200
    """Number of test images that are corrupted."""

    about: str = ""
    """One sentence that says what is compared; it is the title of the report."""

    def __post_init__(self) -> None:
        check_value("epoch", self.epoch, Literal["best", "last"])
        check_value("recipe", self.recipe, Recipe)
        checked_task(self.task)
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise InputError(
                f"network= must be a function that makes the network, not a {type(self.network).__name__}: "
                "network=lambda: Net(), so that every method starts anew"
            )
        for name in ("train", "test", "validation"):
            object.__setattr__(self, name, _as_data(f"{name}=", getattr(self, name)))
        object.__setattr__(self, "ood", {name: _as_data(f"ood[{name!r}]", own) for name, own in self.ood.items()})
        self._check_normalisation()
        if self.corruptions and self.task not in CLASSES:
            raise InputError(f"corruptions= need a classification, but the task is {self.task}: leave corruptions= out")
        if self.corruptions and not self.has_images:
            raise InputError("corruptions= are for images, and the inputs of test= are none: leave corruptions= out")

    def _check_normalisation(self) -> None:
        """Refuses a dataset that is normalised otherwise than train: the network would see other inputs than in training."""
        sets = {"validation": self.validation, "test": self.test, **{f"ood[{name!r}]": one for name, one in self.ood.items()}}
        for name, dataset in sets.items():
            if not isinstance(dataset, Data) or not isinstance(self.train, Data):
                continue
            if not _same_normalisation(dataset, self.train):
                mine, trained = (f"mean {_numbers(one.mean)}, std {_numbers(one.std)}" for one in (dataset, self.train))
                raise InputError(
                    f"{name} is normalised otherwise than train: {mine}; in train {trained}. Type {dataset.name}.like(train), "
                    "which takes over the normalisation of training"
                )

    @property
    def example(self) -> Any:
        """The first two test inputs."""
        return self.inputs(2)

    def inputs(self, count: int) -> Any:
        """Returns the first test inputs as a batch: a tensor, or for several inputs what the dataset has, without targets."""
        if isinstance(self.test, Data):
            return self.test.batch(slice(0, count))[0]
        return _without_targets(next(iter(DataLoader(self.test, count))))

    @property
    def classes(self) -> Sequence[str] | None:
        """The names of the classes, if the test set has them."""
        return self.test.classes if isinstance(self.test, Data) else None

    @property
    def has_images(self) -> bool:
        """Whether the test inputs are images ``[C, H, W]``."""
        return is_of_images(self.test)

    def ensemble(self, method: Method, seed: int, network: nn.Module | None = None, row: str = "") -> Ensemble:
        """Converts the job's network, that of a row, or another one, and moves it to the GPU if there is one."""
        torch.manual_seed(seed)
        options: dict[str, Any] = {"task": self.task, "output": self.output, "class_axis": self.class_axis}
        entry = self.rows.get(row)
        if entry is not None:
            options.update(entry.conversion)
            network = entry.network(**self.arguments) if network is None else network
        made = convert(self.network() if network is None else network, method, self.example, seed=seed, **options)
        return made.to("cuda" if torch.cuda.is_available() else "cpu")

    def recipe_of(self, row: str) -> Recipe:
        """Returns the recipe of a row; the job's if it has no such row."""
        return self.rows[row].recipe if row in self.rows else self.recipe

    def prediction_of(self, row: str) -> dict[str, Any]:
        """Returns the arguments of `mt.predict` for a row."""
        own = self.rows[row].prediction if row in self.rows else {}
        return {"tau_output": self.tau_output, **own}

    def in_original_units(self, prediction: Prediction) -> Prediction:
        """Undoes the standardisation of the test set's targets, if they are standardised."""
        return prediction.in_original_units(self.test) if isinstance(self.test, Data) else prediction

    def method(self, text: str) -> Method:
        """Makes a method from its text in the shell, with this job's settings as defaults."""
        if self.rows:
            if text not in self.rows:
                raise unknown_name(f"row of the job {self.name}", text, self.rows)
            return self.rows[text].method
        name = text.partition("(")[0].strip().lower()
        return method(text, **self.settings.get(name, {}))

    def methods(self) -> list[str]:
        """Names of the rows, or of the methods, that a sweep compares unless some are named, the single network first.

        Methods of one run (SWAG, Snapshot, Laplace) are left out: they need a learning rate of their own.
        """
        if self.rows:
            return list(self.rows)
        names = [name for name, kind in methods_by_name().items() if not issubclass(kind, OneRun)]
        return sorted(names, key=lambda name: (name != "single", name))


def is_of_images(dataset: Any) -> bool:
    """Whether the inputs of a dataset are images ``[C, H, W]``."""
    return isinstance(dataset, Data) and len(dataset.shape) == 3


def first_of(dataset: Any) -> Any:
    """Returns the dataset of the first example alone."""
    return dataset.subset(range(1)) if isinstance(dataset, Data) else Subset(dataset, range(1))


def _as_data(name: str, dataset: Any) -> Any:
    """Returns a dataset of pairs as Data; None, and a dataset of several inputs, stay as they are."""
    if dataset is None or isinstance(dataset, Data):
        return dataset
    if isinstance(dataset, (Tensor, str, Mapping)) or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"{name} must be a dataset, not a {type(dataset).__name__}: multitudes.data.Data(inputs, targets), or a torch "
            "dataset of pairs"
        )
    several = hasattr(dataset, "__len__") and len(dataset) and _has_several_inputs(dataset[0])
    if several:
        return dataset
    try:
        return data.of(dataset)
    except InputError as error:
        raise InputError(re.sub(r"^dataset= is", f"{name} is", str(error))) from error


def _has_several_inputs(item: Any) -> bool:
    """Whether an item of a dataset is (input, input, target), ((input, input), target), (Inputs, target) or a dict."""
    if isinstance(item, Mapping):
        return True
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        return False
    first = item[0]
    parts = isinstance(first, (tuple, list)) and any(hasattr(one, "shape") for one in first)
    return len(item) > 2 or parts or isinstance(first, (Mapping, Inputs))


def _without_targets(batch: Any) -> Any:
    """Returns the inputs of a batch of several: a tuple, dict or Inputs, as `mt.ensemble` takes an example."""
    if not isinstance(batch, Mapping):
        return batch[0] if len(batch) == 2 else tuple(batch[:-1])
    keys = [key for key in LABELS if key in batch]
    if len(keys) != 1:
        found = f"{' and '.join(keys)}, and" if keys else "no targets:"
        raise InputError(f"items of test= have {found} a Job takes one of {', '.join(LABELS)}: they have {', '.join(batch)}")
    return {key: value for key, value in batch.items() if key != keys[0]}


def _same_normalisation(one: Data, other: Data) -> bool:
    """Whether two datasets have the same mean and standard deviation of inputs, up to rounding."""
    if one.mean is None or other.mean is None:
        return one.mean is other.mean
    pairs = [(one.mean.cpu(), other.mean.cpu()), (one.std.cpu(), other.std.cpu())]
    return all(first.shape == second.shape and torch.allclose(first, second) for first, second in pairs)


def _numbers(values: Tensor | None) -> str:
    """Returns the first numbers of a mean or a standard deviation as text."""
    if values is None:
        return "none"
    shown = ", ".join(f"{value:.4g}" for value in values.tolist()[:3])
    return f"({shown}{', ...' if len(values) > 3 else ''})"


def fashion(root: Root = None) -> Job:
    """2,000 images of clothes, embedded; digits are the OOD set. LeNet at twice its width fits them all.

    That is the regime of the papers: a network with capacity to spare, trained until it fits, and used after its last epoch.
    """
    return Job(
        name="fashion",
        network=lambda: models.LeNet(width=2),
        train=data.fashion("train").subset(range(2000)),
        test=data.fashion("test"),
        validation=data.fashion("validation").subset(range(500)),
        epoch="last",
        ood={"digits": data.digits()},
        recipe=Recipe(epochs=30, batch=32, lr=0.002, optimizer="adamw", weight_decay=0.01, schedule="onecycle"),
        settings={"mimo": {"members": 2}},
        corruptions=("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate"),
        about="LeNet at twice its width on 2,000 images of clothes (Fashion-MNIST); digits are out of distribution.",
    )


TABLE_1: dict[str, dict[str, Any]] = {
    "packed": {"gamma": 2}, "masksembles": {"position": "after", "feed": "all"},
    "mimo": {"members": 4, "rho": 1.0, "reduction": "mean"}, "emp": {"prior": "none"}, "ecmp": {"prior": "none"},
}  # fmt: skip
"""Settings of Table 1 in Packed-Ensembles that differ from our defaults. The prior of EMP and ECMP is weight decay."""


def cifar10(root: Root = None) -> Job:
    """ResNet-18 on CIFAR-10 by the recipe of Packed-Ensembles, SVHN out of distribution. It needs a GPU."""
    test = data.cifar10("test", root)
    return Job(
        name="cifar10",
        network=models.resnet18,
        train=data.cifar10("train", root),
        test=test,
        ood={"svhn": data.svhn("test", root).like(test)},
        recipe=recipe("packed/cifar10-resnet18"),
        corruptions=("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate"),
        settings=TABLE_1,
        corrupted=1000,
        about="ResNet-18 on CIFAR-10, SVHN out of distribution.",
    )


def _regression(name: str) -> Callable[[Root], Job]:
    def make(root: Root = None) -> Job:
        train, test = data.uci(name, 0, None)
        held_out = max(8, len(train) // 10)
        train, validation = train.split([len(train) - held_out, held_out])
        return Job(
            name=name,
            network=lambda: models.MLP(train.shape[0], (50,), 2),
            train=train,
            test=test,
            validation=validation,
            task="gaussian",
            recipe=Recipe(epochs=40, batch=32, lr=0.01, optimizer="adam", schedule="cosine", warmup=4, clip=100.0),
            about=f"A network of 50 hidden units on the UCI set {name}: means and variances.",
        )

    make.__doc__ = f"The UCI regression set {name}, embedded; its first standard split."
    return make


JOBS: dict[str, Callable[[Root], Job]] = {
    "cifar10": cifar10,
    "energy": _regression("energy"),
    "fashion": fashion,
    "yacht": _regression("yacht"),
}
"""The built-in jobs by name."""


def find_job(name: str, root: Root = None) -> Job:
    """Makes a built-in job by its name, that of a paper's table by PAPER/ITEM/JOB@SCALE, or your own by MODULE:FUNCTION."""
    if "@" in name:
        found: Job = item_job(name, root)
        return found
    if ":" in name:
        value = import_by_name(name)
        with own_code(name):
            value = value() if callable(value) else value
        if not isinstance(value, Job):
            raise InputError(
                f"--job {name} must return a multitudes.shell.jobs.Job, not a {type(value).__name__}: `multitudes init` "
                "writes a job to start from"
            )
        return value
    if name not in JOBS:
        raise unknown_job(name)
    return JOBS[name](root)
