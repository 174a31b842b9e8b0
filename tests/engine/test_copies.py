"""Copies and names of modules: the same as torch's and python's own, in less time."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.engine import modules
from multitudes.engine.modules import copy_with, duplicate, light_copy, named_parts, named_tensors, note_names
from multitudes.engine.proof.executors import first_members
from multitudes.engine.proof.outcome import kept_buffers, trainable_copy
from multitudes.engine.proof.trial import plain_member


class Odd(nn.Module):
    """Attributes of many kinds: shared layers, a tied weight, a list of modules, a method, a cache, a partner."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.again, self.second.weight = self.first, self.first.weight
        self.register_buffer("table", torch.arange(3.0))
        self.hidden: Any = [nn.ReLU(), {"act": nn.Tanh()}]
        self.how, self.cache, self.empty = self.run, OrderedDict(a=[1]), None
        self.norms = nn.ModuleDict({"one": nn.BatchNorm1d(3), "same": nn.Identity()})
        self.hidden.append(self.norms["one"])

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden[1]["act"](self.norms["one"](self.again(self.second(x)))) + self.table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(x)


class Own(nn.Module):
    """Copies itself in its own way."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        new = Own()
        new.mark = "own"  # type: ignore[assignment]
        return new


class TestDuplicate:
    def test_is_a_deep_copy(self) -> None:
        net = Odd().eval()
        new, expected = duplicate(net, {}), copy.deepcopy(net)
        assert [(n, type(m)) for n, m in new.named_modules()] == [(n, type(m)) for n, m in expected.named_modules()]
        assert vars(new).keys() == vars(expected).keys()
        assert new.again is new.first and new.second.weight is new.first.weight and new.hidden[2] is new.norms["one"]
        assert new.how.__self__ is new and new.cache == net.cache and new.cache is not net.cache
        assert new.cache["a"] is not net.cache["a"] and new.hidden[0] is not net.hidden[0]
        assert not new.norms.training and new._forward_hooks is not net._forward_hooks
        x = torch.randn(2, 3)
        assert torch.equal(new(x), net(x))
        with torch.no_grad():
            new.first.weight.zero_()
        assert not torch.equal(new(x), net(x))

    def test_modules_that_copy_themselves(self) -> None:
        new = duplicate(nn.ModuleList([Own(), nn.LSTM(2, 2)]), {})
        assert new[0].mark == "own"
        assert new[1]._flat_weights[0] is new[1].weight_ih_l0

    def test_plain_modules_need_no_deepcopy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(4, 4))
        calls: list[Any] = []
        monkeypatch.setattr(modules.copy, "deepcopy", lambda value, memo: calls.append(value) or value)
        copy_with(net, {})
        assert not calls


class TestNames:
    @pytest.mark.filterwarnings("ignore:.*jit.script")
    @pytest.mark.parametrize("make", [Odd, lambda: nn.Linear(2, 2), lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2)))])
    def test_are_torch_s_own(self, make: Any) -> None:
        net = make()
        assert [(n, id(m)) for n, m in named_parts(net)] == [(n, id(m)) for n, m in net.named_modules()]
        tensors = [*net.named_parameters(), *net.named_buffers()]
        assert [(n, id(t)) for n, t in named_tensors(net)] == [(n, id(t)) for n, t in tensors]


def test_trials_share_the_moments() -> None:
    """They are many times larger than the network, and no forward knows them: copies of them took most of a conversion."""
    ens = mt.ensemble(nn.Linear(3, 2), mt.SWAG(members=3), torch.randn(4, 3), seed=0)
    names, own = note_names(ens.template), dict(ens.template.named_buffers())
    assert {"swag_mean_weight", "swag_columns_bias"} < names
    few = first_members(ens.engine, 2)
    copies = [few.template, trainable_copy(ens.template), plain_member(few, 0), light_copy(ens.template)]
    for each in copies:
        held = dict(each.named_buffers())
        assert all(held[name].data_ptr() == own[name].data_ptr() for name in names)
    assert not kept_buffers(ens.template).keys() & names
