"""Told: what a run was told on the command line. It lies in the run's folder, so that later commands need no repetition."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from multitudes.errors import FileError, InputError

FILE, CONFIG = "command.json", "config.json"
CHECKPOINTS = "checkpoints/[0-9]*.safetensors"

RUN_FILES = (
    CONFIG, "metrics.jsonl", "log.txt", "best.multitude", "last.multitude", "row.json", "row.safetensors", FILE,
    CHECKPOINTS,
)  # fmt: skip
"""All files of a run, as globs."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """The options of `multitudes train` that say what is trained. None: the default, which may be the job's."""

    job: str = "fashion"
    method: str = "packed"
    model: str | None = None
    epochs: int | None = None
    lr: float | None = None
    seed: int = 0
    name: str | None = None
    root: str | None = None
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    """The folder of the command, where the job's module may lie."""

    def options(self) -> dict[str, Any]:
        """Returns the options that differ from their defaults, by name."""
        given = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in given.items() if value != getattr(DEFAULTS, name)}

    def command(self, out: Path) -> str:
        """Returns the command that repeats the run."""
        always = {"job": self.job, "method": self.method, "seed": self.seed}
        words = ["multitudes", "train"]
        for name, value in {**always, **self.options()}.items():
            words += [f"--{name}", str(value)]
        return shlex.join([*words, "--out", str(out)])

    def save(self, folder: Path) -> None:
        """Writes the options into a run's folder, which is created if missing."""
        from multitudes.storage import write

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot create the folder {folder}: {error.strerror or error}. Choose another --out") from error
        write(folder / FILE, json.dumps(dataclasses.asdict(self), indent=1).encode())

    @contextlib.contextmanager
    def saved(self, folder: Path) -> Iterator[None]:
        """Writes the options into a run's folder. If the run is refused, its options and its config are as before."""
        from multitudes.storage import write

        before = {file: _bytes(file) for file in (folder / FILE, folder / CONFIG)}
        done = _checkpoints(folder)
        self.save(folder)
        try:
            yield
        except (FileError, InputError):  # not RunError: a run that was accepted may fail later
            for file, content in before.items() if _checkpoints(folder) == done else ():
                file.unlink(missing_ok=True) if content is None else write(file, content)
            raise

    @classmethod
    def load(cls, run: Path) -> Told | None:
        """Reads the options of a run from its folder, or from that of its file; None if they were not saved."""
        folder = run if run.is_dir() else run.parent
        file = folder / FILE
        if not file.is_file():
            return _of_row(folder)
        from multitudes.files.old_settings import current_text, with_job

        try:
            options = with_job(json.loads(file.read_text(encoding="utf-8")))
            return cls(**{**options, "method": current_text(options["method"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FileError(f"{file} cannot be read: remove it, and give --job and --model ({error})") from error

    def find_modules(self) -> None:
        """Lets modules be found in the folder where the run was started, too."""
        if Path(self.folder).is_absolute() and self.folder not in sys.path:
            sys.path.append(self.folder)


NAMED = 12
"""Most runs of a folder that an error names."""

OPTIONS = ("job", "method", "model", "epochs", "lr", "seed", "name", "root")
DEFAULTS = Told()
FREE = ("epochs", "name", "root")
"""Options that a resumed run may change."""


def _of_row(folder: Path) -> Told | None:
    """Returns the job of a trial that has a row, but no command.json: older versions wrote none."""
    from multitudes.files.old_settings import with_job

    try:
        job = with_job(json.loads((folder / "row.json").read_text(encoding="utf-8"))["settings"])["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Told(job=job) if isinstance(job, str) else None


def has_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return (folder / CONFIG).exists()


def check_one_run(folder: Path) -> None:
    """Refuses a folder that holds runs, such as that of a sweep, where one run is meant, and names its runs."""
    if not folder.is_dir() or has_run(folder) or (folder / "row.json").is_file() or any(folder.glob("*.multitude")):
        return
    inside = sorted({file.parent.name for name in (CONFIG, "row.json") for file in folder.glob(f"*/{name}")})
    if inside:
        names = ", ".join(inside[:NAMED]) + (", ..." if len(inside) > NAMED else "")
        raise InputError(f"{folder} holds runs: {names}. Give one of them, such as {folder / inside[0]}")


def told_to_train(out: Path, given: dict[str, Any], resume: bool) -> Told:
    """Returns the options of a new run, or with `resume` those of the run in the folder, which need not be repeated.

    Raises FileError if the folder holds a run that would be replaced, or one that was told otherwise.
    """
    if not has_run(out):
        if resume:
            check_one_run(out)
        if resume and ("job" not in given or _is_misspelt(out, Told(**given))):
            raise _no_run(out)
        return Told(**given)
    if not resume:
        raise FileError(f"{out} already has a run: continue it with --resume, replace it with --force, or choose another --out")
    done = max((int(file.stem) for file in out.glob(CHECKPOINTS)), default=0)
    if given.get("epochs", done) < done:
        raise FileError(
            f"the run in {out} has done {done} epochs already: type --epochs {done} or more, or choose another --out"
        )
    old = Told.load(out)
    if old is None:
        return Told(**given)
    before = {key: getattr(old, key) for key in given if key not in FREE}
    changed = [
        f"--{key} was {'that of the job' if value is None else value}, not {given[key]}"
        for key, value in before.items()
        if value != given[key]
    ]
    if changed:
        raise FileError(f"{out} holds another run: {'; '.join(changed)}. Leave that out, or choose another --out")
    return dataclasses.replace(old, **given)


def _no_run(out: Path) -> InputError:
    """Makes the error for a folder to resume that holds no run: it suggests the run beside it with the nearest name."""
    near = _beside(out)
    hint = f": did you mean {near[0]}?" if near else "."
    return InputError(f"there is no run in {out}{hint} To start one there, give --job, and leave --resume out")


def _beside(out: Path) -> list[Path]:
    """Returns the runs beside a folder with a similar name, the nearest first."""
    beside = [file.parent.name for file in out.parent.glob(f"*/{CONFIG}")]
    return [out.parent / name for name in get_close_matches(out.name, beside)]


def _is_misspelt(out: Path, told: Told) -> bool:
    """Whether a run beside a folder without one has a similar name and was told the very same: it is the one that is meant.

    A command that starts or resumes each of several runs, such as one per seed, tells each something else.
    """
    others = [other for folder in _beside(out) if (other := Told.load(folder)) is not None]
    return any(
        all(getattr(other, key) == getattr(told, key) for key in (*OPTIONS, "folder") if key not in FREE) for other in others
    )


def _checkpoints(folder: Path) -> dict[str, int]:
    """Returns when each checkpoint of a run was written, by its name."""
    return {file.name: file.stat().st_mtime_ns for file in folder.glob(CHECKPOINTS)}


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def remove_run(folder: Path) -> None:
    """Removes the files of a run, and nothing else, from its folder."""
    for file in [file for name in RUN_FILES for file in folder.glob(name)]:
        file.unlink(missing_ok=True)
