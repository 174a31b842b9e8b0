"""Tensors and arrays that no state dict holds come back with the file: another instance of the class has drawn others."""

from __future__ import annotations

from collections import OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multitudes as mt


class Fourier(nn.Module):
    """Random features as a plain tensor, a permutation as an array, signs in a queue; `last` is no constant."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.order = torch.randn(6, 8), np.random.default_rng().permutation(16)
        self.signs, self.last = deque([OrderedDict(a=torch.randn(16).sign())]), torch.zeros(())
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.features
        h = self.body(torch.cat([h.sin(), h.cos()], -1)[:, torch.from_numpy(self.order)]).relu()
        self.last = h.detach().mean()
        return self.head(h * self.signs[0]["a"])


@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.BatchEnsemble(members=2), mt.MCDropout(members=2)])
def test_constants_come_back_with_the_file(method: mt.Method, tmp_path: Path) -> None:
    x, path, other = torch.randn(4, 6), tmp_path / "a.multitude", Fourier()
    ens = mt.ensemble(Fourier(), method, x, seed=0).eval()
    mt.save(ens, path)
    features, order, signs = other.features.clone(), other.order.copy(), other.signs[0]["a"].clone()
    torch.testing.assert_close(mt.load(path, other).eval()(x), ens(x))
    assert torch.equal(other.features, features) and (other.order == order).all() and torch.equal(other.signs[0]["a"], signs)


def test_what_forward_keeps_is_no_constant(tmp_path: Path) -> None:
    x, net = torch.randn(4, 6), Fourier()
    ens = mt.ensemble(net, mt.Deep(members=2), x, seed=0).eval()
    ens(x)
    mt.save(ens, tmp_path / "a.multitude")
    other = Fourier()
    other.last = torch.ones(())
    assert mt.load(tmp_path / "a.multitude", other).template.last == 1


class Heads(nn.Module):
    """A network whose number of heads shows in no shape, and a rate and a device that may be others in another place."""

    def __init__(self, heads: int, rate: float = 0.1, device: str = "cpu", sizes: tuple[int, ...] = (2, 2)) -> None:
        super().__init__()
        self.heads, self.rate, self.device, self.sizes, self.calls = heads, rate, device, sizes, heads
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x).unflatten(1, (self.heads, -1)).softmax(2).flatten(1))


class TestArguments:
    """A file warns of a network that was built with other whole numbers, which may change its outputs unseen."""

    def test_others_are_named(self, tmp_path: Path) -> None:
        mt.save(mt.ensemble(Heads(4), mt.Deep(members=2), torch.randn(2, 8), seed=0), tmp_path / "a.multitude")
        with pytest.warns(UserWarning, match=r"outputs may differ.*the model was built with heads=4 there and 2 here"):
            mt.load(tmp_path / "a.multitude", Heads(2))
        with pytest.warns(UserWarning, match=r"sizes=\[2, 2\] there and \[2, 3\] here"):
            mt.load(tmp_path / "a.multitude", Heads(4, sizes=(2, 3)))

    def test_rates_and_texts_may_differ(self, tmp_path: Path) -> None:
        x = torch.randn(2, 8)
        ens = mt.ensemble(Heads(4), mt.BatchEnsemble(members=2), x, seed=0)
        mt.save(ens, tmp_path / "a.multitude")
        loaded = mt.load(tmp_path / "a.multitude", Heads(4, 0.5, "cuda:1"))  # warnings are errors here
        assert torch.equal(loaded.eval()(x), ens.eval()(x))
