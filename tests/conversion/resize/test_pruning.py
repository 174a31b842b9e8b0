"""Thinning by channels: the right weights stay, blocks and heads keep their share, and what cannot be audited is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import convolutional as conv
from nets import oddities as odd
from nets import sequences as seq
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes import models
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize import pruning
from multitudes.conversion.resize.audit import changed_outputs, width_of
from multitudes.conversion.resize.pruning import Chooser, first_channels
from multitudes.models.network import nearest

pytestmark = pytest.mark.slow

LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
IMAGE = mt.Inputs(torch.randn(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def pruned(net: nn.Module, ratio: float, inputs: mt.Inputs, choose: Chooser = first_channels) -> nn.Module:
    """A pruned copy of a network."""
    return pruning.pruned(observe(net, inputs), ratio, choose)


def marked(net: nn.Module) -> nn.Module:
    """In double precision, with a bias in every layer and statistics in every norm: each channel has numbers of its own."""
    for part in net.modules():
        if isinstance(part, LAYERS):
            part.bias = nn.Parameter(torch.randn(width_of(part)))
        elif isinstance(part, NORMS):
            for tensor in (part.weight, part.bias, part.running_mean):
                nn.init.normal_(tensor)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
    return net.double().eval()


def at_random(seed: int) -> Chooser:
    """Chooses any channels."""
    generator = torch.Generator().manual_seed(seed)
    return lambda importance, keep: sorted(torch.randperm(len(importance), generator=generator)[:keep].tolist())


def kept(wide: Tensor, thin: Tensor) -> list[int]:
    """Where the numbers of the thin tensor stand in the wide one."""
    return [(wide == number).nonzero().item() for number in thin]


def zeroed(wide: nn.Module, thin: nn.Module) -> nn.Module:
    """The wide network whose layers and norms give zero in the channels that the thin one has lost."""

    def silence(part: nn.Module, _: Any, output: Tensor, mask: Tensor) -> Tensor:
        return output * (mask if output.ndim == 2 else mask.view(-1, 1, 1))

    new = copy.deepcopy(wide)
    for name, part in new.named_modules():
        if isinstance(part, (*LAYERS, *NORMS)):
            mask = torch.zeros(len(part.bias), dtype=torch.float64)
            mask[kept(part.bias, thin.get_submodule(name).bias)] = 1
            part.register_forward_hook(lambda part, args, output, mask=mask: silence(part, args, output, mask))
    return new


def assert_thin_is_zeroed(net: nn.Module, ratio: float, inputs: mt.Inputs, choose: Chooser) -> nn.Module:
    """The law of pruning: the thin network gives what the wide one gives with the lost channels at zero."""
    thin = pruned(net, ratio, inputs, choose)
    torch.testing.assert_close(thin(*inputs.args), zeroed(net, thin)(*inputs.args), rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in thin.parameters()) < sum(p.numel() for p in net.parameters())
    return thin


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Of all that is in a state dict."""
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def test_nearest_by_hand() -> None:
    """Halves go up, and nothing goes below one multiple."""
    assert [nearest(w) for w in (0.1, 0.5, 1.49, 1.5, 2.5, 153.6)] == [1, 1, 1, 2, 3, 154]
    assert [nearest(w, 4) for w in (0.1, 5.9, 6, 10, 13.9, 14)] == [4, 4, 8, 12, 12, 16]
    assert nearest(1, 3) == 3


@pytest.mark.slow
@given(eighths=st.integers(1, 4000), multiple=st.integers(1, 12))
def test_nearest_is_nearest(eighths: int, multiple: int) -> None:
    """No multiple is nearer, an equally near one is not above; the smallest is one multiple."""
    width, found = eighths / 8, nearest(eighths / 8, multiple)
    assert found % multiple == 0
    assert found >= multiple
    assert abs(found - width) < abs(found + multiple - width)
    assert found == multiple or abs(found - width) <= abs(found - multiple - width)


EXACT: dict[str, Callable[[], nn.Module]] = {
    "residual": conv.ResNet,
    "bottlenecks": lambda: conv.ResNet(conv.Bottleneck, (8, 12, 16)),
    "pre-activation": conv.WideResNet,
    "concatenating": conv.DenseNet,
    "skips and transposed": conv.UNet,
    "depthwise and gates": conv.MobileNet,
    "plain": conv.CNN,
    "our ResNet": lambda: models.ResNet(18, width=0.125),
    "our WideResNet": lambda: models.WideResNet(10, 1),
}


@pytest.mark.parametrize("ratio", [0.5, 0.75])
@pytest.mark.parametrize("name", EXACT)
def test_dropping_channels_is_setting_them_to_zero(name: str, ratio: float) -> None:
    """In double precision, whichever channels are chosen: the thin network has the right weights in the right places."""
    for seed in range(2):
        assert_thin_is_zeroed(marked(EXACT[name]()), ratio, IMAGE, at_random(seed))


@pytest.mark.slow
@settings(max_examples=25)
@given(
    widths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    ratio=st.integers(1, 15).map(lambda n: n / 16),
    seed=st.integers(0, 99),
)
def test_any_perceptron(widths: list[int], ratio: float, seed: int) -> None:
    """Every hidden width is the nearest whole product, inputs and outputs are as before, and the weights are right."""
    torch.manual_seed(seed)
    narrow = [nearest(w * ratio) for w in [*widths, 9]]
    layers = [part for a, b in zip([4, *widths], [*widths, 9], strict=True) for part in (nn.Linear(a, b), nn.ReLU())]
    net, x = marked(nn.Sequential(*layers, nn.Linear(9, 3))), mt.Inputs(torch.randn(3, 4, dtype=torch.float64))
    thin = assert_thin_is_zeroed(net, ratio, x, at_random(seed)) if narrow != [*widths, 9] else net
    linear = [part for part in thin if isinstance(part, nn.Linear)]
    assert [part.out_features for part in linear] == [*narrow, 3]
    assert [part.in_features for part in linear] == [4, *narrow]


def grouped(groups: int, before: int, inner: int) -> nn.Sequential:
    """A convolution, a grouped one and a head."""
    return nn.Sequential(
        nn.Conv2d(3, groups * before, 1), nn.BatchNorm2d(groups * before), nn.ReLU(),
        nn.Conv2d(groups * before, groups * inner, 3, padding=1, groups=groups), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(groups * inner, 5),
    )  # fmt: skip


@settings(max_examples=20)
@given(
    groups=st.integers(2, 4), before=st.integers(2, 5), inner=st.integers(2, 5), ratio=st.integers(4, 12).map(lambda n: n / 16),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_grouped_convolutions_keep_as_many_channels_in_each_block(
    groups: int, before: int, inner: int, ratio: float, seed: int
) -> None:
    """Of what they read and of what they give; so the blocks still read their own channels, and the output is exact."""
    torch.manual_seed(seed)
    net = marked(grouped(groups, before, inner))
    thin = pruned(net, ratio, IMAGE, at_random(seed))
    assert thin[3].groups == groups
    for index, size in ((0, before), (3, inner)):
        blocks = [channel // size for channel in kept(net[index].bias, thin[index].bias)]
        assert [blocks.count(block) for block in range(groups)] == [nearest(groups * size * ratio, groups) // groups] * groups
    torch.testing.assert_close(thin(*IMAGE.args), zeroed(net, thin)(*IMAGE.args), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_resnext_is_exact(seed: int | None) -> None:
    """Where a grouped convolution stands behind a plain one, the channels between them are its blocks' too."""
    net = marked(models.ResNet(50, groups=4, group_width=32, width=0.125))
    assert_thin_is_zeroed(net, 0.5, IMAGE, first_channels if seed is None else at_random(seed))


def test_depthwise_convolutions_stay_depthwise() -> None:
    """As many groups as channels, before and after."""
    thin = pruned(marked(conv.MobileNet()), 0.5, IMAGE, at_random(0))
    assert [(part.groups, part.out_channels) for part in thin if getattr(part, "groups", 1) > 1] == [(2, 2), (3, 3)]


def test_what_group_norm_needs_divides() -> None:
    """Widths go to multiples of its groups."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 2)).double()
    thin = pruned(net, 0.5, IMAGE)
    assert (thin[0].out_channels, thin[1].num_channels, thin[1].num_groups) == (8, 8, 4)


VIT_AXES = {
    "embed.weight": "s...", "embed.bias": "s", "token": "..s", "position": "..s", "norm1": "s", "norm2": "s",
    "norm.weight": "s", "norm.bias": "s", "in_proj_weight": "qs", "in_proj_bias": "q", "out_proj.weight": "ss",
    "out_proj.bias": "s", "mlp.0.weight": "hs", "mlp.0.bias": "h", "mlp.2.weight": "sh", "mlp.2.bias": "s",
    "head.weight": ".s", "head.bias": ".",
}  # fmt: skip
"""Which axes of a ViT's tensors are the stream (s), the three projections of it (q) or a block's hidden units (h)."""


class ViT(seq.ViT):
    """The ViT of the zoo with this number and size of heads."""

    def __init__(self, heads: int, size: int, blocks: int) -> None:
        super().__init__(width=2)
        width = heads * size
        self.embed, self.norm, self.head = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width), nn.Linear(width, 5)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 5, width))
        self.blocks = nn.Sequential(*(seq.AttentionBlock(width, heads) for _ in range(blocks)))


def vit(heads: int, size: int, blocks: int = 2) -> nn.Module:
    """Such a ViT, each of whose channels can be told."""
    net = ViT(heads, size, blocks)
    for part in net.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
        elif isinstance(part, nn.MultiheadAttention):
            nn.init.normal_(part.in_proj_bias)
    return marked(net)


@pytest.mark.parametrize("seed", range(4))
def test_a_vit_keeps_the_same_channels_all_along_its_stream(seed: int) -> None:
    """Every tensor of the thin network is a slice of the wide one: one choice for the stream, one for each block's units."""
    net = vit(heads=2, size=8)
    thin = pruned(net, 0.25, IMAGE, at_random(seed))
    stream = kept(net.embed.bias, thin.embed.bias)
    every = {"s": stream, "q": [16 * third + channel for third in range(3) for channel in stream]}
    assert len(stream) == 4
    for name, tensor in net.state_dict().items():
        axes = next(axes for end, axes in VIT_AXES.items() if name.endswith(end) or end in name.split("."))
        block = name.partition(".mlp.")[0]
        for axis, letter in enumerate(axes.ljust(tensor.ndim, ".")):
            if letter == "h":
                units = kept(net.get_parameter(f"{block}.mlp.0.bias"), thin.get_parameter(f"{block}.mlp.0.bias"))
                assert len(units) == 4
                tensor = tensor.index_select(axis, torch.tensor(units))
            elif letter in every:
                tensor = tensor.index_select(axis, torch.tensor(every[letter]))
        torch.testing.assert_close(thin.state_dict()[name], tensor, rtol=0, atol=0)
    assert thin(*IMAGE.args).shape == (3, 5)


@pytest.mark.slow
@settings(max_examples=10)
@given(heads=st.integers(1, 4), size=st.integers(2, 5), ratio=st.integers(4, 12).map(lambda n: n / 16), seed=st.integers(0, 99))
def test_heads_keep_as_many_channels_each(heads: int, size: int, ratio: float, seed: int) -> None:
    """The number of heads stays, and no channel changes its head: what a head has learnt is not mixed with another's."""
    torch.manual_seed(seed)
    net = vit(heads, size, blocks=1)
    narrow = nearest(heads * size * ratio, heads)
    thin = pruned(net, ratio, IMAGE, at_random(seed))
    attention = thin.blocks[0].attention
    assert (attention.num_heads, attention.embed_dim, attention.head_dim) == (heads, narrow, narrow // heads)
    owners = [channel // size for channel in kept(net.embed.bias, thin.embed.bias)]
    assert owners == sorted(list(range(heads)) * (narrow // heads))


def test_without_a_choice_the_first_channels_stay() -> None:
    """Which does not matter where weights start anew."""
    net = marked(conv.CNN())
    thin = pruned(net, 0.5, IMAGE)
    assert kept(net[0].bias, thin[0].bias) == [0, 1]
    assert kept(net[3].bias, thin[3].bias) == first_channels(torch.ones(6), 3) == [0, 1, 2]


def test_the_choice_knows_the_importance_of_each_channel() -> None:
    """By the size of all weights that go with it; a channel whose weights are large is known by it."""
    net, seen = marked(conv.CNN()), []
    with torch.no_grad():
        for tensor in (net[0].weight, net[0].bias):
            tensor[2] *= 100
        net[3].weight[:, 2] *= 100

    def choose(importance: Tensor, keep: int) -> list[int]:
        seen.append((importance, keep))
        return importance.argsort(descending=True)[:keep].tolist()

    thin = pruned(net, 0.25, IMAGE, choose)
    asked = {len(importance): (keep, importance.argmax().item()) for importance, keep in seen}
    assert asked[4] == (1, 2)
    assert asked[6][0] == 2
    assert kept(net[0].bias, thin[0].bias) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.5, 0.3])
@pytest.mark.parametrize(
    "build",
    [
        lambda width: models.ResNet(18, width=0.25 * width),
        lambda width: models.ResNet(50, width=0.25 * width),
        lambda width: models.ResNet(50, groups=4, group_width=32, width=0.25 * width),
        lambda width: models.WideResNet(10, 2, width=width),
        lambda width: models.SmallCNN(width=width),
        lambda width: models.LeNet(channels=3, width=width),
        lambda width: models.ViT(image=12, size=20, heads=2, depth=2, width=width),
    ],
    ids=["resnet18", "resnet50", "resnext50", "wideresnet", "smallcnn", "lenet", "vit"],
)
def test_both_ways_give_the_same_shapes(build: Callable[[float], nn.Module], ratio: float) -> None:
    """A network of ours thinned by its channels is as its constructor makes it."""
    assert shapes(pruned(build(1.0), ratio, mt.Inputs(torch.randn(2, 3, 12, 12)))) == shapes(build(ratio))


def test_both_ways_give_the_same_perceptron() -> None:
    """With BatchNorm and dropout in between."""
    x = mt.Inputs(torch.randn(4, 3))
    net = models.MLP(3, (20, 30), 2, norm="all", dropout=0.1)
    assert shapes(pruned(net, 0.5, x)) == shapes(models.MLP(3, (10, 15), 2, norm="all", dropout=0.1))


def state(net: nn.Module) -> dict[str, Any]:
    """All that a user could see of a model: weights, gradients, modes, what is frozen, hooks."""
    return {
        "tensors": {name: (id(tensor), tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()},
        "grads": {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()},
        "frozen": {name: not p.requires_grad for name, p in net.named_parameters()},
        "modes": {name: part.training for name, part in net.named_modules()},
        "hooks": [
            (n, list(p._forward_hooks), list(p._forward_pre_hooks), list(p._backward_hooks)) for n, p in net.named_modules()
        ],
        "vars": {name: set(vars(part)) for name, part in net.named_modules()},
    }


def assert_unchanged(net: nn.Module, before: dict[str, Any]) -> None:
    """A model is as it was when `state` was taken."""
    now = state(net)
    for kind, found in before.items():
        if kind == "tensors":
            assert all(
                now[kind][name][0] == place and torch.equal(now[kind][name][1], old) for name, (place, old) in found.items()
            )
        elif kind == "grads":
            assert all(torch.equal(now[kind][n], g) if g is not None else now[kind][n] is None for n, g in found.items())
        else:
            assert now[kind] == found


def part_trained(net: nn.Module) -> nn.Module:
    """A model in use: frozen in part, in mixed modes, with gradients and a hook."""
    net.train()
    net.conv1.weight.requires_grad_(False)
    net.bn1.eval()
    net.fc.register_forward_hook(lambda *_: None)
    net.fc.weight.grad = torch.ones_like(net.fc.weight)
    return net


def test_the_given_model_is_untouched() -> None:
    """Weights, gradients, statistics, modes, hooks, and what is frozen."""
    net = part_trained(conv.ResNet())
    before = state(net)
    pruned(net, 0.5, mt.Inputs(torch.randn(3, 3, 8, 8)))
    assert_unchanged(net, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_modes_dtypes_and_what_is_frozen_carry_over(dtype: torch.dtype) -> None:
    """And gradients do not."""
    net = part_trained(conv.ResNet()).to(dtype)
    thin = pruned(net, 0.5, mt.Inputs(torch.randn(3, 3, 8, 8, dtype=dtype)))
    for key in ("frozen", "modes"):
        assert state(thin)[key] == state(net)[key]
    assert {t.dtype for t in thin.state_dict().values()} == {dtype, torch.int64}
    assert all(p.is_leaf and p.grad is None for p in thin.parameters())
    assert thin.conv1.weight.shape[0] == 2


def test_on_the_meta_device() -> None:
    """Shapes suffice."""
    with torch.device("meta"):
        net, x = conv.ResNet(widths=(64, 128, 256)), torch.randn(2, 3, 8, 8)
    thin = pruned(net, 0.5, mt.Inputs(x))
    assert shapes(thin) == shapes(conv.ResNet(widths=(32, 64, 128)))
    assert all(tensor.is_meta for tensor in thin.state_dict().values())


class HardCoded(nn.Module):
    """Says its width in `forward`, in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 8), nn.Linear(4 if how == "halves" else 8, 5), how

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        if self.how == "view":
            h = h.view(len(x), 2, 4).mean(1, keepdim=True).expand(-1, 2, -1).reshape(len(x), 8)
        elif self.how == "rows":
            h = h.view(-1, 8)
        elif self.how == "halves":
            h = h[:, :4] * h[:, 4:]
        else:
            h = h + torch.ones(8)
        return self.last(h)


@pytest.mark.parametrize("how", ["view", "rows", "halves", "table"])
def test_a_width_written_into_forward_is_refused(how: str) -> None:
    """The advice says what to give instead."""
    with pytest.raises(mt.ConversionError, match=r"HardCoded cannot be thinned to 0.5(.|\n)*lambda ratio: Net"):
        pruned(HardCoded(how), 0.5, mt.Inputs(torch.randn(4, 4)))


@pytest.mark.parametrize("case", ["lstm", "weight_norm", "one_layer", "table", "pyramidnet"])
def test_what_cannot_be_taken_apart_is_refused(case: str) -> None:
    """By name, and with advice; never thinned in part."""
    with pytest.raises(
        mt.ConversionError, match=rf"{type(ZOO[case].model()).__name__} cannot be thinned(.|\n)*lambda ratio: Net"
    ):
        pruned(ZOO[case].model(), 0.5, ZOO[case].example())


def test_a_layer_that_kept_its_width_is_refused() -> None:
    """Although the network would run: shortcuts that are padded with zeros hide which channels hang together."""
    with pytest.raises(mt.ConversionError, match=r"conv2 \(Conv2d\) has \d+ channels instead of"):
        pruned(models.PyramidNet(8, 12).double(), 0.5, IMAGE)


def test_a_network_of_output_layers_has_nothing_to_lose() -> None:
    """One layer alone, or layers side by side, all of which give outputs."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 5), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.two(x)

    for net in (nn.Linear(4, 5), Both()):
        with pytest.raises(mt.ConversionError, match="no channels"):
            pruned(net, 0.5, mt.Inputs(torch.randn(2, 4)))


class Attention(nn.Module):
    """Attention by hand, which finds its heads in one of several ways, by torch's kernel or by a softmax of its own."""

    def __init__(self, how: str, own: bool, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.embed, self.out, self.head = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 5)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.shape = {"sizes": (-1, width // heads), "heads": (heads, -1), "both": (heads, width // heads)}[how]
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        query, key, value = (
            part(h).view(*h.shape[:2], *self.shape).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if self.own:
            y = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        else:
            y = F.scaled_dot_product_attention(query, key, value)
        return self.head((h + self.out(y.transpose(1, 2).flatten(2))).mean(1))


TOKENS = mt.Inputs(torch.randn(2, 6, 4))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("how", "ratio", "why"),
    [
        ("sizes", 2 / 3, "over 4 maps instead of 6"),  # of two rows
        ("both", 0.5, "does not run"),
        ("heads", 7 / 12, "does not run"),
    ],
)
def test_attention_that_would_get_other_heads_is_refused(own: bool, how: str, ratio: float, why: str) -> None:
    """Whether it would run with fewer heads, or not at all."""
    with pytest.raises(mt.ConversionError, match=why):
        pruned(Attention(how, own), ratio, TOKENS)


@pytest.mark.parametrize("own", [True, False])
def test_attention_that_keeps_its_heads_is_thinned(own: bool) -> None:
    """A fixed number of heads of any size: their size shrinks."""
    assert shapes(pruned(Attention("heads", own), 0.5, TOKENS)) == shapes(Attention("heads", own, width=6))


def test_outputs_that_differ_are_named() -> None:
    """By their place in the output; hidden states beside the first output may have another width."""

    class Answers(nn.Module):
        def __init__(self, scores: int, states: int) -> None:
            super().__init__()
            self.scores, self.states = nn.Linear(4, scores), nn.Linear(4, states)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.scores(x), "hidden_state": self.states(x)}

    x = mt.Inputs(torch.randn(2, 4))
    assert list(changed_outputs(Answers(5, 4), Answers(5, 3), x)) == []
    assert list(changed_outputs(Answers(5, 4), Answers(3, 4), x)) == ["the output logits is [2, 3] instead of [2, 5]"]
    assert list(changed_outputs(nn.Linear(4, 5), nn.Linear(4, 3), x)) == ["the output is [2, 3] instead of [2, 5]"]


def test_looking_at_outputs_leaves_both_networks_alone() -> None:
    """Statistics do not move, modes stay."""
    net = odd.mlp(nn.BatchNorm1d(8)).train()
    before = copy.deepcopy(net.state_dict())
    assert list(changed_outputs(net, net, mt.Inputs(torch.randn(4, 4)))) == []
    assert net.training
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_the_width_of_a_layer() -> None:
    """What it gives out; other modules have none."""
    layers = [nn.Conv2d(2, 3, 1), nn.ConvTranspose1d(2, 4, 1), nn.Linear(2, 5), nn.Embedding(2, 6), nn.MultiheadAttention(8, 2)]
    assert [width_of(layer) for layer in layers] == [3, 4, 5, 6, 8]
    assert width_of(nn.ReLU()) == width_of(nn.LSTM(2, 3)) == width_of(nn.BatchNorm1d(4)) == 0


class Hypernetwork(nn.Module):
    """A network makes the weights of a layer."""

    def __init__(self, secret: object) -> None:
        super().__init__()
        assert type(secret) is object  # its constructor cannot be run again
        self.weights, self.head = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16 * 6)), nn.Linear(16, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.head(torch.einsum("boi,bi->bo", self.weights(z).view(-1, 16, 6), x).relu())


def test_channels_that_multiply_without_end_are_refused_at_once() -> None:
    """torch-pruning would follow more and more of them until the time is over."""
    inputs = mt.Inputs(torch.randn(3, 6), torch.randn(3, 4))
    with pytest.raises(mt.ConversionError, match="in a way that cannot be followed"):
        mt.resize(Hypernetwork(object()), 0.5, inputs, seed=0, search_seconds=3)


@pytest.mark.parametrize("seed", range(4))
def test_an_rms_norm_keeps_the_weights_of_its_channels(seed: int) -> None:
    """torch-pruning knows its weight, and not the module."""
    layers = [nn.Linear(6, 16), nn.RMSNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)]
    net, x = marked(nn.Sequential(*layers)), torch.randn(4, 6, dtype=torch.float64)
    nn.init.normal_(net[1].weight)  # type: ignore[index]
    thin = pruned(net, 0.5, mt.Inputs(x), at_random(seed))
    wide, after = net.state_dict(), thin.state_dict()
    stream, units = kept(wide["0.bias"], after["0.bias"]), kept(wide["3.bias"], after["3.bias"])
    assert thin.get_submodule("1").normalized_shape == (8,) == (len(stream),)
    assert torch.equal(after["1.weight"], wide["1.weight"][stream])
    assert torch.equal(after["3.weight"], wide["3.weight"][units][:, stream])
    assert thin(x).shape == (4, 3)
