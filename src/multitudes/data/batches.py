"""batched: any tensor, dataset or dataloader as batches of inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from multitudes.data.dataset import Data
from multitudes.engine.inputs import Inputs, count_rows, take_rows
from multitudes.errors import InputError
from multitudes.settings import Count, check_value

NOTHING = "there are no examples to predict: the data is empty"
"""Error message for an empty dataset."""

Split = Callable[[Any], tuple[Any, Any]]
"""Function that splits a batch into the model's input (a tensor or mt.Inputs) and the targets (or None)."""


def batched(
    data: Any,
    batch_size: int,
    batch_axis: Any,
    split: Split,
) -> tuple[int | None, Iterator[tuple[Inputs, Tensor | None]]]:
    """Returns the number of examples (None if unknown), and an iterator over batches: pairs of inputs and targets.

    A DataLoader or another iterable keeps its own batches; tensors, mt.Inputs and datasets are cut into `batch_size` rows.
    """
    check_value("batch_size", batch_size, Count)
    if isinstance(data, (Tensor, Inputs)):
        call = Inputs.of(data)
        count = count_rows(call, batch_axis)
        if not count:
            raise InputError(NOTHING)
        rows = torch.arange(count).split(batch_size)
        return count, ((take_rows(call, batch_axis, index), None) for index in rows)
    if isinstance(data, (tuple, dict, str)):
        raise InputError(
            f"data= is a {type(data).__name__}, which is ambiguous: give a tensor, mt.Inputs(...), a dataset or a dataloader"
        )
    if isinstance(data, DataLoader):
        _check_loader(data)
        return _count_examples(data), _split_batches(data, split)
    if isinstance(data, Data) and split is input_and_target:
        starts = range(0, len(data), batch_size)
        pairs = (data.batch(slice(start, min(start + batch_size, len(data)))) for start in starts)
        return len(data), ((Inputs.of(x), targets) for x, targets in pairs)
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        sized = isinstance(data, Sized) and not isinstance(data, IterableDataset)
        return len(data) if sized else None, _split_batches(DataLoader(data, batch_size), split)
    if isinstance(data, Iterable):
        return None, _split_batches(data, split)
    raise InputError(f"data= is a {type(data).__name__}: give a tensor, mt.Inputs(...), a dataset or a dataloader")


def input_and_target(batch: Any) -> tuple[Any, Any]:
    """Splits a batch: a tensor or mt.Inputs is the input, a pair is input and targets."""
    if isinstance(batch, (Tensor, Inputs)):
        return batch, None
    if isinstance(batch, (tuple, list)) and len(batch) in (1, 2):
        return batch[0], batch[1] if len(batch) > 1 else None
    kind = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, Sized) else "")
    raise InputError(
        f"a batch is a {kind}, not a tensor or a pair: pass a function that returns input and targets, "
        "split=lambda batch: (mt.Inputs(batch['input_ids'], attention_mask=batch['attention_mask']), batch['labels'])"
    )


def _split_batches(batches: Iterable[Any], split: Split) -> Iterator[tuple[Inputs, Tensor | None]]:
    for batch in batches:
        inputs, targets = split(batch)
        yield Inputs.of(inputs), None if targets is None else _target_tensor(targets)


def _target_tensor(targets: Any) -> Tensor:
    try:
        return torch.as_tensor(targets)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = type(targets).__name__
        raise InputError(f"targets are a {kind}, but must be one tensor: choose it with split=lambda batch: (x, y)") from error


def _count_examples(loader: DataLoader[Any]) -> int | None:
    """Number of examples in an epoch of a dataloader; None if it is a stream or its sampler has no length."""
    sampler = None if isinstance(loader.dataset, IterableDataset) else _sampler(loader)
    return len(sampler) if isinstance(sampler, Sized) else None


def _sampler(loader: DataLoader[Any]) -> Any:
    """The sampler of single examples, also inside a batch sampler."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def _check_loader(loader: DataLoader[Any]) -> None:
    """Refuses a dataloader that would silently leave out examples or repeat them."""
    stream = isinstance(loader.dataset, IterableDataset)
    batches = loader if stream or loader.batch_sampler is None else loader.batch_sampler
    count, size = _count_examples(loader), getattr(batches, "batch_size", None) or 1
    if getattr(batches, "drop_last", False) and (count is None or count % size):
        raise InputError("this dataloader leaves out the last examples: set drop_last=False")
    sampler = _sampler(loader)
    draws = isinstance(sampler, RandomSampler) and (sampler.replacement or sampler._num_samples is not None)
    if draws or isinstance(sampler, WeightedRandomSampler):
        raise InputError(
            "this dataloader draws examples at random, some twice or never: pass the dataset itself, not the dataloader"
        )
