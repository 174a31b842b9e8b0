"""What the items of Ensemble Model Patching run: the laws that must hold in smoke."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.data import Data
from multitudes.shell.reproduce.catalog import find_item
from multitudes.shell.reproduce.results import Measured
from multitudes.shell.reproduce.work import emp


@pytest.mark.slow
def test_components_are_drawn_as_often_as_expected() -> None:
    """Table 2: five components alike, and zeros at the rate of dropout."""
    for label, row in emp.table_2("smoke", 0, None).rows.items():
        spread = 4 * math.sqrt(row["expected"] * (1 - row["expected"]) / row["draws"])
        assert row["drawn"] == pytest.approx(row["expected"], abs=spread), label


@pytest.mark.slow
def test_every_count() -> None:
    """Tables 1, 3 and 4 to the printed digits, for the networks of smoke."""
    item = find_item("emp/table-3")
    for label, row in emp.table_3("smoke", 0, None).rows.items():
        for name, value in row.items():
            assert int(value) == item.printed.rows[label][name].value, f"{label}, {name}"
    patched = emp.table_1("smoke", 0, None).rows["Ensemble Model Patching"]
    assert f"{patched['ResNet-18 (M)']:.1f}" == "13.8" and f"{patched['overhead (%)']:.1f}" == "17.9"
    overheads = {label: 100 * row["overhead"] for label, row in emp.table_4_counts("smoke", 0, None).rows.items()}
    for label, row in find_item("emp/table-4").printed.rows.items():
        theirs = row["Overhead (%)"]
        assert f"{overheads[label]:.{theirs.digits}f}" == theirs.text, label


def test_draws_on_imagenet_are_counted_without_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables 9 to 11: scores of 1 and 4 draws of a prediction that kept the mixture alone are those of its first members."""
    monkeypatch.setattr(emp, "DRAWS", (1, 4))
    images = Data(torch.randn(64, 4), torch.randint(6, (64,)), "images")
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
    ens = mt.ensemble(net, mt.EMP(members=4), images.inputs[:8]).eval()
    whole = mt.predict(ens, images)
    found = emp._measure_again(images, ens, mt.predict(ens, images, moments_only=True))
    for count in (1, 4):
        scores = mt.score(whole.subset(range(count)), bins=20, drop=5)
        for name in ("top5", "accuracy", "ece", "mce"):
            assert found[f"imagenet/{count}/{name}"] == pytest.approx(scores[name], abs=1e-6)
    item = find_item("emp/table-9")
    assert item.job("imagenet", "full") == "emp/table-4/imagenet@full"
    assert item.job("cifar100", "full") == "emp/table-6/cifar100@full"
    run = Measured(seed=0, job="imagenet", scores={}, measured=found, key="4")
    assert run.value(item.columns["ImageNet, Top-1"]) == pytest.approx(100 * found["imagenet/4/accuracy"])


@pytest.mark.slow
def test_functions_of_dropout_have_weights_of_the_prior() -> None:
    """Fig. 3: weights are N(0, 5) or dropped, so that H = 100 units give 100 · 5 · ½ + 20, and 100 · 5 + 20 without dropout."""
    rows = emp.fig_3("smoke", 0, None).rows
    for label, expected in (("Gaussian prior", 520), ("Dropout", 270), ("EMP", 520), ("ECMP", 520)):
        variance = (float(rows[label]["variance at 0"]) + float(rows[label]["variance at 4"])) / 2
        assert expected / 1.6 < variance < expected * 1.6, label
    assert rows["Dropout"]["jumps"] < 0.4 * rows["EMP"]["jumps"]


def test_the_density_without_error() -> None:
    """Tables 12 and 13: with τ = 0.1 it is ½ log(τ / 2π), the −2.07 of sets whose errors are small."""
    x = torch.linspace(-1, 1, 8)[:, None]
    net = nn.Linear(1, 1)
    nn.init.ones_(net.weight)
    nn.init.zeros_(net.bias)
    ens = mt.ensemble(net, mt.Deep(members=2), x, task="regression", start="copies")
    with pytest.warns(UserWarning, match="collapsed"):
        scores = mt.score(mt.predict(ens, Data(x, x, "line"), tau_output=0.1))
    assert scores["lpd"] == pytest.approx(0.5 * math.log(0.1 / (2 * math.pi)), abs=1e-6)
    assert f"{scores['lpd']:.2f}" == find_item("emp/table-13").printed.rows["Kin8nm, EMP"]["LPD"].text
