"""Deep: one run of the ensemble is M separate runs; trained networks stack as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from laws.compare import assert_same, convert, owned, prove_only, run_by, slice_of
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.engine import tree

OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=5e-2, nesterov=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize(("executor", "name"), [("loop", "sgd"), ("vmap", "adamw")])
def test_one_run_is_m_separate_runs(executor: str, name: str) -> None:
    """Momentum, weight decay and BatchNorm included, on the same batches, in double precision."""
    case = ZOO["resnet"]
    ens = run_by(convert(mt.Deep(members=4), case), executor).train()
    nets = [ens.member(m).train() for m in range(4)]
    start = copy.deepcopy(ens.state_dict())
    ours, theirs = OPTIMISERS[name](ens.parameters()), [OPTIMISERS[name](net.parameters()) for net in nets]
    for step in range(3):
        x = case.example(4, seed=step)
        y = torch.randint(5, (4,))
        assert ens.executor == executor
        ens.loss(x, y, F.cross_entropy).backward()
        for net in nets:
            F.cross_entropy(net(*x.args), y).backward()
        for optimizer in [ours, *theirs]:
            optimizer.step()
            optimizer.zero_grad()
    for m, net in enumerate(nets):
        assert_same(slice_of(ens, dict(ens.state_dict()), m), dict(net.state_dict()), tight=False)
        moved = [not torch.equal(start[n][m], t) for n, t in net.state_dict().items()]
        assert all(moved), "something was not trained"


def test_the_loss_is_the_sum_over_members() -> None:
    """Each member's mean loss counts in full, so that it learns as it would alone; "mean" divides by M."""
    case = ZOO["mlp"]
    x, y = case.example(), torch.tensor([0, 4, 2])
    ens = convert(mt.Deep(), case)
    each = torch.stack([F.cross_entropy(output, y) for output in ens(*x.args)])
    torch.testing.assert_close(ens.loss(x, y, F.cross_entropy), each.sum())
    torch.testing.assert_close(convert(mt.Deep(reduction="mean"), case).loss(x, y, F.cross_entropy), each.mean())


class Normed(nn.Module):
    """A convolution, BatchNorm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn1, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn1(self.conv(x))).mean((2, 3)))


def test_a_shared_batchnorm_normalises_the_rows_of_all_members_together() -> None:
    """In training it is the model folded by hand: one batch of M·B rows through the shared layer."""
    model, x = Normed().double().train(), ZOO["resnet"].example().args[0]
    ens = mt.ensemble(model, mt.Deep(), x, keep=["bn1"], seed=0)
    assert "bn1.weight" not in owned(ens)
    assert ens.executor == "vmap"
    bn = copy.deepcopy(ens.get_submodule("bn1"))
    plain = [ens.member(m) for m in range(4)]
    for _ in range(3):
        output = ens(x)
        rows = bn(torch.cat([net.conv(x) for net in plain]))
        expected = [net.fc(F.relu(part).mean((2, 3))) for net, part in zip(plain, rows.split(len(x)), strict=True)]
        assert_same(output, torch.stack(expected))
        assert_same(dict(ens.get_submodule("bn1").named_buffers()), dict(bn.named_buffers()))
    weights = torch.randn(4, 3, 5, dtype=torch.float64)
    (output * weights).sum().backward()
    (torch.stack(expected) * weights).sum().backward()
    assert_same(ens.get_parameter("bn1.weight").grad, bn.weight.grad)
    for m, net in enumerate(plain):
        assert_same(ens.get_parameter("conv.weight").grad[m], net.conv.weight.grad)
        assert_same(ens.get_parameter("fc.bias").grad[m], net.fc.bias.grad)
    assert_same(ens.eval()(x), torch.stack([ens.member(m)(x) for m in range(4)]))


class Block(nn.Module):
    """A norm and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(4), nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.scale


class Nested(nn.Sequential):
    """Two norms of the same name, one inside a block that owns a tensor, behind a BatchNorm to be shared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.block = nn.Linear(4, 4), nn.BatchNorm1d(4), Block()
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 5)


def test_namesakes_inside_a_block_keep_their_own_tensors() -> None:
    """Folded, a block's `norm` runs with its own weights, and not with those of another `norm`."""
    x = ZOO["mlp"].example().args[0]
    ens = mt.ensemble(Nested().double().train(), mt.Deep(), x, keep=["bn"], seed=0)
    with torch.no_grad():
        ens.get_parameter("block.norm.weight").mul_(3.0)
        ens.get_parameter("block.norm.bias").add_(torch.randn(4, 4))
    bn, plain = copy.deepcopy(ens.get_submodule("bn")), [ens.member(m) for m in range(4)]
    rows = bn(torch.cat([net.first(x) for net in plain]))
    behind = [net.fc(net.norm(net.block(part))) for net, part in zip(plain, rows.split(len(x)), strict=True)]
    assert_same(ens(x), torch.stack(behind))


class Averaged(Normed):
    """Returns one number for the whole batch, so that rows of members cannot be told apart."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean()


def test_a_shared_batchnorm_that_only_the_loop_could_run_is_refused_in_training() -> None:
    """A loop would normalise each member's rows alone: the layer and the reason are named; in eval mode it runs."""
    ens = mt.ensemble(Averaged().double(), mt.Deep(), ZOO["resnet"].example(), keep=["bn1"], seed=0)
    assert "vmap" in ens.plan.proven["train"]
    prove_only(ens, "train", "loop")
    with pytest.raises(mt.RunError, match=r"bn1 .*members.*fold"):
        ens.train()(*ZOO["resnet"].example().args)
    assert ens.eval()(*ZOO["resnet"].example().args).shape == (4,)


def networks(count: int = 3) -> list[nn.Module]:
    """Networks that were trained apart, statistics included."""
    nets = [ZOO["resnet"].model(seed=seed) for seed in range(count)]
    for net in nets:
        net.train()(torch.randn(4, 3, 8, 8, dtype=torch.float64))
        net.eval()
    return nets


def assert_members(ens: mt.Ensemble, nets: list[nn.Module]) -> None:
    """The ensemble's members are these networks, in order."""
    x = ZOO["resnet"].example().args[0]
    assert ens.method == mt.Deep(members=len(nets))
    assert_same(ens.eval()(x), torch.stack([net.eval()(x) for net in nets]))
    for m, net in enumerate(nets):
        assert_same(dict(ens.member(m).state_dict()), dict(net.state_dict()))


def test_trained_networks_stack_in_their_order() -> None:
    """from_models keeps weights, statistics and the order."""
    nets = networks()
    assert_members(mt.Deep.from_models(nets, ZOO["resnet"].example()), nets)


def test_stacked_networks_are_copies() -> None:
    """Training the ensemble leaves the networks alone."""
    nets = networks(2)
    before = copy.deepcopy([net.state_dict() for net in nets])
    ens = mt.Deep.from_models(nets, ZOO["resnet"].example())
    with torch.no_grad():
        for tensor in tree.tensors(dict(ens.state_dict())):
            tensor.add_(1)
    assert_same([dict(net.state_dict()) for net in nets], [dict(state) for state in before])


WIDE = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5)).double()


@pytest.mark.parametrize(
    ("nets", "named"),
    [
        ([ZOO["mlp"].model(), ZOO["mlp"].model(), ZOO["one_layer"].model()], "model 2"),
        ([ZOO["mlp"].model(), WIDE], r"model 1.*0\.weight"),
        ([], "models"),
    ],
)
def test_networks_of_another_architecture_do_not_stack(nets: list[nn.Module], named: str) -> None:
    with pytest.raises(mt.InputError, match=named):
        mt.Deep.from_models(nets, ZOO["mlp"].example())


def test_checkpoints_stack(tmp_path: Path) -> None:
    """State dicts and safetensors files, mixed; the model gives the architecture alone."""
    nets = networks()
    safetensors.torch.save_file(nets[0].state_dict(), tmp_path / "a.safetensors")
    safetensors.torch.save_file(nets[2].state_dict(), tmp_path / "c.safetensors")
    files = [tmp_path / "a.safetensors", nets[1].state_dict(), str(tmp_path / "c.safetensors")]
    assert_members(mt.Deep.from_checkpoints(files, ZOO["resnet"].model(seed=9), ZOO["resnet"].example()), nets)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    """A .pt file is refused by name, without unpickling it, and the error says how to write it instead."""
    net = networks(1)[0]
    torch.save(net.state_dict(), tmp_path / "net.pt")
    with pytest.raises(mt.FileError, match=r"net\.pt.*[Pp]ickled"):
        mt.Deep.from_checkpoints([tmp_path / "net.pt"], net, ZOO["resnet"].example())


def test_a_checkpoint_of_another_architecture_is_named(tmp_path: Path) -> None:
    """Missing and unexpected names are in the error, with the file."""
    safetensors.torch.save_file(ZOO["mlp"].model().state_dict(), tmp_path / "mlp.safetensors")
    with pytest.raises(mt.FileError, match=r"(?s)mlp\.safetensors.*conv1\.weight"):
        mt.Deep.from_checkpoints([tmp_path / "mlp.safetensors"], networks(1)[0], ZOO["resnet"].example())
