"""Other datasets as Data: torch's, Hugging Face's, or anything with a length and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from multitudes.data.dataset import Data
from multitudes.data.lazy import Lazy
from multitudes.errors import InputError


def of(
    dataset: Any,
    *,
    input: int | str = 0,
    target: int | str = 1,
    targets: Any = None,
    lazy: bool = False,
    name: str | None = None,
    classes: Sequence[str] | None = None,
    mean: Any = None,
    std: Any = None,
    ignore: int | None = None,
) -> Data:
    """A dataset of pairs, or of dicts such as Hugging Face's, as Data: read once into memory, or item by item with lazy=True.

    input, target  where they stand in an item: a place in a pair, or a key: of(hf, input="image", target="label")
    targets        all targets, where the dataset's items need not be read for them
    lazy           reads inputs when they are asked for, each time anew: for what does not fit, or is augmented there
    name, classes, mean, std, ignore   as of Data, which says what they are

    Images (Pillow's) become bytes ``[C, H, W]``; tensors and arrays stay as they are. Data, and torch's Subset or ConcatDataset
    of Data, keep what they have, but for what is given here.
    """
    mine = _data(dataset)
    if mine is not None:
        _refuse_places(mine, input, target, lazy)
        given = {"targets": targets, "name": name, "classes": classes, "mean": mean, "std": std, "ignore": ignore}
        return replace(mine, **{key: value for key, value in given.items() if value is not None})
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(f"a {type(dataset).__name__} has no length or no items: data.of(list(dataset)) reads a stream whole")
    if not len(dataset):
        raise InputError(f"this {type(dataset).__name__} is empty")
    items = Items(dataset, input)
    inputs = Lazy(items, torch.arange(len(dataset)), (len(dataset), *items(0).shape))
    if targets is None:
        targets = _targets(dataset, target)
    return Data(
        inputs if lazy else inputs.take(slice(None)), torch.as_tensor(targets), name or type(dataset).__name__,
        classes if classes is not None else _names(dataset, target), mean, std, ignore=ignore,
    )  # fmt: skip


def _data(dataset: Any) -> Data | None:
    """Data, or torch's parts and sums of it, as Data; None of anything else."""
    if isinstance(dataset, Data):
        return dataset
    if type(dataset) is Subset:
        whole = _data(dataset.dataset)
        return None if whole is None else whole.subset(list(dataset.indices))
    if type(dataset) is ConcatDataset:
        parts = [part for part in map(_data, dataset.datasets) if part is not None]
        return reduce(add, parts) if len(parts) == len(dataset.datasets) else None
    return None


def _refuse_places(mine: Data, input: int | str, target: int | str, lazy: bool) -> None:
    """A Data knows where its inputs are, and cannot be unread."""
    if (input, target) != (0, 1):
        raise InputError(
            f"{mine.name} is Data, whose inputs and targets are known: leave out input={input!r}, target={target!r}"
        )
    if lazy and isinstance(mine.inputs, Tensor):
        raise InputError(f"{mine.name} is Data in memory: leave out lazy=True")


@dataclass(frozen=True)
class Items:
    """The inputs of a dataset's items."""

    dataset: Any
    key: int | str

    def __call__(self, number: int) -> Tensor:
        """One input, as a tensor."""
        return _tensor(part(self.dataset[number], self.key))


def part(item: Any, key: int | str) -> Any:
    """What stands at a place or under a key of an item."""
    try:
        return item[key]
    except (KeyError, IndexError, TypeError) as error:
        known = f"a dict of {', '.join(map(repr, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise InputError(
            f"an item is {known}, which has no {key!r}: data.of(dataset, input=..., target=...) says where they stand"
        ) from error


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # an image of Pillow
        image = value if value.mode in ("L", "RGB") else value.convert("RGB")
        return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1).contiguous()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"an input is a {type(value).__name__}, not a tensor, array or image: {error}") from error


def _targets(dataset: Any, target: int | str) -> Tensor:
    """All targets; a column where there are columns, else item by item."""
    if isinstance(target, str) and target in (getattr(dataset, "column_names", None) or ()):
        return torch.as_tensor(list(dataset[target]))
    found = [torch.as_tensor(part(dataset[number], target)) for number in range(len(dataset))]
    if len({one.shape for one in found}) > 1:
        raise InputError(f"targets have different shapes: {', '.join(sorted({str(list(one.shape)) for one in found}))}")
    return torch.stack(found)


def _names(dataset: Any, target: int | str) -> Sequence[str] | None:
    """Classes' names, where the dataset says them."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        return getattr(features.get(target), "names", None)
    return None
