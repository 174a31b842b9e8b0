"""What multitudes.data promises before a set is read."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

from multitudes import data

PUBLIC = """
    Data Frames cifar10 cifar100 cifar_c digits fashion fashion_mnist folder frames grouped imagenet_c kmnist mnist
    noisy_function notmnist objectnet of scenes sinusoids svhn uci
""".split()


def test_public_names_are_these_and_documented() -> None:
    names = {name for name, value in vars(data).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert names >= set(PUBLIC)
    assert [name for name in PUBLIC if not (getattr(data, name).__doc__ or "").strip()] == []


IMPORT = """
import json, sys
import multitudes
before = "multitudes.data" in sys.modules
import multitudes.data
print(json.dumps([before, [name for name in ("PIL", "scipy") if name in sys.modules]]))
"""


def test_importing_it_needs_no_extras() -> None:
    """It comes with multitudes, which trains on it."""
    found = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [True, []]
