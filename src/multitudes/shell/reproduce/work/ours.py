"""What the comparisons of our own run."""

from __future__ import annotations

from collections.abc import Mapping

from multitudes import data
from multitudes.data.sources import Root
from multitudes.method import Method
from multitudes.report.row import Row
from multitudes.shell.jobs import Job
from multitudes.shell.reproduce.ours import METHODS
from multitudes.shell.reproduce.work.image_jobs import image_job, on_gpu
from multitudes.training.paper_recipe import Entry
from multitudes.training.recipe import Recipe

RECIPE = Recipe(epochs=15, batch=128, lr=0.05, nesterov=True, weight_decay=5e-4, schedule="cosine")
LOWER = ("nll", "ece")
"""Scores of which less is better."""


def fashion_mnist(job: str, scale: str, root: Root) -> Job:
    """A thin ResNet-18 on Fashion-MNIST by every method, with the same recipe."""
    kinds = {kind.__name__: kind for kind in Method.all()}
    arguments = {"channels": 1, "width": 0.25}
    rows = {
        row: Entry(method=kinds[label](), recipe=RECIPE, model="resnet18", arguments=arguments)
        for label, row in METHODS.items()
    }
    about = "Every method on Fashion-MNIST by the same budget."
    if scale == "smoke":
        return image_job("fashion", rows, scale, root, about=about)
    rows = {row: on_gpu(entry) for row, entry in rows.items()}
    test = data.fashion_mnist("test", root)
    return Job(
        name=job, network=rows["single"].network, train=data.fashion_mnist("train", root), test=test,
        ood={"mnist": data.mnist("test", root).like(test)}, rows=rows, recipe=rows["single"].recipe, scoring={"intervals": 0},
        about=about, epoch="last",
    )  # fmt: skip


def derive_better(row: Row, rows: Mapping[str, Row]) -> dict[str, float]:
    """For each score, 1 if a method is better than the single network of the same seed, else 0; nothing for that itself."""
    single = rows.get("single")
    if single is None or single is row:
        return {}
    names = {"accuracy": "accuracy", "nll": "nll", "ece": "ece", "auroc": f"{next(iter(row.ood))}/auroc/msp"}
    pairs = {key: (row.scores.get(name), single.scores.get(name)) for key, name in names.items()}
    return {
        f"better/{key}": float(ours < alone if key in LOWER else ours > alone)
        for key, (ours, alone) in pairs.items()
        if ours is not None and alone is not None
    }
