"""Feeding: the batches of an epoch, in an order that a seed and the epoch alone decide.

So a run that is taken up again sees what it would have seen. A `multitudes.data.Data` gives a batch at once, on the device, and
is augmented there before it is normalised; any other dataset is read by torch's DataLoader, and augmented as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from multitudes.data.augment import Augment as Augmentation
from multitudes.data.batches import Split, input_and_target
from multitudes.data.dataset import Data
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, stack_slots
from multitudes.errors import InputError

Augment = Callable[[Tensor, Any, torch.Generator], tuple[Tensor, Any]]
"""What is done to a batch before it is learned from."""


def seed_of(*parts: int) -> int:
    """One seed from several numbers, none of which is lost."""
    generator = torch.Generator()
    seed = 0
    for part in parts:
        generator.manual_seed((seed ^ part) % 2**63)
        seed = int(torch.randint(2**62, (), generator=generator))
    return seed


class Feed:
    """The batches of a training set: `feed.epoch(3)` gives pairs of inputs and targets.

    With `own`, each member has an order of its own, and tensors carry ``[M, B, ...]``. Given a list of M sets, each member has
    its own set, and without `own` takes the same numbers from it as the others from theirs: as it would alone.
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
        split: Split | None = None,
        augment: Augment | None = None,
        batch_axis: Any = 0,
    ) -> None:
        self.sets = [_on_device_if_small(one, device) for one in _sets(data, members)]
        self.augment, self.batch_axis = augment, batch_axis
        self.check: Callable[[Tensor], None] | None = None
        """What refuses targets that mean nothing, once that is known."""
        self.expects = False
        self.own = own or len(self.sets) > 1
        self.orders = members if own else 1
        self.members, self.seed, self.rank, self.ranks = members, seed, rank, ranks
        self.device, self.split = device, split or input_and_target
        self.count = min(len(one) for one in self.sets)
        if not self.count:
            raise InputError("the training set is empty")
        if batch % ranks:
            raise InputError(f"a batch of {batch} examples cannot be shared evenly by {ranks} processes")
        self.size = min(batch, self.count // ranks * ranks)
        if not self.size:
            raise InputError(f"{self.count} examples are not enough for {ranks} processes")

    def __len__(self) -> int:
        """Steps of an epoch; what is left behind the last whole batch is left out of it, another part in each epoch."""
        return self.count // self.size

    def epoch(self, number: int) -> Iterator[tuple[Inputs, Any]]:
        """The batches of an epoch, this process's share of each."""
        if not self.own:
            yield from self._read(self.sets[0], number, 0)
            return
        feeds = [self._read(self.sets[m % len(self.sets)], number, m % self.orders) for m in range(self.members)]
        for parts in zip(*feeds, strict=True):
            stacked = stack_slots([inputs for inputs, _ in parts], self.batch_axis)
            yield stacked, tree.stack([targets for _, targets in parts])

    def expect(self, check: Callable[[Tensor], None]) -> None:
        """From now on, targets are checked before they reach a GPU: of a set in memory all at once."""
        kept = self.augment is None or isinstance(self.augment, Augmentation)  # which leaves classes their numbers
        self.check, self.expects = check if kept else None, True
        for one in self.sets:
            if isinstance(one, Data) and kept:
                check(one.targets)

    def _pieces(self, epoch: int, m: int, device: torch.device | None) -> list[Tensor]:
        """Which examples each batch has, for member m."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch, m))
        order = torch.randperm(self.count, generator=generator).to(device)
        share = self.size // self.ranks
        return [order[at + self.rank * share :][:share] for at in range(0, len(self) * self.size, self.size)]

    def _read(self, data: Any, epoch: int, m: int) -> Iterator[tuple[Inputs, Any]]:
        noise = torch.Generator(self.device or "cpu").manual_seed(seed_of(self.seed, epoch, m, 1 + self.rank))
        if isinstance(data, Data) and self.split is input_and_target:
            for piece in self._pieces(epoch, m, data.device):
                if self.augment is None:
                    x, targets = data.batch(piece, self.device)
                else:
                    x, targets = self.augment(data.raw(piece, self.device), data.targets[piece].to(self.device), noise)
                    x = data.normalise(x)
                yield Inputs.of(x), targets
            return
        pieces = self._pieces(epoch, m, None)
        for batch in _batched(DataLoader(Subset(data, torch.cat(pieces).tolist()), len(pieces[0]))):
            inputs, targets = self.split(batch)
            if targets is None:
                raise InputError("the training set gives inputs without targets: pairs (input, target) are needed, or split=")
            if self.check is not None and isinstance(targets, Tensor):
                self.check(targets)
            call = Inputs.of(inputs)
            tensors = [t.to(self.device) for t in call.tensors()]
            targets = tree.apply(lambda t: t.to(self.device), targets)
            if self.augment is not None:
                if len(tensors) != 1:
                    raise InputError(f"augment= is for models of one input, and this one has {len(tensors)}")
                tensors[0], targets = self.augment(tensors[0], targets, noise)
            yield call.refill(tensors), targets


def _batched(loader: DataLoader[Any]) -> Iterator[Any]:
    """A loader's batches; examples that torch cannot put together are told of, and what can."""
    try:
        yield from loader
    except TypeError as error:
        if "default_collate" not in str(error):
            raise
        raise InputError(
            f"examples cannot be made a batch ({str(error).partition(':')[2].strip() or error}): data.of(dataset, input=..., "
            "target=...) reads images and dicts, or give tensors"
        ) from error


def _on_device_if_small(data: Any, device: torch.device | None) -> Any:
    """A set that lies in memory, on the device where all of it takes no more than a quarter of what is free there."""
    if device is None or device.type != "cuda" or not isinstance(data, Data) or not isinstance(data.inputs, Tensor):
        return data
    free, _ = torch.cuda.mem_get_info(device)
    return data.to(device) if data.device != device and data.inputs.nbytes < free // 4 else data


def _is_set(one: Any) -> bool:
    """Whether an entry of a list is a set of examples, and not an example."""
    return hasattr(one, "__getitem__") and hasattr(one, "__len__") and not isinstance(one, (tuple, list, str, Tensor, Mapping))


def _sets(data: Any, members: int) -> list[Any]:
    """The one set of all members, or each one's."""
    if isinstance(data, Sequence) and not isinstance(data, (str, Tensor)):
        sets = list(data)
        if sets and all(_is_set(one) for one in sets):
            if len(sets) != members:
                raise InputError(f"there are {len(sets)} training sets for {members} members: give one, or one for each")
            lengths = sorted({len(one) for one in sets})
            if len(lengths) > 1:
                raise InputError(
                    f"members' training sets must be equally long, and have {lengths[0]} to {lengths[-1]} examples"
                )
            return sets
    if isinstance(data, (str, Tensor, tuple, Mapping)) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(
            f"cannot train on a {type(data).__name__}: give a dataset with a length, such as a TensorDataset(x, y)"
        )
    return [data]
