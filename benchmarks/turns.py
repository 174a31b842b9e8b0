"""python -m benchmarks.turns FILE: runs commands at once that measure in turn, to fill a GPU that one has for minutes.

Each line of the file is the arguments of one `python -m benchmarks`. The commands convert and compile side by side. One at a
time measures, while the processes of the others are stopped. Each writes its rows to a file of its own in --folder; seconds of
first calls are left out, since other work was going on. `--merge` adds the rows to results/speed.json.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = "MULTITUDES_TURNS"
"""Names the folder of the processes that measure in turn, in the environment of each."""
THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Each process has its own: one that is stopped may hold a lock on what is common."""
QUIET = 0.4
"""Seconds until the work that stopped processes have given to a GPU is done."""


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Waits for this process's turn, and stops the others in a with-block. Alone, does nothing."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        yield
        return
    with (Path(folder) / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [int(path.stem) for path in Path(folder).glob("*.pid") if int(path.stem) != os.getpgrp()]
        try:
            _tell(others, signal.SIGSTOP)
            time.sleep(QUIET)
            yield
        finally:
            _tell(others, signal.SIGCONT)


def in_turns() -> bool:
    """Whether other processes work beside this one."""
    return FOLDER in os.environ


def _tell(groups: list[int], what: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, what)


def run(commands: list[str], folder: Path, seconds: float) -> None:
    """Runs all commands, and kills those that are not done in time."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.pid"):
        old.unlink()
    threads = str(max(1, len(os.sched_getaffinity(0)) // len(commands)))  # more would wait for each other
    running = []
    for number, command in enumerate(commands):
        given = [*shlex.split(command), "--out", str(folder / f"{number}.json")]
        caches = {name: str(folder / f"cache{number}") for name in CACHES}
        one = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", *given],
            env={**os.environ, **dict.fromkeys(THREADS, threads), **caches, FOLDER: str(folder)},
            start_new_session=True,
        )
        (folder / f"{one.pid}.pid").touch()
        running.append(one)
    until = time.monotonic() + seconds
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(max(0.0, until - time.monotonic()))
    for one in running:
        if one.poll() is None:
            print(f"not done in {seconds:.0f} s: {shlex.join(one.args[3:])}", flush=True)  # type: ignore[arg-type]
            _tell([one.pid], signal.SIGKILL)
        (folder / f"{one.pid}.pid").unlink()


def merge(folder: Path, out: Path) -> None:
    """Adds the rows of a folder to a file of results."""
    from benchmarks.speed import keep

    for path in sorted(folder.glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            keep(out, [row], row["machine"])


def main() -> None:
    """Reads the arguments, and runs the commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, default=Path("build/turns"))
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds after which all are killed")
    parser.add_argument("--merge", action="store_true", help="add the rows of --folder to results/speed.json")
    given = parser.parse_args()
    if given.file:
        lines = [line.strip() for line in given.file.read_text().splitlines()]
        run([line for line in lines if line and not line.startswith("#")], given.folder, given.seconds)
    if given.merge:
        merge(given.folder, Path("results/speed.json"))


if __name__ == "__main__":
    main()
