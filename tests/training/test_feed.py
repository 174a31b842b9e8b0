"""Feeding: an epoch's batches follow from the seed and the epoch alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes.data import Augment, Data
from multitudes.data.labels import check_classes
from multitudes.training.feed import Feed, seed_of

X = torch.arange(23.0)[:, None].expand(23, 3)
DATA = TensorDataset(X, torch.arange(23))


IN_MEMORY = Data(X.clone(), torch.arange(23))


def feed(data: Any = DATA, **options: Any) -> Feed:
    return Feed(data, **{"batch": 5, "seed": 0, "members": 3, "own": False, "device": torch.device("cpu"), **options})


def seen(one: Feed, epoch: int) -> list[list[int]]:
    """The targets of each batch, whose inputs must belong to them."""
    found = []
    for inputs, targets in one.epoch(epoch):
        assert torch.equal(inputs.tensors()[0][..., 0].long(), targets)
        found.append(targets.tolist())
    return found


@pytest.mark.parametrize("data", [DATA, IN_MEMORY])
def test_every_example_at_most_once(data: Any) -> None:
    """Whole batches, in another order in each epoch, the same for the same seed."""
    one = feed(data)
    first, second = seen(one, 1), seen(one, 2)
    assert [len(batch) for batch in first] == [5] * 4 == [5] * len(one)
    assert len({example for batch in first for example in batch}) == 20
    assert first != second
    assert seen(feed(data), 1) == first
    assert seen(feed(data, seed=1), 1) != first


@pytest.mark.parametrize("augment", [None, Augment()])
@pytest.mark.parametrize("data", [DATA, IN_MEMORY])
def test_labels_are_checked_before_they_reach_a_device(data: Any, augment: Any) -> None:
    """Once it is known how many classes there are: of a set in memory at once, else as it is read."""
    one = feed(data, augment=augment if data is IN_MEMORY else None)
    one.set_check(partial(check_classes, classes=23))
    assert len(list(one.epoch(1))) == 4 if augment is None else True
    with pytest.raises(mt.InputError, match=r"target \d+ .*0 to 9"):
        one.set_check(partial(check_classes, classes=10)) or list(one.epoch(1))  # type: ignore[func-returns-value]


def test_how_a_set_is_read_changes_nothing() -> None:
    assert seen(feed(DATA), 3) == seen(feed(IN_MEMORY), 3)


def test_processes_share_a_batch() -> None:
    """Together they see what one would."""
    whole = seen(feed(batch=6), 1)
    parts = [seen(feed(batch=6, rank=rank, ranks=3), 1) for rank in range(3)]
    assert [sum(batch, []) for batch in zip(*parts, strict=True)] == whole  # noqa: RUF017


def test_members_orders() -> None:
    """Each member has its own; tensors carry the member axis."""
    batches = list(feed(own=True).epoch(1))
    targets = torch.stack([targets for _, targets in batches])
    assert targets.shape == (4, 3, 5)
    assert batches[0][0].tensors()[0].shape == (3, 5, 3)
    assert len({tuple(targets[:, m].flatten().tolist()) for m in range(3)}) == 3
    assert all(len(set(targets[:, m].flatten().tolist())) == 20 for m in range(3))


def test_a_set_for_each_member() -> None:
    """Member m sees its own alone."""
    sets = [TensorDataset(X + 100 * m, torch.arange(23) + 100 * m) for m in range(3)]
    for inputs, targets in feed(sets).epoch(1):
        assert (targets // 100 == torch.arange(3)[:, None]).all()
        assert torch.equal(inputs.tensors()[0][..., 0].long(), targets)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (TensorDataset(X[:0], torch.arange(0)), {}, "empty"),
        (DATA, {"batch": 5, "ranks": 2}, "2 processes"),
        (TensorDataset(X[:1], torch.arange(1)), {"batch": 2, "ranks": 2}, "not enough"),
        ([DATA, DATA], {}, "2 training sets for 3 members"),
        ([DATA, DATA, TensorDataset(X[:9], torch.arange(9))], {}, "9 to 23"),
        (3, {}, "cannot train on a int"),
        (iter([1]), {}, "with a length"),
    ],
)
def test_what_cannot_be_fed(data: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(mt.InputError, match=says):
        feed(data, **options)


def test_inputs_without_targets() -> None:
    with pytest.raises(mt.InputError, match="without targets"):
        next(feed(TensorDataset(X)).epoch(1))


def test_small_sets_are_one_batch() -> None:
    assert len(feed(batch=64)) == 1
    assert len(seen(feed(batch=64), 1)[0]) == 23


def test_seeds_do_not_meet() -> None:
    """Numbers in another order, or one more, are another seed."""
    assert len({seed_of(*parts) for parts in [(0,), (0, 0), (1, 0), (0, 1), (1, 2), (2, 1), (3,)]}) == 7


@pytest.mark.parametrize("data", [DATA, IN_MEMORY])
def test_processes_augment_each_in_its_own_way(data: Any) -> None:
    """And each the same way again."""

    def drawn(rank: int, epoch: int = 1) -> list[float]:
        found: list[float] = []

        def augment(x: Any, y: Any, generator: torch.Generator) -> tuple[Any, Any]:
            found.append(float(torch.rand((), generator=generator)))
            return x, y

        list(feed(data, batch=6, rank=rank, ranks=2, augment=augment).epoch(epoch))
        return found

    assert drawn(0) == drawn(0)
    assert len({*drawn(0), *drawn(1), *drawn(0, epoch=2)}) == 9


def test_examples_that_are_no_tensors() -> None:
    """What reads them is named."""
    with pytest.raises(mt.InputError, match=r"batch .*data\.of\(dataset, input="):
        list(feed([(object(), 1)] * 6).epoch(1))
