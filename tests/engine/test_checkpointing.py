"""Checkpointing: a forward that runs again during backward is right by every executor that takes it."""

from __future__ import annotations

import copy
from typing import Any

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


class Again(torch.autograd.Function):
    """A block that keeps its input alone, and runs again in backward, as reversible networks do."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            found = torch.autograd.grad(ctx.block(x), (x, *ctx.block.parameters()), slopes)
        return (None, *found)


class Split(nn.Module):
    """A block of two layers that is computed again in backward: by a checkpoint, by a function of its own, or not at all."""

    def __init__(self, form: bool | str | None) -> None:
        super().__init__()
        self.stem, self.head, self.form = nn.Linear(4, 6), nn.Linear(6, 3), form
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.form is None:
            return self.head(self.block(x))
        if self.form == "own":
            return self.head(Again.apply(self.block, x, *self.block.parameters()))
        return self.head(checkpoint(self.block, x, use_reentrant=self.form))


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

    @pytest.mark.parametrize("method", [mt.Masksembles(members=M, feed="all", fewest=2), mt.BatchEnsemble(members=M)], ids=str)
    @pytest.mark.parametrize("rows", [M, 2 * M, B])
    @pytest.mark.parametrize("form", [True, False, "own"])
    def test_masks_and_factors_are_the_member_s_in_backward(self, method: mt.Method, rows: int, form: bool | str) -> None:
        """Masks of all members passed for one mask per row: with a multiple of M rows gradients were wrong in silence."""
        ens = mt.ensemble(Split(form), method, torch.randn(M, 4), seed=0).train()
        once = copy.deepcopy(ens)
        once.template.form = None
        x = torch.randn(rows, 4)
        for each in (ens, once):
            each(x).square().sum().backward()
        for (name, parameter), expected in zip(ens.named_parameters(), once.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, msg=name)

    def test_a_step_by_rows_is_tried_with_its_backward(self) -> None:
        """Factors of rows outside of a reentrant checkpoint are freed by its backward: training would fail."""
        method = mt.BatchEnsemble(members=M, feed="part")
        with pytest.raises(mt.ConversionError, match=r"in training each row .*BatchEnsemble\(feed='all'\)"):
            mt.ensemble(Split(True), method, torch.randn(M, 4))

    @pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
    def test_a_checkpoint_that_members_leave_in_the_middle(self, reentrant: bool) -> None:
        """TreeNet branches at the checkpoint's last layer: the trunk was remembered, and the conversion refused."""
        ens = mt.ensemble(Split(reentrant), mt.TreeNet(members=M, branch_at="block.2"), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), training=True)

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


def test_dropout_in_layers_that_run_again_with_other_numbers() -> None:
    """A function of its own that runs a block again in backward draws other masks there; torch's checkpoints keep them."""
    x, y = torch.randn(B, 4), torch.randint(3, (B,))
    with pytest.raises(mt.ConversionError, match=r"backward runs block.0, block.2 again.*position=\['head'\]") as error:
        mt.ensemble(Split("own"), mt.MCDropout(members=M), x)
    typed = str(error.value).rpartition("elsewhere: ")[2]
    ens = mt.ensemble(Split("own"), eval(typed, {"mt": mt}), x)  # the line that it says to type
    ens.loss(x, y, nn.functional.cross_entropy).backward()
    for form in (True, False):
        mt.ensemble(Split(form), mt.MCDropout(members=M), x)
