"""Estimating BatchNorm's statistics: the plain average over batches, member by member, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from laws.compare import assert_same, convert
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from zoo import ZOO

import multitudes as mt

CASE = ZOO["resnet"]


def batches(count: int = 3) -> list[Tensor]:
    return [CASE.example(4, seed=seed).args[0] for seed in range(count)]


def test_it_is_torch_s_own_estimate_for_each_member() -> None:
    """As `update_bn` gives it for every member alone."""
    ens = convert(mt.Packed(), CASE)
    members = [ens.member(m) for m in range(4)]
    assert ens.estimate_norms(batches()) is ens
    for m, member in enumerate(members):
        update_bn(batches(), member)
        assert_same(dict(ens.member(m).named_buffers()), dict(member.named_buffers()))
        assert not torch.equal(member.bn1.running_mean, torch.zeros_like(member.bn1.running_mean))


def test_shared_norms_are_estimated_over_all_members() -> None:
    """One set of statistics where they are shared."""
    ens = convert(mt.MultiHead(), CASE)
    member = ens.member(0)
    ens.estimate_norms(batches())
    update_bn(batches(), member)
    assert_same(dict(ens.named_buffers()), dict(member.named_buffers()))


def test_weights_modes_and_momenta_stay() -> None:
    """Each part in its own mode; dropout is off meanwhile."""
    net = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Dropout(0.5), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
    )
    net.double().train()
    net[1].eval()
    ens = mt.ensemble(net, mt.Deep(members=2), torch.randn(4, 4, dtype=torch.float64), seed=0)
    modes, weights = [p.training for p in ens.modules()], {n: p.detach().clone() for n, p in ens.named_parameters()}
    x = [torch.randn(5, 4, dtype=torch.float64) for _ in range(2)]
    ens.estimate_norms(x)
    once = {n: b.clone() for n, b in ens.named_buffers()}
    ens.estimate_norms(x)
    assert_same(dict(ens.named_buffers()), once)
    assert [p.training for p in ens.modules()] == modes
    assert_same(dict(ens.named_parameters()), weights)
    assert ens.template[1].momentum == 0.3
    hidden = ens.member(1)[0](torch.stack(x))
    assert_same(ens.get_buffer("1.running_mean")[1], hidden.mean((0, 1)))


def test_loaders_give_pairs() -> None:
    """Targets are left aside; several inputs are given as Inputs."""
    ens, other = convert(mt.Deep(), CASE), convert(mt.Deep(), CASE)
    ens.estimate_norms((x, torch.zeros(len(x))) for x in batches())
    other.estimate_norms(mt.Inputs(x) for x in batches())
    assert_same(dict(ens.named_buffers()), dict(other.named_buffers()))


def test_without_batches_nothing_changes() -> None:
    """And that is said."""
    ens = convert(mt.Deep(), CASE)
    before = {n: b.clone() for n, b in ens.named_buffers()}
    with pytest.raises(mt.InputError, match="no batches"):
        ens.estimate_norms([])
    assert_same(dict(ens.named_buffers()), before)


def test_a_failure_leaves_statistics_as_they_were() -> None:
    """In the second batch as in the first; one tensor is no list of batches."""
    ens = convert(mt.Deep(), CASE)
    before = {n: b.clone() for n, b in ens.named_buffers()}
    with pytest.raises(RuntimeError):
        ens.estimate_norms([*batches(1), torch.randn(2, 5, dtype=torch.float64)])
    with pytest.raises(mt.InputError, match=r"estimate_norms\(\[x\]\)"):
        ens.estimate_norms(batches(1)[0])
    assert_same(dict(ens.named_buffers()), before)
    assert not ens.training
