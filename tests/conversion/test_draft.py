"""Drafts: what becomes of every tensor, tied ones included."""

from __future__ import annotations

import pytest
import torch
from laws.compare import assert_same
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt


def test_tied_weights_stay_tied_inside_a_member() -> None:
    """One tensor with a member axis under both names, and each member's two uses of it are one parameter."""
    case = ZOO["tied"]
    ens = mt.ensemble(case.model(), mt.Deep(), case.example(), seed=0)
    assert ens.get_parameter("embed.weight") is ens.get_parameter("head.weight")
    assert ens.get_parameter("embed.weight").shape == (4, 7, 6)
    assert set(ens.state_dict()) == set(case.model().state_dict())
    member = ens.member(2)
    assert member.embed.weight is member.head.weight
    ens.loss(case.example(), torch.zeros(3, 5, dtype=torch.long), case.criterion).backward()
    case.criterion(member(*case.example().args), torch.zeros(3, 5, dtype=torch.long)).backward()
    assert_same(ens.get_parameter("embed.weight").grad[2], member.embed.weight.grad)


def test_a_tie_across_the_split_is_refused_by_name() -> None:
    """Both ends are named, and what to do about it."""
    case = ZOO["tied"]
    planned = mt.plan(case.model(), mt.TreeNet(branch_at="head"), case.example())
    assert [(entry.name, entry.type) for entry in planned.refused] == [("head", "Linear")]
    assert "tied to embed.weight" in planned.refused[0].reason


class Twice(nn.Module):
    """Runs one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.last = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.again(torch.tanh(self.first(x)))))


def test_a_shared_module_stays_one_module() -> None:
    """In the ensemble and in each member it is still the same module under both names."""
    x = torch.randn(3, 4, dtype=torch.float64)
    ens = mt.ensemble(Twice().double(), mt.Deep(), x, seed=0)
    assert ens.template.first is ens.template.again
    member = ens.member(1)
    assert member.first is member.again
    mt.check(ens, x)


def test_keep_shares_a_module_and_all_in_it() -> None:
    """By name or glob, as often as it matches."""
    case = ZOO["resnet"]
    planned = mt.plan(case.model(), mt.Deep(), case.example(), keep=["groups.0", "*.shortcut", "bn1"])
    shared = {entry.name for entry in planned.shared}
    assert {"groups.0.0.conv1", "groups.0.0.bn2", "groups.1.0.shortcut.0", "groups.2.0.shortcut.1", "bn1"} <= shared
    assert not any(entry.name.startswith("groups.0") or "shortcut" in entry.name for entry in planned.converted)
    assert {entry.name for entry in planned.converted} >= {"conv1", "groups.1.0.conv1", "fc"}


def test_everything_kept_is_refused() -> None:
    """Members that share everything would all be the given network."""
    case = ZOO["mlp"]
    with pytest.raises(mt.InputError, match="leaves nothing"):
        mt.ensemble(case.model(), mt.Deep(), case.example(), keep=["*"], seed=0)


def test_loose_parameters_of_the_root_carry_members() -> None:
    """Parameters that no layer holds are listed in the plan under the model itself."""
    case = ZOO["vit"]
    planned = mt.plan(case.model(), mt.Deep(), case.example())
    root = [entry for entry in planned.converted if entry.name == ""]
    assert len(root) == 1
    assert root[0].type == "ViT"
    assert root[0].parameters == 8 + 5 * 8


def test_channels_last_is_carried_to_each_members_slice() -> None:
    """Weights in channels-last order keep it, behind the member axis."""
    case = ZOO["resnet"]
    model = case.model().to(memory_format=torch.channels_last)
    ens = mt.ensemble(model, mt.Deep(), case.example(), seed=0)
    weight = ens.get_parameter("conv1.weight")
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weight)
    assert ens.member(1).conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_stack_is_whole_for_a_model_on_the_meta_device() -> None:
    """Shapes, counts and the plan need no memory."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 1000), nn.Linear(1000, 5))
    ens = mt.ensemble(model, mt.Deep(members=8), torch.zeros(2, 4, device="meta"))
    assert ens.state_dict()["0.weight"].shape == (8, 1000, 4)
    assert ens(torch.zeros(2, 4, device="meta")).shape == (8, 2, 5)
    assert ens.plan.counts.parameters == 8 * (4 * 1000 + 1000 + 5 * 1000 + 5)


@pytest.mark.parametrize("start", ["fresh", "copies"])
def test_frozen_parameters_stay_frozen(start: str) -> None:
    """requires_grad is carried over, and a frozen layer gets no gradient."""
    case = ZOO["mlp"]
    model = case.model()
    model[0].requires_grad_(False)
    ens = mt.ensemble(model, mt.Deep(), case.example(), start=start, seed=0)
    ens.loss(case.example(), torch.tensor([0, 1, 2]), case.criterion).backward()
    assert ens.get_parameter("0.weight").grad is None
    assert ens.get_parameter("2.weight").grad is not None
    assert not any("0.weight" in group["names"] for group in ens.param_groups(lr=0.1))
