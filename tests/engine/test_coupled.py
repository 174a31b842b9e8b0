"""Norms that members share, under vmap: statistics over the rows of all members, as one batch would have them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.engine.coupled import CoupledNorms


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 3, 2), (5, 4, 3, 2, 2)])
@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_it_is_one_batch_of_all_rows(shape: tuple[int, ...], momentum: float) -> None:
    """Values, gradients of inputs and affine part, running statistics."""
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    ours, theirs = (kind(4, momentum=momentum).double() for _ in range(2))
    for norm in (ours, theirs):
        nn.init.constant_(norm.weight, 1.5)
        nn.init.constant_(norm.bias, 0.5)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    with CoupledNorms([ours]):
        found = torch.func.vmap(ours)(x)
    expected = theirs(again.flatten(0, 1)).unflatten(0, (3, shape[0]))
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


def test_other_norms_are_left_alone() -> None:
    """One that is not named normalises each member's rows by themselves, and one in eval mode none."""
    one, other = nn.BatchNorm1d(4, track_running_stats=False), nn.BatchNorm1d(4).eval()
    x = torch.randn(3, 5, 4)
    with CoupledNorms([nn.BatchNorm1d(4)]):
        torch.testing.assert_close(torch.func.vmap(one)(x), torch.stack([one(part) for part in x]))
    with CoupledNorms([other]):
        torch.testing.assert_close(torch.func.vmap(other)(x), other(x.flatten(0, 1)).unflatten(0, (3, 5)))


def test_what_members_have_in_common_is_normalised_once() -> None:
    """Unbatched input: the plain layer's values and statistics."""
    ours, theirs = nn.BatchNorm1d(4).double(), nn.BatchNorm1d(4).double()
    x, scale = torch.randn(5, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    with CoupledNorms([ours]):
        found = torch.func.vmap(lambda s: ours(x) * s)(scale)
    torch.testing.assert_close(found, theirs(x) * scale[:, None])
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_do_not_overflow(dtype: torch.dtype) -> None:
    """Statistics of many half-precision values are taken in single precision, as torch takes them."""
    net = nn.Sequential(nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 3, 1)).to(dtype)
    x = (4 * torch.randn(8, 3, 64, 64)).to(dtype)
    ens = mt.ensemble(net, mt.BatchEnsemble(), x[:2, :, :8, :8], seed=0).train()
    twin = copy.deepcopy(ens)
    ens.engine.picked["train"], twin.engine.picked["train"] = "vmap", "fold"
    torch.testing.assert_close(ens(x), twin(x), rtol=0.05, atol=0.05)
    assert bool(ens.get_buffer("1.running_var").isfinite().all())


class AttentionOverNorms(nn.Module):
    """BatchNorm, positions that a layer computes without rows, so that fold cannot run it, and torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16))
        self.norm = nn.BatchNorm1d(5)
        self.position = nn.Linear(16, 16)
        self.register_buffer("places", torch.randn(5, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.embed(x)) + self.position(self.places)
        split = h.unflatten(2, (2, 8)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(split, split, split)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


def test_fused_attention_behind_a_shared_norm_trains() -> None:
    """vmap has no rule for the fused kernels of a CPU, and runs this network in training all the same."""
    x = torch.randn(4, 5, 6)
    ens = mt.ensemble(AttentionOverNorms(), mt.Masksembles(members=2, feed="all", fewest=4), x, seed=0)
    assert "vmap" in ens.plan.proven["train"]
    ens.engine.picked["train"] = "vmap"
    assert ens.train().executor == "vmap"
    ens.loss(x, torch.randint(3, (4,)), nn.functional.cross_entropy).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in ens.parameters())
