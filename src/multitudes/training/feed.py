"""Feed: the batches of an epoch, in an order that depends on the seed and the epoch only, so that runs can be resumed.

Batches of a `multitudes.data.Data` are made on the device, and augmented there before they are normalised. Any other dataset
is read by torch's DataLoader, and its batches are augmented as they come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from multitudes.data.adapters import unlike
from multitudes.data.augment import Augment as Augmentation
from multitudes.data.batches import ONE_TENSOR, Unpack, collated, read_once, refuse_names, unpack_batch
from multitudes.data.dataset import Data
from multitudes.data.labels import first_not_finite
from multitudes.engine import tree
from multitudes.engine.call_form import CallForm
from multitudes.engine.inputs import Inputs, stack_slots
from multitudes.errors import InputError

AugmentFunction = Callable[[Tensor, Any, torch.Generator], tuple[Tensor, Any]]
"""Augmentation of a batch: (x, y, generator) → (x, y)."""


def seed_of(*parts: int) -> int:
    """Derives one seed from several numbers; it depends on each of them and on their order."""
    generator = torch.Generator()
    seed = 0
    for part in parts:
        generator.manual_seed((seed ^ part) % 2**63)
        seed = int(torch.randint(2**62, (), generator=generator))
    return seed


class Reader:
    """Reads batches of any kind: takes them apart into inputs and targets, checks targets, moves and augments them."""

    own = False
    """Whether members have their own batches, ``[M, B, ...]``."""

    def __init__(
        self,
        sets: list[Any],
        device: torch.device | None,
        unpack: Unpack | None,
        form: CallForm | None,
        augment: Any,
        axis: Any,
    ) -> None:
        self.sets, self.device, self.unpack, self.form = sets, device, unpack, form or ONE_TENSOR
        self.augment, self.batch_axis = augment, axis
        self.check: Callable[[Tensor], None] | None = None
        """Checks targets as they are read, once the number of classes is known."""
        self.has_check = False

    def set_check(self, check: Callable[[Tensor], None]) -> None:
        """Sets the check of targets, which runs before they reach a GPU. Targets of a dataset in memory are checked now."""
        # Augment keeps classes their numbers; another augmentation may give targets a new meaning.
        applies = self.augment is None or isinstance(self.augment, Augmentation)
        self.check, self.has_check = check if applies else None, True
        for data in self.sets:
            if isinstance(data, Data) and applies:
                check(data.targets)

    def read(self, batch: Any, noise: torch.Generator, numbers: Tensor | None = None) -> tuple[Inputs, Any]:
        """Returns the inputs and targets of a batch on the device, augmented. `numbers` are those of its examples."""
        call, targets = unpack_batch(batch, self.unpack, self.form)
        if targets is None:
            raise InputError("the training set has inputs without targets: yield pairs (input, target), or pass unpack=")
        refuse_names(targets)
        if self.check is not None and isinstance(targets, Tensor):
            _check_finite(targets, numbers)
            self.check(targets)
        tensors = [t.to(self.device) for t in call.tensors()]
        targets = tree.apply(lambda t: t.to(self.device), targets)
        if self.augment is not None:
            if len(tensors) != 1:
                raise InputError(f"augment= takes one input, but this model has {len(tensors)}: augment in the dataset")
            tensors[0], targets = self.augment(tensors[0], targets, noise)
        return call.refill(tensors), targets

    def once(self) -> Iterator[tuple[Inputs, Any]]:
        """Yields all examples once, without augmentation, the same in every process: for what is done after training."""
        for data in self.sets:
            yield from read_once(data, 256, self.batch_axis, self.unpack, self.form, self.device)


class Feed(Reader):
    """The batches of a training set: `feed.epoch(3)` yields pairs of inputs and targets.

    With `own`, each member shuffles in its own order, and tensors are ``[M, B, ...]``. With a list of M datasets, each member
    has its own dataset; without `own`, all members take the same row numbers.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch: int,
        seed: int,
        members: int,
        own: bool,
        rank: int = 0,
        ranks: int = 1,
        device: torch.device | None = None,
        unpack: Unpack | None = None,
        form: CallForm | None = None,
        augment: AugmentFunction | None = None,
        batch_axis: Any = 0,
    ) -> None:
        sets = [_on_device_if_small(one, device) for one in _sets(data, members)]
        super().__init__(sets, device, unpack, form, augment, batch_axis)
        self.own = own or len(self.sets) > 1
        self.orders = members if own else 1
        self.members, self.seed, self.rank, self.ranks = members, seed, rank, ranks
        self.count = min(len(one) for one in self.sets)
        if not self.count:
            raise InputError("the training set is empty: give at least one example")
        if batch % ranks:
            raise InputError(
                f"a batch of {batch} examples cannot be divided evenly among {ranks} processes: take a multiple of {ranks}"
            )
        self.size = min(batch, self.count // ranks * ranks)
        if not self.size:
            raise InputError(f"{self.count} examples are not enough for {ranks} processes: use fewer processes")

    def __len__(self) -> int:
        """Number of whole batches in an epoch. The remaining examples are dropped, and they differ from epoch to epoch."""
        return self.count // self.size

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Inputs, Any]]:
        """Yields this process's share of each batch of an epoch, from the batch `first` on."""
        if not self.own:
            yield from self._read(self.sets[0], number, 0, first)
            return
        feeds = [self._read(self.sets[m % len(self.sets)], number, m % self.orders, first) for m in range(self.members)]
        for parts in zip(*feeds, strict=True):
            stacked = stack_slots([inputs for inputs, _ in parts], self.batch_axis)
            yield stacked, tree.stack([targets for _, targets in parts])

    def step_rows(self, call: Inputs, parts: int) -> int:
        """Returns the number of rows of a whole step of so many parts, over all processes."""
        return self.size * parts

    def rows_in(self, batches: int) -> int:
        """Returns the number of rows of so many batches, over all processes."""
        return self.size * batches

    def example(self, epoch: int, batch: int, m: int, row: int) -> int:
        """Returns the number of an example in the training set, from its row in member m's share of a batch of an epoch."""
        return int(self._pieces(epoch, m % self.orders, None)[batch][row])

    def _pieces(self, epoch: int, m: int, device: torch.device | None) -> list[Tensor]:
        """Returns the row numbers of each batch, for member m."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch, m))
        order = torch.randperm(self.count, generator=generator).to(device)
        share = self.size // self.ranks
        return [order[at + self.rank * share :][:share] for at in range(0, len(self) * self.size, self.size)]

    def _read(self, data: Any, epoch: int, m: int, first: int) -> Iterator[tuple[Inputs, Any]]:
        noise = torch.Generator(self.device or "cpu").manual_seed(seed_of(self.seed, epoch, m, 1 + self.rank))
        crops = seed_of(self.seed, epoch, m)  # with an image's index, the seed of its random crop
        if isinstance(data, Data) and self.unpack is None:
            for piece in self._pieces(epoch, m, data.device)[first:]:
                if self.augment is None:
                    x, targets = data.batch(piece, self.device, crops)
                else:
                    x, targets = self.augment(data.raw(piece, self.device, crops), data.targets[piece].to(self.device), noise)
                    x = data.normalise(x)
                yield Inputs.of(x), targets
            return
        pieces = self._pieces(epoch, m, None)[first:]
        loader = DataLoader(Subset(data, torch.cat(pieces).tolist()), len(pieces[0]))
        for piece, batch in zip(pieces, collated(loader), strict=True):
            yield self.read(batch, noise, piece)


def _check_finite(targets: Tensor, numbers: Tensor | None) -> None:
    at = first_not_finite(targets)
    if at:
        example = "" if numbers is None else f" of example {int(numbers[at[0]])}"
        raise InputError(f"the training set has a NaN or infinite value in the targets{example}: remove or replace it")


def _on_device_if_small(data: Any, device: torch.device | None) -> Any:
    """Moves a dataset in memory to the GPU if it takes less than a quarter of the free memory there."""
    if device is None or device.type != "cuda" or not isinstance(data, Data) or not isinstance(data.inputs, Tensor):
        return data
    free, _ = torch.cuda.mem_get_info(device)
    return data.to(device) if data.device != device and data.inputs.nbytes < free // 4 else data


def _is_set(one: Any) -> bool:
    """Checks whether an entry of a list is a dataset, not an example or an array."""
    indexed = hasattr(one, "__getitem__") and hasattr(one, "__len__") and not hasattr(one, "__array__")
    return indexed and not isinstance(one, (tuple, list, str, Tensor, Mapping))


def _sets(data: Any, members: int) -> list[Any]:
    """Returns a list of datasets: one for all members, or one per member."""
    if isinstance(data, Sequence) and not isinstance(data, (str, Tensor)):
        sets = list(data)
        if sets and all(_is_set(one) for one in sets):
            if len(sets) != members:
                raise InputError(
                    f"there are {len(sets)} training sets for {members} members: give one dataset, or one per member"
                )
            lengths = sorted({len(one) for one in sets})
            if len(lengths) > 1:
                raise InputError(
                    f"training sets have {lengths[0]} to {lengths[-1]} examples: make them equally long, with torch's Subset"
                )
            return sets
    if isinstance(data, Sequence) and any(isinstance(one, DataLoader) for one in data):
        raise InputError("members cannot have a dataloader each: give one dataloader, or a list with one dataset per member")
    if isinstance(data, list) and len(data) == 2 and unlike(*data):
        raise InputError("cannot train on a list of two tensors: give inputs and targets as one dataset, TensorDataset(x, y)")
    if isinstance(data, (str, Tensor, tuple, Mapping)) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(
            f"cannot train on a {type(data).__name__}: give a dataset with a length, as TensorDataset(x, y), or a DataLoader"
        )
    return [data]


@contextlib.contextmanager
def explain_single_rows(call: Inputs) -> Iterator[None]:
    """Explains BatchNorm's error in a with-block, if a member sees a single row."""
    try:
        yield
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            f"BatchNorm in training needs two rows or more, but of a batch {call} a member sees one: make the dataloader "
            "with drop_last=True, or take larger batches"
        ) from error
