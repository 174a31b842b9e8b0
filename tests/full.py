"""What is slow, group by group: `make test-full`.

A group is a test module that holds tests marked slow; there is no list to keep. Each runs in a pytest of its own with the
options given here; a failure does not stop the rest. Exits with 1 if a group fails or turns out to be empty.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHOICE = "slow and not gpu"
VERDICTS = {0: "passed", 1: "FAILED", 2: "INTERRUPTED", 3: "INTERNAL ERROR", 4: "USAGE ERROR", 5: "NO TESTS"}


class Collected:
    """A pytest plugin that remembers the modules of the tests that were chosen, and those that could not be read."""

    def __init__(self) -> None:
        self.modules: set[Path] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.modules.add(ROOT / report.nodeid.partition("::")[0])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.modules.update(item.path for item in session.items)


def groups() -> list[Path]:
    """The modules with slow tests, those that cannot be read, and all of tests/slow: one without slow tests is a failure."""
    collected, output = Collected(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-m", CHOICE, "tests"], plugins=[collected])
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
        sys.exit(f"{output.getvalue()}\nthe tests cannot be collected")
    return sorted(collected.modules | set((ROOT / "tests" / "slow").rglob("test_*.py")))


def run(module: Path, options: list[str]) -> tuple[str, float, int]:
    """One group's name, wall time in seconds and exit code."""
    name = str(module.relative_to(ROOT))
    print(f"\n=== {name}", flush=True)
    start = time.perf_counter()
    code = subprocess.run([sys.executable, "-m", "pytest", "-m", CHOICE, *options, name], cwd=ROOT, check=False).returncode
    seconds = time.perf_counter() - start
    print(f"=== {name}: {verdict(code)} in {seconds:.1f} s", flush=True)
    return name, seconds, code


def verdict(code: int) -> str:
    return VERDICTS.get(code, f"KILLED ({code})")


def main(options: list[str]) -> int:
    os.chdir(ROOT)
    seed = os.environ.setdefault("MULTITUDES_SEED", time.strftime("%Y%m%d", time.gmtime()))
    print(f"seed {seed}; to repeat this run: make test-full SEED={seed}", flush=True)
    found = groups()
    if not found:
        print("no test is marked slow")
        return 1
    results = [run(module, options) for module in found]
    width = max(len(name) for name, _, _ in results)
    print(f"\nseed {seed}\n{'group':<{width}}  {'seconds':>8}  result")
    for name, seconds, code in results:
        print(f"{name:<{width}}  {seconds:>8.1f}  {verdict(code)}")
    print(f"{'together':<{width}}  {sum(seconds for _, seconds, _ in results):>8.1f}")
    return int(any(code for _, _, code in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
