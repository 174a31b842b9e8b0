"""Optimizers: members with weights of their own train as separate networks, or the optimizer is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, assert_same_gradients, members
from torch import nn

import multitudes as mt
from multitudes.engine.modules import named_tensors


def trained(make: Any, method: mt.Method, steps: int = 4) -> tuple[mt.Ensemble, list[nn.Module]]:
    """An ensemble and its members as plain networks, trained on the same batches by an optimiser each."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    ens = mt.ensemble(net, method, torch.randn(B, 4)).train()
    nets = members(ens)
    ours, theirs = make(ens.param_groups(lr=0.05, weight_decay=0.01)), [make(net.parameters()) for net in nets]
    for _ in range(steps):
        x, y = torch.randn(B, 4), torch.randint(3, (B,))
        ours.zero_grad()
        ens.loss(x, y, F.cross_entropy).backward()
        ours.step()
        for net, optimiser in zip(nets, theirs, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
    return ens, nets


SEPARABLE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01),
}


class TestOptimisers:
    @pytest.mark.parametrize("kind", SEPARABLE)
    def test_that_work_entry_by_entry_train_separate_networks(self, kind: str) -> None:
        """Four steps on the stack give the weights and statistics of M separate runs."""
        ens, nets = trained(SEPARABLE[kind], mt.Deep(members=M))
        for name, tensor in named_tensors(ens.template):
            torch.testing.assert_close(tensor, torch.stack([dict(named_tensors(net))[name] for net in nets]), msg=name)

    def test_that_look_at_whole_tensors_are_refused_by_name(self) -> None:
        class Mine(torch.optim.LBFGS):
            pass

        ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4))
        kinds = {kind: getattr(torch.optim, kind) for kind in ("Adafactor", "Muon") if hasattr(torch.optim, kind)}
        for name, optimizer in {"LBFGS": Mine, **kinds}.items():
            with pytest.raises(mt.InputError, match=name):
                ens.param_groups(lr=0.1, optimizer=optimizer)
        assert ens.param_groups(lr=0.1, optimizer=torch.optim.SGD)[0]["lr"] == 0.1

    def test_one_network_may_take_any(self) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.Single(), torch.randn(B, 4))
        assert ens.param_groups(lr=0.1, optimizer=torch.optim.LBFGS)

    @pytest.mark.parametrize("norm", [0.5, 1e3])
    def test_clipping_is_each_members_own(self, norm: float) -> None:
        """The members' norms are those of their networks, and so are the clipped gradients."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).train()
        nets, x = members(ens), torch.randn(B, 4)
        (ens(x) * torch.arange(1.0, M + 1).view(M, 1, 1)).square().sum().backward()
        for m, one in enumerate(nets):
            (one(x) * (m + 1)).square().sum().backward()
        norms = torch.stack([torch.nn.utils.clip_grad_norm_(one.parameters(), norm) for one in nets])
        torch.testing.assert_close(ens.clip_grad_norm_(norm), norms)
        assert_same_gradients(ens, nets)

    def test_clipping_with_a_shared_trunk(self) -> None:
        """Heads are clipped each by its own norm, the trunk by its own; a gradient within bounds stays as it is."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.MultiHead(members=M), torch.randn(B, 4)).train()
        (ens(torch.randn(B, 4)) * torch.tensor([1e-6, 1.0, 10.0, 100.0]).view(M, 1, 1)).square().sum().backward()
        before = {n: p.grad.clone() for n, p in ens.named_parameters()}
        ens.clip_grad_norm_(0.1)
        head = torch.stack(
            [torch.cat([ens.get_parameter(f"2.{k}").grad[m].flatten() for k in ("weight", "bias")]).norm() for m in range(M)]
        )
        assert bool((head <= 0.1 + 1e-6).all())
        torch.testing.assert_close(ens.get_parameter("2.weight").grad[0], before["2.weight"][0])
        trunk = torch.cat([ens.get_parameter(f"0.{k}").grad.flatten() for k in ("weight", "bias")]).norm()
        torch.testing.assert_close(trunk, torch.tensor(0.1), rtol=1e-4, atol=0)
