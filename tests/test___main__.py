"""`python -m multitudes` is the shell."""

from __future__ import annotations

import subprocess
import sys


def test_it_is_the_shell() -> None:
    done = subprocess.run([sys.executable, "-m", "multitudes", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "bench" in done.stdout
