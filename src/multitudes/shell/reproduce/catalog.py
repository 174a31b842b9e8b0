"""Finds items and their jobs by name. Only the work itself imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from multitudes.errors import InputError
from multitudes.shell.reproduce import emp, masksembles, mimo, ours, packed, supplement
from multitudes.shell.reproduce.item import SCALES, Item
from multitudes.shell.typed import unknown_name

PAPERS = {
    "masksembles": "Durasov et al., Masksembles for Uncertainty Estimation, CVPR 2021, https://arxiv.org/abs/2012.08334",
    "packed": "Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation, ICLR 2023, "
    "https://arxiv.org/abs/2210.09184",
    "supplement": "the supplement of Packed-Ensembles, https://arxiv.org/abs/2210.09184",
    "mimo": "Havasi et al., Training independent subnetworks for robust prediction, ICLR 2021, "
    "https://arxiv.org/abs/2010.06610",
    "emp": "Chang et al., Ensemble Model Patching, 2019, https://arxiv.org/abs/1905.09453",
    "ours": "comparisons of all methods that no paper has",
}
"""The papers by their names in the shell, and what is ours."""

ITEMS: dict[str, Item] = {
    item.name: item for paper in (masksembles, packed, supplement, mimo, emp, ours) for item in paper.ITEMS
}
"""All items by name."""


def find_item(name: str) -> Item:
    """Returns an item by its name, PAPER/ITEM. The error for another name suggests the nearest."""
    if name not in ITEMS:
        paper = name.strip("/")
        if paper in PAPERS:
            raise InputError(
                f"{name} is a paper: type one of its items, {', '.join(one for one in ITEMS if one.startswith(paper))}"
            )
        raise unknown_name("table or figure", name, ITEMS)
    return ITEMS[name]


def split_job(text: str) -> tuple[Item, str, str]:
    """Splits the name of a job, PAPER/ITEM/JOB@SCALE, into item, job and scale, and refuses one that there is not."""
    name, _, scale = text.rpartition("@")
    parent, _, job = name.rpartition("/")
    item = find_item(parent)
    if scale not in SCALES:
        raise unknown_name(f"scale of {name}", scale, SCALES)
    if job not in (jobs := item.at(scale).jobs) or item.source:
        raise unknown_name(f"job of {parent} at {scale}", job, jobs)
    return item, job, scale


def work_of(item: Item, name: str) -> Any:
    """Returns a function of work/PAPER.py by its name."""
    return getattr(import_module(f"multitudes.shell.reproduce.work.{item.paper}"), name)


def item_job(text: str, root: Any = None) -> Any:
    """Makes the job PAPER/ITEM/JOB@SCALE."""
    item, job, scale = split_job(text)
    make = work_of(item, item.at(scale).work or function_name(item))
    return make(job, scale, root)


def function_name(item: Item) -> str:
    """Returns the name of an item's function: table_1 for packed/table-1."""
    return item.name.partition("/")[2].replace("-", "_")
