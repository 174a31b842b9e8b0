"""`python -m multitudes` is the shell, and its help does not wait for torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCK_TORCH = """
import sys
sys.modules["torch"] = None  # importing it is now an ImportError
"""
AS_MODULE = """
import runpy
sys.argv = ["multitudes", *sys.argv[1:]]
runpy.run_module("multitudes", run_name="__main__")
"""
EVERY = """
from multitudes.shell.commands import main
for command in sys.argv[1:]:
    try:
        main([command, "--help"])
    except SystemExit as end:
        assert end.code == 0, end.code
"""
COMMANDS = ("init", "bench", "train", "predict", "score", "report", "plan")
SECONDS = 2.0
"""Processor time that the help may take: torch alone takes more."""

REFUSALS = """
import os
from pathlib import Path
from multitudes.shell.commands import main
os.chdir(sys.argv[1])
Path("run").mkdir()
Path("run/config.json").write_text("{}")
Path("run/command.json").write_text('{"method": "deep"}')
Path("there.csv").touch()
for line in ["train --out run", "train --out run --resume --method packed", "predict run --out there.csv",
             "predict run --out a.txt", "report run --out there.csv", "init there.csv"]:
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code in (1, 2), (line, end.code)
"""

TIMED = """
import sys, time
from multitudes.shell.commands import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(f"seconds {time.process_time()}")
"""


def run(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_works_without_torch() -> None:
    text = run(BLOCK_TORCH + AS_MODULE, "--help")
    assert all(f" {command} " in text for command in COMMANDS)


def test_help_of_every_command_works_without_torch() -> None:
    """In one process: the commands are the same objects as in six."""
    text = run(BLOCK_TORCH + EVERY, *COMMANDS)
    assert all(f"multitudes {command} " in text for command in COMMANDS)


def test_refusals_of_folders_and_files_do_not_wait_for_torch(tmp_path: Path) -> None:
    """What is there already is seen before anything is imported, and long before anything is trained."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCK_TORCH + REFUSALS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert [line.startswith("multitudes: ") for line in said] == [True] * 6
    for line, flags in zip(said, (("--resume", "--force", "--out"), ("--method was deep", "--out")), strict=False):
        assert all(flag in line for flag in flags)


def test_help_is_quick() -> None:
    assert float(run(TIMED, "--help").split("seconds ")[1]) < SECONDS
