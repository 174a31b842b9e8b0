"""Checkpointing: a forward that runs again during backward is right by every executor that takes it."""

from __future__ import annotations

import copy

import pytest
import torch
from engine.separate import B, M, assert_same_gradients, assert_separate, members
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import multitudes as mt


class Checkpointed(nn.Module):
    """Two blocks that are computed again in backward."""

    def __init__(self, reentrant: bool, norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Tanh()) for _ in range(2)
        )
        self.head = nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.reentrant)
        return self.head(h)


class Whole(nn.Module):
    """A shared stem and a member's head inside one checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.stem = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda h: self.head(self.stem(h).tanh()), self.first(x), use_reentrant=self.reentrant)


METHODS = {
    "Deep": mt.Deep(members=M),
    "MultiHead": mt.MultiHead(members=M, head="head"),
    "TreeNet": mt.TreeNet(members=M, branch_at="blocks.1"),
}


def converted(net: nn.Module, method: str, reentrant: bool) -> mt.Ensemble | None:
    """The ensemble; or None where the reentrant form is refused in words that say what to change."""
    try:
        return mt.ensemble(net, METHODS[method], torch.randn(B, 4))
    except mt.MultitudesError as error:
        assert reentrant and "use_reentrant=False" in str(error)
        return None


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
class TestCheckpointing:
    @pytest.mark.parametrize(
        ("method", "norm", "reentrant"),
        [
            ("Deep", True, False),
            ("Deep", True, True),
            ("MultiHead", False, True),
            ("TreeNet", True, False),
            ("TreeNet", True, True),
        ],
    )
    def test_is_right(self, reentrant: bool, norm: bool, method: str) -> None:
        """Outputs, gradients and statistics, in training and in eval, with the shared blocks in a checkpoint or not."""
        if reentrant and norm and method != "Deep":  # the trunk is run again for every member in backward, and counts then
            with pytest.raises(mt.ConversionError, match=r"could not be trained: BatchNorm blocks\.0\.1.*checkpointing"):
                mt.ensemble(Checkpointed(reentrant, norm), METHODS[method], torch.randn(B, 4))
        elif ens := converted(Checkpointed(reentrant, norm), method, reentrant):
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), training=False)
            assert_separate(ens, torch.randn(B, 4), training=True)

    @pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
    def test_a_checkpoint_across_the_split(self, reentrant: bool) -> None:
        if ens := converted(Whole(reentrant), "MultiHead", reentrant):
            assert_separate(ens, torch.randn(B, 4), training=True)

    @pytest.mark.parametrize(("method", "reentrant"), [("Deep", True), ("TreeNet", False)])
    def test_two_forwards_before_one_backward(self, reentrant: bool, method: str) -> None:
        """The second forward does not disturb what the first is computed again from."""
        if (ens := converted(Checkpointed(reentrant), method, reentrant)) is None:
            return
        ens.train()
        x, y = torch.randn(B, 4), torch.randn(B, 4)
        nets = members(ens)
        (ens(x).square().sum() + ens(y).sin().sum()).backward()
        for net in nets:
            (net(x).square().sum() + net(y).sin().sum()).backward()
        assert_same_gradients(ens, nets)

    def test_after_a_step_of_training(self) -> None:
        """The copies that a checkpoint needs hold the ensemble's own tensors: they follow an optimiser and a move."""
        ens = mt.ensemble(Checkpointed(False), mt.Deep(members=M), torch.randn(B, 4)).train()
        assert ens.executor == "loop" and "checkpoint" in ens.plan.why["vmap"]
        optimiser = torch.optim.SGD(ens.param_groups(lr=0.5))
        for _ in range(2):
            before = ens(torch.ones(B, 4)).detach()
            optimiser.zero_grad()
            ens(torch.randn(B, 4)).square().sum().backward()
            optimiser.step()
            assert not torch.equal(before, ens(torch.ones(B, 4)))
        assert_separate(ens, torch.randn(B, 4), training=True)
