"""`make demo` runs, says something about every method, and fits the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import multitudes as mt

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("columns", [80, 140])
def test_demo(columns: int) -> None:
    command = [sys.executable, "-W", "error", "examples/demo.py"]
    env = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    summary = done.stdout.rpartition("all methods")[2]
    ours = [kind.__name__ for kind in mt.Method.all() if kind.__module__.startswith("multitudes.")]
    assert [name for name in ours if f"│ {name} " not in summary] == []
    assert [line for line in done.stdout.splitlines() if len(line) > columns] == []
