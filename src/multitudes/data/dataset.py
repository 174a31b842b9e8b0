"""Data: inputs, targets, and how inputs are normalised, in memory where a whole batch is one operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from multitudes.data.labels import as_wide, check_finite, check_range
from multitudes.data.lazy import Lazy, joined
from multitudes.errors import InputError


@dataclass(frozen=True, eq=False, repr=False)
class Data(Dataset[tuple[Tensor, Tensor]]):
    """Inputs with their targets; any DataLoader and `mt.predict` take it, and `batch` gives many examples at once.

    >>> digits = Data(torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8), torch.arange(6), mean=[0.5], std=[0.25])
    >>> x, y = digits.batch([4, 0])
    >>> x.shape, y
    (torch.Size([2, 1, 8, 8]), tensor([4, 0]))
    """

    inputs: Tensor | Lazy
    """Images as bytes ``[N, C, H, W]``, vectors as floats ``[N, D]``, or what is read when asked for."""

    targets: Tensor
    """What is to be answered, ``[N, ...]``."""

    name: str = "data"
    """What the set is called."""

    classes: Sequence[str] | None = None
    """The classes' names; targets are then their numbers."""

    mean: Any = None
    """What is taken from inputs, for each channel or feature; images count from 0 to 1."""

    std: Any = None
    """What inputs are then divided by."""

    target_mean: Any = None
    """What was taken from the targets, where they are standardised."""

    target_std: Any = None
    """What the targets were then divided by."""

    ignore: int | None = None
    """The target of pixels that do not count."""

    groups: Tensor | None = None
    """For networks with other outputs than these classes: the class that each output stands for, −1 for none."""

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, (Tensor, Lazy)):
            raise InputError(f"{self.name}: inputs are a {type(self.inputs).__name__}: give a tensor, or data.of(dataset)")
        if not len(self.inputs.shape) or not len(self.inputs):
            raise InputError(f"{self.name} is empty")
        self._set(targets=_targets(self.name, self.inputs, torch.as_tensor(self.targets), self.classes, self.ignore))
        if self.classes is not None:
            self._set(classes=tuple(self.classes))
        for field in ("mean", "std"):
            self._set(**{field: _per_channel(self.name, field, getattr(self, field), tuple(self.inputs.shape))})
        for field in ("target_mean", "target_std"):
            given = getattr(self, field)
            self._set(**{field: None if given is None else torch.as_tensor(given, dtype=torch.float32)})
        if (self.mean is None) != (self.std is None):
            raise InputError(f"{self.name}: mean and std belong together")
        if isinstance(self.inputs, Tensor) and self.inputs.is_floating_point() and not bool(self.inputs.isfinite().all()):
            row = int((~self.inputs.isfinite()).nonzero()[0, 0])
            raise InputError(f"{self.name}: the input of example {row} is NaN or infinite")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} examples: there is no {index}")
        inputs, targets = self.batch([index % len(self)])
        return inputs[0], targets[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        """What a DataLoader asks for: a batch, one by one."""
        return list(zip(*self.batch(indices), strict=True))

    def __add__(self, other: Dataset[Any]) -> Data | ConcatDataset[Any]:  # type: ignore[override]
        """This set and then another that differs in nothing but its examples; torch's ConcatDataset with what is no Data."""
        if not isinstance(other, Data):
            return super().__add__(other)
        _same_kind(self, other)
        name = self.name if self.name == other.name else f"{self.name} + {other.name}"
        inputs = joined(self.inputs, other.inputs)
        return replace(self, inputs=inputs, targets=torch.cat([self.targets, other.targets]), name=name)

    def __repr__(self) -> str:
        kind = "read when asked for" if isinstance(self.inputs, Lazy) else str(self.inputs.dtype).removeprefix("torch.")
        parts = [f"{len(self):,} × {list(self.shape)} {kind}"]
        parts += [f"{len(self.classes)} classes"] if self.classes is not None else []
        parts += [f"on {self.device}"] if self.device.type != "cpu" else []
        return f"Data({self.name}: {', '.join(parts)})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where the targets are, and the inputs if they are in memory."""
        return self.targets.device

    def raw(self, index: Any, device: torch.device | str | None = None) -> Tensor:
        """The inputs of these examples on the device, images from 0 to 1, not normalised: what augmentation works on."""
        rows = _rows(index, self.device)
        found = self.inputs.take(rows) if isinstance(self.inputs, Lazy) else self.inputs[rows]
        found = found.to(self.device if device is None else device, non_blocking=True)
        return found.float().div_(255) if found.dtype == torch.uint8 else found

    def normalise(self, inputs: Tensor) -> Tensor:
        """Raw inputs ``[B, ...]`` as the network wants them."""
        if self.mean is None:
            return inputs
        shape = (-1, *[1] * (inputs.ndim - 2))
        mean, std = (part.to(inputs.device, non_blocking=True).view(shape) for part in (self.mean, self.std))
        return inputs.sub(mean).div_(std)

    def batch(self, index: Any, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """Inputs, normalised, and targets of these examples (numbers or a slice), made on the device in one go."""
        targets = self.targets[_rows(index, self.device)]
        place = self.device if device is None else device
        return self.normalise(self.raw(index, place)), targets.to(place, non_blocking=True)

    def subset(self, index: Any) -> Data:
        """These examples: numbers, a slice, or a mask of truth values."""
        rows = _rows(index, self.device)
        if isinstance(rows, Tensor) and rows.numel() and not -len(self) <= int(rows.min()) <= int(rows.max()) < len(self):
            wrong = int(rows.max()) if int(rows.max()) >= len(self) else int(rows.min())
            raise InputError(f"{self.name} has {len(self)} examples: there is no {wrong}")
        inputs = self.inputs.only(rows) if isinstance(self.inputs, Lazy) else self.inputs[rows]
        if not len(inputs):
            raise InputError(f"{self.name}: a subset without examples")
        return replace(self, inputs=inputs, targets=self.targets[rows])

    def split(self, counts: Sequence[int], seed: int = 0) -> tuple[Data, ...]:
        """Parts of these sizes, which together are all; who is where is drawn from the seed."""
        if sum(counts) != len(self) or min(counts) < 1:
            raise InputError(f"{self.name} has {len(self)} examples, which {list(counts)} do not add up to")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return tuple(self.subset(part) for part in order.split(list(counts)))

    def like(self, other: Data) -> Data:
        """Normalised as another set is: what a network trained there must see, also of what is foreign to it."""
        return replace(self, mean=other.mean, std=other.std)

    def in_memory(self) -> Data:
        """All inputs read now."""
        return replace(self, inputs=self.inputs.take(slice(None))) if isinstance(self.inputs, Lazy) else self

    def to(self, device: torch.device | str) -> Data:
        """The whole set on a device, so that batches need no transfer."""
        if isinstance(self.inputs, Lazy):
            raise InputError(f"{self.name} is read when asked for: data.in_memory().to({str(device)!r}) reads all of it")
        mean, std = (part if part is None else part.to(device) for part in (self.mean, self.std))
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device), mean=mean, std=std)

    def original(self, values: Tensor) -> Tensor:
        """Standardised targets, or predicted means, in the units they had; standard deviations times `target_std` are too."""
        if self.target_mean is None:
            return values
        return values * self.target_std.to(values) + self.target_mean.to(values)


def _same_kind(first: Data, second: Data) -> None:
    """Both sets have the same classes, the same scale and the same target that does not count; and fit each other."""

    def described(value: Any) -> Any:
        return value.tolist() if isinstance(value, Tensor) else value

    settings = [field.name for field in fields(Data) if field.name not in ("inputs", "targets", "name")]
    both = {name: [described(getattr(one, name)) for one in (first, second)] for name in settings}
    both["the shape of an input"] = [list(first.shape), list(second.shape)]
    both["the shape of a target"] = [list(one.targets.shape[1:]) for one in (first, second)]
    both["the type of targets"] = [one.targets.dtype for one in (first, second)]
    both["the device"] = [str(one.device) for one in (first, second)]
    differ = [f"{name} ({shown(one)} and {shown(other)})" for name, (one, other) in both.items() if one != other]
    if differ:
        raise InputError(
            f"{first.name} and {second.name} cannot be one set, as they differ in {'; '.join(differ)}. "
            "second.like(first) normalises it as the first; data.of(second, classes=..., ignore=...) says what it is"
        )


def _rows(index: Any, device: torch.device) -> Tensor | slice:
    """Numbers of examples as a tensor; a slice stays one."""
    if isinstance(index, slice):
        if index.step is not None and index.step < 0:
            raise InputError(f"a slice must go forwards: data.subset(range(...)), not {index}")
        return index
    rows = torch.as_tensor(list(index) if isinstance(index, range) else index).to(device)
    if rows.dtype == torch.bool:
        rows = rows.nonzero().squeeze(1)
    if rows.ndim != 1 or (rows.numel() and rows.is_floating_point()):
        raise InputError(f"say which examples by a list of numbers, not {list(rows.shape)} {rows.dtype}")
    return rows.long()


def _targets(name: str, inputs: Tensor | Lazy, targets: Tensor, classes: Sequence[str] | None, ignore: int | None) -> Tensor:
    """Checks targets against inputs and classes. Returns whole numbers as int64."""
    if not targets.ndim or len(targets) != len(inputs):
        raise InputError(f"{name} has {len(inputs)} inputs and targets {list(targets.shape)}")
    if targets.is_floating_point() and classes is not None:
        raise InputError(f"{name}: targets are {targets.dtype}, and with classes= they must be whole numbers")
    try:
        if targets.is_floating_point():
            check_finite(targets)
        elif classes is not None:
            check_range(targets.long(), len(classes), () if ignore is None else (ignore,))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return as_wide(targets)


def _per_channel(name: str, field: str, given: Any, shape: tuple[int, ...]) -> Tensor | None:
    """One number for each channel or feature."""
    if given is None:
        return None
    found = torch.as_tensor(given, dtype=torch.float32)
    if len(shape) < 2 or found.shape != shape[1:2]:
        raise InputError(f"{name}: {field} has shape {list(found.shape)} for inputs {list(shape[1:])}: one number a channel")
    if not bool(found.isfinite().all()) or (field == "std" and not bool((found > 0).all())):
        raise InputError(f"{name}: {field}={found.tolist()} cannot normalise")
    return found
