"""LoaderFeed: the batches of the user's DataLoader, with its sampler, workers and collate_fn, as they come.

The order of an epoch follows from the recipe's seed and the epoch, as far as the sampler draws from torch's, numpy's or
python's generator, from a torch generator of its own or of the loader, or has a `set_epoch`. So a run resumes at an epoch's
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from multitudes.data.batches import Unpack
from multitudes.engine.inputs import Inputs, count_rows
from multitudes.engine.seeds import seeded
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.training.feed import Feed, Reader, seed_of
from multitudes.training.recipe import Recipe

DEFAULT_BATCH = Recipe().batch


def is_loader(data: Any) -> bool:
    """Whether `data` makes batches itself: a DataLoader, or another iterable with a length and without entries."""
    made = hasattr(data, "__iter__") and hasattr(data, "__len__") and not hasattr(data, "__getitem__")
    return isinstance(data, DataLoader) or (made and not isinstance(data, (str, Tensor)))


def feed_for(
    ensemble: Ensemble,
    train: Any,
    recipe: Recipe,
    device: torch.device,
    unpack: Unpack | None,
    rank: int = 0,
    ranks: int = 1,
) -> Feed | LoaderFeed:
    """Returns the batches of a training set: of a dataset in an order of ours, of a dataloader as they come."""
    options: dict[str, Any] = {
        "seed": recipe.seed,
        "rank": rank,
        "ranks": ranks,
        "device": device,
        "unpack": unpack,
        "form": ensemble.call_form,
        "augment": recipe.augment,
        "batch_axis": ensemble.engine.batch_axis,
    }
    if is_loader(train):
        return LoaderFeed(train, recipe, **options)
    own = recipe.batches == "own"
    return Feed(train, batch=recipe.batch // recipe.accumulate, members=ensemble.members, own=own, **options)


class LoaderFeed(Reader):
    """The batches of a dataloader: `feed.epoch(3)` yields pairs of inputs and targets. All members see the same batches."""

    def __init__(
        self,
        loader: Any,
        recipe: Recipe,
        *,
        seed: int,
        rank: int,
        ranks: int,
        device: torch.device,
        unpack: Unpack | None,
        form: Any,
        augment: Any,
        batch_axis: Any,
    ) -> None:
        super().__init__([loader], device, unpack, form, augment, batch_axis)
        self.loader, self.seed, self.rank, self.ranks = loader, seed, rank, ranks
        try:
            self.batches = len(loader)
        except TypeError as error:  # a stream
            raise InputError(
                "this dataloader has no length, so an epoch has no end: give its dataset a __len__, the number of its examples"
            ) from error
        if not self.batches:
            raise InputError("the dataloader has no batches: give it examples, or set drop_last=False")
        _check_recipe(loader, recipe, ranks)

    @property
    def count(self) -> int:
        """About the number of examples in an epoch."""
        return self.batches * self.ranks * (getattr(self.loader, "batch_size", None) or 1)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.batches

    def step_rows(self, call: Inputs, parts: int) -> int:
        """Returns the number of rows of a whole step of so many parts, over all processes."""
        return count_rows(call, self.batch_axis) * parts * self.ranks

    def rows_in(self, batches: int) -> int:
        """Returns about the number of rows of so many batches, over all processes."""
        return self.count * batches // self.batches

    def example(self, epoch: int, batch: int, m: int, row: int) -> int | None:
        """Returns None: a dataloader does not say which examples are in a batch."""
        return None

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Inputs, Any]]:
        """Yields the batches of an epoch, from the batch `first` on."""
        noise = torch.Generator(self.device or "cpu").manual_seed(seed_of(self.seed, number, 0, 1 + self.rank))
        order = seed_of(self.seed, number, 2 + self.rank)
        for part in _samplers(self.loader):
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(order)
            if hasattr(part, "set_epoch"):
                part.set_epoch(number)
        with seeded(order):  # torch's samplers draw their order when the first batch is read
            batches = iter(self.loader)
            start = list(islice(batches, 1))
        given = 0
        for batch in (one for several in (start, batches) for one in several):
            given += 1
            if given > first:
                yield self.read(batch, noise)
        if given < self.batches:
            raise RunError(
                f"the dataloader has a length of {self.batches}, but gave {given} batches in epoch {number}: correct it"
            )


def _samplers(loader: Any) -> list[Any]:
    """Lists what may decide the order: the loader, its samplers, and its dataset, which may be a stream."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [loader, batch_sampler, getattr(batch_sampler, "sampler", None), getattr(loader, "sampler", None)]
    parts.append(getattr(loader, "dataset", None))
    return [part for place, part in enumerate(parts) if part is not None and not any(part is one for one in parts[:place])]


def _check_recipe(loader: Any, recipe: Recipe, ranks: int) -> None:
    """Refuses recipes that ask for other batches than those of the loader, and processes that would read the same examples."""
    if recipe.batches == "own":
        raise InputError(
            "Recipe(batches='own') shuffles the examples for each member, which a dataloader cannot: pass its dataset instead, "
            "or leave batches= out"
        )
    size = getattr(loader, "batch_size", None)
    whole = None if size is None else size * ranks * recipe.accumulate
    if recipe.batch not in (DEFAULT_BATCH, whole):
        shown = "of its own" if whole is None else f"of {size} examples, {whole} in a step"
        raise InputError(f"Recipe(batch={recipe.batch}), but the dataloader makes batches {shown}: leave batch= out")
    if recipe.accumulate > 1 and not getattr(loader, "drop_last", False):
        raise InputError(
            f"Recipe(accumulate={recipe.accumulate}) joins batches to steps, so they must be equally large: make the "
            "dataloader with drop_last=True"
        )
    if ranks > 1 and not any(getattr(part, "num_replicas", None) == ranks for part in _samplers(loader)):
        raise InputError(
            f"{ranks} processes would all read the same examples: make the dataloader with "
            "sampler=torch.utils.data.DistributedSampler(dataset), or pass the dataset itself"
        )
