"""fit: what it trains, measures, keeps and takes up again."""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from training.small import TRAIN, VAL, X, Y, made, network, same

import multitudes as mt
from multitudes.data import Data
from multitudes.training import fit as training
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

OURS = [kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:SWAG has collected")
@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_method_learns(kind: type[mt.Method]) -> None:
    """The loss falls and the accuracy rises, by the method's own steps."""
    ens = made(kind(begin=0.25) if kind is mt.SWAG else kind())
    run = fit(ens, TRAIN, Recipe(epochs=4, batch=20, lr=0.1, schedule="cosine"), val=VAL)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert run.metrics[-1]["val_accuracy"] > 0.6
    assert [line["epoch"] for line in run.metrics] == [1, 2, 3, 4]


def test_a_step_is_that_of_a_loop_by_hand() -> None:
    """One epoch against the plain loop over the same batches."""
    recipe = Recipe(
        epochs=2, batch=50, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, schedule="multistep", milestones=(1,)
    )
    ens, hand = made(), made().train()
    fit(ens, TRAIN, recipe)
    optimizer = torch.optim.SGD(hand.param_groups(lr=0.1, weight_decay=0.01), momentum=0.9, nesterov=True)
    feed = training.Feed(TRAIN, batch=50, seed=0, members=2, own=False, device=torch.device("cpu"))
    for epoch, lr in ((1, 0.1), (2, 0.01)):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for inputs, targets in feed.epoch(epoch):
            hand.loss(inputs, targets, F.cross_entropy).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same(ens, hand)


ADDED: list[dict[str, Any]] = [{}, {"optimizer": "adam", "lr": 0.01, "clip": 0.2, "l1": 0.02}, {"ema": 0.8, "clip": 0.2}]


@functools.cache
def smooth() -> mt.Ensemble:
    """Two heads without BatchNorm, in double precision."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return mt.ensemble(net, mt.MultiHead(members=2), X[:2].double(), seed=0)


@pytest.mark.parametrize(("settings", "parts"), [(ADDED[0], 10), (ADDED[1], 4), (ADDED[2], 10)])
def test_accumulated_parts_are_one_step(settings: dict[str, Any], parts: int) -> None:
    """Without BatchNorm, up to rounding: what is clipped is the sum, and what the recipe adds is added once."""
    data = TensorDataset(X[:200].double(), Y[:200])
    runs = []
    for accumulate in (1, parts):
        one = copy.deepcopy(smooth())
        runs.append(fit(one, data, Recipe(**{"epochs": 2, "batch": 100, "lr": 0.1, "accumulate": accumulate, **settings})))
    for name, value in runs[0].ensemble.state_dict().items():
        torch.testing.assert_close(value, runs[1].ensemble.state_dict()[name])
    assert runs[0].metrics[-1]["loss"] == pytest.approx(runs[1].metrics[-1]["loss"], rel=1e-5)


@pytest.mark.parametrize("settings", ADDED[1:])
def test_what_a_recipe_adds_is_that_of_a_loop_by_hand(settings: dict[str, Any]) -> None:
    """The sum of absolute weights, members' norms, Adam, and the average of all weights that there were."""
    ens, hand = made(), made().train()
    recipe = Recipe(**{"epochs": 2, "batch": 50, "lr": 0.1, **settings})
    fit(ens, TRAIN, recipe)
    groups = hand.param_groups(lr=recipe.lr)
    adam = recipe.optimizer == "adam"
    optimizer = torch.optim.Adam(groups) if adam else torch.optim.SGD(groups, momentum=0.9)
    average = {name: p.detach().clone() for name, p in hand.named_parameters()}
    feed = training.Feed(TRAIN, batch=50, seed=0, members=2, own=False, device=torch.device("cpu"))
    for epoch in (1, 2):
        for inputs, targets in feed.epoch(epoch):
            loss = hand.loss(inputs, targets, F.cross_entropy)
            (loss + recipe.l1 * sum(p.abs().sum() for p in hand.parameters())).backward()
            for m in range(2):
                norm = torch.cat([p.grad[m].flatten() for p in hand.parameters()]).norm()
                for p in hand.parameters():
                    p.grad[m] *= min(1.0, 0.2 / float(norm))
            optimizer.step()
            optimizer.zero_grad()
            for name, p in hand.named_parameters():
                average[name] = 0.8 * average[name] + 0.2 * p.detach()
    for name, p in hand.named_parameters():
        expected = average[name] if recipe.ema else p
        torch.testing.assert_close(ens.get_parameter(name), expected.detach(), rtol=1e-4, atol=1e-5)


def rates(monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> list[float]:
    """The learning rate of every step, as the optimiser has it."""
    found, step = [], training._step

    def noting(work: Any, batches: Any) -> Tensor:
        found.append(work.optimizer.param_groups[0]["lr"])
        return step(work, batches)

    monkeypatch.setattr(training, "_step", noting)
    fit(made(), TRAIN, recipe)
    return found


def test_schedules_reach_the_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle as torch's own; a warm-up in even steps before a cosine."""
    found = rates(monkeypatch, Recipe(epochs=4, batch=50, lr=0.2, schedule="onecycle"))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=16, cycle_momentum=False)
    expected = []
    for _ in range(16):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        cycle.step()
    assert found == pytest.approx(expected)
    monkeypatch.undo()
    warm = rates(monkeypatch, Recipe(epochs=4, batch=50, lr=0.2, schedule="cosine", warmup=1))
    assert warm[:4] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert warm[4:] == sorted(warm[4:], reverse=True)
    assert warm[-1] < 0.01


def test_it_repeats_and_leaves_randomness_alone() -> None:
    """The same seed gives the same weights, whatever torch's generator is at."""
    found, recipe = [], Recipe(epochs=2, batch=50, lr=0.1)
    for start in (1, 2):
        ens = made(mt.MCDropout(members=3, position="layers"))
        torch.manual_seed(start)
        before = torch.get_rng_state()
        fit(ens, TRAIN, recipe)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(ens)
    assert same(*found)
    other = made(mt.MCDropout(members=3, position="layers"))
    fit(other, TRAIN, replace(recipe, seed=5))
    assert not same(found[0], other)


@pytest.mark.parametrize(
    ("start", "batches", "diverse"), [("copies", "same", False), ("copies", "own", True), ("fresh", "same", True)]
)
def test_sources_of_diversity(start: str, batches: Any, diverse: bool) -> None:
    """With all of them off members stay equal: their mutual information is exactly zero."""
    ens = made(mt.Deep(members=3), start=start)
    fit(ens, TRAIN, Recipe(epochs=2, batch=50, lr=0.1, batches=batches, deterministic=True))
    found = mt.predict(ens, VAL).mutual_information
    assert bool((found > 0).any()) == diverse
    assert diverse or float(found.max()) == 0


@pytest.mark.parametrize("method", [mt.Deep(members=3), mt.BatchEnsemble(members=3)])
def test_clipping_by_one_norm_over_all(method: mt.Method) -> None:
    """A step of SGD is then as long as the rate times the limit, over members and shared weights together."""
    ens = made(method)
    before = [p.detach().clone() for p in ens.parameters()]
    fit(ens, TRAIN, Recipe(epochs=1, batch=200, lr=0.1, momentum=0.0, clip=0.0005, clip_by="all"))
    moved = sum(float((p.detach() - old).double().square().sum()) for p, old in zip(ens.parameters(), before, strict=True))
    assert moved**0.5 == pytest.approx(0.1 * 0.0005, rel=0.01)


@functools.cache
def three_networks() -> mt.Ensemble:
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return mt.ensemble(net, mt.Deep(members=3), X[:2], seed=0)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "clip": 0.1}])
def test_many_small_runs_as_one(settings: dict[str, Any]) -> None:
    """Members with sets of their own learn as they would alone, whatever the gradients of others are."""
    sets = [TensorDataset(X[:200].roll(m, 0) * 10**m, Y[:200].roll(m, 0)) for m in range(3)]
    ens = copy.deepcopy(three_networks())
    alone = [ens.subset([m]) for m in range(3)]
    recipe = Recipe(epochs=2, batch=50, lr=0.05, **settings)
    fit(ens, sets, recipe)
    for m in range(3):
        fit(alone[m], sets[m], recipe)
        for name, value in alone[m].state_dict().items():
            torch.testing.assert_close(ens.state_dict()[name][m], value[0], rtol=1e-4, atol=1e-5)
    assert not torch.equal(ens.state_dict()["0.weight"][0], ens.state_dict()["0.weight"][1])


@pytest.mark.parametrize(
    ("task", "outputs", "target"),
    [
        ("binary", 1, (Y == 0).long()),
        ("multilabel", 3, F.one_hot(Y, 3)),
        ("gaussian", 2, X[:, :1] + X[:, 1:2]),
        ("regression", 1, X[:, 0] + X[:, 1]),
    ],
)
def test_tasks(task: str, outputs: int, target: Tensor) -> None:
    """Each has its loss and what its best epoch is best by."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))
    ens = mt.ensemble(net, mt.Deep(members=2), X[:2], seed=0, task=task)
    val = TensorDataset(X[200:], target[200:])
    run = fit(ens, TensorDataset(X[:200], target[:200]), Recipe(epochs=3, batch=50, lr=0.01, optimizer="adam"), val=val)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert ("val_accuracy" in run.metrics[0]) == (task in ("binary", "multilabel"))
    assert run.best_epoch is not None


def test_pixels() -> None:
    """A dense classification."""
    x = torch.randn(24, 3, 4, 4)
    y = (x.mean(1) > 0).long()
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    ens = mt.ensemble(net, mt.Deep(members=2), x[:2], seed=0)
    run = fit(ens, TensorDataset(x, y), Recipe(epochs=6, batch=8, lr=0.05, channels_last=True), val=TensorDataset(x, y))
    assert run.metrics[-1]["val_accuracy"] > 0.8


def test_the_layout_of_memory_is_the_recipes_alone() -> None:
    """Channels last in training; afterwards as it was, so that all members are run at once."""
    x = torch.randn(20, 3, 6, 6)
    for before in (torch.contiguous_format, torch.channels_last):
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 3))
        ens = mt.ensemble(net, mt.Deep(members=2), x[:2]).to(memory_format=before)
        fit(ens, TensorDataset(x, torch.randint(3, (20,))), Recipe(epochs=1, batch=10, channels_last=True))
        assert ens.get_parameter("0.weight")[0].is_contiguous(memory_format=before)
        with pytest.raises(mt.InputError, match="target 9"):
            refused = TensorDataset(x, torch.full((20,), 9))
            fit(ens, refused, Recipe(epochs=1, batch=10, channels_last=True), val=refused)
        assert ens.get_parameter("0.weight")[0].is_contiguous(memory_format=before)


@pytest.mark.parametrize(
    ("train", "recipe", "options", "nouns"),
    [
        (TRAIN, {"epochs": 2}, {}, "fit takes a Recipe"),
        (TRAIN, Recipe(epochs=1), {"resume": True}, "folder"),
        (X, Recipe(epochs=1), {}, "Tensor"),
        (TensorDataset(X), Recipe(epochs=1), {}, "targets"),
        (TensorDataset(X, Y, Y), Recipe(epochs=1), {}, "list of 3"),
        (TensorDataset(X, Y + 1), Recipe(epochs=1), {}, "target 3 .*0 to 2"),
        (TensorDataset(X, Y - 1), Recipe(epochs=1), {}, "target -1 .*0 to 2"),
        (Data(X, Y + 1), Recipe(epochs=1), {}, "target 3 "),
        (TensorDataset(X, Y.float()), Recipe(epochs=1), {}, r"\[128\] float32.* targets\.long\(\)"),
        (TensorDataset(X, Y[:, None].repeat(1, 2)), Recipe(epochs=1), {}, r"targets are \[128, 2\]"),
        (TRAIN, Recipe(epochs=1), {"val": TensorDataset(X[:0], Y[:0])}, "val= has no examples"),
        (TRAIN, Recipe(epochs=1), {"val": X}, "val= is a Tensor: give a dataset"),
        (TRAIN, Recipe(epochs=1), {"val": "folder"}, "val= is a str: give a dataset"),
        (TRAIN, Recipe(epochs=1), {"val": TensorDataset(X, Y + 5)}, "val=.* is not a class"),
        (TRAIN, Recipe(epochs=1), {"val": iter([(X, Y)])}, "val= is an iterator"),
        (TRAIN, Recipe(epochs=1), {"val": TensorDataset(X * torch.nan, Y)}, "NaN"),
    ],
)
def test_refusals(train: Any, recipe: Any, options: dict[str, Any], nouns: str) -> None:
    """And no weight has changed."""
    ens = made()
    with pytest.raises(mt.InputError, match=nouns):
        fit(ens, train, recipe, **options)
    for name, p in made().named_parameters():
        assert torch.equal(ens.get_parameter(name), p)


@pytest.mark.parametrize(
    ("where", "batches", "x"),
    [
        ("train", "same", torch.randn(80, 7)),
        ("train", "own", X[:80].double()),
        ("val", "same", torch.ones(80, 6, dtype=torch.uint8)),
    ],
)
def test_inputs_of_another_kind(where: str, batches: Any, x: Tensor) -> None:
    """Another size or type is said, beside what the ensemble was made for, before an epoch is spent on it."""
    sets = {"train": TRAIN, "val": VAL, where: TensorDataset(x, Y[:80])}
    ens = made()
    with pytest.raises(mt.RunError, match=r"has Inputs\(.* for Inputs\(\[2, 6\] torch\.float32\)"):
        fit(ens, sets["train"], Recipe(epochs=1, batch=20, batches=batches), val=sets["val"])
    assert same(ens, made())


def test_nothing_to_train() -> None:
    with pytest.raises(mt.InputError, match="all parameters are frozen"):
        fit(made().requires_grad_(False), TRAIN, Recipe(epochs=1))


def test_labels_of_other_types() -> None:
    """Whole numbers of any width, and probabilities that are sure, are the same labels; −100 is none."""
    runs = []
    for labels in (Y[:200], Y[:200].int(), Y[:200].to(torch.uint8), F.one_hot(Y[:200], 3).float()):
        runs.append(fit(made(), TensorDataset(X[:200], labels), Recipe(epochs=2, batch=100)))
    for run in runs:
        assert run.metrics[-1]["loss"] == pytest.approx(runs[0].metrics[-1]["loss"], rel=1e-5)
    some = torch.where(torch.arange(200) % 2 == 0, Y[:200], -100)
    assert fit(made(), TensorDataset(X[:200], some), Recipe(epochs=1, batch=100)).metrics[-1]["loss"] > 0


@pytest.mark.parametrize("batches", ["same", "own"])
def test_examples_as_dicts_beside_what_has_no_rows(batches: Any) -> None:
    """A list of dicts is one set; what unpack= adds to each call is not a row of anything."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.layer(x * scale)

    torch.manual_seed(0)
    ens = mt.ensemble(Scaled(), mt.Deep(members=2), mt.Inputs(X[:2], torch.ones(6)), batch_axis=[0, None], seed=0)
    examples = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
    run = fit(
        ens, examples, Recipe(epochs=4, batch=20, lr=0.1, batches=batches), val=examples,
        unpack=lambda batch: (mt.Inputs(batch["x"], torch.ones(6)), batch["y"]),
    )  # fmt: skip
    assert run.metrics[-1]["val_accuracy"] > 0.8


def test_split_is_heard_for_sets_in_memory() -> None:
    found = []
    for train in (TRAIN, Data(X[:200], Y[:200])):
        ens = made()
        fit(ens, train, Recipe(epochs=1, batch=100), unpack=lambda batch: (batch[0] * 2, batch[1]))
        found.append(ens)
    assert same(*found)
    assert not same(found[0], fit(made(), TRAIN, Recipe(epochs=1, batch=100)).ensemble)


def test_modes_of_parts_come_back() -> None:
    """A norm that was in eval mode by itself is so again; after an error too."""
    for train in (TRAIN, TensorDataset(X, Y + 1)):
        ens = made().train()
        ens.get_submodule("1").eval()
        with contextlib.suppress(Exception):
            fit(ens, train, Recipe(epochs=1, batch=50))
        assert [name for name, part in ens.named_modules() if not part.training] == ["1"]
        assert ens.template.training


@pytest.mark.parametrize(("examples", "accumulate", "rows"), [(60, 1, 60), (200, 1, 128), (200, 2, 128)])
def test_a_prior_takes_the_rows_that_a_step_has(
    examples: int, accumulate: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are fewer examples than a batch would take."""
    counts = []
    monkeypatch.setattr(mt.Deep, "penalty", lambda method, ensemble, count: counts.append(count))
    data = TensorDataset(X[:examples], Y[:examples])
    fit(made(), data, Recipe(epochs=1, batch=128, accumulate=accumulate))
    assert counts
    assert set(counts) == {rows}


def test_a_csv_logger_has_every_epoch(tmp_path: Path) -> None:
    """Written when a run ends, or is stopped."""
    from lightning_fabric import Fabric
    from lightning_fabric.loggers import CSVLogger

    def stopping(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return x, y

    left = [0]
    for name, steps in (("whole", 1000), ("stopped", 10)):
        left[0] = steps
        with contextlib.suppress(KeyboardInterrupt):
            recipe = Recipe(epochs=3, batch=50, augment=stopping)
            fit(made(), TRAIN, recipe, val=VAL, loggers=CSVLogger(tmp_path / name))
        with next((tmp_path / name).rglob("metrics.csv")).open() as file:
            lines = list(csv.DictReader(file))
        assert [line["step"] for line in lines] == ["1", "2", "3"][: 3 if name == "whole" else 2]
        assert all(float(line[key]) >= 0 for line in lines for key in ("loss", "val_accuracy", "val_nll"))
    recipe, left[0] = Recipe(epochs=3, batch=50, augment=stopping), 10
    with pytest.raises(KeyboardInterrupt):
        fit(made(), TRAIN, recipe, out=tmp_path / "a", loggers=CSVLogger(tmp_path, "logs", version=0))
    again = CSVLogger(tmp_path, "logs", version=0)  # which begins its file anew
    fit(made(), TRAIN, recipe, out=tmp_path / "a", resume=True, loggers=again)
    with next((tmp_path / "logs").rglob("metrics.csv")).open() as file:
        assert [line["step"] for line in csv.DictReader(file)] == ["1", "2", "3"]
    with pytest.raises(mt.InputError, match=r"Fabric\(loggers"):
        fabric = Fabric(accelerator="cpu", devices=1)
        fit(made(), TRAIN, Recipe(epochs=1), fabric=fabric, loggers=CSVLogger(tmp_path))


def test_modes_come_back(tmp_path: Path) -> None:
    """In the ensemble and in its file."""
    for mode in (True, False):
        ens = made().train(mode)
        fit(ens, TRAIN, Recipe(epochs=1, batch=50), out=tmp_path / str(mode))
        assert ens.training == mode == mt.load(tmp_path / str(mode) / "last.multitude", network()).training


def test_augmentation_is_seeded() -> None:
    """By the run's seed, each epoch anew; with batches of members' own, each of them."""

    def noise(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return x + torch.randn(x.shape, generator=generator), y

    for batches in ("same", "own"):
        runs = [made() for _ in range(3)]
        for ens, augment in zip(runs, (noise, noise, None), strict=True):
            fit(ens, TRAIN, Recipe(epochs=2, batch=100, augment=augment, batches=batches))
        assert same(runs[0], runs[1])
        assert not same(runs[0], runs[2])


def test_validation_sets_of_every_kind() -> None:
    """The same numbers from a dataset, a set in memory, a list, and loaders, shuffled too."""
    kinds = [
        VAL, Data(X[200:], Y[200:]), list(zip(X[200:], Y[200:], strict=True)), DataLoader(VAL, 7),
        DataLoader(VAL, 16, shuffle=True, generator=torch.Generator()),
    ]  # fmt: skip
    runs = [fit(made(), TRAIN, Recipe(epochs=2, batch=100), val=val) for val in kinds]
    for run in runs:
        assert same(run.ensemble, runs[0].ensemble)
        for line, expected in zip(run.metrics, runs[0].metrics, strict=True):
            assert line["val_accuracy"] == pytest.approx(expected["val_accuracy"])
            assert line["val_nll"] == pytest.approx(expected["val_nll"])


@pytest.mark.parametrize("batches", ["same", "own"])
def test_training_sets_of_every_kind(batches: Any) -> None:
    """The same weights, whether rows lie in memory, in a list, or apart from each other; augmented too."""

    def noise(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return x + torch.randn(x.shape, generator=generator), y

    apart = X[:200].t().contiguous().t()
    assert not apart.is_contiguous()
    kinds = [TRAIN, Data(X[:200], Y[:200]), list(zip(X[:200], Y[:200].tolist(), strict=True)), TensorDataset(apart, Y[:200])]
    found = []
    for train in kinds:
        ens = made()
        fit(ens, train, Recipe(epochs=2, batch=50, batches=batches, augment=noise))
        found.append(ens)
    assert all(same(ens, found[0]) for ens in found)


class Masked(nn.Module):
    """Whole numbers in, beside a mask; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kind, self.length = nn.Embedding(9, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        h = (self.words(ids) * mask[..., None]).mean(1)
        return {"kind": self.kind(h), "length": self.length(h)}


@pytest.mark.parametrize("batches", ["same", "own"])
def test_several_inputs_outputs_and_targets(batches: Any) -> None:
    """By unpack= and a criterion of one's own."""
    torch.manual_seed(0)
    ids, mask = torch.randint(9, (80, 5)), (torch.rand(80, 5) > 0.3).float()
    kind, length = (ids * mask).sum(1).long() % 3, mask.sum(1, keepdim=True)
    ens = mt.ensemble(Masked(), mt.Deep(members=2), mt.Inputs(ids[:2], mask=mask[:2]), seed=0)
    run = fit(
        ens, TensorDataset(ids, mask, kind, length), Recipe(epochs=8, batch=20, lr=0.02, optimizer="adam", batches=batches),
        criterion=lambda out, goal: F.cross_entropy(out["kind"], goal["kind"]) + F.mse_loss(out["length"], goal["length"]),
        unpack=lambda batch: (mt.Inputs(batch[0], mask=batch[1]), {"kind": batch[2], "length": batch[3]}),
    )  # fmt: skip
    assert run.metrics[-1]["loss"] < 0.6 * run.metrics[0]["loss"]


def test_what_is_frozen_stays() -> None:
    """Under weight decay, the penalty, momentum and averages too, and frozen it is afterwards."""
    ens = made()
    ens.get_parameter("0.weight").requires_grad_(False)
    before = {name: p.detach().clone() for name, p in ens.named_parameters()}
    fit(ens, TRAIN, Recipe(epochs=2, batch=50, weight_decay=0.1, l1=0.1, ema=0.9, clip=1.0))
    moved = [name for name, p in ens.named_parameters() if not torch.equal(p, before[name])]
    assert moved == [name for name in before if name != "0.weight"]
    assert not ens.get_parameter("0.weight").requires_grad


def test_an_ensemble_is_whole_afterwards(tmp_path: Path) -> None:
    """It can be copied, pickled, saved and moved; each of these learns on as it does itself."""
    ens = made(mt.MIMO(members=2))
    fit(ens, TRAIN, Recipe(epochs=1, batch=20))
    assert all(p.grad is None and p.is_leaf and p.requires_grad for p in ens.parameters())
    mt.save(ens, tmp_path / "a.multitude")
    others = [copy.deepcopy(ens), pickle.loads(pickle.dumps(ens)), mt.load(tmp_path / "a.multitude", network())]
    first = {name: value.clone() for name, value in ens.state_dict().items()}
    fit(ens, TRAIN, Recipe(epochs=2, batch=50, seed=1), val=VAL)
    assert not torch.equal(first["0.weight"], ens.state_dict()["0.weight"])
    for other in others:
        assert all(torch.equal(value, first[name]) for name, value in other.state_dict().items())
        fit(other, TRAIN, Recipe(epochs=2, batch=50, seed=1), val=VAL)
        assert same(other, ens)
    assert torch.equal(ens.to(torch.float64).to(torch.float32)(X[:5]), others[0](X[:5]))


def test_precisions() -> None:
    """Weights keep theirs: double is trained in double, and under bf16 they are single, and learn."""
    torch.manual_seed(0)
    ens = mt.ensemble(network().double(), mt.Deep(members=2), X[:2].double(), seed=0)
    fit(ens, TensorDataset(X.double(), Y), Recipe(epochs=2, batch=60), val=TensorDataset(X.double(), Y))
    assert {p.dtype for p in ens.parameters()} == {torch.float64}
    single, half = made(), made()
    fit(single, TRAIN, Recipe(epochs=4, batch=20, lr=0.1), val=VAL)
    run = fit(half, TRAIN, Recipe(epochs=4, batch=20, lr=0.1, precision="bf16"), val=VAL)
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert run.metrics[-1]["val_accuracy"] > 0.6
    assert not same(single, half)
    with pytest.raises(mt.InputError, match=r"fp16.*GPU"):
        fit(half, TRAIN, Recipe(epochs=1, precision="fp16"))


def test_a_run_is_shown_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without weights. A loss that is summed over members says so, there and in the progress."""
    told: set[str] = set()
    bar = contextlib.nullcontext(lambda count=1, below="", **shown: told.update(shown))
    monkeypatch.setattr("multitudes.training.fit.bar", lambda *_: bar)
    run = fit(made(), TRAIN, Recipe(epochs=2, batch=50), val=VAL)
    last, members = run.metrics[-1], run.ensemble.members
    summed = f"loss (sum of {members} members)"
    start = f"Run({run.ensemble.method}, 2 of 2 epochs, best epoch {run.best_epoch}, {summed} {last['loss']:.4g}, "
    assert repr(run).startswith(start) and f"val_nll {last['val_nll']:.4g}" in repr(run)
    assert "\n" not in repr(run) and "tensor" not in repr(run)
    assert told == {"epoch", summed, "steps/s"}
    mean = fit(made(mt.Deep(members=2, reduction="mean")), TRAIN, Recipe(epochs=1, batch=50))
    assert f"1 of 1 epochs, loss {mean.metrics[-1]['loss']:.4g})" in repr(mean)


def test_a_run_says_how_many_examples_an_epoch_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    bar = contextlib.nullcontext(lambda count=1, below="", **shown: told.append(str(shown.get("epoch"))))
    monkeypatch.setattr("multitudes.training.fit.bar", lambda *_: bar)
    count = len(TRAIN)
    run = fit(made(), TRAIN, Recipe(epochs=1, batch=count // 2 + 1), out=tmp_path / "a")
    assert run.left_out == count - count // 2 - 1 and f"{run.left_out} examples left out of each" in repr(run)
    assert f"leaves out {run.left_out} of {count} examples, others each time" in (tmp_path / "a" / "log.txt").read_text()
    assert f"1/1 without {run.left_out} of {count} examples" in told
    parts = fit(made(), DataLoader(TRAIN, 10, drop_last=True), Recipe(epochs=1, accumulate=8))
    assert parts.left_out == 10 * (count // 10 % 8)
    whole = fit(made(), TRAIN, Recipe(epochs=1, batch=count))
    assert not whole.left_out and "left out" not in repr(whole)
