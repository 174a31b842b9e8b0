"""Jobs: what methods are compared on: a network, its data, what is foreign to it, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from torch import Tensor, nn

from multitudes import data, models
from multitudes.data import Data
from multitudes.errors import InputError
from multitudes.method import Method
from multitudes.shell.parse import import_by_name, method, methods_by_name, unknown_name
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import recipe

Root = str | PathLike[str] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A network and data to compare methods on. One of your own: a function that returns it, as `--task MODULE:FUNCTION`."""

    name: str
    network: Callable[[], nn.Module]
    """Makes the network that methods turn into ensembles."""

    train: Data
    test: Data
    validation: Data | None = None
    """What tells the best epoch."""

    ood: Mapping[str, Data] = field(default_factory=dict)
    """Sets out of distribution, by name."""

    recipe: Recipe = field(default_factory=Recipe)
    task: str = "classes"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For methods by their name in the shell, what is not their default here."""

    corruptions: tuple[str, ...] = ()
    """What is done to images of the test set, at five severities."""

    corrupted: int = 200
    """To how many of them."""

    about: str = ""
    """What is compared on what, in one sentence."""

    @property
    def example(self) -> Tensor:
        """Two inputs."""
        return self.test.batch(slice(0, 2))[0]

    def method(self, text: str) -> Method:
        """A method as the shell names it, with this job's settings."""
        name = text.partition("(")[0].strip().lower()
        return method(text, **self.settings.get(name, {}))

    def methods(self) -> list[str]:
        """All of them, the single network first."""
        return sorted(methods_by_name(), key=lambda name: (name != "single", name))


def fashion(root: Root = None) -> Job:
    """Embedded: 6,000 images of clothes, digits as the out-of-distribution set, a small network. It trains in seconds."""
    return Job(
        name="fashion", network=lambda: models.SmallCNN(channels=1), train=data.fashion("train"), test=data.fashion("test"),
        validation=data.fashion("validation"), ood={"digits": data.digits()},
        recipe=Recipe(epochs=10, batch=32, lr=0.003, optimizer="adamw", weight_decay=0.01, schedule="onecycle"),
        settings={"mimo": {"members": 2}}, corruptions=("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate"),
        about="A small convolutional network on 6,000 images of clothes (Fashion-MNIST); digits are out of distribution.",
    )  # fmt: skip


TABLE_1: dict[str, dict[str, Any]] = {
    "packed": {"gamma": 2}, "masksembles": {"position": "after", "feed": "all"},
    "mimo": {"members": 4, "rho": 1.0, "reduction": "mean"}, "emp": {"prior": "none"}, "ecmp": {"prior": "none"},
}  # fmt: skip
"""What methods have otherwise than by default in Table 1 of Packed-Ensembles; EMP and ECMP with weight decay as their prior."""


def cifar10(root: Root = None) -> Job:
    """ResNet-18 on CIFAR-10 with SVHN as the out-of-distribution set, by the recipe of Packed-Ensembles; for a GPU."""
    test = data.cifar10("test", root)
    whole = data.cifar10("train", root)
    return Job(
        name="cifar10", network=models.resnet18, train=whole, test=test, ood={"svhn": data.svhn("test", root).like(test)},
        recipe=recipe("packed/cifar10-resnet18"), corruptions=("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate"),
        settings=TABLE_1, corrupted=1000, about="ResNet-18 on CIFAR-10, SVHN out of distribution.",
    )  # fmt: skip


def _regression(name: str) -> Callable[[Root], Job]:
    def made(root: Root = None) -> Job:
        train, test = data.uci(name, 0, None)
        held = max(8, len(train) // 10)
        train, validation = train.split([len(train) - held, held])
        return Job(
            name=name, network=lambda: models.MLP(train.shape[0], (50,), 2), train=train, test=test, validation=validation,
            task="gaussian", recipe=Recipe(epochs=40, batch=32, lr=0.01, optimizer="adam", schedule="cosine"),
            about=f"A network of 50 hidden units on the UCI set {name}: means and variances.",
        )  # fmt: skip

    made.__doc__ = f"Embedded: the UCI regression set {name}, its first standard split."
    return made


JOBS: dict[str, Callable[[Root], Job]] = {
    "cifar10": cifar10,
    "energy": _regression("energy"),
    "fashion": fashion,
    "yacht": _regression("yacht"),
}
"""Those that there are, by name."""


def job(name: str, root: Root = None) -> Job:
    """A job by its name, or one of your own by MODULE:FUNCTION."""
    if ":" in name:
        found = import_by_name(name)
        made = found() if callable(found) else found
        if not isinstance(made, Job):
            raise InputError(f"{name} gives a {type(made).__name__}: a multitudes.shell.jobs.Job is needed")
        return made
    if name not in JOBS:
        raise unknown_name("task", name, JOBS)
    return JOBS[name](root)
