"""Jobs of the UCI regression sets: one split each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multitudes.data.sources import VARIABLE, Root
from multitudes.data.uci import EMBEDDED, uci
from multitudes.shell.jobs import Job
from multitudes.training.paper_recipe import Entry


def uci_root(root: Root) -> Root:
    """Returns the folder `uci` of `root`, or of MULTITUDES_DATA, if there is one; otherwise `root`."""
    import os

    top = root or os.environ.get(VARIABLE)
    return Path(top) / "uci" if top is not None and (Path(top) / "uci").is_dir() else root


def uci_job(
    name: str, split: int, rows: Mapping[str, Entry], root: Root, *, task: str, about: str = "", targets: int = 1, **data: Any
) -> Job:
    """Makes a job of rows on one split of a set. Further arguments are those of `data.uci`. The last epoch is scored."""
    place = None if name in EMBEDDED and (root is None or targets > 1) else uci_root(root)
    train, test = uci(name, split, place, targets=targets, **data)
    outputs = {"outputs": targets} if targets > 1 else {}
    arguments = {"inputs": train.shape[0], **outputs}
    first = next(iter(rows.values()))
    return Job(
        name=f"{name} {split}", network=lambda: first.network(**arguments), train=train, test=test, task=task, rows=rows,
        arguments=arguments, recipe=first.recipe, scoring={"intervals": 0}, epoch="last", about=about,
    )  # fmt: skip
