"""The field's libraries take our arrays: the examples run, and what they print is right.

In the environment of `make zoo`, which has MAPIE, TorchCP and pytorch-ood.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """What an example's main returns, and what it prints."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.main(), capsys.readouterr().out


def test_mapie(capsys: pytest.CaptureFixture[str]) -> None:
    """Intervals cover what they promise; those by our uncertainty are the narrower ones where noise varies.

    Sets are those of test_conformal.py.
    """
    found, printed = run("conformal_mapie", capsys)
    assert {name for name, (coverage, _) in found.items() if not 0.92 <= coverage <= 0.98} == set()
    assert found["by pred.std"][1] < 0.8 * found["absolute"][1]
    assert "asked for 95% coverage" in printed
    assert f"{found['absolute'][0]:.3f}" in printed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what TorchCP imports
def test_torchcp(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets cover what they promise, and those of arrays are those that TorchCP finds by running `ens.average()` itself."""
    sorting = ModuleType("torchsort")  # has to be compiled for each torch, and one loss of TorchCP alone uses it
    sorting.soft_rank = sorting.soft_sort = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchsort", sorting)
    found, printed = run("conformal_torchcp", capsys)
    assert {name for name, (coverage, _) in found.items() if not 0.92 <= coverage <= 1} == set()
    assert found["LAC"] == pytest.approx(found["LAC, average()"], abs=2e-3)
    assert "asked for 95% coverage" in printed
    assert f"{found['APS'][0]:.3f}" in printed


def test_pytorch_ood(capsys: pytest.CaptureFixture[str]) -> None:
    """Its detectors on our arrays are our own scores, its metrics are ours, and unknown digits are found."""
    found, printed = run("ood_pytorch_ood", capsys)
    for theirs, ours in (("MaxSoftmax", "1 − pred.confidence"), ("MaxLogit", "−pred.max_logit")):
        assert found[theirs] == pytest.approx(found[ours], abs=1e-3)
    energies = found["pred.energy"]["AUROC"], found["EnergyBased"]["AUROC"]  # the mean of the members', and that of their mean
    assert energies[0] == pytest.approx(energies[1], abs=0.01)
    own = found["mt.score"]
    for theirs, ours in (("1 − pred.confidence", "msp"), ("pred.energy", "energy"), ("pred.entropy", "entropy")):
        assert own[f"ood/auroc/{ours}"] == pytest.approx(found[theirs]["AUROC"], abs=1e-6)
        assert own[f"ood/fpr95/{ours}"] == pytest.approx(found[theirs]["FPR95TPR"], abs=1e-6)
        area = found[theirs]["AUPR-OUT"]  # between points they draw a line
        assert own[f"ood/aupr_out/{ours}"] == pytest.approx(area, abs=5e-3)
    assert found["pred.entropy"]["AUROC"] > 0.85
    assert f"{own['ood/auroc/msp']:.4f}" in printed


def test_timm(capsys: pytest.CaptureFixture[str]) -> None:
    """The example loads weights of a file, prepares images as the network's configuration says, and scores an ensemble."""
    found, printed = run("timm_weights", capsys)
    assert {"accuracy", "nll"} <= found.keys()
    assert "mean=(0.485, 0.456, 0.406)" in printed
    assert "MultiHead" in printed


def test_examples_are_short() -> None:
    """Those for other libraries show one thing each."""
    names = ["conformal*", "ood*", "regression*", "timm*", "hf*", "lightning*", "sklearn*"]
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines()) for name in names for path in EXAMPLES.glob(f"{name}.py")
    }
    assert len(lengths) > 8
    assert {name for name, length in lengths.items() if length >= 60} == set()
