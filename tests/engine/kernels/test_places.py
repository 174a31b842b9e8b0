"""Plain tensors of members: what networks see of them, what they compute with them, and where they must be wrapped."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, answer, assert_separate, members
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import EXECUTORS
from multitudes.engine.kernels import Members
from multitudes.engine.kernels.places import BESIDE, FIRST
from multitudes.errors import RunError


class Net(nn.Module):
    """A small convolutional network; `middle` is what is tried, between its layers."""

    def __init__(self, middle: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3)
        self.middle = middle

    def forward(self, x: Tensor) -> Any:
        y = self.middle(self, F.relu(self.norm(self.conv(x))))
        return self.last(y) if isinstance(y, Tensor) and y.ndim == 4 and y.shape[1] == 4 else y


def images(count: int = B) -> Tensor:
    return torch.randn(count, 2, 5, 5)


def by_shape(net: Any, y: Tensor) -> Tensor:
    """Reads shapes and types in all ways: they are those of one member."""
    assert y.shape == (B, 4, 5, 5) and y.size() == y.shape and y.size(1) == y.size(dim=-3) == 4 and len(y) == B
    assert y.dim() == y.ndim == 4 and y.numel() == B * 100 and net.conv.weight.shape == (4, 2, 3, 3)
    assert net.conv.bias.shape == (4,) and net.conv.weight.ndim == 4
    assert y.dtype == net.conv.weight.dtype and y.device == net.conv.weight.device and y.is_floating_point()
    return y * y.shape[1] / y.size(0)


def in_place(net: Any, y: Tensor) -> Tensor:
    """Changes images that other names still have, by functions with rules and without."""
    y = y - 0.3
    kept, view = y, y[:, 1:3]
    y = y * 1.5
    y[:, 1] = 0.5
    y.neg_().mul_(2).add_(kept)
    view.mul_(3)
    y -= kept.add_(view.mean())
    return F.relu(y + kept, inplace=True)


def across_channels(net: Any, y: Tensor) -> Tensor:
    """Mixes the channels of a member: of no other one."""
    y = y.softmax(1) + y.flip(1) + y.mean(1, keepdim=True) + y.amax((1, 2, 3), keepdim=True)
    return torch.cat([y[:, :2], y.roll(1, 1)[:, 2:]], 1) * y.flatten(1)[:, :1, None, None]


def by_weights(net: Any, y: Tensor) -> Tensor:
    """Computes with parameters outside of their layers."""
    scale = net.conv.weight.square().sum((1, 2, 3)).sqrt()
    return (
        F.conv2d(y * scale[:, None, None], net.last.weight.flip(0, -1).mT, padding="same")[:, [0, 1, 2, 0]]
        + net.norm.bias.sum()
    )


def features(net: Any, y: Tensor) -> Tensor:
    """Leaves images for features and comes back."""
    z = y.view(y.size(0), -1)
    return F.linear(F.gelu(z), torch.ones(4, z.shape[1])) + torch.tanh(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class Doubled(torch.autograd.Function):
    """A function with a backward of its own, which is three times the right one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x.cumsum(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 6 * gradient


MIDDLES: dict[str, Callable[[Any, Tensor], Any]] = {
    "shapes": by_shape,
    "in place": in_place,
    "across channels": across_channels,
    "weights": by_weights,
    "features": features,
    "own backward": lambda net, y: Doubled.apply(y),
    "one result twice": lambda net, y: (y, y, net.conv.weight, y.mean((2, 3))),
    "pools": lambda net, y: F.max_pool2d(F.avg_pool2d(y, 2, 1), 2, 1, padding=1),
    "pools by numbers": lambda net, y: F.max_pool2d(y, 2, 1, return_indices=True)[0],
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_members_are_separate(middle: str, training: bool) -> None:
    """Values, gradients and buffers are those of M plain networks, and no tensor needs to be wrapped at the start."""
    ens = mt.ensemble(Net(MIDDLES[middle]), mt.Deep(members=M), images())
    assert all("vmap" in names for names in ens.plan.proven.values()), ens.plan.why
    assert not ens.engine.traits.wrapped
    assert_separate(ens, images(), "vmap", training=training, steps=2 if training else 1)


@pytest.mark.parametrize("middle", ["in place", "across channels", "one result twice"])
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
def test_chunks_inputs_and_layouts(middle: str, last: bool) -> None:
    """In chunks, with other inputs for each member, and in both memory layouts, results are the loop's."""
    layout = torch.channels_last if last else torch.contiguous_format
    ens = mt.ensemble(Net(MIDDLES[middle]), mt.Deep(members=M), images()).eval().to(memory_format=layout)
    x, each = images().to(memory_format=layout), torch.randn(M, B, 2, 5, 5)
    for chunk in (None, 3):
        ens.engine.chunk = chunk
        for inputs, per_member in ((x, False), (each, True)):
            found, wanted = (EXECUTORS[name](ens.engine, mt.Inputs(inputs), per_member) for name in ("vmap", "loop"))
            torch.testing.assert_close(found, wanted)


def test_noise_differs_between_members() -> None:
    """Members with equal weights drop other channels, and other entries."""
    ens = mt.ensemble(
        Net(lambda net, y: F.dropout(F.dropout2d(y, 0.3, net.training), 0.3, net.training)), mt.Deep(members=M), images()
    )
    for tensor in ens.parameters():
        tensor.data = tensor.data[:1].expand_as(tensor).clone()
    outputs = answer(ens.train(), "vmap", images())
    assert all(not torch.equal(outputs[0], outputs[m]) for m in range(1, M))
    assert torch.equal(*(answer(ens.eval(), "vmap", torch.ones(B, 2, 5, 5))[m] for m in (0, 1)))


def unseen(net: Any, y: Tensor) -> Tensor:
    """Computes where no mode sees it, as scripted code and extensions do."""
    with torch._C.DisableTorchFunction():
        return y * y.softmax(1)


def mapped(net: Any, y: Tensor) -> Tensor:
    """Runs a vmap of its own over the rows."""
    return torch.func.vmap(lambda row: row * net.conv.bias[:, None, None] + y.mean((0, 2, 3))[:, None, None])(y)


def turned(net: Any, y: Tensor) -> Tensor:
    return (y * 2).transpose_(2, 3)


@pytest.mark.parametrize("middle", [unseen, mapped, turned])
def test_what_cannot_be_followed_runs_wrapped(middle: Any) -> None:
    """The proof tells that plain tensors would be wrong, and vmap wraps them all."""
    ens = mt.ensemble(Net(middle), mt.Deep(members=M), images())
    assert ens.engine.traits.wrapped == {"train", "eval"} and all("vmap" in names for names in ens.plan.proven.values())
    assert_separate(ens, images(), "vmap", training=True)


@pytest.mark.parametrize(("middle", "why"), [(mapped, "torch.func in forward"), (turned, "transpose_ on a tensor of members")])
def test_what_the_example_did_not_show_is_refused(middle: Any, why: str) -> None:
    """It raises an error: no tensor of all members passes for one of a single member."""
    ens = mt.ensemble(Net(lambda net, y: middle(net, y) if y.shape[0] > B else y), mt.Deep(members=M), images()).eval()
    assert not ens.engine.traits.wrapped
    answer(ens, "vmap", images())
    with pytest.raises(RunError, match=why):
        answer(ens, "vmap", images(B + 1))


def test_a_tensor_of_an_earlier_call_is_refused() -> None:
    kept: list[Tensor] = []

    def middle(net: Any, y: Tensor) -> Tensor:
        if y.shape[0] > B:
            return y + kept[0]
        kept[:] = [y]
        return y

    ens = mt.ensemble(Net(middle), mt.Deep(members=M), images()).eval()
    answer(ens, "vmap", images())
    with pytest.raises(RunError, match="earlier call"):
        answer(ens, "vmap", images(B + 1))


def test_results_are_bare() -> None:
    """Outputs carry no note: they can be saved and copied."""
    ens = mt.ensemble(Net(MIDDLES["one result twice"]), mt.Deep(members=M), images()).eval()
    with torch.no_grad():
        outputs = answer(ens, "vmap", images())
    assert [tuple(t.shape) for t in outputs] == [(M, B, 4, 5, 5)] * 2 + [(M, 4, 2, 3, 3), (M, B, 4)]
    for tensor in (*outputs, *ens.parameters(), *ens.buffers()):
        assert not hasattr(tensor, "multitudes_place")
        assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    copy.deepcopy(ens)


def test_inside_other_transforms_vmap_wraps() -> None:
    """Gradients by torch.func are those by autograd."""
    ens = mt.ensemble(Net(MIDDLES["features"]), mt.Deep(members=M), images()).eval()
    ens.engine.picked = dict.fromkeys(ens.engine.picked, "vmap")
    x = images()
    found = torch.func.grad(lambda x: ens(x).square().sum())(x)
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(sum(net(leaf).square().sum() for net in members(ens)), leaf)
    torch.testing.assert_close(found, wanted)


def test_under_autocast_precisions_are_those_of_torch() -> None:
    """In images, features and results."""
    seen: list[torch.dtype] = []

    def middle(net: Any, y: Tensor) -> Tensor:
        seen.extend([y.dtype, net.conv(y[:, :2]).dtype, y.exp().dtype])
        return F.linear(torch.flatten(y, 1), torch.full((3, 100), 0.01, dtype=torch.float32))

    ens = mt.ensemble(Net(middle).float(), mt.Deep(members=M), images().float()).eval()
    x = images().float()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        seen.clear()
        found = answer(ens, "vmap", x)
        ours = seen.copy()
        seen.clear()
        wanted = torch.stack([net(x) for net in members(ens)])
    assert found.dtype == wanted.dtype == torch.bfloat16 and ours == seen[:3]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02)


def test_places() -> None:
    weight, image = torch.randn(M, 2, 3), torch.randn(B, M * 2, 5)
    own = Members(M, 1, [weight])
    own.put(image, BESIDE)
    assert (own.place(weight), own.place(image), own.place(torch.ones(M))) == (FIRST, BESIDE, None)
    assert own.shape(weight) == (2, 3) and own.shape(image) == (B, 2, 5)
    view, axis = own.by_axis(image, BESIDE)
    assert axis == 1 and view.shape == (B, M, 2, 5) and own.of_axis(view, axis) is image
    with pytest.raises(RunError, match="earlier call"):
        Members(M, 1, []).place(image)
