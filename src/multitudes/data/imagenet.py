"""ImageNet's 1000 classes by WordNet id, and datasets whose classes are groups of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.data.embedded import content
from multitudes.errors import FileError, InputError


@cache
def wordnet_ids() -> tuple[str, ...]:
    """WordNet ids of ImageNet's classes, in the order of a network's outputs."""
    return tuple(content("imagenet.txt").decode().split())


def imagenet_class(name: str) -> int | None:
    """Class index of a folder named by a WordNet id or by a number from 0 to 999; None for any other name."""
    if name.isdecimal() and name.isascii():
        return int(name) if int(name) < 1000 else None
    ids = wordnet_ids()
    return ids.index(name) if name in ids else None


def grouped(values: Tensor, groups: Tensor, *, by: str = "sum") -> Tensor:
    """Merges predictions ``[..., K]`` for a network's classes into predictions ``[..., G]`` for groups of these classes.

    values  probabilities or scores
    groups  index of each output's group, −1 for none, ``[K]``: `data.groups`
    by      "sum" adds probabilities; "max" takes the largest, as ImageNet-Vid-Robust is scored

    >>> grouped(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, -1, 0, 1]))
    tensor([0.3000, 0.5000])
    """
    if by not in ("sum", "max"):
        raise InputError(f"by={by!r}: give 'sum' or 'max'")
    if groups.ndim != 1 or values.shape[-1:] != groups.shape:
        raise InputError(
            f"groups= has shape {list(groups.shape)}, but values= has {list(values.shape)}: give one group per class"
        )
    used = groups >= 0
    index = groups[used].to(values.device).expand(*values.shape[:-1], -1)
    empty = values.new_zeros(*values.shape[:-1], int(groups.max()) + 1)
    reduce = "amax" if by == "max" else "sum"
    return empty.scatter_reduce(-1, index, values[..., used.to(values.device)], reduce, include_self=False)


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Reads a publisher's JSON file that holds an object."""
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}. Get the file again") from error
    if not isinstance(mapping, dict) or not mapping:
        raise FileError(f"{path} must hold a JSON object that is not empty: get the file again")
    return mapping


def class_groups(classes: Mapping[str, list[int]]) -> Tensor:
    """Returns the group of each of ImageNet's 1000 classes, −1 for none. `classes` maps a group to its ImageNet classes."""
    groups = torch.full((1000,), -1)
    for number, (name, members) in enumerate(classes.items()):
        wrong = [m for m in members if not 0 <= m < 1000]
        if wrong:
            raise FileError(
                f"{name} is mapped to ImageNet class {wrong[0]}, but classes are 0 to 999: get the mapping files again"
            )
        groups[members] = number
    return groups
