"""ResNet: equal to a forward pass by hand and to transformers, with the stems, groups and blocks of its papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import block_starts, observe
from multitudes.models import ResNet
from multitudes.models.network import nearest
from multitudes.models.resnet import DEPTHS

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def by_hand(net: ResNet, x: Tensor) -> Tensor:
    """The network's output from its weights: the stride in a basic block's first convolution, in a bottleneck's second."""
    state, (depth, stem) = net.state_dict(), (net.arguments[name] for name in ("depth", "stem"))

    def convolve(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        weight = state[f"{conv}.weight"]
        y = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1])
        return F.batch_norm(y, *(state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")))

    x = convolve(x, "conv1", "bn1", 1 if stem == "cifar" else 2).relu()
    x = x if stem == "cifar" else F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(DEPTHS[depth], start=1):
        for index in range(count):
            at, stride, y = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1, x
            for i, step in enumerate((stride, 1) if depth < 50 else (1, stride, 1), start=1):
                y = convolve(y if i == 1 else y.relu(), f"{at}.conv{i}", f"{at}.bn{i}", step)
            has_layer = f"{at}.shortcut.0.weight" in state
            x = (y + (convolve(x, f"{at}.shortcut.0", f"{at}.shortcut.1", stride) if has_layer else x)).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"depth": 18},
        {"depth": 34, "stem": "imagenet"},
        {"depth": 50},
        {"depth": 50, "stem": "imagenet", "groups": 4, "group_width": 16},
    ],
    ids=str,
)
def test_forward_by_hand(arguments: dict[str, Any]) -> None:
    net = ResNet(**arguments, width=1 / 16).double().eval()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.normal_(part.weight)
    torch.testing.assert_close(net(X.double()), by_hand(net, X.double()))


def products_and_norms(net: nn.Module) -> list[nn.Module]:
    """Convolutions and norms of the main way first, then those of the shortcuts, then the last layer."""
    named = [(name, part) for name, part in net.named_modules() if isinstance(part, (nn.Conv2d, nn.BatchNorm2d, nn.Linear))]
    return [part for name, part in named if "shortcut" not in name] + [part for name, part in named if "shortcut" in name]


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize(("depth", "kind", "expansion"), [(18, "basic", 1), (50, "bottleneck", 4)])
def test_it_is_the_resnet_of_transformers(depth: int, kind: str, expansion: int) -> None:
    """With the same weights it gives the same numbers: strides, shortcuts and stem are where they should be."""
    import transformers as hf

    config = hf.ResNetConfig(
        embedding_size=4, hidden_sizes=[4 * expansion * 2**i for i in range(4)], depths=list(DEPTHS[depth]), layer_type=kind,
        num_labels=10,
    )  # fmt: skip
    theirs = hf.ResNetForImageClassification(config).double().eval()
    ours = ResNet(depth, stem="imagenet", width=1 / 16).double().eval()
    pairs = list(zip(products_and_norms(ours), products_and_norms(theirs), strict=True))
    for mine, other in pairs:
        if isinstance(other, nn.BatchNorm2d):
            nn.init.normal_(other.running_mean)
            nn.init.normal_(other.weight)
        mine.load_state_dict(other.state_dict())
    torch.testing.assert_close(ours(X.double()), theirs(X.double()).logits)


@pytest.mark.parametrize(("stem", "size"), [("cifar", 32), ("imagenet", 8)])
def test_stems(stem: str, size: int) -> None:
    """CIFAR's keeps the picture's size, ImageNet's quarters it; then three stages halve it."""
    net = ResNet(18, stem=stem, width=0.125)
    sizes: list[int] = []
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        stage.register_forward_hook(lambda _, __, output: sizes.append(output.shape[-1]))
    assert net(X).shape == (2, 10)
    assert sizes == [size, size // 2, size // 4, size // 8]


@settings(max_examples=5)
@given(groups=st.sampled_from([1, 2, 4, 32]), each=st.integers(1, 8), eighths=st.integers(2, 16))
def test_widths(groups: int, each: int, eighths: int) -> None:
    """Each is the nearest multiple of what divides it; groups only in the 3×3 convolution of a block."""
    with torch.device("meta"):
        net = ResNet(50, groups=groups, group_width=each, width=eighths / 8)
    for index, stage in enumerate((net.layer1, net.layer2, net.layer3, net.layer4)):
        inner = nearest(2**index * groups * each * eighths / 8, groups)
        outputs = nearest(256 * 2**index * eighths / 8)
        for block in stage:
            assert [c.out_channels for c in (block.conv1, block.conv2, block.conv3)] == [inner, inner, outputs]
            assert [c.groups for c in (block.conv1, block.conv2, block.conv3)] == [1, groups, 1]


@pytest.mark.parametrize("depth", [18, 50])
def test_block_starts(depth: int) -> None:
    """The first convolution of every block, found by structure; shortcuts and the stem are none."""
    net = ResNet(depth, width=0.125)
    expected = {f"layer{stage}.{block}.conv1" for stage in range(1, 5) for block in range(DEPTHS[depth][stage - 1])}
    assert block_starts(observe(net, mt.Inputs(X))) == expected
