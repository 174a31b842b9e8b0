"""`make demo`: a method that learns slowly, by the demo's own budget, and the page that it ends in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_a_slow_learner_reaches_four_in_five(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "multitudes", "bench", "--out", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(
        [*command, "--methods", "masksembles"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row["scores"]["accuracy"] for row in json.loads(done.stdout)["rows"]}
    assert set(found) == {"masksembles"}
    assert min(found.values()) >= 0.8, found
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000


@pytest.mark.slow
def test_the_makefile_runs_the_same() -> None:
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m multitudes bench --out runs/demo" in done.stdout
