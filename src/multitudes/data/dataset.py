"""Data: inputs, targets, class names and normalisation of a dataset, with batches made in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from reprlib import repr as abbreviate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from multitudes.data.labels import as_target_tensor, as_wide, check_finite, check_range
from multitudes.data.lazy import Lazy, concatenate
from multitudes.errors import InputError
from multitudes.settings import Named, explained


@explained
@dataclass(frozen=True, eq=False, repr=False)
class Data(Named, Dataset[tuple[Tensor, Tensor]]):
    """A dataset: inputs, targets, class names and the normalisation of inputs.

    It is a torch Dataset for any DataLoader, and can be passed to `mt.fit` and `mt.predict`. `batch` returns many examples at
    once, normalised and on a device.

    >>> images = Data(torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8), torch.arange(6), mean=[0.5], std=[0.25])
    >>> x, y = images.batch([4, 0])
    >>> x.shape, y
    (torch.Size([2, 1, 8, 8]), tensor([4, 0]))
    """

    inputs: Tensor | Lazy
    """Images as uint8 ``[N, C, H, W]`` or vectors as floats ``[N, D]``, a tensor or an array; or a `Lazy` that reads them on
    access."""

    targets: Tensor
    """Labels or regression targets, ``[N, ...]``."""

    name: str = "data"
    """Name of the dataset, shown in its repr and in error messages."""

    classes: Sequence[str] | None = None
    """Class names. Targets are then indices into them."""

    mean: Any = None
    """Mean of each channel or feature, subtracted from inputs. For uint8 images it is on the scale from 0 to 1."""

    std: Any = None
    """Standard deviation of each channel or feature, by which inputs are divided."""

    target_mean: Any = None
    """Mean that was subtracted from regression targets, if they are standardised."""

    target_std: Any = None
    """Standard deviation by which regression targets were divided, if they are standardised."""

    ignore: int | None = None
    """Label of pixels that losses and scores leave out, such as 255."""

    groups: Tensor | None = None
    """For networks trained on ImageNet: the class of this dataset that each output belongs to, −1 for none; see `grouped`."""

    def __post_init__(self) -> None:
        self._set(inputs=_inputs(self.name, self.inputs))
        if not len(self.inputs.shape) or not len(self.inputs):
            raise InputError(f"{self.name}: inputs= is empty: give at least one example")
        self._set(targets=_targets(self.name, self.inputs, as_target_tensor(self.targets), self.classes, self.ignore))
        if self.classes is not None:
            self._set(classes=tuple(self.classes))
        for field in ("mean", "std"):
            self._set(**{field: _per_channel(self.name, field, getattr(self, field), tuple(self.inputs.shape))})
        for field in ("target_mean", "target_std"):
            value = getattr(self, field)
            self._set(**{field: None if value is None else torch.as_tensor(value, dtype=torch.float32)})
        if (self.mean is None) != (self.std is None):
            raise InputError(f"{self.name}: give both mean= and std=, or neither")
        if isinstance(self.inputs, Tensor) and self.inputs.is_floating_point() and not bool(self.inputs.isfinite().all()):
            row = int((~self.inputs.isfinite()).nonzero()[0, 0])
            raise InputError(f"{self.name}: the input of example {row} has a NaN or infinite value: remove or replace it")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} examples: index {index} is out of range")
        inputs, targets = self.batch([index % len(self)])
        return inputs[0], targets[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Returns several examples for a DataLoader, which then collates them."""
        return list(zip(*self.batch(indices), strict=True))

    def __add__(self, other: Dataset[Any]) -> Data | ConcatDataset[Any]:  # type: ignore[override]
        """Concatenates two datasets with the same classes, normalisation and other settings.

        Adding a dataset that is not a Data gives torch's ConcatDataset.
        """
        if not isinstance(other, Data):
            return super().__add__(other)
        _check_same_settings(self, other)
        name = self.name if self.name == other.name else f"{self.name} + {other.name}"
        inputs = concatenate(self.inputs, other.inputs)
        return replace(self, inputs=inputs, targets=torch.cat([self.targets, other.targets]), name=name)

    def __repr__(self) -> str:
        kind = "lazy" if isinstance(self.inputs, Lazy) else str(self.inputs.dtype).removeprefix("torch.")
        parts = [f"{len(self):,} × {list(self.shape)} {kind}"]
        parts += [f"{len(self.classes)} classes"] if self.classes is not None else []
        parts += [f"on {self.device}"] if self.device.type != "cpu" else []
        return f"Data({self.name}: {', '.join(parts)})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def device(self) -> torch.device:
        """Device of the targets, and of the inputs if they are in memory."""
        return self.targets.device

    def raw(self, index: Any, device: torch.device | str | None = None, seed: int | None = None) -> Tensor:
        """Returns the inputs at `index` on the device, not normalised; images from 0 to 1. Augmentation needs such images.

        `seed` is for inputs that are cropped at random; None takes torch's global generator.
        """
        rows = _rows(index, self.device)
        inputs = self.inputs.take(rows, seed) if isinstance(self.inputs, Lazy) else self.inputs[rows]
        inputs = inputs.to(self.device if device is None else device, non_blocking=True)
        return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs

    def normalise(self, inputs: Tensor) -> Tensor:
        """Subtracts `mean` from raw inputs ``[B, ...]`` and divides by `std`, as the network expects."""
        if self.mean is None:
            return inputs
        shape = (-1, *[1] * (inputs.ndim - 2))
        mean, std = (part.to(inputs.device, non_blocking=True).view(shape) for part in (self.mean, self.std))
        return inputs.sub(mean).div_(std)

    def batch(self, index: Any, device: torch.device | str | None = None, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Returns normalised inputs and targets at `index` (a list of rows, a slice or a mask), on the device."""
        targets = self.targets[_rows(index, self.device)]
        place = self.device if device is None else device
        return self.normalise(self.raw(index, place, seed)), targets.to(place, non_blocking=True)

    def subset(self, index: Any) -> Data:
        """Returns the examples at `index`: a list of rows, a slice or a boolean mask."""
        rows = _rows(index, self.device)
        if isinstance(rows, Tensor) and rows.numel() and not -len(self) <= int(rows.min()) <= int(rows.max()) < len(self):
            wrong = int(rows.max()) if int(rows.max()) >= len(self) else int(rows.min())
            raise InputError(f"{self.name} has {len(self)} examples: row {wrong} is out of range, give 0 to {len(self) - 1}")
        inputs = self.inputs.subset(rows) if isinstance(self.inputs, Lazy) else self.inputs[rows]
        if not len(inputs):
            raise InputError(f"{self.name}: index= selects no examples: select at least one")
        return replace(self, inputs=inputs, targets=self.targets[rows])

    def split(self, counts: Sequence[int], seed: int = 0) -> tuple[Data, ...]:
        """Splits the dataset at random into parts of these sizes, which must add up to its length."""
        if sum(counts) != len(self) or min(counts) < 1:
            raise InputError(f"{self.name} has {len(self)} examples: counts={list(counts)} must be positive and add up to that")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return tuple(self.subset(part) for part in order.split(list(counts)))

    def like(self, other: Data) -> Data:
        """Returns this dataset with the normalisation of `other`. An OOD set needs that of the network's training set."""
        return replace(self, mean=other.mean, std=other.std)

    def in_memory(self) -> Data:
        """Reads all inputs of a lazy dataset into memory."""
        if isinstance(self.inputs, Lazy) and self.inputs.varies:
            raise InputError(
                f"{self.name} is cropped at random whenever it is read, so it cannot be held in memory: leave crop= out"
            )
        return replace(self, inputs=self.inputs.take(slice(None))) if isinstance(self.inputs, Lazy) else self

    def to(self, device: torch.device | str) -> Data:
        """Moves the whole dataset to a device, so that batches need no transfer."""
        if isinstance(self.inputs, Lazy):
            raise InputError(
                f"{self.name} is lazy, not in memory: read it into memory first, data.in_memory().to({str(device)!r})"
            )
        mean, std = (part if part is None else part.to(device) for part in (self.mean, self.std))
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device), mean=mean, std=std)

    def original(self, values: Tensor) -> Tensor:
        """Converts standardised targets or predicted means back to their units: ``values * target_std + target_mean``.

        Standard deviations need only the factor `target_std`.
        """
        if self.target_mean is None:
            return values
        return values * self.target_std.to(values) + self.target_mean.to(values)


def target_std_of(data: Any) -> Tensor | None:
    """Returns the standard deviations that the targets of a dataset were divided by; None if they were not.

    Looks into dataloaders, subsets and concatenations, whose parts must agree.
    """
    stds = [part.target_std for part in parts_of(data)]
    if len({None if std is None else tuple(std.tolist()) for std in stds}) > 1:
        raise InputError("the parts of this dataset have targets in different units: predict each part by itself")
    return stds[0] if stds else None


def ignore_of(data: Any) -> int | None:
    """Returns the `ignore` label of a dataset or a list of them; None if it has none. Refuses parts with different ones."""
    labels = {part.ignore for part in parts_of(data)}
    if len(labels) > 1:
        raise InputError(
            f"datasets ignore different labels, {' and '.join(sorted(map(str, labels)))}: pass one for all, ignore=..."
        )
    return next(iter(labels), None)


def parts_of(data: Any) -> list[Data]:
    """Returns each Data inside a dataset, a dataloader, a subset, a concatenation or a list of datasets."""
    if isinstance(data, Data):
        return [data]
    if isinstance(data, (list, tuple)):
        return [one for part in data if isinstance(part, Dataset) for one in parts_of(part)]
    if hasattr(data, "datasets"):
        return [one for part in data.datasets for one in parts_of(part)]
    return parts_of(data.dataset) if hasattr(data, "dataset") else []


def _check_same_settings(first: Data, second: Data) -> None:
    """Checks that two datasets have the same settings (all fields after targets but the name), input shape and target dtype."""

    def settings(data: Data) -> dict[str, Any]:
        values = {field.name: getattr(data, field.name) for field in fields(Data)[2:] if field.name != "name"}
        plain = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}
        return {**plain, "dtype of targets": data.targets.dtype, "shape of inputs": list(data.shape)}

    theirs = settings(second)
    differences = [
        f"{name} ({abbreviate(value)} and {abbreviate(theirs[name])})"
        for name, value in settings(first).items()
        if value != theirs[name]
    ]
    if differences:
        raise InputError(
            f"cannot add {first.name} and {second.name}: they differ in {'; '.join(differences)}. "
            "second.like(first) copies the normalisation; data.of(second, classes=..., ignore=...) sets other fields"
        )


def _rows(index: Any, device: torch.device) -> Tensor | slice:
    """Row indices as a tensor; a slice stays a slice."""
    if isinstance(index, slice):
        if index.step is not None and index.step < 0:
            raise InputError(f"{index} has a negative step, which tensors do not support: use data.subset(range(...))")
        return index
    rows = torch.as_tensor(list(index) if isinstance(index, range) else index).to(device)
    if rows.dtype == torch.bool:
        rows = rows.nonzero().squeeze(1)
    if rows.ndim != 1 or (rows.numel() and rows.is_floating_point()):
        raise InputError(
            f"index= must be a list of row numbers, a slice or a mask, not a tensor {list(rows.shape)} of {rows.dtype}"
        )
    return rows.long()


def _inputs(name: str, inputs: Any) -> Tensor | Lazy:
    """Returns inputs as a tensor, of the same dtype if they are an array; refuses others."""
    if isinstance(inputs, (Tensor, Lazy)):
        return inputs
    kind = type(inputs).__name__
    if isinstance(inputs, Dataset):
        raise InputError(f"{name}: inputs= is a {kind}: convert the dataset with data.of(dataset)")
    if not hasattr(inputs, "__array__"):
        raise InputError(f"{name}: inputs= is a {kind}: give a tensor or an array, torch.as_tensor(x)")
    array = np.require(inputs, requirements="W")  # torch warns of arrays that cannot be written to
    try:
        return torch.as_tensor(array)
    except TypeError as error:
        raise InputError(f"{name}: inputs= is a {kind} of {array.dtype}, not of numbers: encode what is no number") from error


def _targets(name: str, inputs: Tensor | Lazy, targets: Tensor, classes: Sequence[str] | None, ignore: int | None) -> Tensor:
    """Checks targets against inputs and classes. Returns whole numbers as int64."""
    if not targets.ndim or len(targets) != len(inputs):
        raise InputError(
            f"{name} has {len(inputs)} inputs, but targets of shape {list(targets.shape)}: "
            f"give one target per input, [{len(inputs)}, ...]"
        )
    if targets.is_floating_point() and classes is not None:
        raise InputError(
            f"{name}: targets are {targets.dtype}, but with classes= they must be class indices: use targets.long()"
        )
    try:
        if targets.is_floating_point():
            check_finite(targets)
        elif classes is not None:
            check_range(targets.long(), len(classes), () if ignore is None else (ignore,))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return as_wide(targets)


def _per_channel(name: str, field: str, value: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Returns `mean` or `std` as a float32 tensor with one number per channel or feature."""
    if value is None:
        return None
    numbers = torch.as_tensor(value, dtype=torch.float32)
    if len(shape) < 2 or numbers.shape != shape[1:2]:
        raise InputError(
            f"{name}: {field}= has shape {list(numbers.shape)}, but an input has {list(shape[1:])}: give one number per channel"
        )
    if not bool(numbers.isfinite().all()) or (field == "std" and not bool((numbers > 0).all())):
        raise InputError(f"{name}: {field}={numbers.tolist()} must be finite{', and above 0' if field == 'std' else ''}")
    return numbers
