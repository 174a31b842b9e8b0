"""What the package promises before anything is called: names, version, types; an import that is quick and touches no GPU."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from importlib.resources import files
from statistics import median
from types import ModuleType
from typing import Any

import pytest

import multitudes as mt

PUBLIC = """
    BatchEnsemble CheckError ConversionError Deep DropConnect ECMP EMP Ensemble FileError InputError Inputs MCDropout
    GaussianNLL MIMO Masksembles Method MultiHead MultitudesError Packed Prediction Recipe RunError Single TreeNet
    calibrate check cost ensemble fit load masks plan predict recommend report resize save score select threshold
""".split()

IMPORT = """
import json, sys, time

start = time.process_time()
import torch
beside = time.process_time() - start

before, touched = set(sys.modules), []
for name in ("_lazy_init", "init", "is_available", "device_count", "current_device"):
    setattr(torch.cuda, name, lambda *args, _name=name, **kwargs: touched.append(_name))
start = time.process_time()
import multitudes
print(json.dumps({
    "share": (time.process_time() - start) / beside,
    "modules": sorted(set(sys.modules) - before),
    "touched": touched,
    "initialised": torch.cuda.is_initialized(),
}))
"""


@pytest.fixture(scope="module")
def imports() -> list[dict[str, Any]]:
    """What an import takes and does in a fresh interpreter, torch being there already; three times."""
    command = [sys.executable, "-W", "error", "-c", IMPORT]
    return [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]


def test_import_is_quick(imports: list[dict[str, Any]]) -> None:
    """About a tenth of what torch takes: of processor time, as others may be at work."""
    assert median(report["share"] for report in imports) <= 0.2


def test_import_touches_no_gpu(imports: list[dict[str, Any]]) -> None:
    assert [report["touched"] for report in imports] == [[], [], []]
    assert [report["initialised"] for report in imports] == [False, False, False]


def test_import_leaves_heavy_packages_alone(imports: list[dict[str, Any]]) -> None:
    late = (
        "rich", "torch_pruning", "timm", "unittest", "safetensors", "transformers", "matplotlib", "torchmetrics",
        "torch._dynamo", "torch._inductor",
    )  # fmt: skip
    found = [name for name in imports[0]["modules"] if any(name == heavy or name.startswith(f"{heavy}.") for heavy in late)]
    assert found == []


def test_public_names_are_these() -> None:
    names = [name for name, value in vars(mt).items() if not name.startswith("_") and not isinstance(value, ModuleType)]
    assert sorted(names) == sorted(PUBLIC)
    assert len(names) <= 40


def test_public_names_are_documented() -> None:
    assert [name for name in PUBLIC if not (getattr(mt, name).__doc__ or "").strip()] == []


def test_every_method_is_public() -> None:
    ours = [kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.")]
    assert [kind.__name__ for kind in ours if getattr(mt, kind.__name__, None) is not kind] == []


def test_version_is_that_of_the_installed_package() -> None:
    found = importlib.metadata.version("multitudes")
    assert mt.__version__ == found, "the version changed since the install: touch pyproject.toml, and make installs anew"


def test_types_are_shipped() -> None:
    assert files("multitudes").joinpath("py.typed").is_file()
