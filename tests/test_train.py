"""fit: what it trains, measures, keeps and takes up again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes import train as training
from multitudes.recipes import Recipe
from multitudes.train import fit

G = torch.Generator().manual_seed(0)
X = torch.randn(240, 6, generator=G)
Y = (X @ torch.randn(6, 3, generator=G)).argmax(1)
TRAIN, VAL = TensorDataset(X[:200], Y[:200]), TensorDataset(X[200:], Y[200:])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def made(method: mt.Method, **options: Any) -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(network(), method, X[:2], seed=0, **options)


def same(a: mt.Ensemble, b: mt.Ensemble) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in a.state_dict().items())


@pytest.mark.parametrize("kind", mt.Method.all(), ids=lambda kind: kind.__name__)
def test_every_method_learns(kind: type[mt.Method]) -> None:
    """The loss falls and the accuracy rises, by the method's own steps."""
    ens = made(kind())
    before = mt.score(mt.predict(ens, VAL))["accuracy"]
    run = fit(ens, TRAIN, Recipe(epochs=8, batch=20, lr=0.1, schedule="cosine"), val=VAL)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert run.metrics[-1]["val_accuracy"] > max(before, 0.6)
    assert [line["epoch"] for line in run.metrics] == list(range(1, 9))


def test_a_step_is_that_of_a_loop_by_hand() -> None:
    """One epoch against the plain loop over the same batches."""
    recipe = Recipe(
        epochs=2, batch=50, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, schedule="multistep", milestones=(1,)
    )
    ens, hand = made(mt.Deep(members=2)), made(mt.Deep(members=2)).train()
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


def test_accumulated_parts_are_one_step() -> None:
    """Without BatchNorm, up to rounding."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    data = TensorDataset(X[:200].double(), Y[:200])
    found = []
    for parts in (1, 4):
        one = mt.ensemble(net, mt.MultiHead(members=2), X[:2].double(), seed=0)
        fit(one, data, Recipe(epochs=1, batch=200, lr=0.1, accumulate=parts))
        found.append(one)
    for name, value in found[0].state_dict().items():
        torch.testing.assert_close(value, found[1].state_dict()[name])


def test_the_loss_has_what_a_recipe_adds() -> None:
    """L1, clipping and averages change what is learned."""
    plain = made(mt.Deep(members=2))
    fit(plain, TRAIN, Recipe(epochs=2, batch=20, lr=0.1))
    size = sum(float(p.detach().abs().sum()) for p in plain.parameters())
    for settings, smaller in (({"l1": 0.01}, True), ({"clip": 0.01}, None), ({"ema": 0.9}, None)):
        other = made(mt.Deep(members=2))
        fit(other, TRAIN, Recipe(epochs=2, batch=20, lr=0.1, **settings))
        assert not same(plain, other)
        if smaller:
            assert sum(float(p.detach().abs().sum()) for p in other.parameters()) < size


def test_it_repeats_and_leaves_randomness_alone() -> None:
    """The same seed gives the same weights, whatever torch's generator is at."""
    found = []
    for start in (1, 2):
        ens = made(mt.MCDropout(members=3, position="layers"))
        torch.manual_seed(start)
        before = torch.get_rng_state()
        fit(ens, TRAIN, Recipe(epochs=2, batch=20, lr=0.1))
        assert torch.equal(torch.get_rng_state(), before)
        found.append(ens)
    assert same(*found)
    other = made(mt.MCDropout(members=3, position="layers"))
    fit(other, TRAIN, Recipe(epochs=2, batch=20, lr=0.1, seed=5))
    assert not same(found[0], other)


@pytest.mark.parametrize(
    ("start", "batches", "diverse"), [("copies", "same", False), ("copies", "own", True), ("fresh", "same", True)]
)
def test_sources_of_diversity(start: str, batches: Any, diverse: bool) -> None:
    """With all of them off members stay equal: their mutual information is exactly zero."""
    ens = made(mt.Deep(members=3), start=start)
    fit(ens, TRAIN, Recipe(epochs=2, batch=20, lr=0.1, batches=batches, deterministic=True))
    found = mt.predict(ens, VAL).mutual_information
    assert bool((found > 0).any()) == diverse
    assert diverse or float(found.max()) == 0


def test_many_small_runs_as_one() -> None:
    """Members with sets of their own learn as they would alone."""
    sets = [TensorDataset(X[:200].roll(m, 0), Y[:200].roll(m, 0)) for m in range(3)]
    ens = made(mt.Deep(members=3))
    alone = made(mt.Deep(members=3)).subset([1])
    fit(ens, sets, Recipe(epochs=2, batch=20, lr=0.1))
    assert mt.score(mt.predict(ens, VAL))["member_accuracy"] > 0.6
    assert not torch.equal(ens.member(1)(X[:2]), alone(X[:2])[0])


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
    ens = mt.ensemble(net, mt.Packed(members=2), X[:2], seed=0, task=task)
    run = fit(
        ens, TensorDataset(X[:200], target[:200]), Recipe(epochs=6, batch=20, lr=0.01, optimizer="adam"),
        val=TensorDataset(X[200:], target[200:]),
    )  # fmt: skip
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert ("val_accuracy" in run.metrics[0]) == (task in ("binary", "multilabel"))
    assert run.best_epoch is not None


def test_pixels() -> None:
    """A dense classification."""
    x = torch.randn(24, 3, 8, 8)
    y = (x.mean(1) > 0).long()
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    ens = mt.ensemble(net, mt.Deep(members=2), x[:2], seed=0)
    run = fit(ens, TensorDataset(x, y), Recipe(epochs=6, batch=8, lr=0.05, channels_last=True), val=TensorDataset(x, y))
    assert run.metrics[-1]["val_accuracy"] > 0.8


def test_the_best_and_the_last(tmp_path: Path) -> None:
    """Both are in the folder, and the run can go back to its best."""
    ens = made(mt.Deep(members=2))
    run = fit(ens, TRAIN, Recipe(epochs=5, batch=20, lr=1.5, best="members"), val=VAL, out=tmp_path / "a")
    last, best = (mt.load(tmp_path / "a" / f"{name}.multitude", network()) for name in ("last", "best"))
    assert same(last, ens)
    assert mt.score(mt.predict(best, VAL))["member_accuracy"] >= max(
        mt.score(mt.predict(e, VAL))["member_accuracy"] for e in (last, ens)
    )
    assert same(run.use_best(), best)
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.metrics
    with pytest.raises(mt.InputError, match="val="):
        fit(made(mt.Deep(members=2)), TRAIN, Recipe(epochs=1)).use_best()


@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.EMP(members=3), mt.MIMO(members=2), mt.MCDropout(members=2)])
@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw", "ema": 0.9, "clip": 1.0}])
def test_a_run_goes_on(method: mt.Method, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after any epoch, in the midst of another, it ends with the same weights and the same lines."""
    recipe = Recipe(epochs=5, batch=20, lr=0.05, schedule="cosine", **settings)
    whole = fit(made(method), TRAIN, recipe, val=VAL, out=tmp_path / "whole")
    steps, step = [0], training._step

    def stopping(*args: Any) -> Tensor:
        steps[0] += 1
        if steps[0] in (17, 38):
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(training, "_step", stopping)
    for attempt in range(3):
        ens = made(method)
        try:
            again = fit(ens, TRAIN, recipe, val=VAL, out=tmp_path / "parts", resume=attempt > 0)
        except KeyboardInterrupt:
            continue
    assert same(ens, whole.ensemble)
    drop = [{k: v for k, v in line.items() if k != "seconds"} for line in again.metrics]
    assert drop == [{k: v for k, v in line.items() if k != "seconds"} for line in whole.metrics]
    for name in ("last", "best"):
        a, b = (mt.load(tmp_path / run / f"{name}.multitude", network()) for run in ("whole", "parts"))
        assert same(a, b)


def test_another_run_is_not_taken_up(tmp_path: Path) -> None:
    fit(made(mt.Deep(members=2)), TRAIN, Recipe(epochs=1), out=tmp_path)
    with pytest.raises(mt.FileError, match="holds a run already"):
        fit(made(mt.Deep(members=2)), TRAIN, Recipe(epochs=1), out=tmp_path)
    with pytest.raises(mt.FileError, match=r"another run: .*recipe\.lr"):
        fit(made(mt.Deep(members=2)), TRAIN, Recipe(epochs=1, lr=0.3), out=tmp_path, resume=True)


def test_a_loss_that_is_none(tmp_path: Path) -> None:
    """It stops, says where, and what was kept stays."""
    ens = made(mt.Deep(members=2))
    with pytest.raises(mt.RunError, match=r"the loss is (nan|inf) in step \d+ of epoch \d+: a smaller lr"):
        fit(ens, TRAIN, Recipe(epochs=5, batch=20, lr=1e30), out=tmp_path)


@pytest.mark.parametrize(
    ("train", "recipe", "options", "says"),
    [
        (TRAIN, {"epochs": 2}, {}, "fit takes a Recipe"),
        (TRAIN, Recipe(epochs=1), {"resume": True}, "needs the folder"),
        (TRAIN, Recipe(epochs=1), {"val": TensorDataset(X[:0], Y[:0])}, "no examples"),
        (TensorDataset(X[:0], Y[:0]), Recipe(epochs=1), {}, "empty"),
        (3, Recipe(epochs=1), {}, "cannot train on"),
    ],
)
def test_what_cannot_be_fitted(train: Any, recipe: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(mt.InputError, match=says):
        fit(made(mt.Deep(members=2)), train, recipe, **options)


def test_modes_come_back() -> None:
    for mode in (True, False):
        ens = made(mt.Deep(members=2)).train(mode)
        fit(ens, TRAIN, Recipe(epochs=1, batch=50))
        assert ens.training == mode


def test_augmentation_is_seeded() -> None:
    """By the run's seed, each epoch anew; with batches of members' own, each of them."""

    def noise(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return x + torch.randn(x.shape, generator=generator), y

    for batches in ("same", "own"):
        runs = [made(mt.Deep(members=2)) for _ in range(3)]
        fit(runs[0], TRAIN, Recipe(epochs=2, batch=20, augment=noise, batches=batches))
        fit(runs[1], TRAIN, Recipe(epochs=2, batch=20, augment=noise, batches=batches))
        fit(runs[2], TRAIN, Recipe(epochs=2, batch=20, batches=batches))
        assert same(runs[0], runs[1])
        assert not same(runs[0], runs[2])


SCRIPT = """
import sys, lightning_fabric, torch
from torch import nn
from torch.utils.data import TensorDataset
import multitudes as mt
torch.manual_seed(0)
x, y = torch.randn(400, 6), torch.randint(3, (400,))
net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
ens = mt.ensemble(net, mt.Packed(members=4), x[:2], seed=0)
recipe = mt.Recipe(epochs=30, batch=20, lr=0.05, schedule="cosine", ema=0.99)
print("go", flush=True)
mt.fit(ens, TensorDataset(x, y), recipe, val=TensorDataset(x[:100], y[:100]), out=sys.argv[1], resume=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """SIGKILL at three random moments: bit for bit the weights of a run that was left alone."""
    moments = random.Random(int(os.environ.get("MULTITUDES_SEED", "0")))

    def run(folder: str, seconds: float | None = None) -> float:
        """How long the run took, or was let run before it was killed."""
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            begun = time.perf_counter()
            if seconds is not None:
                time.sleep(seconds)
                process.send_signal(signal.SIGKILL)
            assert process.wait() == (0 if seconds is None else -signal.SIGKILL)
            return time.perf_counter() - begun

    length = run("whole")
    for _ in range(3):
        run("parts", moments.uniform(0.1, 0.3) * length)
    run("parts")
    net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    for name in ("last", "best"):
        assert same(*(mt.load(tmp_path / folder / f"{name}.multitude", net) for folder in ("whole", "parts")))
    assert "goes on behind epoch" in (tmp_path / "parts" / "log.txt").read_text()
