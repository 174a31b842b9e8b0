"""ImageNet's 1000 classes by their WordNet ids in order, and sets whose classes are groups of them."""

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
    """The WordNet ids of ImageNet's classes; class k of a network is the k-th."""
    return tuple(content("imagenet.txt").decode().split())


def imagenet_class(name: str) -> int | None:
    """The class that a folder's name means: a WordNet id, or a number from 0 to 999."""
    if name.isdecimal() and name.isascii():
        return int(name) if int(name) < 1000 else None
    ids = wordnet_ids()
    return ids.index(name) if name in ids else None


def grouped(values: Tensor, groups: Tensor, *, by: str = "sum") -> Tensor:
    """Probabilities or scores of a network's outputs ``[..., K]`` as those of classes that are groups of outputs.

    groups  the class of each output, −1 for none: `data.groups`
    by      "sum", for probabilities; or "max", as ImageNet-Vid-Robust is scored
    """
    if by not in ("sum", "max"):
        raise InputError(f"by={by!r}: say 'sum' or 'max'")
    if groups.ndim != 1 or values.shape[-1:] != groups.shape:
        raise InputError(f"groups are {list(groups.shape)} for values {list(values.shape)}: one for each output")
    kept = groups >= 0
    numbers = groups[kept].to(values.device).expand(*values.shape[:-1], -1)
    empty = values.new_zeros(*values.shape[:-1], int(groups.max()) + 1)
    return empty.scatter_reduce(
        -1, numbers, values[..., kept.to(values.device)], f"a{by}" if by == "max" else by, include_self=False
    )


def read_json(path: Path) -> Any:
    """A publisher's JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{path} is no JSON: {error}") from error


def read_mapping(path: Path) -> Mapping[str, Any]:
    """A publisher's JSON file that maps names to values."""
    found = read_json(path)
    if not isinstance(found, dict) or not found:
        raise FileError(f"{path} must map names to values, and does not")
    return found


def groups_of(classes: Mapping[str, list[int]]) -> Tensor:
    """The number of the class that each of ImageNet's 1000 belongs to, −1 for none."""
    groups = torch.full((1000,), -1)
    for number, (name, members) in enumerate(classes.items()):
        wrong = [m for m in members if not 0 <= m < 1000]
        if wrong:
            raise FileError(f"{name} is said to be ImageNet's class {wrong[0]}: there are 0 to 999")
        groups[members] = number
    return groups
