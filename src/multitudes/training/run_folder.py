"""Run: the folder of a training run: what was asked for, what was measured, and where to go on.

config.json        the recipe, the method, the versions
metrics.jsonl      a line for each epoch
log.txt            what happened, and when
checkpoints/       the last two: weights, optimiser, moving average, in one file each that is whole or not there
best.multitude     the ensemble of the best epoch; last.multitude, of the last
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.engine.sharding import full_tensor, shard_like
from multitudes.errors import FileError
from multitudes.storage import UNFINISHED, load_tensors, save_tensors, write

KEPT = 2
"""How many checkpoints stay: should one be damaged, there is another."""
NAME = re.compile(r"\d{6,}\.safetensors")
"""What checkpoints are called: by their epoch."""
LEFT = re.compile(
    rf"\.(config\.json|metrics\.jsonl|(best|last)\.multitude|{NAME.pattern})\.[0-9a-f]{{8}}{re.escape(UNFINISHED)}"
)
"""What a run's files are called, and what they are while they are written."""


class RunFolder:
    """A run's folder."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._block: contextlib.ExitStack | None = None
        self._made: list[Path] = []
        """Of a new run, the files that were not there before."""

    def __enter__(self) -> RunFolder:
        self._block = contextlib.ExitStack()
        return self

    def __exit__(self, *error: object) -> None:
        if self._block is not None:
            self._block.close()

    def _hold(self, file: Path) -> None:
        """Until the end of a with-block, or of the process however it ends, no other takes up the run."""
        if self._block is None:
            return
        held = self._block.enter_context(file.open("rb+"))
        with contextlib.suppress(ImportError):  # Windows has no such locks
            import fcntl

            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FileError(
                    f"{self.path} is being written by another process: wait for it, or give another out="
                ) from error
            except OSError:  # nor have some networks' disks
                return
            if os.fstat(held.fileno()).st_ino != file.stat().st_ino:
                raise FileError(f"another process has started a run in {self.path} just now: give another out=")

    def start(self, config: Mapping[str, Any], resume: bool) -> None:
        """Makes the folder for a new run, or finds that of the run to go on with."""
        text, file = json.dumps(config, indent=1, sort_keys=True), self.path / "config.json"
        if file.exists() and not resume:
            raise FileError(f"{self.path} holds a run already: resume=True goes on with it, another out= starts a new one")
        if file.exists():
            self._same(config, file)
            self._hold(file)
            for left in self._unfinished():  # by a process that was killed
                left.unlink(missing_ok=True)
            return
        if self._written():
            raise FileError(
                f"{self.checkpoints} holds checkpoints of a run whose config.json is gone: give another out=, or put it back"
            )
        if (self.path / "metrics.jsonl").exists():
            raise FileError(f"{self.path} holds a metrics.jsonl, and no run that it is of: give another out=")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {self.path}: {error.strerror or error}") from error
        others = [self.path / "metrics.jsonl", self.path / "log.txt"]
        self._made = [file, *(one for one in others if not one.exists())]
        write(file, text.encode())
        self._hold(file)

    def _same(self, config: Mapping[str, Any], file: Path) -> None:
        try:
            old = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"{file} cannot be read: {error}") from error
        new = json.loads(json.dumps(config))
        here, there = _flat(new), _flat(old)
        before, now = there.get("torch"), here.get("torch")
        if before is not None:
            there["torch"] = now
        changed = [
            f"{name} was {there.get(name)!r} and is {here.get(name)!r}"
            for name in here | there
            if json.dumps(here.get(name)) != json.dumps(there.get(name))
        ]
        if changed:
            raise FileError(f"{self.path} is of another run: {'; '.join(changed[:6])}")
        if before != now:
            warnings.warn(f"the run was begun with torch {before} and goes on with {now}: not bit for bit", stacklevel=6)

    def save(self, epoch: int, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Writes a checkpoint, whole or not at all, and removes older ones, and later ones that could not be used."""
        new = self.checkpoints / f"{epoch:06d}.safetensors"
        save_tensors(new, "checkpoint", {"epoch": epoch, **about}, tensors)
        files = self._written()
        upto = [file for file in files if file.name <= new.name]
        for other in {*files} - {*upto[-KEPT:]}:
            other.unlink(missing_ok=True)

    def remove_new_files(self) -> None:
        """Takes back a run that was begun here and of which no epoch could be trained: its folder is free again."""
        for file in [*self._made, *self._written()] if self._made else ():
            file.unlink(missing_ok=True)

    def _written(self) -> list[Path]:
        """The checkpoints, in order; other files in their folder are not ours."""
        return sorted(file for file in self.checkpoints.glob("*.safetensors") if NAME.fullmatch(file.name) and file.is_file())

    def _unfinished(self) -> list[Path]:
        """What was being written for the run, and was not finished."""
        files = [file for folder in (self.path, self.checkpoints) for file in folder.glob(f".*{UNFINISHED}")]
        return [file for file in files if LEFT.fullmatch(file.name)]

    def newest(self, tell: Any = None) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The last checkpoint that is whole; one that is not is named."""
        files = self._written()[::-1]
        for file in files:
            try:
                return load_tensors(file, "checkpoint")
            except FileError as error:
                if tell is not None:
                    next_one = "the checkpoint before it is used" if file != files[-1] else "the run starts anew"
                    tell(f"{error}; {next_one}")
        return None

    def log(self, text: str) -> None:
        """A line of the log, with the time."""
        try:
            with (self.path / "log.txt").open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}  {text}\n")
        except OSError as error:
            raise FileError(f"cannot write {self.path / 'log.txt'}: {error.strerror or error}") from error

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Writes all lines anew."""
        write(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())


def _flat(tree: Any, front: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {front: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found.update(_flat(value, f"{front}.{key}" if front else str(key)))
    return found


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors and numbers, by parameter and name."""
    tensors, numbers = {}, {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = full_tensor(value)
            else:
                numbers[f"{index}.{name}"] = value
    return tensors, numbers


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """What `optimizer_tensors` gave, back in its place; rates are the schedule's."""
    state: dict[int, dict[str, Any]] = {}
    own = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in [*tensors.items(), *((f"optimizer.{name}", v) for name, v in numbers.items())]:
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = shard_like(value, own[int(index)]) if isinstance(value, Tensor) else value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def other_tensors(there: dict[str, Tensor], here: dict[str, Tensor]) -> list[str]:
    """In what the tensors of a checkpoint are not those of an ensemble."""
    found = [f"it has no {name}" for name in here if name not in there]
    found += [f"it has {name}" for name in there if name not in here]
    shapes = {name: (list(there[name].shape), list(here[name].shape)) for name in here if name in there}
    return found + [f"{name} is {a} there and {b} here" for name, (a, b) in shapes.items() if a != b]
