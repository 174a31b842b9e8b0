"""Resume: a run that was stopped, killed or damaged ends as if nothing had happened, and another run is not taken up."""

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

import numpy as np
import pytest
import torch
from interruption import interrupted
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from training.small import TRAIN, VAL, X, Y, made, network, same

import multitudes as mt
from multitudes.training import fit as training
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe


def test_the_best_and_the_last(tmp_path: Path) -> None:
    """Both are in the folder, and the run can go back to its best."""
    ens = made()
    run = fit(ens, TRAIN, Recipe(epochs=4, batch=50, lr=1.5, best="members", best_by="accuracy"), val=VAL, out=tmp_path / "a")
    last, best = (mt.load(tmp_path / "a" / f"{name}.multitude", network()) for name in ("last", "best"))
    assert same(last, ens)
    assert mt.score(mt.predict(best, VAL))["member_accuracy"] >= max(
        mt.score(mt.predict(e, VAL))["member_accuracy"] for e in (last, ens)
    )
    assert same(run.use_best(), best)
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.metrics
    with pytest.raises(mt.InputError, match="val="):
        fit(made(), TRAIN, Recipe(epochs=1)).use_best()


MANY: dict[str, Any] = {"optimizer": "adamw", "ema": 0.9, "clip": 1.0}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (mt.Deep(members=2), {}),
        (mt.EMP(members=3), MANY),
        *(
            pytest.param(method, settings, marks=pytest.mark.slow)
            for method, settings in (
                (mt.Deep(members=2), MANY),
                (mt.EMP(members=3), {}),
                (mt.MIMO(members=2), {}),
                (mt.MIMO(members=2), MANY),
                (mt.MCDropout(members=2), {}),
                (mt.MCDropout(members=2), MANY),
            )
        ),
    ],
)
def test_a_run_goes_on(method: mt.Method, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after any epoch, in the midst of another, it ends with the same weights and the same lines."""
    recipe = Recipe(epochs=5, batch=50, lr=0.05, schedule="cosine", **settings)
    whole = fit(made(method), TRAIN, recipe, val=VAL, out=tmp_path / "whole")
    again = in_parts(recipe, tmp_path / "parts", [7, 8], method, val=VAL)
    assert same(again.ensemble, whole.ensemble)
    drop = [{k: v for k, v in line.items() if k != "seconds"} for line in again.metrics]
    assert drop == [{k: v for k, v in line.items() if k != "seconds"} for line in whole.metrics]
    for name in ("last", "best"):
        a, b = (mt.load(tmp_path / run / f"{name}.multitude", network()) for run in ("whole", "parts"))
        assert same(a, b)


def test_another_run_is_not_taken_up(tmp_path: Path) -> None:
    fit(made(), TRAIN, Recipe(epochs=1), out=tmp_path)
    with pytest.raises(mt.FileError, match="already has a run"):
        fit(made(), TRAIN, Recipe(epochs=1), out=tmp_path)
    with pytest.raises(mt.FileError, match=r"another run: .*recipe\.lr"):
        fit(made(), TRAIN, Recipe(epochs=1, lr=0.3), out=tmp_path, resume=True)
    for train, options, says in (
        (TensorDataset(X[:200], (Y[:200] + 1) % 3), {}, "train was"),
        (TRAIN, {"val": VAL}, "val was None and is '40 examples, "),
        (TRAIN, {"criterion": nn.CrossEntropyLoss()}, "criterion.*CrossEntropyLoss"),
    ):
        with pytest.raises(mt.FileError, match=f"another run: .*{says}"):
            fit(made(), train, Recipe(epochs=1), out=tmp_path, resume=True, **options)


class Noisy(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Draws by whatever its author liked."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + random.gauss(0, 1) + float(np.random.randn()) + torch.randn(6), Y[index]


def test_a_run_goes_on_with_noise_of_any_kind(tmp_path: Path) -> None:
    """Python's and NumPy's too; and theirs is afterwards what it was."""
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), float(np.random.rand())
    random.seed(5)
    np.random.seed(5)
    whole, parts = made(), made()
    fit(whole, Noisy(), Recipe(epochs=3, batch=20), out=tmp_path / "whole")
    assert (random.random(), float(np.random.rand())) == expected

    def stopping(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return x, y

    steps: list[int] = []
    straight = made()
    recipe = Recipe(epochs=3, batch=20, augment=stopping)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, Noisy(), recipe, out=tmp_path / "parts")
    fit(parts, Noisy(), recipe, out=tmp_path / "parts", resume=True)
    fit(straight, Noisy(), recipe, out=tmp_path / "straight")
    assert same(parts, straight)
    assert same(straight, whole)


def test_a_folder_is_free_again_after_a_refusal(tmp_path: Path) -> None:
    """What was refused in the first step can be mended, and trained there."""
    bad = Y[:200].clone()
    bad[7] = 9
    with pytest.raises(mt.InputError, match="target 9"):
        fit(made(), TensorDataset(X[:200], bad), Recipe(epochs=1), out=tmp_path)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    assert fit(made(), TRAIN, Recipe(epochs=1), out=tmp_path).done == 1


def in_parts(recipe: Recipe, out: Path, steps: list[int], method: mt.Method | None = None, **options: Any) -> training.Run:
    """A run that is stopped before these steps, each counted from where the run begins or resumes, and ends at last."""
    for attempt, step in enumerate(steps):
        with interrupted(step):
            fit(made(method), TRAIN, recipe, out=out, resume=attempt > 0, **options)
    return fit(made(method), TRAIN, recipe, out=out, resume=True, **options)


def test_each_members_best_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was best before a stop stays best after it, member by member."""
    recipe = Recipe(epochs=6, batch=50, lr=3.0, best="members")
    whole = fit(made(), TRAIN, recipe, val=VAL, out=tmp_path / "whole")
    parts = in_parts(recipe, tmp_path / "parts", [10, 11], val=VAL)
    assert whole.best_state is not None
    assert parts.best_state is not None
    assert whole.best_epoch == parts.best_epoch
    for name, value in whole.best_state.items():
        assert torch.equal(parts.best_state[name], value), name
    each = [line["val_accuracy"] for line in whole.metrics]
    assert each.index(max(each)) < 5, "the last epoch is the best: nothing would be kept"


def test_a_damaged_checkpoint_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is named, the one before it used, and the end is the same; so also when the run was over."""
    recipe = Recipe(epochs=5, batch=50, lr=0.05)
    whole = fit(made(), TRAIN, recipe)
    with interrupted(15):
        fit(made(), TRAIN, recipe, out=tmp_path)
    for name in ("000003", "000005"):
        newest = max((tmp_path / "checkpoints").iterdir())
        assert newest.name == f"{name}.safetensors"
        newest.write_bytes(newest.read_bytes()[:-100])
        with pytest.warns(UserWarning, match=rf"{name}\.safetensors is not a whole safetensors file.*checkpoint before it"):
            again = fit(made(), TRAIN, recipe, out=tmp_path, resume=True)
        assert same(again.ensemble, whole.ensemble)
        assert same(mt.load(tmp_path / "last.multitude", network()), whole.ensemble)
    assert (tmp_path / "log.txt").read_text().count("resumed after epoch 2") == 1
    assert (tmp_path / "log.txt").read_text().count("resumed after epoch 4") == 1


@pytest.mark.parametrize(
    ("call", "at"),
    [
        ("replace", 1),
        ("fsync", 6),
        ("replace", 7),
        ("replace", 11),
        *(pytest.param("replace", at, marks=pytest.mark.slow) for at in (2, 6, 9, 10)),
    ],
)
def test_stopped_within_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, at: int) -> None:
    """Of the settings, a checkpoint, the last or the best: nothing half is there, and the end is the same."""
    recipe = Recipe(epochs=3, batch=100, lr=0.05)
    whole = fit(made(), TRAIN, recipe, val=VAL)
    calls, real = [0], getattr(os, call)

    def dying(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise SystemExit("the machine is gone")
        return real(*args)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(os, call, dying)
        fit(made(), TRAIN, recipe, val=VAL, out=tmp_path)
    assert [file for file in tmp_path.rglob(".*") if file.is_file()] == []
    again = fit(made(), TRAIN, recipe, val=VAL, out=tmp_path, resume=True)
    assert same(again.ensemble, whole.ensemble)
    assert same(mt.load(tmp_path / "best.multitude", network()), whole.use_best())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == again.metrics
    assert [line["epoch"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("text", [b'{"epoch": 1, "lo', b"\xff\xfe", None])
def test_damaged_metrics_are_written_anew(tmp_path: Path, text: bytes | None) -> None:
    """A checkpoint has them too."""
    first = fit(made(), TRAIN, Recipe(epochs=2), out=tmp_path)
    if text is None:
        (tmp_path / "metrics.jsonl").unlink()
    else:
        (tmp_path / "metrics.jsonl").write_bytes(text)
    again = fit(made(), TRAIN, Recipe(epochs=2), out=tmp_path, resume=True)
    assert again.metrics == first.metrics
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == first.metrics


@pytest.mark.parametrize("wider", [True, False])
def test_another_model_is_not_taken_up(tmp_path: Path, wider: bool) -> None:
    """What is another is named, and neither model nor folder are touched."""
    fit(made(), TRAIN, Recipe(epochs=2), out=tmp_path)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)) if wider else network()[::3]
    other = mt.ensemble(net, mt.Deep(members=2), X[:2], seed=0)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    says = r"0\.weight is \[2, 16, 6\] .* \[2, 8, 6\]" if wider else r"no 1\.weight"
    with pytest.raises(mt.FileError, match=f"another model: .*{says}"):
        fit(other, TRAIN, Recipe(epochs=2), out=tmp_path, resume=True)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == kept


def test_a_run_that_is_over_is_read(tmp_path: Path) -> None:
    """Taken up again it trains nothing, and is what it was."""
    recipe = Recipe(epochs=3, batch=50, lr=0.05, ema=0.9)
    first = fit(made(), TRAIN, recipe, val=VAL, out=tmp_path)
    again = fit(made(), TRAIN, recipe, val=VAL, out=tmp_path, resume=True)
    assert same(first.ensemble, again.ensemble)
    assert first.metrics == again.metrics
    assert (first.best_epoch, first.done) == (again.best_epoch, again.done) == (again.best_epoch, 3)
    assert same(first.use_best(), again.use_best())


def test_a_loss_that_becomes_none_loses_nothing(tmp_path: Path) -> None:
    """The message has the step and the checkpoint that is whole; once its cause is gone, the run goes on from there."""
    bad = [10]

    def noise(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        bad[0] -= 1
        return (x * float("nan") if bad[0] == 0 else x), y

    recipe = Recipe(epochs=4, batch=50, lr=0.05, augment=noise)
    ens = made().eval()
    with pytest.raises(mt.InputError, match=r"after augmentation, .*nan in step 2 of epoch 3: .*checkpoint of epoch 2"):
        fit(ens, TRAIN, recipe, out=tmp_path)
    assert not ens.training
    again = fit(made(), TRAIN, recipe, out=tmp_path, resume=True)
    assert same(again.ensemble, fit(made(), TRAIN, recipe).ensemble)


def test_a_set_that_fails_loses_nothing(tmp_path: Path) -> None:
    """Its error is passed on, and the run goes on behind the epoch before."""

    class Failing(TensorDataset):
        left = 270

        def __getitem__(self, index: int) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    data, recipe = Failing(X[:200], Y[:200]), Recipe(epochs=3, batch=50, lr=0.05)
    ens = made().eval()
    before = torch.get_rng_state()
    with pytest.raises(OSError, match="the disk is gone"):
        fit(ens, data, recipe, out=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not ens.training
    again = fit(made(), data, recipe, out=tmp_path, resume=True)
    assert "resumed after epoch 1" in (tmp_path / "log.txt").read_text()
    assert same(again.ensemble, fit(made(), TRAIN, recipe).ensemble)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Said before anything is trained."""
    (tmp_path / "file").write_text("")
    ens = made()
    with pytest.raises(mt.FileError, match="cannot create the folder"):
        fit(ens, TRAIN, Recipe(epochs=1), out=tmp_path / "file" / "run")
    assert same(ens, made())


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[1]"])
def test_a_damaged_config_is_named(tmp_path: Path, text: bytes) -> None:
    """And what was trained stays."""
    fit(made(), TRAIN, Recipe(epochs=1), out=tmp_path)
    (tmp_path / "config.json").write_bytes(text)
    kept = sorted(tmp_path.rglob("*"))
    with pytest.raises(mt.FileError, match=r"config\.json cannot be read|another run"):
        fit(made(), TRAIN, Recipe(epochs=1), out=tmp_path, resume=True)
    assert sorted(tmp_path.rglob("*")) == kept


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
    moments = random.Random(0)

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
    assert "resumed after epoch" in (tmp_path / "parts" / "log.txt").read_text()
