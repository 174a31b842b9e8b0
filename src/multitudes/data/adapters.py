"""of: converts torch and Hugging Face datasets, and anything else with a length and items, to Data."""

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
from multitudes.data.labels import as_target_tensor
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
    """Converts a dataset of pairs, or of dicts such as Hugging Face's, to Data.

    input, target  position in a pair, or key of a dict: of(hf, input="image", target="label")
    targets        all targets, if you have them: they are then not read from the items
    lazy           False reads all inputs into memory once; True reads an input whenever a batch needs it, which suits
                   datasets that are too large for memory or augment in their __getitem__
    name, classes, mean, std, ignore   fields of Data

    Pillow images become uint8 ``[C, H, W]``; tensors and arrays keep their dtype. If `dataset` is a Data, or torch's
    Subset or ConcatDataset of Data, its settings stay, except those that you pass here.

    >>> pairs = [([0.0, 1.0], 0), ([2.0, 3.0], 1)]
    >>> of(pairs, classes=["cat", "dog"])
    Data(list: 2 × [2] float32, 2 classes)
    """
    _check_items(dataset)
    data = _as_data(dataset)
    if data is not None:
        if (input, target) != (0, 1):
            raise InputError(
                f"{data.name} is already a Data, with inputs and targets: remove input={input!r} and target={target!r}"
            )
        if lazy and isinstance(data.inputs, Tensor):
            raise InputError(f"{data.name} is a Data that is already in memory: remove lazy=True")
        changes = {"targets": targets, "name": name, "classes": classes, "mean": mean, "std": std, "ignore": ignore}
        return replace(data, **{key: value for key, value in changes.items() if value is not None})
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"a {type(dataset).__name__} lacks __len__ or __getitem__: if it fits into memory, pass data.of(list(dataset))"
        )
    if not len(dataset):
        raise InputError(f"dataset= is an empty {type(dataset).__name__}: give at least one example")
    if (input, target) == (0, 1) and targets is None:
        _check_pairs(dataset[0])
    read = ItemInput(dataset, input)
    inputs = Lazy(read, torch.arange(len(dataset)), (len(dataset), *read(0).shape))
    return Data(
        inputs if lazy else inputs.take(slice(None)),
        as_target_tensor(_read_targets(dataset, target) if targets is None else targets),
        name or type(dataset).__name__,
        _class_names(dataset, target) if classes is None else classes,
        mean,
        std,
        ignore=ignore,
    )


def _check_items(dataset: Any) -> None:
    """Refuses whole inputs and targets, as a pair or in a dict: they are no items."""
    if isinstance(dataset, Mapping) and 0 not in dataset:
        keys = list(map(repr, dataset))
        raise InputError(
            f"dataset= is a {type(dataset).__name__} with {', '.join(keys[:6])}: choose its part that is a dataset, or give "
            f"its inputs and targets, Data(dataset[{keys[0] if keys else '...'}], dataset[{keys[1] if keys[1:] else '...'}])"
        )
    if isinstance(dataset, (tuple, list)) and len(dataset) == 2 and unlike(*dataset):
        raise InputError(
            "dataset= is a pair of inputs and targets, not a dataset of such pairs: give them as multitudes.data.Data(x, y)"
        )


def unlike(first: Any, second: Any) -> bool:
    """Checks whether these are two tensors or arrays of as many rows but other shapes, inputs and targets: not two items."""
    if not (hasattr(first, "__array__") and hasattr(second, "__array__")):
        return False
    shapes = tuple(np.shape(first)), tuple(np.shape(second))
    return shapes[0] != shapes[1] and shapes[0][:1] == shapes[1][:1]


def _check_pairs(item: Any) -> None:
    """Refuses items of several inputs, of which the second would be taken for the target."""
    if isinstance(item, (tuple, list)) and len(item) > 2:
        raise InputError(
            f"an item has {len(item)} entries, and Data holds one input and one target: say which by data.of(dataset, input=0, "
            f"target={len(item) - 1}); mt.fit and mt.predict also take a dataset of several inputs as it is"
        )


def _as_data(dataset: Any) -> Data | None:
    """Returns a Data, a Subset of Data or a ConcatDataset of Data as one Data; None for any other dataset."""
    if isinstance(dataset, Data):
        return dataset
    if type(dataset) is Subset:
        whole = _as_data(dataset.dataset)
        return None if whole is None else whole.subset(list(dataset.indices))
    if type(dataset) is ConcatDataset:
        parts = [part for part in map(_as_data, dataset.datasets) if part is not None]
        return reduce(add, parts) if len(parts) == len(dataset.datasets) else None
    return None


@dataclass(frozen=True)
class ItemInput:
    """Reads the input of one item of a dataset as a tensor."""

    dataset: Any
    key: int | str

    def __call__(self, index: int) -> Tensor:
        """Returns the input of item `index`."""
        return _tensor(_entry(self.dataset[index], self.key))


def _entry(item: Any, key: int | str) -> Any:
    try:
        return item[key]
    except (KeyError, IndexError, TypeError) as error:
        kind = f"a dict of {', '.join(map(repr, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise InputError(
            f"an item is {kind} and has no entry {key!r}: name its entries by data.of(dataset, input=..., target=...)"
        ) from error


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # a Pillow image
        image = value if value.mode in ("L", "RGB") else value.convert("RGB")
        return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1).contiguous()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"an input is a {type(value).__name__}, but must be a tensor, array, list of numbers or Pillow image: {error}"
        ) from error


def _read_targets(dataset: Any, target: int | str) -> Tensor:
    """Reads all targets: a Hugging Face column at once, otherwise item by item."""
    if isinstance(target, str) and target in (getattr(dataset, "column_names", None) or ()):
        return as_target_tensor(list(dataset[target]))
    return torch.stack([as_target_tensor(_entry(dataset[index], target)) for index in range(len(dataset))])


def _class_names(dataset: Any, target: int | str) -> Sequence[str] | None:
    """Class names of a Hugging Face label column, if it has any."""
    features = getattr(dataset, "features", None)
    return getattr(features.get(target), "names", None) if isinstance(features, Mapping) else None
