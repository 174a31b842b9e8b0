"""A network that looks trained is not initialised anew without a word."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.conversion.anatomy.trained import trained_layer

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def network(norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.ReLU(), nn.ReLU(), nn.Linear(8, 3))


def trained(norm: bool = True) -> nn.Sequential:
    net = network(norm)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), torch.arange(16) % 3).backward()
        optimizer.step()
    optimizer.zero_grad()
    return net


@pytest.mark.parametrize(
    ("method", "norm", "text"),
    [
        (mt.Deep(members=2), True, r"look trained, since .* start='copies' .*BatchEnsemble.*a factory"),
        (mt.Deep(members=2), False, "an optimizer has changed 0"),
        (mt.Packed(members=2, alpha=1), True, r"Packed starts .* keep the weights: Packed\(pretrained=True\)"),
        (mt.MultiHead(members=2), True, "an optimizer has changed 3"),
    ],
)
def test_trained_weights_that_are_not_used(method: mt.Method, norm: bool, text: str) -> None:
    net = trained(norm)
    with pytest.warns(UserWarning, match=text):
        ens = mt.ensemble(net, method, X, check=False)
    assert any("look trained" in note for note in ens.plan.notes)


def test_norms_from_a_file() -> None:
    net = network()
    net.load_state_dict(trained().state_dict())
    with pytest.warns(UserWarning, match="the norm 1 has learnt"):
        mt.ensemble(net, mt.Deep(members=2), X, check=False)


def drawn_scale() -> nn.Module:
    net = network()
    nn.init.normal_(net[1].weight, 1.0, 0.02)  # type: ignore[arg-type]
    return net


def alarms(model: Any, method: mt.Method, **options: Any) -> list[str]:
    """Returns what a conversion warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mt.ensemble(model, method, X, check=False, **options)
    return [str(warning.message) for warning in told]


def tried() -> nn.Module:
    net = network()
    net(X).sum().backward()
    return net


def new_head() -> nn.Module:
    net = trained()
    net[3] = nn.Linear(8, 3)
    return net


def frozen() -> nn.Module:
    net = trained()
    net[:2].requires_grad_(False)
    net[3] = nn.Linear(8, 3)
    return net


@pytest.mark.parametrize(
    ("model", "method", "options"),
    [
        (network, mt.Deep(members=2), {}),
        (drawn_scale, mt.Deep(members=2), {}),
        (tried, mt.Deep(members=2), {}),
        (frozen, mt.Deep(members=2), {}),
        (new_head, mt.MultiHead(members=2), {}),
        (trained, mt.Deep(members=2), {"start": "copies"}),
        (trained, mt.Packed(members=2, alpha=1, pretrained=True), {}),
        (trained, mt.BatchEnsemble(members=2), {}),
        (trained, mt.Single(), {}),
    ],
)
def test_no_false_alarm(model: object, method: mt.Method, options: dict[str, str]) -> None:
    assert alarms(model(), method, **options) == []  # type: ignore[operator]


def test_a_factory_means_a_new_start() -> None:
    assert len(alarms(trained(), mt.Deep(members=2))) == 1
    assert alarms(lambda: trained(), mt.Deep(members=2)) == []


def test_tensors_that_torch_does_not_count() -> None:
    with torch.inference_mode():
        net = network(norm=False)
    assert trained_layer(net, ["0", "3"]) == ""


def test_a_frozen_norm_keeps_its_statistics() -> None:
    net = frozen()
    ens = mt.ensemble(net, mt.Deep(members=2), X, check=False).eval()
    net.eval()
    torch.testing.assert_close(ens.member(1)[:3](X), net[:3](X))  # type: ignore[index]
