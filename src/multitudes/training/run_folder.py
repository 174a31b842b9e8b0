"""RunFolder: the files of a training run, from which it can be resumed.

config.json        recipe, method, datasets and versions
metrics.jsonl      one line per epoch
log.txt            events with their time
checkpoints/       the last two checkpoints: weights, optimizer, moving average; written whole or not at all
best.multitude     the ensemble of the best epoch
last.multitude     the ensemble of the last epoch
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.engine.sharding import full_tensor, shard_like
from multitudes.errors import FileError
from multitudes.files.old_settings import current_score, current_settings
from multitudes.storage import UNFINISHED, load_tensors, save_tensors, write
from multitudes.training.recipe import Recipe

KEPT = 2
"""Number of checkpoints kept: if the last one is damaged, the one before it is used."""
NAME = re.compile(r"\d{6,}\.safetensors")
"""File name of a checkpoint: its epoch."""
FREE = ("epochs", "patience")
"""Settings of the recipe that a resumed run may change."""
OWN = ("optimizer", "scheduler")
"""Parts of the config that describe what the user gave in place of the recipe's."""
STATE = "state."
"""How names of the ensemble's own tensors begin in a checkpoint."""
FILES = ("config.json", "metrics.jsonl", "best.multitude", "last.multitude", "checkpoints/[0-9]*.safetensors")


class RunFolder:
    """Folder of a run. Inside a with-block, `start` locks the folder until the block ends."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._stack: contextlib.ExitStack | None = None
        self._new: list[Path] = []
        """Files of a new run that did not exist before."""

    def __enter__(self) -> RunFolder:
        self._stack = contextlib.ExitStack()
        return self

    def __exit__(self, *error: object) -> None:
        if self._stack is not None:
            self._stack.close()

    def _lock(self, file: Path) -> None:
        """Locks the folder until the with-block or the process ends."""
        if self._stack is None:
            return
        handle = self._stack.enter_context(file.open("rb+"))
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileError(f"another process is writing to {self.path}: wait for it, or pass another out=") from error
        except (ImportError, OSError):  # Windows and some network file systems have no such locks
            return

    def start(self, config: Mapping[str, Any], resume: bool) -> None:
        """Creates the folder of a new run, or checks that the run in the folder has the same config."""
        file = self.path / "config.json"
        if file.exists() and not resume:
            raise FileError(f"{self.path} already has a run: pass resume=True to continue it, or another out=")
        if file.exists():
            old = self._check_config(config, file)
            self._lock(file)
            self._set_free(config, old, file)
            for unfinished in self._unfinished():  # left by a process that was killed
                unfinished.unlink(missing_ok=True)
            return
        if self._checkpoints():
            raise FileError(f"{self.checkpoints} has checkpoints, but config.json is missing: restore it, or pass another out=")
        if (self.path / "metrics.jsonl").exists():
            raise FileError(f"{self.path} has a metrics.jsonl, but no config.json: restore it, or pass another out=")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot create the folder {self.path}: {error.strerror or error}. Pass another out=") from error
        others = [self.path / "metrics.jsonl", self.path / "log.txt"]
        self._new = [file, *(other for other in others if not other.exists())]
        write(file, json.dumps(config, indent=1, sort_keys=True).encode())
        self._lock(file)

    def _set_free(self, config: Mapping[str, Any], old: dict[str, Any], file: Path) -> None:
        """Writes the settings that a resumed run may change. Refuses fewer epochs than are done."""
        new = {name: config["recipe"][name] for name in FREE if name in config.get("recipe", {})}
        done = int(self._checkpoints()[-1].stem) if self._checkpoints() else 0
        if new.get("epochs", done) < done:
            raise FileError(
                f"the run in {self.path} has done {done} epochs already: resume with Recipe(epochs={done}) or more, or pass "
                "another out="
            )
        before = old.get("recipe", {})
        if all(before.get(name) == value for name, value in new.items()):
            return
        if before.get("epochs") != new["epochs"] and before.get("schedule") in ("cosine", "onecycle"):
            warnings.warn(
                f"the learning rate followed its {before['schedule']} schedule over {before.get('epochs')} epochs and from now "
                f"on follows one over {new['epochs']}: it jumps, and the result is not that of {new['epochs']} epochs at once",
                stacklevel=7,
            )
        write(file, json.dumps({**old, "recipe": {**before, **new}}, indent=1, sort_keys=True).encode())

    def _check_config(self, config: Mapping[str, Any], file: Path, is_part: bool = False) -> dict[str, Any]:
        """Refuses the config of another run; with `is_part`, compares these entries only. Returns that of the folder's run."""
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(there, dict):
                raise ValueError("it is no JSON object")
            there = {name: value for name, value in there.items() if name in config or not is_part}
            if isinstance(there.get("settings"), dict):
                there["settings"] = current_settings(str(there.get("method")), there["settings"])
            if isinstance(recipe := there.get("recipe"), dict) and "best_by" in recipe:
                recipe["best_by"] = current_score(recipe["best_by"])
            old = _flat({**there, **{name: None for name in OWN if name in there}})
        except (OSError, ValueError) as error:
            raise FileError(f"{file} cannot be read (restore it, or pass another out=): {error}") from error
        here = json.loads(json.dumps(config))
        new = _flat({**here, **{name: None for name in OWN if name in here}})
        for name, value in _flat({"recipe": Recipe().settings()}).items():
            if name in new:
                old.setdefault(name, value)  # a setting that recipes did not have when the run was started
        version = old.get("torch")
        if version is not None:
            old["torch"] = new.get("torch")
        changed = [text for name in OWN if (text := _own_change(name, there.get(name), here.get(name)))]
        changed += [
            f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
            for name in new | old
            if name not in {f"recipe.{free}" for free in FREE} and _text(new.get(name)) != _text(old.get(name))
        ]
        if changed:
            raise FileError(
                f"{self.path} has another run: {'; '.join(changed[:6])}. Resume it with the old settings, or pass another out="
            )
        if version != new.get("torch"):
            text = f"the run was started with torch {version} and is resumed with {new['torch']}: results may differ slightly"
            warnings.warn(text, stacklevel=7)
        return dict(there)

    def check_resumed(self, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
        """Refuses, before the work, a part of the config that is of another run, and a model with other tensors."""
        if (self.path / "config.json").exists():
            self._check_config(config, self.path / "config.json", is_part=True)
        self._check_shapes(state)

    def _check_shapes(self, state: Mapping[str, Tensor]) -> None:
        """Refuses a model whose tensors are not those of the last checkpoint, by its header. A damaged one passes here."""
        from safetensors import SafetensorError, safe_open

        for path in self._checkpoints()[-1:]:
            try:
                with safe_open(path, framework="pt") as file:
                    shapes = {name: file.get_slice(name).get_shape() for name in file.keys() if name.startswith(STATE)}  # noqa: SIM118
            except (SafetensorError, OSError, ValueError):
                return
            saved = {name.removeprefix(STATE): torch.empty(shape, device="meta") for name, shape in shapes.items()}
            self.refuse_other_model(tensor_differences(saved, state))

    def refuse_other_model(self, differences: Sequence[str]) -> None:
        """Raises FileError if a model differs from the one that the run trained."""
        if differences:
            raise FileError(
                f"the run in {self.path} trained another model: {'; '.join(differences[:6])}. "
                "Resume with that model, or pass another out="
            )

    def save(self, epoch: int, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Writes a checkpoint, and keeps the one before it. Removes older checkpoints, and unreadable ones of later epochs."""
        new = self.checkpoints / f"{epoch:06d}.safetensors"
        save_tensors(new, "checkpoint", {"epoch": epoch, **about}, tensors)
        files = self._checkpoints()
        upto = [file for file in files if file.name <= new.name]
        for other in {*files} - {*upto[-KEPT:]}:
            other.unlink(missing_ok=True)

    def remove_new_files(self) -> None:
        """Removes the files of a new run that failed in its first epoch, so that the folder can be used again."""
        for file in [*self._new, *self._checkpoints()] if self._new else ():
            file.unlink(missing_ok=True)

    def _checkpoints(self) -> list[Path]:
        """Returns the files of checkpoints, sorted by epoch."""
        return sorted(file for file in self.checkpoints.glob("*.safetensors") if NAME.fullmatch(file.name) and file.is_file())

    def _unfinished(self) -> list[Path]:
        """Returns the temporary files that `write` left when its process was killed."""
        targets = [self.path / name for name in FILES]
        return [file for one in targets for file in one.parent.glob(f".{one.name}.*{UNFINISHED}")]

    def newest(self, warn: Callable[[str], None] | None = None) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Returns the JSON and tensors of the last readable checkpoint, or None. Warns of damaged checkpoints."""
        files = self._checkpoints()[::-1]
        for file in files:
            try:
                return load_tensors(file, "checkpoint")
            except FileError as error:
                if warn is not None:
                    warn(f"{error}; {'using the checkpoint before it' if file != files[-1] else 'starting from epoch 0'}")
        return None

    def log(self, text: str) -> None:
        """Adds a line to the log, with the time."""
        try:
            with (self.path / "log.txt").open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}  {text}\n")
        except OSError as error:
            raise FileError(
                f"cannot write {self.path / 'log.txt'}: {error.strerror or error}. Check permissions and free disk space"
            ) from error

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Overwrites metrics.jsonl with these lines."""
        write(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _own_change(name: str, old: Any, new: Any) -> str:
    """Says how the user's optimizer or scheduler changed: another kind, or settings without torch's private ones."""
    if _text(old) == _text(new):
        return ""
    kinds = [None if one is None else one.get("kind") for one in (old, new)]
    if kinds[0] != kinds[1]:
        was, now = ("the recipe's" if kind is None else kind for kind in kinds)
        return f"{name}= was {was} and is {now}"
    before, after = (_flat({key: value for key, value in one.items() if key != "kind"}) for one in (old, new))
    public = {
        key: last for key in after | before if not (last := key.rpartition(".")[2]).startswith("_") and last != "first_lr"
    }
    changes = [
        f"{last} (was {before.get(key)!r}, is {after.get(key)!r})"
        for key, last in public.items()
        if _text(before.get(key)) != _text(after.get(key))
    ]
    return f"the {kinds[0]} in {name}= has another {', '.join(changes[:3])}" if changes else ""


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested dicts, and of lists of dicts, by dotted names."""
    if isinstance(config, list) and config and all(isinstance(one, Mapping) for one in config):
        config = dict(enumerate(config))
    if not isinstance(config, Mapping):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns an optimizer's state as tensors and numbers. Keys have the parameter's index and the name of the state."""
    tensors, numbers = {}, {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = full_tensor(value)
            else:
                numbers[f"{index}.{name}"] = value
    return tensors, numbers


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Loads the result of `optimizer_tensors` into an optimizer. Learning rates are not restored: the schedule sets them."""
    state: dict[int, dict[str, Any]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in [*tensors.items(), *((f"optimizer.{name}", v) for name, v in numbers.items())]:
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            index = int(number)
            state.setdefault(index, {})[name] = shard_like(value, parameters[index]) if isinstance(value, Tensor) else value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def tensor_differences(checkpoint: Mapping[str, Tensor], ensemble: Mapping[str, Tensor]) -> list[str]:
    """Lists tensors that are missing in the checkpoint, unknown to the ensemble, or of another shape."""
    missing = [f"the checkpoint has no {name}" for name in ensemble if name not in checkpoint]
    unknown = [f"the ensemble has no {name}" for name in checkpoint if name not in ensemble]
    shapes = {name: [list(state[name].shape) for state in (checkpoint, ensemble)] for name in ensemble if name in checkpoint}
    return missing + unknown + [f"{name} is {a} in the checkpoint and {b} here" for name, (a, b) in shapes.items() if a != b]
