"""Lightning's Trainer trains an EnsembleModule as a loop of one's own does, in two processes too; mt.load reads checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import multitudes as mt

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*starting from the next epoch"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]
lightning = pytest.importorskip("lightning")
from multitudes.integrations.lightning import EnsembleModule, LogUncertainty  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def numbers(rows: int = 48) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def converted(method: mt.Method, **more: Any) -> mt.Ensemble:
    return mt.ensemble(network(), method, numbers()[0][:2], seed=0, check=False, **more)


def loader(batch: int = 16) -> Any:
    return DataLoader(TensorDataset(*numbers()), batch)


def trainer(out: Path, **more: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(**{"max_epochs": 2, "accelerator": "cpu", "default_root_dir": out, **quiet, **more})


METHODS = [
    mt.Deep(members=2),
    mt.Masksembles(members=2, fewest=2),
    mt.MIMO(members=2),
    mt.ECMP(members=3, components=2, prior="elbo", examples=48),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_it_takes_the_steps_of_a_loop_of_your_own(method: mt.Method, tmp_path: Path) -> None:
    """With accumulated parts, clipping for each member, and priors that know the rows of a whole step."""
    ens, own = converted(method), converted(method)
    module = EnsembleModule(ens, lr=0.05, weight_decay=0.01, optimizer=torch.optim.SGD)
    run = trainer(tmp_path, accumulate_grad_batches=3, gradient_clip_val=0.5, enable_checkpointing=False)
    run.fit(module, loader(8))
    optimizer = torch.optim.SGD(own.train().param_groups(lr=0.05, weight_decay=0.01))
    for _ in range(2):
        for number, (x, y) in enumerate(loader(8)):
            (own.loss(x, y, F.cross_entropy, global_batch=24) / 3).backward()
            if number % 3 == 2:
                own.clip_grad_norm_(0.5)
                optimizer.step()
                optimizer.zero_grad()
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(ens.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("method", [mt.SWAG(members=2, begin=0.3), mt.Snapshot(members=2), mt.Laplace(members=2)])
def test_members_that_are_made_of_a_run(method: mt.Method, tmp_path: Path) -> None:
    """By the hooks that a loop of your own calls; a second run forgets the first, and the file has the members."""
    ens, own = converted(method), converted(method)
    trainer(tmp_path, enable_checkpointing=False).fit(EnsembleModule(ens, lr=0.5), loader())
    ens.load_state_dict(own.state_dict())
    run = trainer(tmp_path, max_epochs=4, enable_checkpointing=False)
    run.fit(EnsembleModule(ens, lr=0.05, optimizer=torch.optim.SGD), loader(), loader())
    optimizer = torch.optim.SGD(own.train().param_groups(lr=0.05))
    for epoch in range(4):
        for x, y in loader():
            own.loss(x, y, F.cross_entropy).backward()
            optimizer.step()
            optimizer.zero_grad()
        own.method.after_epoch(own, (epoch + 1) / 4)
    own.finish(loader())
    found, expected = (mt.predict(one, numbers()[0]).probs for one in (ens, own))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    first, second = mt.predict(ens, numbers()[0]).members["logits"]
    assert not torch.equal(first, second)
    run.save_checkpoint(tmp_path / "end.ckpt")
    torch.testing.assert_close(mt.predict(mt.load(tmp_path / "end.ckpt", network()), numbers()[0]).probs, found)


def test_a_method_of_a_run_needs_its_end_and_its_data(tmp_path: Path) -> None:
    module = EnsembleModule(converted(mt.Snapshot(members=2)))
    with pytest.raises(mt.InputError, match=r"Snapshot needs to know the end of the run: Trainer\(max_epochs"):
        trainer(tmp_path, max_epochs=-1, enable_checkpointing=False).fit(module, loader())
    with pytest.raises(mt.InputError, match="give one DataLoader, not a dict"):
        trainer(tmp_path, enable_checkpointing=False).fit(module, {"a": loader()})


def test_scores_are_those_of_the_whole_validation_set(tmp_path: Path) -> None:
    """Also those of the callback, with a set from elsewhere; and the test's."""
    ens, (x, y) = converted(mt.Packed(members=2, alpha=2)), numbers()
    run = trainer(tmp_path, callbacks=[LogUncertainty(ood={"far": x[:9] + 7})], enable_checkpointing=False)
    module = EnsembleModule(ens, lr=0.05)
    run.fit(module, loader(), loader(17))
    expected = mt.score(mt.predict(ens, TensorDataset(x, y)), ood={"far": mt.predict(ens, x[:9] + 7)})
    logged = run.callback_metrics
    for name in ("nll", "accuracy", "ece", "brier", "disagreement", "mean_mutual_information", "far/auroc/entropy"):
        assert float(logged[f"val_{name}"]) == pytest.approx(expected[name], rel=1e-5), name
    assert run.test(module, loader(), verbose=False)[0]["test_aurc"] == pytest.approx(expected["aurc"], rel=1e-5)
    whole = mt.Prediction.cat(run.predict(module, loader(17)))
    torch.testing.assert_close(whole.probs, mt.predict(ens, x).probs)
    unknown = trainer(tmp_path, callbacks=[LogUncertainty(scores=["ecee"])], enable_checkpointing=False)
    with pytest.raises(mt.InputError, match="this task has the scores accuracy"):
        unknown.fit(EnsembleModule(ens), loader(), loader())


def test_numbers_have_their_own_scores(tmp_path: Path) -> None:
    x, _ = numbers()
    ens = mt.ensemble(nn.Sequential(nn.Linear(6, 2)), mt.Deep(members=2), x[:2], task="gaussian", seed=0, check=False)
    data = DataLoader(TensorDataset(x, x[:, :1]), 16)
    run = trainer(tmp_path, callbacks=[LogUncertainty()], enable_checkpointing=False, max_epochs=1)
    run.fit(EnsembleModule(ens, lr=0.05), data, data)
    expected = mt.score(mt.predict(ens, TensorDataset(x, x[:, :1])))
    assert {"val_nll", "val_rmse", "val_coverage"} <= run.callback_metrics.keys()
    assert float(run.callback_metrics["val_rmse"]) == pytest.approx(expected["rmse"], rel=1e-5)


@pytest.mark.parametrize("method", [mt.Packed(members=2, alpha=2), mt.MCDropout(members=3, p=0.2)], ids=["packed", "mcdropout"])
def test_checkpoints_load_with_mt_load(method: mt.Method, tmp_path: Path) -> None:
    """And with Lightning's own load_from_checkpoint."""
    ens = converted(method)
    run = trainer(tmp_path / "a")
    run.fit(EnsembleModule(ens, lr=0.05), loader())
    path = run.checkpoint_callback.best_model_path
    again = mt.load(path, network())
    x = numbers()[0]
    assert torch.equal(again.eval()(x), ens.eval()(x))
    assert again.method == method
    fresh = EnsembleModule.load_from_checkpoint(path, ensemble=converted(method))
    assert torch.equal(fresh.ensemble.eval()(x), ens(x))


def test_a_resumed_run_is_one_without_a_stop(tmp_path: Path) -> None:
    """The state of the ensemble's generator is in the checkpoint: MIMO's slots, and draws of weights, go on as they would."""
    runs = []
    for stops in ((2,), (1, 2)):
        path = None
        for number, epochs in enumerate(stops):
            module = EnsembleModule(converted(mt.MIMO(members=2)), lr=0.05)
            run = trainer(tmp_path / f"{len(stops)}{number}", max_epochs=epochs)
            run.fit(module, loader(), ckpt_path=path)
            path = run.checkpoint_callback.best_model_path
        runs.append(module.ensemble.state_dict())
    for name, tensor in runs[0].items():
        torch.testing.assert_close(runs[1][name], tensor, msg=name)


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    """One without an ensemble, and one that holds more than tensors and plain values: nothing of it is run."""
    torch.save({"state_dict": network().state_dict()}, tmp_path / "plain.ckpt")
    with pytest.raises(mt.FileError, match=r"without an ensemble: train lightning\.EnsembleModule"):
        mt.load(tmp_path / "plain.ckpt", network())
    torch.save({"x": Trap(str(tmp_path / "sprung"))}, tmp_path / "trap.ckpt")
    with pytest.raises(mt.FileError, match="more than tensors and plain values"):
        mt.load(tmp_path / "trap.ckpt", network())
    assert not (tmp_path / "sprung").exists()


class Trap:
    """A value that writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_refusals(tmp_path: Path) -> None:
    """An optimizer that mixes members, a batch without targets, another module."""
    ens = converted(mt.Deep(members=2))
    with pytest.raises(mt.InputError, match="LBFGS uses norms"):
        EnsembleModule(ens, optimizer=lambda groups: torch.optim.LBFGS(ens.parameters())).configure_optimizers()
    with pytest.raises(mt.InputError, match="optimizer='sgd' must be a class"):
        EnsembleModule(ens, optimizer="sgd")  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="a batch has no targets"):
        trainer(tmp_path, enable_checkpointing=False).fit(EnsembleModule(ens), DataLoader(numbers()[0], 8))
    with pytest.raises(mt.InputError, match="EnsembleModule"):
        EnsembleModule(network())  # type: ignore[arg-type]


SCRIPT = """
import os, sys, json, torch, lightning
sys.path.insert(0, {tests!r})
import multitudes as mt
from multitudes.integrations.lightning import EnsembleModule, LogUncertainty
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
method = mt.ECMP(members=3, components=2, prior="elbo", examples=48)
ens = mt.ensemble(net, method, x[:2], seed=0, check=False)
rank = int(os.environ.get("LOCAL_RANK", 0))
data = TensorDataset(x, y)
data = DataLoader(data, {batch}, sampler=DistributedSampler(data, {ranks}, rank, shuffle=False))  # Lightning's shuffles
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices={ranks}, strategy={strategy!r}, logger=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir={out!r}, callbacks=[LogUncertainty()],
    use_distributed_sampler=False,
)
trainer.fit(EnsembleModule(ens, lr=0.05, optimizer=torch.optim.SGD), data, data)
if trainer.is_global_zero:
    found = {{name: float(value) for name, value in trainer.callback_metrics.items()}}
    print(json.dumps([trainer.world_size, trainer.checkpoint_callback.best_model_path, found]))
"""


def in_processes(tmp_path: Path, ranks: int) -> tuple[int, str, dict[str, float]]:
    script = tmp_path / f"train{ranks}.py"
    parts = {"tests": str(ROOT / "tests"), "batch": 16 // ranks, "ranks": ranks, "out": str(tmp_path / str(ranks))}
    script.write_text(SCRIPT.format(**parts, strategy="ddp" if ranks > 1 else "auto"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return tuple(json.loads(done.stdout.strip().splitlines()[-1]))  # type: ignore[return-value]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """DDP with gloo: half the batch in each process gives the weights and the scores of one process, priors included."""
    (one, path, scores), (two, path2, scores2) = in_processes(tmp_path, 1), in_processes(tmp_path, 2)
    assert (one, two) == (1, 2)
    first, second = mt.load(path, network()), mt.load(path2, network())
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    assert scores2["val_nll"] == pytest.approx(scores["val_nll"], rel=1e-4)
    assert scores2["val_ece"] == pytest.approx(scores["val_ece"], rel=1e-3)
