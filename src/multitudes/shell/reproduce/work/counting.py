"""Counts of the papers' ensembles, on the meta device: shapes without numbers."""

from __future__ import annotations

from typing import Any

import torch

from multitudes.conversion.convert import plan
from multitudes.conversion.plan import Counts
from multitudes.shell.reproduce.item import Column
from multitudes.training.paper_recipe import Entry, PaperRecipe

LABELS = {
    "Single": "Single Model", "BatchEnsemble": "BatchEnsemble", "MIMO": "MIMO", "Masksembles": "Masksembles",
    "Packed": "Packed-Ensembles", "Deep": "Deep Ensembles",
}  # fmt: skip
"""Names of methods in the tables of Packed-Ensembles."""

PARAMETERS = Column("parameters")


def counted(entry: Entry, size: int, **more: Any) -> Counts:
    """Counts an entry's ensemble on two images of this size."""
    with torch.device("meta"):
        network, x = entry.network(**more), torch.zeros(2, 3, size, size)
    found = plan(network, entry.method, x, **entry.conversion).counts
    assert found is not None
    return found


def on_meta(paper: PaperRecipe, size: int) -> dict[str, Counts]:
    """Counts all entries of a recipe, by the names of methods in Packed-Ensembles."""
    return {LABELS[type(entry.method).__name__]: counted(entry, size) for entry in paper.entries}


def millions(count: int) -> float:
    """Returns a number of parameters in millions."""
    return count / 1e6


def giga(multiply_adds: int) -> float:
    """Returns the multiply-adds of one image in G, of a count for two."""
    return multiply_adds / 2e9
