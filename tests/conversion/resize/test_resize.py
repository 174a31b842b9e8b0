"""resize: the widths that were asked, the rest as it was, started anew; what it cannot do it refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import convolutional as conv
from nets import oddities as odd
from nets import sequences as seq
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes import models
from multitudes.conversion.resize.resize import Resizing
from multitudes.models.network import nearest

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Of all that is in a state dict."""
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers from four inputs to three outputs, of a make that is unknown to the library."""
    sizes = [4, *widths]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 3))


def small_resnet(**arguments: Any) -> models.ResNet:
    """A ResNet of ours, an eighth as wide."""
    return models.ResNet(18, **{"width": 0.125, **arguments})


def small_vit() -> models.ViT:
    """A ViT of ours, of one block."""
    return models.ViT(image=16, size=24, depth=1)


class Convolutions(nn.Sequential):
    """A network of unknown make, at any width."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 5),
        )  # fmt: skip


OURS: dict[str, tuple[Callable[[float], nn.Module], Tensor]] = {
    "ResNet": (lambda width: models.ResNet(18, width=width / 8), PICTURES),
    "ResNeXt": (lambda width: models.ResNet(50, groups=4, group_width=16, width=width / 8), PICTURES),
    "WideResNet": (lambda width: models.WideResNet(10, 1, dropout=0.1, width=width), PICTURES),
    "PyramidNet": (lambda width: models.PyramidNet(8, 12, width=width), PICTURES),
    "SmallCNN": (lambda width: models.SmallCNN(width=width), PICTURES),
    "LeNet": (lambda width: models.LeNet(channels=3, width=width), PICTURES),
    "ViT": (lambda width: models.ViT(image=16, size=24, depth=2, width=width), PICTURES),
    "MLP": (lambda width: models.MLP(4, (16, 24), 3, width=width, norm="all", gamma=0.2), X),
}


@pytest.mark.parametrize(("name", "ratio"), list(zip(OURS, itertools.cycle([0.5, 0.3, 1.5]), strict=False)))
def test_a_network_of_ours_is_as_its_constructor_makes_it(name: str, ratio: float) -> None:
    """To the last tensor, thin or wide, whatever rounding does; and with this seed to the last number."""
    build, x = OURS[name]
    new = mt.resize(build(1.0), ratio, x, seed=7)
    torch.manual_seed(7)
    torch.testing.assert_close(dict(new.state_dict()), dict(build(ratio).state_dict()), rtol=0, atol=0)
    assert new.resizing.way == "its constructor"
    assert type(new) is type(build(1.0))


def test_a_whole_number_is_a_width_too() -> None:
    """LeNet(width=2) is made by its constructor, as LeNet(width=2.0) is."""
    assert mt.resize(models.LeNet(width=2), 0.5, torch.randn(2, 1, 28, 28)).resizing.way == "its constructor"


def test_there_and_back() -> None:
    """A network resized twice has the widths that both ratios give together."""
    wide = mt.resize(mt.resize(small_resnet(), 0.5, PICTURES), 2, PICTURES)
    assert shapes(wide) == shapes(small_resnet())


@pytest.mark.parametrize("width", [3, 8])
def test_an_unknown_network_is_thinned_by_its_channels(width: int) -> None:
    """As its author would make it at that width, also where its constructor is not known."""
    for model, way in ((Convolutions(4 * width), "its constructor"), (nn.Sequential(*Convolutions(4 * width)), "channels")):
        thin = mt.resize(model, 0.25, PICTURES)
        assert shapes(thin) == shapes(Convolutions(width))
        assert thin.resizing == Resizing(0.25, way)


@pytest.mark.slow
@settings(max_examples=6)
@given(widths=st.lists(st.integers(4, 12), min_size=1, max_size=4), sixteenths=st.integers(1, 12))
def test_widths_are_the_nearest_products(widths: list[int], sixteenths: int) -> None:
    """And the report names each layer whose width is not exactly what was asked, and no other."""
    ratio = sixteenths / 16
    thin = mt.resize(perceptron(*widths), ratio, X)
    narrow = [nearest(width * ratio) for width in widths]
    assert shapes(thin) == shapes(perceptron(*narrow))
    asked = {str(2 * i): (w * ratio, n) for i, (w, n) in enumerate(zip(widths, narrow, strict=True))}
    assert thin.resizing.rounded == {name: pair for name, pair in asked.items() if pair[0] != pair[1]}


@settings(max_examples=6)
@given(heads=st.integers(1, 4), size=st.integers(2, 8), eighths=st.integers(3, 20))
def test_heads_stay_and_divide_the_width(heads: int, size: int, eighths: int) -> None:
    """At any ratio."""
    net = models.ViT(image=8, patch=4, size=heads * size, heads=heads, depth=1, ratio=2)
    new = mt.resize(net, eighths / 8, torch.randn(2, 3, 8, 8))
    attention = new.blocks[0].attention
    assert attention.num_heads == heads
    assert attention.embed_dim == nearest(heads * size * eighths / 8, heads)


@pytest.mark.slow
@settings(max_examples=5)
@given(groups=st.sampled_from([2, 4, 8]), size=st.integers(1, 3), eighths=st.integers(4, 16))
def test_groups_stay_and_divide_the_width(groups: int, size: int, eighths: int) -> None:
    """Of a ResNeXt on the meta device, at any ratio."""
    with torch.device("meta"):
        net, x = models.ResNet(50, groups=groups, group_width=8 * size, width=0.5), torch.zeros(2, 3, 8, 8)
    new = mt.resize(net, eighths / 8, x)
    for planes, stage in zip((64, 128, 256, 512), (new.layer1, new.layer2, new.layer3, new.layer4), strict=True):
        assert stage[0].conv2.groups == groups
        assert stage[0].conv2.out_channels == nearest(planes * groups * 8 * size // 64 * 0.5 * eighths / 8, groups)


def test_the_report_in_words() -> None:
    """The ratio, the way, the first three layers that were rounded, and how many were divided into groups."""
    assert str(Resizing(0.5, "channels")) == "resized to 0.5 of the width by channels"
    rounded = dict.fromkeys("abcde", (2.5, 3))
    assert str(Resizing(1 / 3, "the factory", rounded)) == (
        "resized to 0.333333 of the width by the factory; rounded: a 2.5 → 3, b 2.5 → 3, c 2.5 → 3 and 2 more"
    )
    assert str(Resizing(2, "its constructor", dict.fromkeys("abc", (0.5, 1)), {"a": 2})) == (
        "resized to 2 of the width by its constructor; rounded: a 0.5 → 1, b 0.5 → 1, c 0.5 → 1; 1 layers in groups"
    )


def test_a_width_that_cannot_shrink_is_reported() -> None:
    """A single unit stays, where half of one was asked; outputs are not spoken of."""
    thin = mt.resize(models.MLP(4, (1, 8), 3), 0.5, X)
    assert thin.resizing.rounded == {"layers.0": (0.5, 1)}


REFUSED: list[tuple[Any, Any, Any, dict[str, Any], type[Exception], str]] = [
    *((perceptron(8), ratio, X, {}, mt.InputError, "above 0") for ratio in (0, -1, math.nan, math.inf, True, "x", None, [0.5])),
    *((model, 0.5, X, {}, mt.InputError, "factory") for model in (nn.Linear, 3, None, "resnet18")),
    (perceptron(8), 1.5, X, {}, mt.ConversionError, "Sequential(.|\n)*1.5(.|\n)*lambda ratio: Net"),
    *((ZOO[case].model(), 0.5, ZOO[case].example(), {}, mt.ConversionError, "lambda ratio") for case in ("lstm", "one_layer")),
    (perceptron(8), 0.5, X / 0, {}, mt.InputError, "NaN"),
    (perceptron(8), 0.5, "x", {}, mt.InputError, "tensor"),
    (perceptron(8), 0.5, torch.randn(2, 5), {}, mt.InputError, "example"),
    (perceptron(8), 0.5, X, {"seed": "a"}, mt.InputError, "seed"),
    (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), 0.5, X, {}, mt.ConversionError, "lazy"),
]
"""Model, ratio, example and options of a call, its error, and what that names."""


@pytest.mark.parametrize(("model", "ratio", "x", "options", "error", "named"), REFUSED)
def test_what_cannot_be_resized_is_refused(
    model: Any, ratio: Any, x: Any, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        mt.resize(model, ratio, x, **options)


@pytest.mark.parametrize("ratio", [0.5, 2])
def test_a_factory_stands_in_for_the_model(ratio: float) -> None:
    """It makes thin and wide networks, with this seed always the same."""
    new = mt.resize(lambda ratio: perceptron(round(8 * ratio)), ratio, X, seed=3)
    torch.manual_seed(3)
    torch.testing.assert_close(dict(new.state_dict()), dict(perceptron(round(8 * ratio)).state_dict()), rtol=0, atol=0)
    assert new.resizing == Resizing(ratio, "the factory")


def attention(width: int, heads: int) -> nn.Module:
    """The ViT of the zoo with one block of this number of heads."""
    net = seq.ViT(width=width)
    net.blocks = nn.Sequential(seq.AttentionBlock(width, heads))
    return net


@pytest.mark.parametrize(
    ("factory", "x", "why"),
    [
        (lambda ratio: perceptron(8), X, "does not follow the ratio"),
        (lambda ratio: perceptron(round(8 / ratio)), X, "does not follow the ratio"),
        (lambda ratio: nn.Sequential(nn.Linear(4, int(8 * ratio)), nn.Linear(int(8 * ratio), int(6 * ratio))), X, "output is"),
        (lambda ratio: perceptron(*[8] * round(1 / ratio)), X, "another type"),
        (lambda ratio: attention(round(16 * ratio), round(4 * ratio)), torch.randn(2, 3, 8, 8), "heads"),
        (lambda ratio: nn.Sequential(nn.Linear(4, round(8 * ratio)), nn.Linear(8, 3)), X, "does not run"),
    ],
    ids=["the same", "the reverse", "the output", "the depth", "the heads", "broken"],
)  # fmt: skip
def test_a_factory_that_makes_something_else_is_refused(factory: Callable[[float], nn.Module], x: Tensor, why: str) -> None:
    """One that ignores the ratio, or changes more than widths."""
    with pytest.raises(mt.ConversionError, match=rf"factory's network at ratio 0.5(.|\n)*{why}"):
        mt.resize(factory, 0.5, x)


def test_what_a_factory_leaves_as_wide_is_reported() -> None:
    """It is its author's word, and the plan repeats it."""
    resizing = mt.resize(lambda ratio: perceptron(round(8 * ratio), 8), 0.5, X).resizing
    assert resizing.note == "the factory leaves as wide as before: 2"
    assert resizing.rounded == {}
    first = mt.resize(lambda ratio: perceptron(8, round(9 * ratio)), 0.5, X).resizing  # 0 has all its weights
    assert first.note == "the factory leaves as wide as before: 0"
    assert first.rounded == {"2": (4.5, 4)}
    plan = mt.plan(lambda ratio: perceptron(8, round(8 * ratio)), mt.Packed(), X)
    assert any("leaves as wide as before: 0" in note for note in plan.notes)


def test_the_same_width_is_a_fresh_copy() -> None:
    """Of any network, known or not."""
    net = perceptron(8)
    new = mt.resize(net, 1.0, X, seed=1)  # the seed of the test would give the same weights again
    assert [p.shape for p in new.parameters()] == [p.shape for p in net.parameters()]
    assert not torch.equal(new[0].weight, net[0].weight)


def in_use(net: nn.Module, layer: nn.Module, norm: nn.Module) -> nn.Module:
    """Frozen in part, in mixed modes, with a gradient and a hook."""
    net.train()
    norm.eval()
    layer.weight.requires_grad_(False)
    norm.weight.grad = torch.ones_like(norm.weight)
    layer.register_forward_hook(lambda *_: None)
    return net


def used(kind: str) -> nn.Module:
    """A network of ours or of unknown make, in use."""
    net = small_resnet() if kind == "constructor" else Convolutions(8)
    return in_use(net, *((net.conv1, net.bn1) if kind == "constructor" else (net[0], net[1])))


def flags(net: nn.Module) -> dict[str, Any]:
    """Modes, and what is frozen."""
    return {
        "modes": {name: part.training for name, part in net.named_modules()},
        "frozen": [name for name, p in net.named_parameters() if not p.requires_grad],
    }


@pytest.mark.parametrize("kind", ["constructor", "channels"])
def test_the_given_model_is_untouched(kind: str) -> None:
    """Weights, statistics, gradients, modes, hooks, what is frozen, and torch's global randomness where a seed is given."""
    net = used(kind)
    before = {name: (id(t), t.clone()) for name, t in net.state_dict(keep_vars=True).items()}
    said, hooks = flags(net), [len(part._forward_hooks) for part in net.modules()]
    randomness = torch.get_rng_state()
    mt.resize(net, 0.5, PICTURES, seed=0)
    assert flags(net) == said
    assert [len(part._forward_hooks) for part in net.modules()] == hooks
    assert all(id(t) == before[n][0] and torch.equal(t, before[n][1]) for n, t in net.state_dict(keep_vars=True).items())
    assert [n for n, p in net.named_parameters() if p.grad is not None] in (["bn1.weight"], ["1.weight"])
    assert not hasattr(net, "resizing")
    assert torch.equal(torch.get_rng_state(), randomness)


@pytest.mark.parametrize(("kind", "dtype"), [("constructor", torch.float64), ("channels", torch.bfloat16)])
def test_modes_dtype_and_what_is_frozen_carry_over(kind: str, dtype: torch.dtype) -> None:
    """By every way."""
    net = used(kind).to(dtype)
    for part in net.modules():
        part._forward_hooks.clear()  # with a hook, a constructor's network would be none of the given one's
    new = mt.resize(net, 0.5, PICTURES.to(dtype))
    assert new.resizing.way == {"constructor": "its constructor", "channels": "channels"}[kind]
    assert flags(new) == flags(net)
    assert {n: t.dtype for n, t in new.state_dict().items()} == {n: t.dtype for n, t in net.state_dict().items()}
    assert all(p.is_leaf for p in new.parameters())
    assert new.eval()(PICTURES.to(dtype)).isfinite().all()


def test_on_the_meta_device() -> None:
    """Shapes suffice, by every way; no number is drawn on the device that a caller makes tensors on."""

    def factory(ratio: float) -> nn.Module:
        with torch.device("meta"):
            return Convolutions(round(8 * ratio))

    with torch.device("meta"):
        ours, x = small_resnet(), torch.zeros(2, 3, 16, 16)
    for model, expected in ((ours, small_resnet(width=0.0625)), (factory(1.0), Convolutions(4)), (factory, Convolutions(4))):
        thin = mt.resize(model, 0.5, x)
        assert shapes(thin) == shapes(expected)
        assert all(tensor.is_meta for tensor in thin.state_dict().values())


def test_whatever_mode_the_caller_is_in() -> None:
    """No gradients, inference mode: the new network can be trained."""
    for mode in (torch.no_grad(), torch.inference_mode()):
        for model in (small_resnet(), Convolutions(8)):
            with mode:
                thin = mt.resize(model, 0.5, PICTURES)
            thin(PICTURES).sum().backward()
            assert all(p.grad is not None for p in thin.parameters())


def replaced(net: nn.Module, name: str, part: nn.Module | nn.Parameter) -> nn.Module:
    """The network with another part in this place."""
    parent, _, key = name.rpartition(".")
    setattr(net.get_submodule(parent), key, part)
    return net


def with_dropout(p: float) -> nn.Module:
    """An MLP made with dropout, whose rate was then set to another."""
    net = models.MLP(4, (16, 16), 3, dropout=0.1)
    net.layers[0].p = p
    return net


def rewidened() -> nn.Module:
    """An MLP whose first hidden layer was made twice as wide by hand."""
    return replaced(replaced(models.MLP(4, (16, 16), 3), "layers.0", nn.Linear(4, 32)), "layers.2", nn.Linear(32, 16))


CHANGED: dict[str, tuple[Callable[[], nn.Module], Tensor, Callable[[nn.Module], object]]] = {
    "another head": (lambda: replaced(small_resnet(), "fc", nn.Linear(64, 7)), PICTURES, lambda net: net.fc.out_features),
    "a head without bias": (
        lambda: replaced(small_resnet(), "fc", nn.Linear(64, 10, bias=False)), PICTURES, lambda net: net.fc.bias is None,
    ),
    "a head of two layers": (
        lambda: replaced(small_resnet(), "fc", nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))), PICTURES,
        lambda net: len(net.fc),
    ),
    "groups": (
        lambda: replaced(small_resnet(), "layer1.0.conv2", nn.Conv2d(8, 8, 3, 1, 1, groups=2, bias=False)), PICTURES,
        lambda net: net.layer1[0].conv2.groups,
    ),
    "dilation": (
        lambda: replaced(small_resnet(), "layer1.0.conv2", nn.Conv2d(8, 8, 3, 1, 2, 2, bias=False)), PICTURES,
        lambda net: net.layer1[0].conv2.dilation,
    ),
    "pooling": (
        lambda: replaced(small_resnet(stem="imagenet"), "pool", nn.MaxPool2d(2)), torch.randn(2, 3, 64, 64),
        lambda net: (net.pool.kernel_size, net.pool.stride, net.pool.padding),
    ),
    "no pooling": (
        lambda: replaced(small_resnet(stem="imagenet"), "pool", nn.Identity()), torch.randn(2, 3, 64, 64),
        lambda net: type(net.pool),
    ),
    "cumulative statistics": (
        lambda: replaced(small_resnet(), "bn1", nn.BatchNorm2d(8, momentum=None)), PICTURES, lambda net: net.bn1.momentum,
    ),
    "eps": (lambda: replaced(small_resnet(), "bn1", nn.BatchNorm2d(8, eps=0.1)), PICTURES, lambda net: net.bn1.eps),
    "a norm": (lambda: replaced(small_resnet(), "bn1", nn.GroupNorm(2, 8)), PICTURES, lambda net: type(net.bn1)),
    "dropout": (lambda: with_dropout(0.5), X, lambda net: net.layers[0].p),
    "activation": (lambda: replaced(models.MLP(4, (16, 16), 3), "layers.1", nn.Tanh()), X, lambda net: type(net.layers[1])),
    "a width": (rewidened, X, lambda net: net.layers[0].out_features / net.layers[2].out_features),
    "heads": (
        lambda: replaced(small_vit(), "blocks.0.attention", nn.MultiheadAttention(24, 2, batch_first=True)), PICTURES,
        lambda net: net.blocks[0].attention.num_heads,
    ),
    "a parameter more": (
        lambda: replaced(small_vit(), "temperature", nn.Parameter(torch.ones(1))), PICTURES,
        lambda net: hasattr(net, "temperature"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "ratio"), list(zip(CHANGED, itertools.cycle([0.5, 2]), strict=False)))
def test_what_a_user_changed_is_not_lost(name: str, ratio: float) -> None:
    """A network of ours that is no longer as its arguments say keeps the change, or is refused; it is never made as before."""
    build, x, look = CHANGED[name]
    try:
        new = mt.resize(build(), ratio, x)
    except mt.ConversionError as error:
        assert "lambda ratio: " in str(error)
    else:
        assert look(new) == look(build())


def test_what_a_user_changed_is_thinned_by_channels() -> None:
    """Where that is possible, it is not refused."""
    for name in ("another head", "dropout", "activation", "eps"):
        build, x, _ = CHANGED[name]
        assert mt.resize(build(), 0.5, x).resizing.way == "channels"


def test_a_subclass_with_other_arguments_is_thinned_by_channels() -> None:
    """A constructor that fails was no way, and says nothing where another way is found; else the refusal tells."""

    class Other(models.LeNet):
        def __init__(self, kind: str) -> None:
            super().__init__()

    x = torch.randn(2, 1, 28, 28)
    thin = mt.resize(Other("a"), 0.5, x)
    assert (type(thin), thin.resizing.way) == (Other, "channels")
    assert shapes(thin) == shapes(models.LeNet(width=0.5))
    with pytest.raises(mt.ConversionError, match="by its constructor: TypeError"):
        mt.resize(Other("a"), 2, x)


def deviation(nets: list[nn.Module], name: str) -> float:
    """Of a parameter's numbers in all these networks together."""
    return torch.cat([net.get_parameter(name).detach().flatten() for net in nets]).std().item()


def test_thin_layers_start_as_natively_thin_ones() -> None:
    """Drawn by reset_parameters for the inputs that they have now; a trained model's scale says nothing."""
    wide = Convolutions(16)
    with torch.no_grad():
        for p in wide.parameters():
            p.add_(torch.randn_like(p))
    thin = [mt.resize(wide, 0.25, PICTURES, seed=seed) for seed in range(8)]
    native = [Convolutions(4) for _ in range(8)]
    for name in ("0.weight", "0.bias", "3.weight", "3.bias", "7.weight"):
        assert deviation(thin, name) == pytest.approx(deviation(native, name), rel=0.2), name
    assert deviation(thin, "3.weight") > 1.6 * deviation([Convolutions(16) for _ in range(8)], "3.weight")
    assert all(not net[1].running_mean.any() and net[1].running_var.eq(1).all() for net in thin)


class Loose(nn.Module):
    """Matrices and tokens of its own, which nothing but the author's constructor initialises."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, width), nn.Linear(width, 3)
        self.token = nn.Parameter(0.5 + 0.02 * torch.randn(1, 1, width))
        self.scale = nn.Parameter(torch.full((width,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.embed(x).unsqueeze(1) * self.scale + self.token).mean(1))


def test_loose_parameters_keep_their_mean_and_deviation() -> None:
    """A token has no inputs to be rescaled by; what is constant stays."""
    thin = [mt.resize(Loose(), 0.25, X, seed=seed) for seed in range(12)]
    assert thin[0].token.shape == (1, 1, 16)
    assert deviation(thin, "token") == pytest.approx(0.02, rel=0.25)
    assert torch.stack([net.token.detach() for net in thin]).mean().item() == pytest.approx(0.5, abs=0.01)
    assert all(net.scale.eq(1e-3).all() for net in thin)


class OwnLayer(nn.Linear):
    """A linear layer that resets nothing: only its first weights, of deviation 1/√inputs, say how it starts."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        nn.init.normal_(self.weight, std=inputs**-0.5)

    def reset_parameters(self) -> None:
        """As it is."""


def test_other_matrices_are_rescaled_by_their_number_of_inputs() -> None:
    """So that a redrawn layer's outputs are as large as before."""
    wide = nn.Sequential(OwnLayer(4, 64), nn.ReLU(), OwnLayer(64, 64), nn.ReLU(), OwnLayer(64, 3))
    thin = [mt.resize(wide, 0.25, X, seed=seed) for seed in range(8)]
    assert deviation(thin, "0.weight") == pytest.approx(4**-0.5, rel=0.15)
    assert deviation(thin, "2.weight") == pytest.approx(16**-0.5, rel=0.15)
    assert deviation(thin, "4.weight") == pytest.approx(16**-0.5, rel=0.25)


@pytest.mark.parametrize("model", [small_resnet(), Convolutions(8), Loose(), lambda ratio: Convolutions(round(8 * ratio))])
def test_a_seed_says_how_the_new_network_starts(model: Any) -> None:
    """The same seed gives the same, another seed another; nothing is left of the given weights."""
    x = X if isinstance(model, Loose) else PICTURES
    one, same, other = (mt.resize(model, 0.5, x, seed=seed).state_dict() for seed in (1, 1, 2))
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    random = [name for name, tensor in one.items() if tensor.numel() > 1 and len(tensor.unique()) > 1]
    assert len(random) >= 4
    assert not any(torch.equal(one[name], other[name]) for name in random)


def test_without_a_seed_the_global_generator_gives_one() -> None:
    """So that torch.manual_seed makes a script repeatable, and two networks in it differ."""
    torch.manual_seed(5)
    one, two = (mt.resize(Convolutions(8), 0.5, PICTURES)[0].weight for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(mt.resize(Convolutions(8), 0.5, PICTURES)[0].weight, one)
    assert not torch.equal(one, two)


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(7, width), nn.Linear(width, width), nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(ids))))


def test_tied_weights_stay_tied() -> None:
    """Or the network is refused: two tensors in the place of one are another network."""
    try:
        thin = mt.resize(Tied(8), 0.5, torch.randint(7, (2, 5)))
    except mt.ConversionError as error:
        assert "lambda ratio: Net" in str(error)
    else:
        assert thin.head.weight is thin.embed.weight
        assert shapes(thin) == shapes(Tied(4))


def test_several_inputs() -> None:
    """The example is a whole call, with keywords."""
    x = mt.Inputs(torch.randn(3, 4), torch.randn(3, 2), mask=None)
    thin = mt.resize(odd.SeveralInputs(), 0.5, x)
    assert (thin.x.out_features, thin.context.out_features, thin.last.in_features) == (3, 3, 3)


@pytest.mark.slow
def test_conversion_by_hand_is_what_packed_does() -> None:
    """M resized networks have as many parameters as a Packed ensemble of them."""
    net = conv.ResNet(widths=(8, 12, 16))
    thin = mt.resize(net, 0.5, PICTURES)
    found = mt.plan(net, mt.Packed(members=4, alpha=2), PICTURES).counts
    assert found is not None
    assert found.parameters == 4 * sum(p.numel() for p in thin.parameters())


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_hooks_and_functions_of_a_user_are_not_lost(ratio: float) -> None:
    """A network of ours with a hook is thinned by channels, which keep it, and not made wider without it."""
    net = small_resnet()
    net.conv1.register_forward_hook(lambda *_: None)
    if ratio < 1:
        assert len(mt.resize(net, ratio, PICTURES).conv1._forward_hooks) == 1
    else:
        with pytest.raises(mt.ConversionError, match="hooks=1"):
            mt.resize(net, ratio, PICTURES)


def test_constants_and_layouts_carry_over() -> None:
    """Zeros that close a branch stay zeros, buffers keep their values, channels stay last, by every way."""
    net = small_resnet().to(memory_format=torch.channels_last)
    nn.init.zeros_(net.layer1[0].bn2.weight)
    for model in (net, nn.Sequential(net, nn.Identity())):
        new = mt.resize(model, 0.5, PICTURES)
        inner = new if model is net else new[0]
        assert not inner.layer1[0].bn2.weight.any()
        assert inner.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


class Crossed(nn.Module):
    """Two widths: by value the constructor's `hidden` is found, and the other one is no layer's."""

    def __init__(self, fields: int = 3, hidden: int = 32) -> None:
        super().__init__()
        self.cross = nn.Parameter(torch.randn(fields * 8, fields * 8) * 0.05)
        self.deep = nn.Sequential(nn.Linear(fields * 8, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(fields * 8 + hidden, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([x * (x @ self.cross), self.deep(x)], 1))


def test_what_a_constructor_leaves_as_large_is_reported() -> None:
    """The ensemble is larger than one network then, and the plan says why."""
    thin = mt.resize(Crossed(), 0.5, torch.randn(4, 24))
    assert str(thin.resizing) == "resized to 0.5 of the width by its constructor; as large as before: cross"
    assert thin.deep[2].weight.shape == (16, 16)
