"""Jobs of image classification for the papers' rows: the data of a scale, and recipes cut to its length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from multitudes import data
from multitudes.data.corruptions.corrupt import NAMES
from multitudes.data.corruptions.published import STANDARD
from multitudes.data.sources import Root, top_folder
from multitudes.ensemble import Ensemble
from multitudes.errors import FileError
from multitudes.method import Method
from multitudes.prediction.prediction import Prediction
from multitudes.shell.jobs import Job
from multitudes.shell.trial import rescaled
from multitudes.training.paper_recipe import Entry, PaperRecipe
from multitudes.training.recipe import Recipe

Measure = Callable[[Ensemble, Prediction], Mapping[str, float]]

SMOKE = Recipe(epochs=1, batch=32, lr=0.003, optimizer="adamw", schedule="onecycle")
"""How networks are trained at smoke: they learn a little, in a second."""

TINY: dict[str, Any] = {"model": "SmallCNN", "arguments": {"channels": 1}, "conversion": {}}
"""The network at smoke, in place of the paper's."""

NORMED: dict[str, Any] = {"model": "WideResNet", "arguments": {"depth": 10, "widen": 1, "channels": 1}, "conversion": {}}
"""A network with norms at smoke."""

FEW = ("gaussian_noise", "fog", "contrast")
"""Corruptions at smoke."""


def by_kind(paper: PaperRecipe, names: Mapping[str, type[Method]]) -> dict[str, Entry]:
    """Returns entries of a paper's recipe by the names of rows."""
    return {name: paper.entry(kind) for name, kind in names.items()}


def shortened(entry: Entry, epochs: int) -> Entry:
    """Returns an entry whose recipe has fewer epochs, with milestones and warm-up at the same fractions of the run."""
    return replace(entry, recipe=replace(entry.recipe, **rescaled(entry.recipe, epochs)))


def on_gpu(entry: Entry) -> Entry:
    """Returns an entry that is trained in bfloat16, channels last and compiled, if there is a GPU."""
    if not torch.cuda.is_available():
        return entry
    return replace(entry, recipe=replace(entry.recipe, precision="bf16", channels_last=True, compile=True))


def at_smoke(entry: Entry, network: Mapping[str, Any] = TINY, **changes: Any) -> Entry:
    """Returns an entry as it is run at smoke: its method on a tiny network, for one epoch. `changes` are of the recipe."""
    kept = {name: value for name, value in entry.conversion.items() if name == "start"}
    few = {name: value for name, value in entry.prediction.items() if name != "draws"}
    how = replace(SMOKE, batches=entry.recipe.batches, deterministic=entry.recipe.deterministic, l1=entry.recipe.l1, **changes)
    return replace(entry, **{**network, "conversion": kept}, recipe=how, prediction=few)


def image_job(
    kind: str,
    rows: Mapping[str, Entry],
    scale: str,
    root: Root,
    *,
    epochs: int | None = None,
    shifted: bool = False,
    corrupted: int = 1000,
    scoring: Mapping[str, Any] | None = None,
    measure: Measure | None = None,
    network: Mapping[str, Any] = TINY,
    fast: bool = True,
    about: str = "",
) -> Job:
    """Makes a job of rows on CIFAR; at smoke on embedded images of clothes, with digits out of distribution.

    kind       cifar10 or cifar100
    epochs     at small, the epochs of each row in place of its recipe's
    shifted    adds corrupted test images: the published ones at full, else generated ones
    corrupted  the number of test images that are corrupted, where they are generated
    network    at smoke, the network in place of the paper's
    fast       at small, whether rows are trained compiled and in bfloat16 on a GPU; otherwise as their recipes say
    """
    common: dict[str, Any] = {
        "scoring": {"intervals": 0, **(scoring or {})},
        "measure": measure,
        "about": about,
        "epoch": "last",
    }
    if scale == "smoke":
        train, test = data.fashion("train").subset(range(512)), data.fashion("test").subset(range(256))
        own = {name: at_smoke(entry, network) for name, entry in rows.items()}
        more: dict[str, Any] = {"corruptions": FEW, "corrupted": 64} if shifted else {}
        return Job(
            name="fashion", network=next(iter(own.values())).network, train=train, test=test,
            ood={"digits": data.digits().subset(range(256))}, rows=own, recipe=SMOKE, **common, **more,
        )  # fmt: skip
    read = {"cifar10": data.cifar10, "cifar100": data.cifar100}[kind]
    train, test = read("train", root), read("test", root)
    own = dict(rows)
    if scale == "small":
        own = {name: one if epochs is None else shortened(one, epochs) for name, one in rows.items()}
        own = {name: on_gpu(one) for name, one in own.items()} if fast else own
    more = {}
    if shifted and scale == "full":
        more["shifts"] = _published(kind, root)
    elif shifted:
        more.update(corruptions=NAMES, corrupted=corrupted)
    first = next(iter(own.values()))
    return Job(
        name=kind, network=first.network, train=train, test=test, ood={"svhn": data.svhn("test", root).like(test)}, rows=own,
        recipe=first.recipe, **common, **more,
    )  # fmt: skip


def _published(kind: str, root: Root) -> dict[str, Any]:
    """Returns the published corruptions of CIFAR; none, with a warning, if they are not in `root`."""
    try:
        sets = data.cifar_c(root, classes=100 if kind == "cifar100" else 10)
    except FileError as error:
        warnings.warn(f"no scores on corrupted images: {error}", stacklevel=2)
        return {}
    return {name: sets[name] for name in NAMES if name in sets}


def imagenet_job(
    paper: PaperRecipe,
    rows: Mapping[str, Entry],
    root: Root,
    *,
    ood: Mapping[str, str] | None = None,
    shifts: Mapping[str, str] | None = None,
    corrupted: bool = False,
    scoring: Mapping[str, Any] | None = None,
    measure: Measure | None = None,
    about: str = "",
) -> Job:
    """Makes a job of rows on ImageNet, from the folders imagenet/train and imagenet/val of `root`.

    ood, shifts  folders of other sets in `root`, by name; shifted sets have ImageNet's classes
    corrupted    adds ImageNet-C, from the folder imagenet-c: its fifteen standard corruptions
    """
    top = Path(top_folder("imagenet", root))
    train = data.folder(top / "imagenet" / "train", classes="imagenet", **paper.train)
    test = data.folder(top / "imagenet" / "val", classes="imagenet", **paper.test)
    sets: dict[str, Any] = {
        name: data.folder(top / place, classes="imagenet", **paper.test) for name, place in (shifts or {}).items()
    }
    if corrupted:
        found = data.imagenet_c(top / "imagenet-c")
        sets |= {name: found[name] for name in STANDARD}
    first = next(iter(rows.values()))
    return Job(
        name="imagenet", network=first.network, train=train, test=test,
        ood={name: data.folder(top / place, **paper.test) for name, place in (ood or {}).items()},
        shifts=sets,
        rows={name: replace(one, prediction={"moments_only": True, **one.prediction}) for name, one in rows.items()},
        recipe=first.recipe, scoring={"intervals": 0, **(scoring or {})}, measure=measure, about=about, epoch="last",
    )  # fmt: skip
