"""Converted layers: a layer that has a name of its own which the conversion adds is refused, and not overwritten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt

TAKEN = [
    (mt.EMP(members=2), "choice"),
    (mt.EMP(members=2), "sigma"),
    (mt.Masksembles(members=2), "ones"),
    (mt.Masksembles(members=2), "overlap"),
    (mt.MCDropout(members=2), "rate"),
    (mt.MCDropout(members=2), "mask0"),
    (mt.DropConnect(members=2), "p"),
    (mt.DropConnect(members=2), "weight_mask"),
    (mt.BatchEnsemble(members=2), "alpha"),
    (mt.BatchEnsemble(members=2), "factors"),
    (mt.Laplace(members=2), "draws"),
    (mt.SWAG(members=2), "shift_weight"),
]


def network(name: str, value: Any) -> nn.Module:
    class Layer(nn.Linear):
        pass

    class Net(nn.Module):
        """Its last layer has something of its own, which the network reads."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(16, 16), Layer(16, 4)
            if isinstance(value, Tensor):
                self.head.register_buffer(name, value)
            else:
                setattr(self.head, name, value)

        def forward(self, x: Tensor) -> Tensor:
            scaled: Tensor = self.head(self.body(x).relu()) * getattr(self.head, name)
            return scaled

    return Net()


@pytest.mark.parametrize("value", [1.0, torch.tensor(1.0)], ids=["attribute", "buffer"])
@pytest.mark.parametrize(("method", "name"), TAKEN, ids=[f"{type(method).__name__}-{name}" for method, name in TAKEN])
def test_a_name_that_a_layer_has_already_is_refused(method: mt.Method, name: str, value: Any) -> None:
    with pytest.raises(mt.ConversionError, match=f"Layer has an attribute {name}, .* rename it in Layer"):
        mt.ensemble(network(name, value), method, torch.randn(2, 16), seed=0)


def test_other_names_of_a_layer_are_kept() -> None:
    ens = mt.ensemble(network("own", 1.0), mt.EMP(members=2), torch.randn(2, 16), seed=0)
    assert ens.template.head.own == 1.0  # type: ignore[union-attr]


def test_names_that_others_add_to_every_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers adds a method to nn.Module when it first makes a network: no layer has it of its own."""
    from multitudes.engine import converted

    class Mixin(nn.Module):
        added = 1

    converted._names_of_torch(nn.Bilinear)
    monkeypatch.setattr(nn.Module, "smart_apply", lambda self: self, raising=False)
    layer = nn.Bilinear(2, 2, 2)
    converted.convert_layer(layer, Mixin)
    assert layer.added == 1
