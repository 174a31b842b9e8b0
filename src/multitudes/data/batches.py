"""batched: any tensor, dataset or dataloader as batches of inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from multitudes.data.dataset import Data
from multitudes.data.labels import as_target_tensor
from multitudes.engine.call_form import ANY, CallForm, is_packed
from multitudes.engine.inputs import Inputs, count_rows, take_rows
from multitudes.errors import InputError
from multitudes.settings import Count, check_value

NOTHING = "there are no examples to predict: the data is empty"
"""Error message for an empty dataset."""

Unpack = Callable[[Any], tuple[Any, Any]]
"""Function that takes a batch apart into the model's input (a tensor, mt.Inputs, a tuple or dict of arguments) and the targets
(or None)."""


def batched(
    data: Any,
    batch_size: int,
    batch_axis: Any,
    unpack: Unpack | None = None,
    form: CallForm | None = None,
) -> tuple[int | None, Iterator[tuple[Inputs, Tensor | None]]]:
    """Returns the number of examples (None if unknown), and an iterator over batches: pairs of inputs and targets.

    A DataLoader or another iterable keeps its own batches; tensors, mt.Inputs and datasets are cut into `batch_size` rows, and
    so is a tuple or dict of whole inputs, if the network takes several.

    unpack  takes a batch apart into inputs and targets; by default as `form` says
    form    how the network takes its inputs; without one it takes a tensor
    """
    check_value("batch_size", batch_size, Count)
    form = form or ONE_TENSOR
    if isinstance(data, (Tensor, Inputs)):
        return _rows(form.checked(Inputs.of(data)), None, batch_size, batch_axis)
    if isinstance(data, (tuple, dict, str)) and not is_packed(data):
        raise InputError(f"data= is a {type(data).__name__}: {GIVE}")
    if is_packed(data) and not isinstance(data, list):
        return _rows(*_whole(data, unpack, form), batch_size, batch_axis)
    if isinstance(data, DataLoader):
        _check_loader(data)
        return _count_examples(data), unpack_batches(data, unpack, form)
    if isinstance(data, Data) and unpack is None:
        starts = range(0, len(data), batch_size)
        pairs = (data.batch(slice(start, min(start + batch_size, len(data)))) for start in starts)
        return len(data), ((Inputs.of(x), targets) for x, targets in pairs)
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        sized = isinstance(data, Sized) and not isinstance(data, IterableDataset)
        return len(data) if sized else None, unpack_batches(collated(DataLoader(data, batch_size)), unpack, form)
    if isinstance(data, Iterable):
        return None, unpack_batches(data, unpack, form)
    raise InputError(f"data= is a {type(data).__name__}: {GIVE}")


def read_once(
    data: Any, batch_size: int, batch_axis: Any, unpack: Unpack | None, form: CallForm, device: Any
) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Yields inputs and targets of a training set once, on a device. A dataloader may leave out or repeat examples."""
    if isinstance(data, DataLoader):
        pairs = unpack_batches(data, unpack, form)
    else:
        pairs = batched(data, batch_size, batch_axis, unpack, form)[1]
    for call, target in pairs:
        yield call.refill([tensor.to(device) for tensor in call.tensors()]), target


def each_once(loader: Any) -> Any:
    """Returns the dataset of a dataloader as batches of every example once, the same in all processes; a stream as it is."""
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"members are made by a pass over the training data: give one DataLoader, not a {type(loader).__name__}"
        )
    if isinstance(loader.dataset, IterableDataset):
        return loader
    return DataLoader(loader.dataset, loader.batch_size or 256, collate_fn=loader.collate_fn)


GIVE = "give a tensor, mt.Inputs(...), a dataset or a dataloader"
ONE_TENSOR = CallForm(ANY, {"args": [{"kind": "tensor"}], "kwargs": {}})
"""The form of a network that takes one tensor."""


def _rows(call: Inputs, targets: Any, size: int, axis: Any) -> tuple[int, Iterator[tuple[Inputs, Tensor | None]]]:
    """Cuts whole inputs, and targets if there are any, into batches of `size` rows."""
    count = count_rows(call, axis)
    if not count:
        raise InputError(NOTHING)
    labels = None if targets is None else _target_tensor(targets)
    if labels is not None and (not labels.ndim or len(labels) != count):
        raise InputError(f"data= has {count} examples, but targets of shape {list(labels.shape)}: give one target per example")
    rows = torch.arange(count).split(size)
    return count, ((take_rows(call, axis, index), None if labels is None else labels[index]) for index in rows)


def _whole(data: Any, unpack: Unpack | None, form: CallForm) -> tuple[Inputs, Any]:
    """Takes a tuple or dict of whole inputs apart. Refuses a tuple for a network of one input: it may be inputs or a pair."""
    if unpack is not None:
        return unpack_batch(data, unpack, form)
    if isinstance(data, tuple) and form.count == 1:
        raise InputError(f"data= is a tuple, which is ambiguous: {GIVE}")
    return form.unpack(data)


def unpack_batches(batches: Iterable[Any], unpack: Unpack | None, form: CallForm) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Yields inputs and targets of each batch."""
    for batch in batches:
        inputs, targets = unpack_batch(batch, unpack, form)
        yield inputs, None if targets is None else _target_tensor(targets)


def collated(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yields a loader's batches. Raises a clear error if torch cannot collate the examples."""
    try:
        yield from loader
    except (TypeError, RuntimeError) as error:
        if "stack expects each tensor to be equal size" in str(error):
            raise InputError(
                "examples of different shapes make no batch: pad or resize them in the dataset, or give a DataLoader whose "
                f"collate_fn pads them, as torch.nn.utils.rnn.pad_sequence does ({error})"
            ) from error
        if "default_collate" not in str(error):
            raise
        raise InputError(
            f"examples cannot be collated into a batch ({str(error).partition(':')[2].strip() or error}): return tensors, "
            "or wrap a dataset of images or dicts, data.of(dataset, input=..., target=...)"
        ) from error


def unpack_batch(batch: Any, unpack: Unpack | None, form: CallForm) -> tuple[Inputs, Any]:
    """Takes a batch apart by the user's function or by the form."""
    if unpack is None:
        return form.unpack(batch)
    inputs, targets = unpack(batch)
    return form.inputs(inputs), targets


def refuse_names(targets: Any) -> None:
    """Refuses names in place of numbers."""
    if isinstance(targets, (tuple, list)) and any(isinstance(one, str) for one in targets):
        as_target_tensor(targets)


def _target_tensor(targets: Any) -> Tensor:
    refuse_names(targets)
    try:
        return torch.as_tensor(targets)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = type(targets).__name__
        raise InputError(f"targets are a {kind}, but must be one tensor: choose it with unpack=lambda batch: (x, y)") from error


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
