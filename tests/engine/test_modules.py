"""Modules: names, copies and moves of tensors."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import OrderedDict

import pytest
import torch
from engine.separate import WAYS, B, M, answer, assert_separate, members, score
from torch import nn

import multitudes as mt
from multitudes.engine.modules import copy_with, detached_copy, named_tensors, owning_module, plain_attention


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(6, 3))


REFUSALS = {
    "scripted": (lambda: nn.Sequential(nn.Linear(4, 6), scripted()), "(?s)1 .*scripted"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3)), "(?s)0 .*lazy.*2 .*lazy"),
    "two at once": (
        lambda: nn.Sequential(nn.LazyLinear(6), scripted()),
        "(?s)1 .*scripted.*0 .*lazy",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_modules_that_cannot_be_converted_are_refused(kind: str) -> None:
    """By name, with what to use instead; a lazy module is taken after its first call."""
    make, nouns = REFUSALS[kind]
    net = make()
    with pytest.raises(mt.ConversionError, match=nouns):
        mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
    if kind == "lazy":
        net(torch.randn(B, 4))
        assert_separate(mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)), torch.randn(B, 4), training=True)


class TestNamesAndCopies:
    def net(self) -> nn.Module:
        return nn.Sequential(OrderedDict(stem=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), head=nn.Linear(6, 3)))

    def test_moved_to_another_precision(self) -> None:
        """`.to` and `.float` reach what the executors use."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4))
        for dtype, tol in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
            moved, x = ens.to(dtype), torch.randn(B, 4, dtype=dtype)
            for way in ("loop", "vmap"):
                assert_separate(copy.deepcopy(moved), x, way, training=True, tol=tol)

    def test_a_move_to_the_meta_device(self) -> None:
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).to("meta")
        assert ens(torch.randn(B, 4, device="meta")).shape == (M, B, 3)

    def test_parameters_replaced_from_outside(self) -> None:
        """What is set on the ensemble, or on one of its modules, is what runs."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).eval()
        ens.head.weight = nn.Parameter(torch.zeros(M, 3, 6))
        x = torch.randn(B, 4)
        expected = ens.head.bias[:, None].expand(M, B, 3)
        for way in WAYS:
            torch.testing.assert_close(answer(ens, way, x), expected)
        ens.load_state_dict({n: torch.ones_like(t) for n, t in ens.state_dict().items()}, assign=True)
        for way in WAYS:
            torch.testing.assert_close(answer(ens, way, x), torch.stack([net(x) for net in members(ens)]))

    def test_frozen_parts_stay_frozen(self) -> None:
        net = self.net()
        net.stem.requires_grad_(False)
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).train()
        assert not ens.stem.weight.requires_grad
        score(ens(torch.randn(B, 4))).backward()
        assert ens.stem.weight.grad is None
        assert ens.head.weight.grad is not None
        assert_separate(ens, torch.randn(B, 4), training=True)

    def test_modes_of_single_modules(self) -> None:
        """A frozen norm inside a training ensemble stays frozen, for every executor."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).train()
        ens.norm.eval()
        for way in WAYS:
            answer(ens, way, torch.randn(B, 4))
        assert not ens.norm.num_batches_tracked.any()
        assert not ens.member(0).norm.training

    def test_from_two_threads(self) -> None:
        """Calls put tensors into the template for a while: from two threads they still do not meet."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).eval()
        inputs = [torch.randn(B, 4) for _ in range(2)]
        wanted = [ens(x).detach() for x in inputs]
        wrong: list[int] = []

        def work(index: int) -> None:
            for _ in range(30):
                if not torch.equal(ens(inputs[index]), wanted[index]):
                    wrong.append(index)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestCopying:
    def test_a_copy_holds_the_tensors_given(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        weight = torch.zeros(6, 4, requires_grad=True)
        twin = copy_with(net, {"0.weight": weight})
        assert twin[0]._parameters["weight"] is weight
        assert twin[0].bias is net[0].bias
        assert twin[1] is not net[1]

    def test_baked_tensors_are_apart(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        twin = detached_copy(net, {})
        assert all(
            a is not b and torch.equal(a, b) for (_, a), (_, b) in zip(named_tensors(net), named_tensors(twin), strict=True)
        )
        assert all(isinstance(p, nn.Parameter) for p in twin.parameters())

    def test_the_owner_of_a_tensor(self) -> None:
        """A parametrized tensor belongs to the module that uses it."""
        assert owning_module("a.b.weight") == "a.b"
        assert owning_module("weight") == ""
        assert owning_module("a.parametrizations.weight.original0") == "a"
        assert owning_module("parametrizations.weight.original") == ""


def test_plain_attention_in_several_threads() -> None:
    """One switch for all threads: it is off while any block lasts, and on again after the last, in whatever order they end."""
    assert torch.backends.mha.get_fastpath_enabled()
    first, second = plain_attention(), plain_attention()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.mha.get_fastpath_enabled()
    second.__exit__(None, None, None)
    assert torch.backends.mha.get_fastpath_enabled()
