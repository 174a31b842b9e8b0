"""Methods, runs, rows and commands that were written under other names are read under those that they have now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes.files.old_settings import current_settings, current_text
from multitudes.report.row import Row
from multitudes.shell.told import Told
from multitudes.storage import load_tensors, save_tensors

WRITTEN = Path(__file__).parent / "written"


def test_settings_of_methods() -> None:
    assert current_settings("TreeNet", {"members": 2, "split": "a.b"}) == {"members": 2, "branch_at": "a.b"}
    assert current_settings("Masksembles", {"feed": "split", "scale": 2.0}) == {"feed": "part", "scale": 2.0}
    assert current_settings("BatchEnsemble", {"feed": "all"}) == {"feed": "all"}
    assert current_settings("Own", {"split": 3}) == {"split": 3}, "methods of users keep their own"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (repr(mt.TreeNet(branch_at="a")).replace("branch_at", "split"), repr(mt.TreeNet(branch_at="a"))),
        (repr(mt.Masksembles()).replace("feed='part'", "feed='split'"), repr(mt.Masksembles())),
        ("Packed(members=4)", "Packed(members=4)"),
        ("multitudes train --task a:task --method single --out b", "multitudes train --job a:task --method single --out b"),
        ("multitudes bench --task fashion --methods 'masksembles(feed='\"'\"'split'\"'\"')' --out --task x",
         "multitudes bench --job fashion --methods 'masksembles(feed='\"'\"'part'\"'\"')' --out --task x"),
        ("python own.py --task a", "python own.py --task a"),
    ],
)  # fmt: skip
def test_methods_and_commands_as_text(old: str, new: str) -> None:
    assert current_text(old) == new


def test_files_of_ensembles() -> None:
    """The files in this folder hold TreeNet(split=None) and Masksembles(feed="split")."""
    made: Any = {name: mt.load(WRITTEN / f"{name}.multitude", network()).method for name in ("TreeNet", "Masksembles")}
    assert made["TreeNet"] == mt.TreeNet(members=3)
    assert made["Masksembles"].feed == "part"


def network() -> nn.Module:
    """The network that the ensembles in the folder were made of."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4),
    )  # fmt: skip


def test_an_unfinished_run_goes_on(tmp_path: Path) -> None:
    """Its config names the method's settings as they were."""
    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)

    def fit(epochs: int, branch_at: str) -> mt.Run:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        ens = mt.ensemble(net, mt.TreeNet(members=2, branch_at=branch_at), torch.randn(2, 4), seed=0)
        return mt.fit(ens, data, mt.Recipe(epochs=epochs, schedule="constant"), out=tmp_path, resume=True, progress=False)

    fit(1, "2")
    config = tmp_path / "config.json"
    assert '"branch_at": "2"' in config.read_text()
    config.write_text(config.read_text().replace('"branch_at"', '"split"'))
    assert fit(2, "2").done == 2
    config.write_text(config.read_text().replace('"branch_at"', '"split"'))
    with pytest.raises(mt.FileError, match=r"settings\.branch_at was '2' and is '0'"):
        fit(3, "0")


def test_an_unfinished_run_of_densities_goes_on(tmp_path: Path) -> None:
    """Its best epoch was that of the highest log density, which is that of the lowest NLL."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))

    def fit(epochs: int, folder: Path) -> mt.Run:
        ens = mt.ensemble(nn.Linear(4, 2), mt.Deep(members=2), torch.randn(2, 4), seed=0, task="gaussian")
        recipe = mt.Recipe(epochs=epochs, batch=8, best_by="nll", schedule="constant")
        return mt.fit(ens, data, recipe, val=data, out=folder, resume=True, progress=False)

    new = fit(2, tmp_path / "new")
    fit(1, tmp_path / "old")
    config, newest = tmp_path / "old" / "config.json", max((tmp_path / "old" / "checkpoints").iterdir())
    config.write_text(config.read_text().replace('"best_by": "nll"', '"best_by": "lpd"'))
    about, tensors = load_tensors(newest, "checkpoint")
    about["best"]["score"], about["metrics"][0]["val_lpd"] = "lpd", -about["metrics"][0].pop("val_nll")
    save_tensors(newest, "checkpoint", about, tensors)
    old = fit(2, tmp_path / "old")
    assert [line["val_nll"] for line in old.metrics] == [line["val_nll"] for line in new.metrics]
    assert old.best_epoch == new.best_epoch and "val_lpd" not in (tmp_path / "old" / "metrics.jsonl").read_text()


def test_rows_and_commands_of_the_shell(tmp_path: Path) -> None:
    """What is now called a job was called a task."""
    old = {"task": "mine:task", "method": "treenet(split='a')", "seed": 3, "epochs": 2, "folder": "/home"}
    (tmp_path / "command.json").write_text(json.dumps(old))
    told = Told.load(tmp_path)
    assert told == Told(job="mine:task", method="treenet(branch_at='a')", seed=3, epochs=2, folder="/home")
    pred = mt.Prediction(logits=torch.randn(2, 6, 3), targets=torch.arange(6) % 3)
    command = "multitudes bench --task yacht --methods 'treenet(split=None)' --out a"
    row = Row(
        name="a", method="TreeNet(members=4, split=None)", scores=mt.score(pred), settings={"task": "yacht"}, command=command
    )
    row.save(tmp_path / "row")
    read = Row.load(tmp_path / "row")
    assert (read.method, read.settings) == ("TreeNet(members=4, branch_at=None)", {"job": "yacht"})
    assert read.command == "multitudes bench --job yacht --methods 'treenet(branch_at=None)' --out a"
    alone = Told.load(tmp_path / "row")
    assert alone is not None
    assert alone.job == "yacht"
