"""Promises of the package before anything is called: names, version, types, a quick import that touches no GPU."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import pydoc
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import multitudes as mt

PUBLIC = """
    BatchEnsemble CheckError ConversionError Deep DropConnect ECMP EMP Ensemble FileError InputError Inputs MCDropout
    GaussianNLL Laplace MIMO Masksembles Method MultiHead MultitudesError Packed Prediction Recipe RunError Single TreeNet
    SWAG Snapshot
    calibrate check conformal cost ensemble export find_lr fit load masks plan predict recommend report resize save score
    select threshold
""".split()

LONGEST = 0.2
"""The longest import of multitudes, as a share of torch's."""

IMPORT = """
import gc, json, sys, time

gc.disable()  # a collection looks through all of torch's objects, and would be counted for whoever allocates next
start = time.process_time()
import torch
beside = time.process_time() - start

before, touched = set(sys.modules), []
for name in ("_lazy_init", "init", "is_available", "device_count", "current_device"):
    setattr(torch.cuda, name, lambda *args, _name=name, **kwargs: touched.append(_name))
start = time.process_time()
import multitudes
for name in multitudes.__all__:
    getattr(multitudes, name)
print(json.dumps({
    "share": (time.process_time() - start) / beside,
    "modules": sorted(set(sys.modules) - before),
    "touched": touched,
    "initialised": torch.cuda.is_initialized(),
}))
"""


@pytest.fixture(scope="module")
def imports() -> list[dict[str, Any]]:
    """Time and effects of an import in a fresh interpreter that has torch; up to three times, as others may be at work."""
    command, reports = [sys.executable, "-W", "error", "-c", IMPORT], []
    while len(reports) < 3 and min((report["share"] for report in reports), default=1) > LONGEST:
        reports.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return reports


def test_import_is_quick(imports: list[dict[str, Any]]) -> None:
    """About a tenth of the processor time of torch's own import."""
    assert min(report["share"] for report in imports) <= LONGEST


def test_import_touches_no_gpu(imports: list[dict[str, Any]]) -> None:
    assert imports[0]["touched"] == []
    assert not imports[0]["initialised"]


def test_import_leaves_heavy_packages_alone(imports: list[dict[str, Any]]) -> None:
    late = (
        "rich", "torch_pruning", "timm", "unittest", "safetensors", "transformers", "matplotlib", "torchmetrics",
        "torch._dynamo", "torch._inductor",
    )  # fmt: skip
    found = [name for name in imports[0]["modules"] if any(name == heavy or name.startswith(f"{heavy}.") for heavy in late)]
    assert found == []


def test_public_names_are_these() -> None:
    assert sorted(mt.__all__) == sorted(PUBLIC)
    assert len(PUBLIC) <= 48


def test_type_checkers_see_the_same_names() -> None:
    """The imports under TYPE_CHECKING are those of `__getattr__`."""
    tree = ast.parse(Path(mt.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"multitudes.{home}" for name, home in mt._HOME_OF.items()}


@pytest.mark.slow
def test_type_checkers_know_wrong_names(tmp_path: Path) -> None:
    """A misspelt name is an error for mypy, a public one has its type."""
    user = tmp_path / "user.py"
    user.write_text("import multitudes as mt\nreveal_type(mt.Packed(members=4))\nmt.Pakced\n")
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--config-file", "", str(user)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "multitudes.methods.packed.Packed" in shown
    assert 'has no attribute "Pakced"' in shown


def test_completion_shows_public_names_alone() -> None:
    assert sorted(name for name in dir(mt) if not name.startswith("_")) == sorted(PUBLIC)


def test_help_says_what_names_are_for() -> None:
    text = pydoc.plain(pydoc.render_doc(mt))
    assert [name for name in PUBLIC if name not in str(mt.__doc__)] == []
    assert [name for name in PUBLIC if f"{name}(" not in text and f"class {name}" not in text] == []


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Pakced'"):
        mt.Pakced  # noqa: B018


def test_import_waits_for_a_name() -> None:
    """torch is imported with the first name; modules do not hide functions of the same name; all methods are known."""
    code = (
        "import sys, multitudes as mt; assert 'torch' not in sys.modules; mt.InputError; assert 'torch' not in sys.modules\n"
        "from multitudes.method import Method; assert len(Method.all()) == 15, Method.all()\n"
        "import multitudes.ensemble, multitudes.report.page\n"
        "assert callable(mt.ensemble) and callable(mt.report) and mt.scores.calibration and mt.method.Layout\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_documented() -> None:
    assert [name for name in PUBLIC if not (getattr(mt, name).__doc__ or "").strip()] == []


def test_every_method_is_public() -> None:
    ours = [kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")]
    assert [kind.__name__ for kind in ours if getattr(mt, kind.__name__, None) is not kind] == []


def test_version_is_that_of_the_installed_package() -> None:
    found = importlib.metadata.version("multitudes")
    assert mt.__version__ == found, "the version changed since the install: touch pyproject.toml, and make installs anew"


def test_types_are_shipped() -> None:
    assert files("multitudes").joinpath("py.typed").is_file()
