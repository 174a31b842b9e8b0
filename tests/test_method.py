"""Method: its settings, its defaults, and the registry of all subclasses."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from laws import METHODS
from laws.compare import owned
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine.modules import inside, names_matching
from multitudes.method import Batch, Layout


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_settings_are_frozen_keywords(kind: type[mt.Method]) -> None:
    """A value that can be compared, replaced field by field, and rebuilt from its saved fields."""
    method = kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.members = 3  # type: ignore[misc]
    with pytest.raises(mt.InputError, match=r"takes settings by name, as in \w+\("):
        kind(4)  # type: ignore[misc]
    assert kind(**method.settings()) == method
    assert hash(kind(**method.settings())) == hash(method)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_final(name: str) -> None:
    """One level below Method, and no further."""
    kind = getattr(mt, name)
    assert mt.Method in kind.__bases__
    assert kind.__subclasses__() == []


def test_a_method_outside_the_package_is_a_method() -> None:
    """Defining it is enough: it is in the registry, and the verbs take it."""

    @dataclass(frozen=True, kw_only=True)
    class Biases(mt.Method):
        """Members differ in their biases alone."""

        def layout(self, structure: Structure) -> Layout:
            return Layout(tensors=frozenset(n for n, _ in structure.model.named_parameters() if n.endswith("bias")))

        def penalty(self, ensemble: mt.Ensemble, count: int) -> torch.Tensor:
            return ensemble.get_parameter("0.bias").pow(2).sum()

    try:
        case = ZOO["mlp"]
        assert Biases in mt.Method.all()
        ens = mt.ensemble(case.model(), Biases(members=3), case.example(), seed=0)
        assert set(owned(ens)) == {"0.bias", "2.bias", "4.bias"}
        mt.check(ens, case.example())
        y = torch.tensor([0, 1, 2])
        expected = sum(F.cross_entropy(output, y) for output in ens(*case.example().args))
        found = ens.loss(case.example(), y, F.cross_entropy)
        torch.testing.assert_close(found, expected + ens.get_parameter("0.bias").pow(2).sum())
    finally:
        del Biases
        gc.collect()


def test_a_method_without_a_layout_is_an_error() -> None:
    """The base class has no layout."""
    with pytest.raises(NotImplementedError, match="Method"):
        mt.Method().layout(None)  # type: ignore[arg-type]


def test_the_default_loss_joins_members() -> None:
    """The criterion sees one member's output and the target; with per_member the member's own target."""
    outputs, target = torch.randn(4, 3, 5), torch.randint(5, (4, 3))
    found = mt.Deep().loss(outputs, Batch((), {}, target, per_member=True), F.cross_entropy)
    torch.testing.assert_close(found, sum(F.cross_entropy(o, t) for o, t in zip(outputs, target, strict=True)))


def test_targets_are_not_guessed_from_their_shape() -> None:
    """With as many rows as members, a target [B, ...] is still every member's."""
    outputs, target = torch.randn(4, 4, 5), torch.randn(4, 5)
    found = mt.Deep().loss(outputs, Batch((), {}, target), F.mse_loss)
    torch.testing.assert_close(found, sum(F.mse_loss(o, target) for o in outputs))


def test_names_matching() -> None:
    """Globs match whole names, dots included; what matches nothing is listed with the nearest, all at once."""
    names = ["", "stem", "layer1", "layer1.0", "layer1.0.conv", "layer2"]
    assert names_matching(names, ["layer1"], "keep=") == {"layer1": ["layer1"]}
    assert names_matching(names, ["layer?", "*.conv"], "keep=") == {"layer?": ["layer1", "layer2"], "*.conv": ["layer1.0.conv"]}
    with pytest.raises(mt.InputError, match=r"keep= matches nothing in the model: 'stm' \(nearest: 'stem'\), 'layer3'"):
        names_matching(names, ["stm", "layer1", "layer3"], "keep=")


@pytest.mark.parametrize(("name", "held"), [("a", True), ("a.b", True), ("ab", False), ("b.a", False), ("", False)])
def test_inside(name: str, held: bool) -> None:
    """A name lies in a module if it is the module or follows it behind a dot; everything lies in the root."""
    assert inside(name, ["a"]) is held
    assert inside(name, [""])
