"""Parts that no method can turn into members are refused by name, all at once, with what to do instead."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy.refusals import refusals


def lazy() -> nn.Module:
    """A layer without weights, as long as nothing has run."""
    return nn.LazyLinear(6)


def quantised() -> nn.Module:
    """A linear layer whose weights are packed as whole numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 6)), {nn.Linear})[0]


def scripted() -> nn.Module:
    """A layer compiled by torch.jit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(4, 6))


def sparse() -> nn.Module:
    """A layer whose weight is stored sparsely."""
    layer = nn.Linear(4, 6)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse())
    return layer


KINDS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "lazy": (lazy, "LazyLinear", "run the model once"),
    "quantised": (quantised, "Linear", "quantise the members afterwards"),
    "scripted": (scripted, "RecursiveScriptModule", "Python module"),
    "sparse": (sparse, "Linear", "make it dense"),
}


def around(layer: nn.Module) -> nn.Module:
    """A network with a layer in its middle."""
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer), nn.Linear(6, 5))


@pytest.mark.parametrize(("kind", "method"), list(zip(KINDS, itertools.cycle([mt.Deep(), mt.TreeNet()]), strict=False)))
def test_refused_by_name(kind: str, method: mt.Method) -> None:
    """The plan lists it with its type and the reason; the conversion raises with the same."""
    make, type_name, advice = KINDS[kind]
    planned = mt.plan(around(make()), method, torch.zeros(2, 4))
    assert (planned.refused[0].name, planned.refused[0].type) == ("1.0", type_name)
    assert all(entry.name.startswith("1.0") for entry in planned.refused)
    assert advice in planned.refused[0].reason
    assert "refused" in str(planned)
    with pytest.raises(mt.ConversionError, match=rf"(?s)1\.0 +{type_name} .*{advice}"):
        mt.ensemble(around(make()), method, torch.zeros(2, 4))


def test_all_are_named_at_once() -> None:
    """One error for everything that stands against a conversion; no line says to share what cannot run."""
    model = nn.Sequential(scripted(), sparse(), nn.Linear(6, 6), quantised())
    with pytest.raises(mt.ConversionError, match="Sequential") as caught:
        mt.ensemble(model, mt.Deep(), torch.zeros(2, 4))
    assert {line.split()[0][0] for line in str(caught.value).splitlines()[1:]} == {"0", "1", "3"}
    assert "keep=" not in str(caught.value)


def test_a_quantised_part_may_be_shared_on_purpose() -> None:
    """keep= lifts the refusal where sharing needs no member axis."""
    model = nn.Sequential(quantised(), nn.ReLU(), nn.Linear(6, 5)).eval()
    ens = mt.ensemble(model, mt.Deep(), torch.randn(2, 4), keep=["0"], seed=0)
    x = torch.randn(3, 4)
    torch.testing.assert_close(ens(x), torch.stack([ens.member(m)(x) for m in range(4)]))


class Merging(nn.Linear):
    """Adds a product of two small matrices to its weight in eval mode, and takes it away in training mode (LoRA)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.up.data @ self.down.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.merged else y + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("method", [mt.Deep(), mt.Single(), mt.Masksembles()], ids=str)
@pytest.mark.parametrize("mode", [True, False])
def test_weights_that_switching_modes_changes_are_the_cause(method: mt.Method, mode: bool) -> None:
    """The refusal spoke of a broken law, or of sizes of tensors, and said to keep layers, which did not help."""
    model = nn.Sequential(Merging(4, 16), nn.ReLU(), nn.Linear(16, 5)).train(mode)
    before = model[0].weight.clone()
    with pytest.raises(mt.ConversionError, match=r"switching modes changes 0\.weight: Merging\.train\(\)") as caught:
        mt.ensemble(model, method, torch.randn(2, 4))
    assert "keep=" not in str(caught.value)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("name", ["mlp", "resnet", "vit", "lstm", "weight_norm"])
def test_ordinary_models_have_nothing_to_refuse(name: str) -> None:
    """Parametrizations of the new kind included."""
    assert refusals(ZOO[name].model()) == {}


def test_new_style_norms_are_taken() -> None:
    """weight_norm and spectral_norm as parametrizations convert, and keep the laws."""
    model = nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.ReLU(), spectral_norm(nn.Linear(6, 5))).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    ens = mt.ensemble(model, mt.Deep(), x, seed=0).eval()
    torch.testing.assert_close(ens(x), torch.stack([ens.member(m)(x) for m in range(4)]))
    mt.check(ens, x)
