"""Batches: any tensor, dataset or loader as pairs of inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from multitudes.data.dataset import Data
from multitudes.engine.inputs import Inputs, count_rows, take_rows
from multitudes.errors import InputError
from multitudes.settings import Count, check

NOTHING = "there are no examples to predict"


Split = Callable[[Any], tuple[Any, Any]]
"""What takes a batch apart into the model's input (a tensor or mt.Inputs) and the targets (or None)."""


def batched(
    data: Any, batch_size: int, batch_axis: Any, split: Split
) -> tuple[int | None, Iterator[tuple[Inputs, Tensor | None]]]:
    """How many examples there are, if that is known, and the batches."""
    check("batch_size", batch_size, Count)
    if isinstance(data, (Tensor, Inputs)):
        call = Inputs.of(data)
        count = count_rows(call, batch_axis)
        if not count:
            raise InputError(NOTHING)
        starts = range(0, count, batch_size)
        index = torch.arange(count)
        return count, ((take_rows(call, batch_axis, index[s : s + batch_size]), None) for s in starts)
    if isinstance(data, (tuple, dict, str)):
        raise InputError(
            f"a {type(data).__name__} may mean several things: give a tensor, mt.Inputs(...), a dataset or a loader"
        )
    if isinstance(data, DataLoader):
        _check_complete(data)
        return None if isinstance(data.dataset, IterableDataset) else _sized(data), _split(data, split)
    if isinstance(data, Data) and split is input_and_target:
        starts = range(0, len(data), batch_size)
        pairs = (data.batch(slice(s, min(s + batch_size, len(data)))) for s in starts)
        return len(data), ((Inputs.of(x), targets) for x, targets in pairs)
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        sized = isinstance(data, Sized) and not isinstance(data, IterableDataset)
        return len(data) if sized else None, _split(DataLoader(data, batch_size), split)
    if isinstance(data, Iterable):
        return None, _split(data, split)
    raise InputError(f"cannot predict a {type(data).__name__}: give a tensor, mt.Inputs(...), a dataset or a loader")


def _sized(loader: DataLoader[Any]) -> int | None:
    """How many examples a loader gives, as its sampler says."""
    sampler = _sampler(loader)
    return len(sampler) if isinstance(sampler, Sized) else None


def _sampler(loader: DataLoader[Any]) -> Any:
    """What says which examples a loader gives."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def input_and_target(batch: Any) -> tuple[Any, Any]:
    """A batch that is a tensor or Inputs is the input; a pair is input and targets."""
    if isinstance(batch, (Tensor, Inputs)):
        return batch, None
    if isinstance(batch, (tuple, list)) and len(batch) in (1, 2):
        return batch[0], batch[1] if len(batch) > 1 else None
    kind = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, Sized) else "")
    raise InputError(
        f"a batch is a {kind}: say what is input and what target, "
        "split=lambda batch: (mt.Inputs(batch['input_ids'], attention_mask=batch['attention_mask']), batch['labels'])"
    )


def _split(batches: Iterable[Any], split: Split) -> Iterator[tuple[Inputs, Tensor | None]]:
    for batch in batches:
        inputs, targets = split(batch)
        yield Inputs.of(inputs), None if targets is None else _one_tensor(targets)


def _one_tensor(targets: Any) -> Tensor:
    try:
        return torch.as_tensor(targets)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = type(targets).__name__
        raise InputError(f"targets are a {kind}, and a prediction takes one tensor of them: split= says which") from error


def _check_complete(loader: DataLoader[Any]) -> None:
    """A loader that leaves examples out would do so silently."""
    streamed = isinstance(loader.dataset, IterableDataset)
    by = loader if streamed or loader.batch_sampler is None else loader.batch_sampler
    count, size = None if streamed else _sized(loader), getattr(by, "batch_size", None) or 1
    if getattr(by, "drop_last", False) and (count is None or count % size):
        raise InputError("this loader leaves out the last examples: drop_last=False")
    sampler = _sampler(loader)
    some = isinstance(sampler, RandomSampler) and (sampler.replacement or sampler._num_samples is not None)
    if some or isinstance(sampler, WeightedRandomSampler):
        raise InputError("this loader draws examples at random: predict the dataset itself")
