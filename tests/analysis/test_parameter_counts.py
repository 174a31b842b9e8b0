"""Counts of EMP's Table 1: the paper's numbers for its two networks, and a small network by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.analysis import counts
from multitudes.errors import InputError
from multitudes.models.papers import pyramidnet110_270, resnet18

pytestmark = pytest.mark.slow


def small() -> nn.Module:
    """Layers of 4·8 + 8, 2·8 (norm) and 8·3 + 3 parameters: 83."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.slow
def test_a_small_network_by_hand() -> None:
    """Norm and output have 16 and 27 parameters; with K components they have K times as many."""
    net, x = small(), torch.randn(3, 4)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = counts(net, x, components=3)
    rows = {row.name: (row.parameters, row.source) for row in result.rows}
    assert result.parameters == 83
    assert rows == {
        "mean-field Gaussian": (166, "table"), "PBP": (166, "table"), "MNFG": (24900, "table"),
        "dropout": (83, "counted"), "DropConnect": (83, "counted"),
        "EMP": (83 + 2 * 43, "counted"), "ECMP": (83 + 2 * 43, "counted"), "explicit ensemble": (249, "counted"),
    }  # fmt: skip
    assert {row.name: row.overhead for row in result.rows}["EMP"] == pytest.approx(86 / 83)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert "169" in str(result)
    assert result.figure().axes[0].get_title(loc="left") == "Parameters"


def test_other_methods_are_counted_too() -> None:
    result = counts(small(), torch.randn(3, 4), methods=[mt.MultiHead(members=2)])
    assert result.rows[-1].name.startswith("MultiHead(members=2")
    assert result.rows[-1].parameters == 83 + 27


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "size", "printed"),
    [
        (lambda: resnet18(stem="imagenet", classes=1000), 64, (11.7, 23.4, 3510, 13.8, 17.9)),
        (lambda: pyramidnet110_270(classes=100), 32, (28.5, 57.0, 8550, 28.8, 1.10)),
    ],
    ids=["resnet18", "pyramidnet"],
)
def test_the_numbers_of_table_1(network: Callable[[], nn.Module], size: int, printed: tuple[float, ...]) -> None:
    """Millions of parameters of the network, the Gaussian, MNFG and EMP, and EMP's overhead in percent."""
    with torch.device("meta"):
        net, x = network(), torch.zeros(2, 3, size, size)
    result = counts(net, x, methods=[mt.EMP()])
    rows = {row.name: row for row in result.rows}
    single, gaussian, mnfg, emp, overhead = printed
    assert round(result.parameters / 1e6, 1) == single
    assert rows["mean-field Gaussian"].parameters / 1e6 == pytest.approx(gaussian, rel=2e-3)
    assert rows["PBP"].parameters == rows["mean-field Gaussian"].parameters
    assert rows["MNFG"].parameters / 1e6 == pytest.approx(mnfg, rel=2e-3)
    assert round(result.rows[-1].parameters / 1e6, 1) == emp
    assert 100 * result.rows[-1].overhead == pytest.approx(overhead, rel=5e-3)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="ReLU has no parameters"):
        counts(nn.ReLU(), torch.randn(3, 4))
    with pytest.raises(InputError, match="components must be"):
        counts(small(), torch.randn(3, 4), components=0)
    with pytest.raises(InputError, match=r"MIMO.*cannot convert.*methods="):
        counts(nn.Sequential(nn.Linear(4, 2)), torch.randn(3, 4), methods=[mt.MIMO()])
