"""A run's folder: whole or not there; another run's is refused; a damaged checkpoint gives way to the one before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.training.run_folder import RunFolder, optimizer_tensors, restore_optimizer

CONFIG = {"recipe": {"epochs": 3, "lr": 0.1}, "method": "Deep"}


def test_a_new_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.start(CONFIG, resume=False)
    assert json.loads((tmp_path / "a" / "b" / "config.json").read_text()) == CONFIG
    with pytest.raises(mt.FileError, match="resume=True"):
        folder.start(CONFIG, resume=False)
    folder.start(CONFIG, resume=True)
    with pytest.raises(mt.FileError, match=r"another run: recipe\.lr was 0\.1 and is 0\.2"):
        folder.start({"recipe": {"epochs": 3, "lr": 0.2}, "method": "Deep"}, resume=True)


def test_another_run_is_refused_before_anything_is_set_up(tmp_path: Path) -> None:
    """A part of the config, and the shapes in the last checkpoint's header, are enough."""
    folder, state = RunFolder(tmp_path), {"weight": torch.zeros(2, 3)}
    folder.check_resumed(CONFIG, state)  # there is no run
    folder.start({**CONFIG, "train": ["8 examples"]}, resume=False)
    folder.save(1, {}, {"state.weight": torch.zeros(2, 3), "optimizer.0.exp_avg": torch.zeros(2, 3)})
    folder.check_resumed(CONFIG, state)
    with pytest.raises(mt.FileError, match=r"recipe\.lr was 0\.1 and is 0\.2"):
        folder.check_resumed({"recipe": {"epochs": 3, "lr": 0.2}}, state)
    with pytest.raises(mt.FileError, match=r"trained another model: weight is \[2, 3\] in the checkpoint and \[2, 4\] here"):
        folder.check_resumed(CONFIG, {"weight": torch.zeros(2, 4)})
    (tmp_path / "checkpoints" / "000001.safetensors").write_bytes(b"damaged")
    folder.check_resumed(CONFIG, {"weight": torch.zeros(2, 4)})  # an older checkpoint decides later


def test_settings_that_recipes_did_not_have(tmp_path: Path) -> None:
    """A run that was started before there was a setting resumes if the setting is at its default."""
    folder, recipe = RunFolder(tmp_path), json.loads(json.dumps(mt.Recipe(epochs=3).settings()))
    folder.start({"recipe": {k: v for k, v in recipe.items() if k not in ("loss", "clip_by", "threshold")}}, resume=False)
    folder.start({"recipe": recipe}, resume=True)
    with pytest.raises(mt.FileError, match=r"recipe\.loss was 'task' and is 'bce'"):
        folder.start({"recipe": {**recipe, "loss": "bce"}}, resume=True)


def test_files_can_be_read_by_whom_others_can(tmp_path: Path) -> None:
    """As the system makes files, and not for their writer alone."""
    (tmp_path / "plain").write_text("")
    RunFolder(tmp_path / "a").start(CONFIG, resume=False)
    assert (tmp_path / "a" / "config.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    folder.save(1, {}, {"w": torch.zeros(2)})
    left = folder.checkpoints / ".000002.safetensors.0a1b2c3d.part"
    left.write_bytes(b"half")
    folder.start(CONFIG, resume=True)
    assert [file.name for file in folder.checkpoints.iterdir()] == ["000001.safetensors"]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A folder that is being written is not taken up, until whoever writes it has ended, well or not."""
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path) as first:
        first.start(CONFIG, resume=False)
        with pytest.raises(mt.FileError, match="another process"), RunFolder(tmp_path) as second:
            second.start(CONFIG, resume=True)
        raise KeyboardInterrupt
    with RunFolder(tmp_path) as third:
        third.start(CONFIG, resume=True)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(mt.FileError, match="cannot create the folder"):
        RunFolder(tmp_path / "file" / "run").start(CONFIG, resume=False)


def test_the_last_two_checkpoints_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    for epoch in range(1, 5):
        folder.save(epoch, {"best": None}, {"w": torch.full((2,), float(epoch))})
    assert [file.name for file in sorted(folder.checkpoints.iterdir())] == ["000003.safetensors", "000004.safetensors"]
    about, tensors = folder.newest()  # type: ignore[misc]
    assert about["epoch"] == 4
    assert tensors["w"].tolist() == [4, 4]


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"", lambda data: data[:-1] + b"\xff"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: object) -> None:
    """And the one before it is taken; with none left, there is none."""
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    assert folder.newest() is None
    for epoch in (1, 2):
        folder.save(epoch, {}, {"w": torch.full((2,), float(epoch))})
    last = folder.checkpoints / "000002.safetensors"
    last.write_bytes(damage(last.read_bytes()))  # type: ignore[operator]
    said: list[str] = []
    about, _ = folder.newest(said.append)  # type: ignore[misc]
    assert about["epoch"] == 1
    assert "000002" in said[0]
    assert "the checkpoint before it" in said[0]


def test_checkpoints_that_cannot_be_used_make_room(tmp_path: Path) -> None:
    """Where none is whole that is said, and those of the run that starts anew stay, however late the damaged ones were."""
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    for epoch in (8, 9):
        (folder.checkpoints / f"{epoch:06d}.safetensors").write_bytes(b"")
    said: list[str] = []
    assert folder.newest(said.append) is None
    assert "000009" in said[0]
    assert "the checkpoint before it" in said[0]
    assert "000008" in said[1]
    assert "epoch 0" in said[1]
    for epoch in range(3):
        folder.save(epoch, {}, {"w": torch.zeros(2)})
    assert [file.name for file in sorted(folder.checkpoints.iterdir())] == ["000001.safetensors", "000002.safetensors"]


def test_lines_of_metrics(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_metrics([{"epoch": 1}])
    folder.write_metrics([{"epoch": 1}, {"epoch": 2}])
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [{"epoch": 1}, {"epoch": 2}]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_optimisers_state(kind: type[torch.optim.Optimizer]) -> None:
    """As tensors and numbers, and back: the next step is the same."""
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        return net, kind(net.parameters(), lr=0.1, **options)  # type: ignore[call-arg]

    def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()

    net, optimizer = made()
    for _ in range(3):
        step(net, optimizer)
    tensors, numbers = optimizer_tensors(optimizer)
    tensors = {name: value.clone() for name, value in tensors.items()}
    other, again = made()
    other.load_state_dict(net.state_dict())
    restore_optimizer(again, tensors, json.loads(json.dumps(numbers)))
    step(net, optimizer)
    step(other, again)
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_files_of_others_stay(tmp_path: Path) -> None:
    """A folder may hold what is not ours."""
    others = [tmp_path / "checkpoints" / "resnet50.safetensors", tmp_path / "sub" / ".download.part", tmp_path / ".a.part"]
    for file in others:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"mine")
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    for epoch in range(4):
        folder.save(epoch, {}, {"w": torch.zeros(2)})
    folder.start(CONFIG, resume=True)
    assert [file.read_bytes() for file in others] == [b"mine"] * 3
    assert folder.newest()[0]["epoch"] == 3  # type: ignore[index]


@pytest.mark.parametrize("resume", [False, True])
def test_checkpoints_without_a_config(tmp_path: Path, resume: bool) -> None:
    """They may be of any run."""
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    folder.save(1, {}, {"w": torch.zeros(2)})
    (tmp_path / "config.json").unlink()
    with pytest.raises(mt.FileError, match=r"config\.json is missing"):
        folder.start(CONFIG, resume=resume)


def test_another_torch(tmp_path: Path) -> None:
    """A run may go on, and it is said that it will not be bit for bit."""
    RunFolder(tmp_path).start({**CONFIG, "torch": "2.9"}, resume=False)
    with pytest.warns(UserWarning, match=r"torch 2\.9 .* 2\.10"):
        RunFolder(tmp_path).start({**CONFIG, "torch": "2.10"}, resume=True)


def test_only_what_was_made_is_forgotten(tmp_path: Path) -> None:
    """A log that was there before stays, and so does a run that is gone on with."""
    (tmp_path / "log.txt").write_text("mine\n")
    folder = RunFolder(tmp_path)
    folder.start(CONFIG, resume=False)
    folder.save(0, {}, {"w": torch.zeros(2)})
    folder.write_metrics([])
    folder.remove_new_files()
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["log.txt"]
    folder.start(CONFIG, resume=False)
    folder.save(3, {}, {"w": torch.zeros(2)})
    again = RunFolder(tmp_path)
    again.start(CONFIG, resume=True)
    again.remove_new_files()
    assert (tmp_path / "config.json").exists()
    assert again.newest() is not None


def test_metrics_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    with pytest.raises(mt.FileError, match=r"metrics\.jsonl"):
        RunFolder(tmp_path).start(CONFIG, resume=False)
