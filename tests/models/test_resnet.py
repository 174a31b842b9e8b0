"""ResNet: equal to another's implementation, with the stems, groups and blocks of its papers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import block_starts, observe
from multitudes.models import ResNet
from multitudes.models.network import nearest
from multitudes.models.resnet import DEPTHS

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def products_and_norms(net: nn.Module) -> list[nn.Module]:
    """Convolutions and norms of the main way first, then those of the shortcuts, then the last layer."""
    named = [(name, part) for name, part in net.named_modules() if isinstance(part, (nn.Conv2d, nn.BatchNorm2d, nn.Linear))]
    return [part for name, part in named if "shortcut" not in name] + [part for name, part in named if "shortcut" in name]


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


@settings(max_examples=8)
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"depth": 20}, "18, 34, 50, 101, 152"),
        ({"depth": 18, "groups": 2}, "only bottlenecks have groups"),
        ({"stem": "mnist"}, "'cifar' or 'imagenet'"),
    ],
)
def test_what_there_is_not(arguments: dict[str, object], says: str) -> None:
    """Is refused, with what there is."""
    with pytest.raises(mt.InputError, match=says):
        ResNet(**arguments)
