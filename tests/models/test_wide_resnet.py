"""WideResNet: equal to another implementation, and the variant of the Packed-Ensembles tables."""

from __future__ import annotations

import torch
from nets import convolutional as conv
from torch import nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import block_starts, observe
from multitudes.models import WideResNet

X = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_it_is_the_wide_resnet_of_the_zoo() -> None:
    """Which was written apart from it: with the same weights it gives the same numbers."""
    theirs = conv.WideResNet(blocks=2, width=32, classes=10, stem=16).double().eval()
    for part in theirs.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.normal_(part.weight)
    ours = WideResNet(16, 2).double().eval()
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X), theirs(X))


def test_late_stride() -> None:
    """The stride is in a block's second convolution, and in its shortcut; every shape is as before."""
    early, late = (WideResNet(10, 1, late_stride=flag) for flag in (False, True))
    for group, stride in (("group1", 1), ("group2", 2), ("group3", 2)):
        blocks = [net.get_submodule(f"{group}.0") for net in (early, late)]
        assert [block.conv1.stride[0] for block in blocks] == [stride, 1]
        assert [block.conv2.stride[0] for block in blocks] == [1, stride]
    assert {n: t.shape for n, t in early.state_dict().items()} == {n: t.shape for n, t in late.state_dict().items()}
    assert late.double()(X).shape == early.double()(X).shape == (2, 10)


def test_biases() -> None:
    """In every convolution, or in none."""
    for bias in (False, True):
        convolutions = [part for part in WideResNet(16, 1, bias=bias).modules() if isinstance(part, nn.Conv2d)]
        assert len(convolutions) == 1 + 3 * 2 * 2 + 2  # at widen 1 the first group needs no shortcut
        assert all((part.bias is not None) == bias for part in convolutions)


def test_dropout_is_between_the_convolutions() -> None:
    """At the rate that is given, in every block."""
    net = WideResNet(16, 1, dropout=0.3)
    assert [part.p for part in net.modules() if isinstance(part, nn.Dropout)] == [0.3] * 6
    first = net.group1[0]
    assert [name for name, _ in first.named_children()][:5] == ["bn1", "conv1", "dropout", "bn2", "conv2"]
    seen: list[torch.Tensor] = []
    first.bn2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net.train()(X.float())
    assert 0.2 < (seen[0] == 0).float().mean().item() < 0.4


def test_block_starts() -> None:
    """The first convolution of every block, found by structure."""
    net = WideResNet(16, 2).double()
    expected = {f"group{group}.{block}.conv1" for group in (1, 2, 3) for block in (0, 1)}
    assert block_starts(observe(net, mt.Inputs(X))) == expected
