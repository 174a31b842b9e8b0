"""DataLoaders in fit: batches as they come, resumed at an epoch's start, and recipes that ask for others refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)
from training.small import TRAIN, VAL, X, Y, made, network, same

import multitudes as mt
from multitudes.training.loader_feed import LoaderFeed, is_loader

ROWS = TensorDataset(torch.arange(200), Y[:200])
"""The numbers of the training examples in place of their inputs."""


class Shuffled(Sampler[int]):
    """Draws from python's generator."""

    def __iter__(self) -> Iterator[int]:
        rows = list(range(200))
        random.shuffle(rows)
        return iter(rows)

    def __len__(self) -> int:
        return 200


class Recorder:
    """A collate_fn that records the numbers of the examples, and returns their inputs and labels."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([row for row, _ in examples])
        self.seen.append(rows.tolist())
        return X[rows], Y[rows]


def loader(name: str, collate: Any = None) -> DataLoader[Any]:
    options: dict[str, Any] = {
        "shuffle": {"shuffle": True},
        "generator": {"shuffle": True, "generator": torch.Generator()},
        "weights": {"sampler": WeightedRandomSampler(torch.arange(200) % 3 + 0.1, 200)},
        "sampler": {"sampler": RandomSampler(ROWS, replacement=True, generator=torch.Generator())},
        "python": {"sampler": Shuffled()},
    }[name]
    return DataLoader(ROWS, batch_size=48, collate_fn=collate, **options)


NAMES = ("shuffle", "generator", "weights", "sampler", "python")


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_those_of_the_loader(name: str) -> None:
    """A plain loop over the batches that collate_fn made gives the same weights; the last batch is smaller."""
    ens, collate = made(mt.Deep(members=2)), Recorder()
    plain = [ens.member(m) for m in range(2)]
    mt.fit(ens, loader(name, collate), mt.Recipe(epochs=2, lr=0.1, momentum=0))
    assert [len(rows) for rows in collate.seen] == [48, 48, 48, 48, 8] * 2
    assert collate.seen[:5] != collate.seen[5:]
    for net in plain:
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for rows in collate.seen:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[rows]), Y[rows]).backward()
            optimizer.step()
    for m, net in enumerate(plain):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(ens.state_dict()[key][m], value)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumes_at_an_epochs_start(name: str, tmp_path: Path) -> None:
    """The order depends on the recipe's seed and the epoch, not on what was drawn before."""
    recipe, whole, parts = mt.Recipe(epochs=3), made(), made()
    first = Recorder()
    mt.fit(whole, loader(name, first), recipe)
    torch.manual_seed(99)
    with pytest.raises(KeyboardInterrupt):
        mt.fit(parts, loader(name, Recorder()), recipe, out=tmp_path, callbacks=[stop_after(2)])
    resumed, again = made(), Recorder()
    mt.fit(resumed, loader(name, again), recipe, out=tmp_path, resume=True)
    assert again.seen == first.seen[10:]
    assert same(whole, resumed)


def stop_after(epoch: int) -> Any:
    def stop(run: Any) -> None:
        if run.done == epoch:
            raise KeyboardInterrupt

    return stop


def test_accumulated_steps_take_several_batches() -> None:
    """Two batches of 50 are one step of 100: the gradient is that of both together."""
    ens = made(mt.Deep(members=2))
    net = ens.member(0).eval()
    batches = DataLoader(TensorDataset(X[:100], Y[:100]), batch_size=50, drop_last=True)
    for part in ens.template.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.momentum = 0.0
    mt.fit(ens, batches, mt.Recipe(epochs=1, lr=0.1, momentum=0, accumulate=2))
    plain = ens.member(0)
    net.train()
    losses = [nn.functional.cross_entropy(net(X[rows]), Y[rows]) for rows in (slice(0, 50), slice(50, 100))]
    gradients = torch.autograd.grad(sum(losses) / 2, list(net.parameters()))  # type: ignore[arg-type]
    for before, gradient, after in zip(net.parameters(), gradients, plain.parameters(), strict=True):
        torch.testing.assert_close(before - 0.1 * gradient, after)


def test_workers_and_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(9, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.out(torch.cat([a, b], 1))

    data = TensorDataset(X[:60], X[:60, :3], Y[:60])
    results = []
    for workers in (0, 1):
        ens = mt.ensemble(Two(), mt.Deep(members=2), (X[:4], X[:4, :3]), seed=0, check=False)
        mt.fit(ens, DataLoader(data, batch_size=20, shuffle=True, num_workers=workers), mt.Recipe(epochs=2))
        results.append(ens)
    assert same(*results)


class Stream(IterableDataset[Any]):
    """A stream, which may claim a length."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X[:40], Y[:40], strict=True))


class Sized(Stream):
    """A stream that claims a length."""

    def __len__(self) -> int:
        return self.length or 0


def test_streams() -> None:
    ens = made()
    assert len(mt.fit(ens, DataLoader(Sized(40), batch_size=20), mt.Recipe(epochs=2)).metrics) == 2
    with pytest.raises(mt.RunError, match="has a length of 3, but gave 2 batches in epoch 1"):
        mt.fit(made(), DataLoader(Sized(60), batch_size=20), mt.Recipe(epochs=1))


OWN: Any = {"batches": "own"}


@pytest.mark.parametrize(
    ("train", "settings", "match"),
    [
        (DataLoader(TRAIN, 50), OWN, r"batches='own'.*pass its dataset"),
        (DataLoader(TRAIN, 50), {"batch": 64}, "of 50 examples, 50 in a step: leave batch= out"),
        (DataLoader(TRAIN, batch_sampler=[[0, 1], [2, 3]]), {"batch": 64}, "of its own: leave batch= out"),
        (DataLoader(TRAIN, 60), {"accumulate": 2}, "drop_last=True"),
        (DataLoader(Stream(None), 20), {}, "has no length"),
        (DataLoader(TensorDataset(X[:3], Y[:3]), 20, drop_last=True), {}, "no batches"),
        ([DataLoader(TRAIN, 50), DataLoader(TRAIN, 50)], {}, "one dataset per member"),
    ],
)
def test_refusals(train: Any, settings: Any, match: str) -> None:
    with pytest.raises(mt.InputError, match=match):
        mt.fit(made(), train, mt.Recipe(epochs=1, **settings))


def test_processes_read_their_shares() -> None:
    """With a DistributedSampler; without one, all would read the same examples."""
    options: Any = {"seed": 0, "ranks": 2, "device": torch.device("cpu"), "unpack": None, "form": None, "augment": None}
    with pytest.raises(mt.InputError, match=r"2 processes would all read the same .*DistributedSampler"):
        LoaderFeed(DataLoader(ROWS, 50, shuffle=True), mt.Recipe(), rank=0, batch_axis=0, **options)
    shares = []
    for rank in range(2):
        sampler: Any = DistributedSampler(ROWS, num_replicas=2, rank=rank)
        feed = LoaderFeed(DataLoader(ROWS, 50, sampler=sampler), mt.Recipe(batch=100), rank=rank, batch_axis=0, **options)
        epochs = [[row for call, _ in feed.epoch(number) for row in call.args[0].tolist()] for number in (1, 2)]
        assert epochs[0] != epochs[1]
        assert feed.step_rows(next(feed.epoch(1))[0], 1) == 100
        shares.append(epochs[0])
    assert sorted(shares[0] + shares[1]) == list(range(200))


def test_a_matching_batch_is_no_contradiction() -> None:
    """The batch of the recipe is that of the DataLoader, or of the DataLoader's batches that make a step."""
    alone = mt.fit(made(), DataLoader(TRAIN, 50), mt.Recipe(epochs=1, batch=50))
    joined = mt.fit(made(), DataLoader(TRAIN, 50, drop_last=True), mt.Recipe(epochs=1, batch=100, accumulate=2))
    assert [run.done for run in (alone, joined)] == [1, 1]


def test_another_sampler_is_another_run(tmp_path: Path) -> None:
    recipe = mt.Recipe(epochs=1)
    mt.fit(made(), loader("weights", Recorder()), recipe, out=tmp_path)
    with pytest.raises(mt.FileError, match=r"another run: .*RandomSampler"):
        mt.fit(made(), loader("shuffle", Recorder()), recipe, out=tmp_path, resume=True)


def test_a_nan_in_a_loaders_batch_is_told() -> None:
    x = X[:200].clone()
    x[77, 2] = float("nan")
    ens = made()
    before = {name: value.clone() for name, value in ens.state_dict().items()}
    with pytest.raises(mt.InputError, match="the training set has a NaN in the inputs, so the loss"):
        mt.fit(ens, DataLoader(TensorDataset(x, Y[:200]), 200), mt.Recipe(epochs=1))
    assert all(torch.equal(value, before[name]) for name, value in ens.state_dict().items())


def test_the_priors_count_the_rows_of_a_batch() -> None:
    """EMP's ELBO divides by the rows of the step: a step of 40 rows has the loss that ens.loss gives it."""
    method = mt.EMP(members=2, components=2, prior="elbo", examples=40)
    ens = mt.ensemble(network(), method, X[:2], seed=0, check=False)
    run = mt.fit(ens, DataLoader(TensorDataset(X[:40], Y[:40]), 40), mt.Recipe(epochs=1, lr=0.0, momentum=0))
    again = mt.fit(ens, TensorDataset(X[:40], Y[:40]), mt.Recipe(epochs=1, lr=0.0, momentum=0, batch=40))
    assert run.metrics[0]["loss"] == pytest.approx(again.metrics[0]["loss"], rel=1e-5)


def test_what_is_a_loader() -> None:
    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return iter([(X[:50], Y[:50]), (X[50:100], Y[50:100])])

        def __len__(self) -> int:
            return 2

    assert is_loader(Batches()) and is_loader(DataLoader(TRAIN))
    assert not is_loader(TRAIN) and not is_loader([TRAIN]) and not is_loader(X)
    assert not isinstance(Batches(), Dataset)
    assert mt.fit(made(), Batches(), mt.Recipe(epochs=1), val=VAL).done == 1
