"""Numbers printed in papers: parameters exactly, multiply-adds to the printed digits, counted on the meta device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes import models
from multitudes.conversion.plan import Counts


def imagenet(build: Callable[..., nn.Module]) -> nn.Module:
    """A network with the ImageNet stem and a thousand classes."""
    return build(stem="imagenet", classes=1000)


CIFAR: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": models.resnet18,
    "ResNet-50": models.resnet50,
    "ResNet-18, CIFAR-100": lambda: models.resnet18(classes=100),
    "ResNet-50, CIFAR-100": lambda: models.resnet50(classes=100),
    "WideResNet-28-10": models.wideresnet28_10,
    "WideResNet-28-10, biases and late stride": lambda: models.wideresnet28_10(bias=True, late_stride=True),
    "PyramidNet-110-270, CIFAR-100": models.pyramidnet110_270,
}
IMAGENET: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18, ImageNet": lambda: imagenet(models.resnet18),
    "ResNet-50, ImageNet": lambda: imagenet(models.resnet50),
    "ResNet-50×2, ImageNet": models.resnet50x2,
    "ResNet-50×4, ImageNet": models.resnet50x4,
    "ResNeXt-50 32×4d, ImageNet": models.resnext50,
}


def on_meta(net: str) -> tuple[nn.Module, Tensor]:
    """A network and two pictures for it, as shapes only."""
    with torch.device("meta"):
        size = 32 if net in CIFAR else 224
        return {**CIFAR, **IMAGENET}[net](), torch.zeros(2, 3, size, size)


@functools.cache
def counts(net: str, method: mt.Method) -> Counts:
    """What the plan says that a network and an ensemble of it cost, for two pictures."""
    model, x = on_meta(net)
    found = mt.plan(model, method, x).counts
    assert found is not None
    return found


def giga(multiply_adds: int, digits: int) -> str:
    """Multiply-adds for one picture as a table prints them, of a count for two."""
    return f"{multiply_adds / 2e9:.{digits}f}"


def pe(alpha: float, gamma: int) -> mt.Packed:
    """PE-(α, 4, γ)."""
    return mt.Packed(members=4, alpha=alpha, gamma=gamma)


DEEP = mt.Deep(members=4)
TABLE: dict[str, dict[mt.Method, tuple[int, str, int, str]]] = {
    "ResNet-18": {
        DEEP: (11_173_962, "0.555", 4 * 11_173_962, "2.222"),
        pe(2, 2): (11_173_962, "0.555", 8_175_784, "0.481"),
        pe(2, 1): (11_173_962, "0.555", 11_190_440, ""),
        mt.BatchEnsemble(): (11_173_962, "0.555", 11_210_652, ""),
        mt.Masksembles(): (11_173_962, "0.555", 11_173_962, ""),
        mt.MIMO(members=4): (11_173_962, "0.555", 11_194_536, ""),
    },
    "ResNet-50": {
        DEEP: (23_520_842, "1.298", 4 * 23_520_842, "5.191"),
        pe(2, 2): (23_520_842, "1.298", 14_552_232, "1.004"),
        pe(2, 1): (23_520_842, "1.298", 23_596_200, ""),
        mt.BatchEnsemble(): (23_520_842, "1.298", 23_725_468, ""),
    },
    "ResNet-18, CIFAR-100": {pe(2, 2): (11_220_132, "", 8_268_304, "")},
    "ResNet-50, CIFAR-100": {pe(2, 2): (23_705_252, "", 14_921_232, "")},
    "WideResNet-28-10": {
        DEEP: (36_479_194, "", 4 * 36_479_194, ""),
        mt.MIMO(members=3): (36_479_194, "", 36_492_878, ""),
    },
    "WideResNet-28-10, biases and late stride": {mt.Single(): (36_489_290, "5.95", 36_489_290, "5.95")},
    "PyramidNet-110-270, CIFAR-100": {mt.Deep(members=5): (28_511_307, "", 142_556_535, "")},
    "ResNet-18, ImageNet": {mt.Deep(members=5): (11_689_512, "", 58_447_560, "")},
    "ResNet-50, ImageNet": {
        pe(3, 1): (25_557_032, "4.09", 59_087_968, "9.29"),
        mt.MIMO(members=4): (25_557_032, "4.09", 31_732_256, ""),
    },
    "ResNet-50×2, ImageNet": {mt.Single(): (98_004_072, "16.1", 98_004_072, "16.1")},
    "ResNet-50×4, ImageNet": {
        pe(2, 1): (383_571_176, "63.99", 392_016_288, "64.47"),
        mt.BatchEnsemble(): (383_571_176, "63.99", 384_396_364, ""),
        mt.MIMO(members=4): (383_571_176, "63.99", 408_263_072, ""),
    },
    "ResNeXt-50 32×4d, ImageNet": {mt.Single(): (25_028_904, "", 25_028_904, "")},
}
"""By network and method: parameters and multiply-adds in G of the single network, and those of the ensemble."""


@pytest.mark.slow
@pytest.mark.parametrize(("net", "method"), [(net, method) for net, rows in TABLE.items() for method in rows])
def test_the_tables(net: str, method: mt.Method) -> None:
    """Parameters to the last one; multiply-adds to the last digit, where a table prints them."""
    single, single_printed, parameters, printed = TABLE[net][method]
    found = counts(net, method)
    assert (found.base_parameters, found.parameters) == (single, parameters)
    for text, work in ((single_printed, found.base_multiply_adds), (printed, found.multiply_adds)):
        assert not text or giga(work, digits=len(text.partition(".")[2])) == text


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "net"), [(2, "ResNet-50×2, ImageNet"), (4, "ResNet-50×4, ImageNet")])
def test_wide_networks_by_resize(ratio: float, net: str) -> None:
    """ResNet-50 resized is the wide network, to the last tensor, and so is what it and its ensemble cost."""
    (narrow, x), (wide, _) = on_meta("ResNet-50, ImageNet"), on_meta(net)
    resized = mt.resize(narrow, ratio, x)
    assert {n: t.shape for n, t in resized.state_dict().items()} == {n: t.shape for n, t in wide.state_dict().items()}
    method = next(iter(TABLE[net]))
    assert mt.plan(resized, method, x).counts == counts(net, method)


@pytest.mark.slow
@pytest.mark.parametrize(("net", "method"), [(n, m) for n, rows in TABLE.items() for m in rows if isinstance(m, mt.MIMO)])
def test_what_mimo_adds(net: str, method: mt.Method) -> None:
    """M − 1 first layers and heads, in the ensemble as in its plan; compact, only the heads, as many as MultiHead has.

    Packed-Ensembles' Table 10 prints the work of a first layer as wide as M inputs, which prediction has no need of.
    """
    model, x = on_meta(net)
    ens = mt.ensemble(model, method, x)
    first, head = next(p for p in model.parameters()), list(model.parameters())[-2:]
    more = (method.members - 1) * (first.numel() + sum(p.numel() for p in head))
    assert sum(p.numel() for p in ens.parameters()) == counts(net, method).base_parameters + more == TABLE[net][method][2]
    small, heads = ens.compact(), counts(net, mt.MultiHead(members=method.members))
    assert small.plan.counts == heads
    assert sum(p.numel() for p in small.parameters()) == heads.parameters
    wide = counts(net, method).multiply_adds + (method.members - 1) * first[0].numel() * model.conv1(x).numel()
    printed = {"ResNet-50, ImageNet": "4.45", "ResNet-50×4, ImageNet": "65.4"}.get(net, "")
    assert not printed or giga(wide, digits=len(printed.partition(".")[2])) == printed


def test_the_thin_ensemble_of_mimo() -> None:
    """Four networks with half the filters are Packed(4, 2, 1): "thin networks use half the number of filters"."""
    model, _ = on_meta("WideResNet-28-10")
    thin = model.resized(0.5)
    found = counts("WideResNet-28-10", pe(2, 1))
    assert found.parameters == 4 * sum(p.numel() for p in thin.parameters())
    assert [p.shape[0] for p in (thin.conv1.weight, thin.group1[0].conv1.weight, thin.group3[0].conv1.weight)] == [8, 80, 320]


def test_the_deep_perceptron_of_emp() -> None:
    """Table 3: a hundred layers of a hundred units have 1,009,900 parameters, five of them 5,049,500."""
    with torch.device("meta"):
        model = models.emp_mlp()
    assert sum(p.numel() for p in model.parameters()) == 1_009_900 == 5_049_500 // 5
    assert sum(isinstance(part, nn.Linear) for part in model.modules()) == 100
    assert sum(isinstance(part, nn.BatchNorm1d) for part in model.modules()) == 99
