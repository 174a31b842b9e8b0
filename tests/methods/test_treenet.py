"""TreeNet: a shared trunk, and from the split on a branch for each member."""

from __future__ import annotations

import pytest
import torch
from laws.compare import assert_same, buffers, convert, owned
from nets.convolutional import wide_resnet_28_10
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.plan import Plan


def branches(planned: Plan) -> set[str]:
    """The outermost children in which something carries members."""
    return {entry.name.split(".")[0] for entry in planned.converted}


def trunk(planned: Plan) -> set[str]:
    """The outermost children in which something is shared."""
    return {entry.name.split(".")[0] for entry in planned.shared}


def test_the_default_split_of_a_wide_resnet() -> None:
    """On the real WideResNet-28-10 the last group and the head are branches, its final BatchNorm included."""
    planned = mt.plan(wide_resnet_28_10(), mt.TreeNet(members=3), torch.randn(2, 3, 32, 32, device="meta"))
    assert planned.counts is not None
    assert planned.counts.base_parameters == 36_479_194
    assert branches(planned) == {"group3", "bn", "fc"}
    assert trunk(planned) == {"conv1", "group1", "group2"}
    assert "branches begin at group3" in str(planned)
    own = sum(entry.parameters for entry in planned.converted)
    assert planned.counts.parameters == planned.counts.base_parameters + 2 * own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "begin"),
    [("resnet", {"groups", "fc"}), ("vit", {"blocks", "norm", "head"}), ("mlp", {"4"}), ("head_first", {"classifier"})],
)
def test_the_default_split_holds_a_third_of_the_blocks(case: str, begin: set[str]) -> None:
    """The children that run last and hold at least a third; never everything."""
    planned = mt.plan(ZOO[case].model(), mt.TreeNet(), ZOO[case].example())
    assert branches(planned) == begin
    assert planned.shared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("branch_at", "begin"),
    [
        ("group2", {"group2", "group3", "bn", "fc"}),
        ("group3.1", {"group3", "bn", "fc"}),
        ("group3.*.conv2", {"group3", "bn", "fc"}),
        ("group[23]", {"group2", "group3", "bn", "fc"}),
        ("fc", {"fc"}),
        ("conv1", {"conv1", "group1", "group2", "group3", "bn", "fc"}),
    ],
)
def test_an_explicit_split(branch_at: str, begin: set[str]) -> None:
    """By name or glob: everything that first runs there or later; of several matches the first that runs counts."""
    case = ZOO["wideresnet"]
    planned = mt.plan(case.model(), mt.TreeNet(branch_at=branch_at), case.example())
    assert branches(planned) == begin


@pytest.mark.slow
def test_inside_a_group_the_split_is_where_it_says() -> None:
    """What runs before the split stays shared, in the same group too."""
    case = ZOO["wideresnet"]
    ens = mt.ensemble(case.model(), mt.TreeNet(branch_at="group3.1"), case.example(), seed=0)
    assert "group3.1.conv1.weight" in owned(ens)
    assert "group3.0.conv1.weight" not in owned(ens)


def test_a_split_that_is_not_there() -> None:
    """The error names the nearest module."""
    case = ZOO["wideresnet"]
    with pytest.raises(mt.InputError, match=r"branch_at='grop3'.*nearest: 'group3'"):
        mt.plan(case.model(), mt.TreeNet(branch_at="grop3"), case.example())


class Idle(nn.Sequential):
    """Has a layer that no forward runs."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
        self.add_module("idle", nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self[2](self[1](self[0](x)))


def test_a_split_that_is_never_run() -> None:
    """A branch cannot begin where nothing happens."""
    with pytest.raises(mt.InputError, match=r"branch_at='idle'.*not run"):
        mt.plan(Idle().double(), mt.TreeNet(branch_at="idle"), ZOO["mlp"].example())


class Loose(nn.Module):
    """Has loose parameters on both sides of a split at `last`."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(5))
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x * self.before))) * self.after


def test_loose_parameters_fall_on_their_side_of_the_split() -> None:
    """A parameter that the model holds itself belongs to members if it is used behind the split alone."""
    ens = mt.ensemble(Loose().double(), mt.TreeNet(branch_at="last"), ZOO["mlp"].example(), seed=0)
    assert set(owned(ens)) == {"last.weight", "last.bias", "after"}


def test_batchnorm_has_one_set_in_the_trunk_and_one_for_each_branch() -> None:
    """Trunk statistics are those of the base model's rows, counted once; each branch has its own."""
    case = ZOO["wideresnet"]
    ens = convert(mt.TreeNet(), case).train()
    plain = [ens.member(m) for m in range(4)]
    ens(*case.example().args)
    for m, net in enumerate(plain):
        net(*case.example().args)
        for name, buffer in buffers(net).items():
            found = ens.get_buffer(name)
            assert_same(found[m] if name.startswith(("group3", "bn")) else found, buffer)


def test_a_trunk_is_trained_by_all_branches() -> None:
    """Its gradient is the sum of what each member alone would give it."""
    case = ZOO["wideresnet"]
    ens = convert(mt.TreeNet(), case)
    x, y = case.example(), torch.tensor([0, 1, 2])
    ens.loss(x, y, case.criterion).backward()
    total = torch.zeros_like(ens.get_parameter("conv1.weight"))
    for m in range(4):
        net = ens.member(m)
        case.criterion(net(*x.args), y).backward()
        total += net.get_parameter("conv1.weight").grad
    assert_same(ens.get_parameter("conv1.weight").grad, total)
