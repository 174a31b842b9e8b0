"""Packed: thin networks side by side are one wide network under a block mask; groups by the supplement's rules."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from laws.compare import assert_same as assert_same_tree
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy.structure import observe
from multitudes.engine.modules import named_tensors
from multitudes.methods.packed import GroupedLinear, groups_of, important_and_random, regrouped
from multitudes.models import MLP, ResNet, resnet18, resnet50


def assert_same(found: Any, expected: Any) -> None:
    """The same values, whether they are parameters or not."""
    assert_same_tree(*(value.detach() if isinstance(value, Tensor) else value for value in (found, expected)))


IMAGES = torch.randn(3, 3, 16, 16, dtype=torch.float64)


def on_meta(build: Any, **arguments: Any) -> nn.Module:
    """A network without memory: enough to count."""
    with torch.device("meta"):
        return build(**arguments)


def meta_images(size: int = 32) -> Tensor:
    """Two images without memory."""
    return torch.empty(2, 3, size, size, device="meta")


# The mask view


def block_diagonal(weights: Tensor, inner: list[int]) -> Tensor:
    """``[M, D, C/γ, ...]`` → ``[M D, M C, ...]``: each member's blocks, γ for each member, and zeros between."""
    members, outputs, inputs = weights.shape[:3]
    dense = weights.new_zeros(members * outputs, members * inputs * inner[0], *weights.shape[3:])
    for m in range(members):
        for g in range(inner[0]):
            rows = slice(m * outputs + g * outputs // inner[0], m * outputs + (g + 1) * outputs // inner[0])
            columns = slice((m * inner[0] + g) * inputs, (m * inner[0] + g + 1) * inputs)
            dense[rows, columns] = weights[m, g * outputs // inner[0] : (g + 1) * outputs // inner[0]]
    return dense


def dense_twin(ens: mt.Ensemble, width: float) -> ResNet:
    """One network α times as wide, whose weights are the members' under the mask of eq. 3 and 5."""
    wide = ResNet(18, classes=10 * ens.members, width=width).double().eval()
    state = {}
    for name, tensor in ens.state_dict().items():
        layer = ens.template.get_submodule(name.rpartition(".")[0])
        if tensor.ndim > 2 and name.endswith("weight"):
            state[name] = (
                tensor.flatten(0, 1) if name == "conv1.weight" else block_diagonal(tensor, [getattr(layer, "groups", 1)])
            )
        else:
            state[name] = tensor[0] if tensor.ndim == 1 else tensor.flatten(0, 1)
    wide.load_state_dict(state)
    return wide


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_members_are_one_dense_network_under_a_mask(gamma: int) -> None:
    """Eq. 3 and 5: a network α times as wide, whose weights are zero between members and between groups, in eval mode."""
    base = resnet18(width=0.25).double().eval()
    at = {"layer3": mt.Packed(gamma=gamma), "layer4.1": mt.Packed(gamma=gamma), "layer4.0.shortcut": mt.Packed(gamma=gamma)}
    ens = mt.ensemble(base, mt.Packed(members=4, alpha=2), IMAGES, at=at, seed=0).eval()
    ens.estimate_norms([IMAGES])
    dense = dense_twin(ens, 0.5)
    outputs = dense(IMAGES).unflatten(1, (4, 10)).movedim(1, 0)
    assert_same(ens(IMAGES), outputs)
    zeros = (dense.layer4[1].conv2.weight == 0).double().mean().item()
    assert zeros == pytest.approx(1 - 1 / (4 * gamma))


@pytest.mark.slow
def test_the_mask_test_can_fail() -> None:
    """One weight outside the mask changes the output."""
    base = resnet18(width=0.25).double().eval()
    ens = mt.ensemble(base, mt.Packed(members=4, alpha=2), IMAGES, seed=0).eval()
    dense = dense_twin(ens, 0.5)
    with torch.no_grad():
        dense.layer4[1].conv2.weight[0, -1] = 1.0
    outputs = dense(IMAGES).unflatten(1, (4, 10)).movedim(1, 0)
    assert not torch.allclose(ens(IMAGES)[0], outputs[0])


def test_a_grouped_linear_layer_is_a_masked_one() -> None:
    """For rows of any number of axes."""
    layer = GroupedLinear(12, 6, 3).double()
    dense = nn.Linear(12, 6).double()
    with torch.no_grad():
        dense.weight.copy_(block_diagonal(layer.weight[None], [3]))
        dense.bias.copy_(layer.bias)
    for shape in ((5, 12), (2, 3, 12), (12,)):
        x = torch.randn(shape, dtype=torch.float64)
        assert_same(layer(x), dense(x))


def test_regrouping_keeps_the_diagonal_blocks() -> None:
    """Of a layer that has groups already, too; dtype, mode and frozen weights stay."""
    net = nn.Sequential(nn.Conv2d(8, 8, 1, groups=2), nn.Conv1d(8, 8, 1, bias=False), nn.Linear(8, 4)).double().eval()
    net[1].weight.requires_grad_(False)
    new = regrouped(net, {"0": 4, "1": 2, "2": 2})
    assert_same(
        new[0].weight[:, :, 0, 0],
        torch.cat([net[0].weight[2 * g : 2 * g + 2, 2 * (g % 2) : 2 * (g % 2) + 2, 0, 0] for g in range(4)]),
    )
    assert_same(new[1].weight[:, :, 0], torch.cat([net[1].weight[4 * g : 4 * g + 4, 4 * g : 4 * g + 4, 0] for g in range(2)]))
    assert_same(new[2].weight, torch.cat([net[2].weight[2 * g : 2 * g + 2, 4 * g : 4 * g + 4] for g in range(2)]))
    assert torch.equal(new[0].bias, net[0].bias)
    assert [p.requires_grad for p in new.parameters()] == [True, True, False, True, True]
    assert {p.dtype for p in new.parameters()} == {torch.float64}
    assert not any(part.training for part in new.modules())
    assert [part.groups for part in new] == [4, 2, 2]


def test_a_layer_under_two_names_stays_one() -> None:
    """Regrouped once, used twice."""
    layer = nn.Conv2d(8, 8, 1)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), layer, layer)
    new = regrouped(net, {"1": 2})
    assert new[1] is new[2]
    assert new[1].groups == 2


# Where groups are


def grouped(net: nn.Module, gamma: int, x: Tensor, at: dict[str, int] | None = None) -> dict[str, int]:
    return groups_of(observe(net, mt.Inputs(x)), gamma, at or {})


def test_the_rules_on_a_resnet() -> None:
    """None in the stem, none in a block's first convolution, none under 64 channels for each group, but in shortcuts."""
    net = on_meta(resnet18)
    found = grouped(net, 2, meta_images())
    assert set(found.values()) == {2}
    assert sorted(found) == [
        "layer2.0.conv2", "layer2.1.conv2",
        "layer3.0.conv2", "layer3.0.shortcut.0", "layer3.1.conv2",
        "layer4.0.conv2", "layer4.0.shortcut.0", "layer4.1.conv2",
    ]  # fmt: skip
    four = grouped(net, 4, meta_images())
    assert four == {
        **dict.fromkeys(found, 2),
        **{n: 4 for n in found if n[:6] in ("layer3", "layer4") and n != "layer3.0.shortcut.0"},
    }


def test_gamma_shrinks_to_what_divides() -> None:
    """From the wanted number down to one that divides both sides and leaves 64 channels."""
    net = nn.Sequential(nn.Conv2d(3, 192, 1), nn.Conv2d(192, 384, 1), nn.Conv2d(384, 256, 1), nn.Conv2d(256, 5, 1))
    assert grouped(net, 5, torch.randn(2, 3, 4, 4)) == {"1": 3, "2": 4}
    assert grouped(net, 2, torch.randn(2, 3, 4, 4)) == {"1": 2, "2": 2}
    assert grouped(net, 1, torch.randn(2, 3, 4, 4)) == {}


def test_linear_layers_take_groups_too() -> None:
    """In a perceptron of enough units; not in the first layer, nor in the last for want of outputs."""
    net = MLP(4, (256, 256, 256), 3)
    assert grouped(net, 2, torch.randn(2, 4)) == {"layers.2": 2, "layers.4": 2}
    ens = mt.ensemble(net, mt.Packed(members=2, alpha=2, gamma=2), torch.randn(2, 4), seed=0)
    assert ens.get_parameter("layers.2.weight").shape == (2, 256, 128)
    mt.check(ens, torch.randn(2, 4))


@pytest.mark.slow
def test_at_says_what_a_layer_gets() -> None:
    """It stands instead of the rules, for a layer or all in a module; the last entry that speaks of a layer holds."""
    net = on_meta(resnet18, width=0.5)
    assert grouped(net, 2, meta_images(), {"layer4": 1}) == {n: 2 for n in grouped(net, 2, meta_images()) if "layer4" not in n}
    assert grouped(net, 1, meta_images(), {"conv1": 1, "layer1.0.conv1": 8}) == {"layer1.0.conv1": 8}
    both = grouped(net, 1, meta_images(), {"layer1": 4, "layer1.1": 2})
    assert both == {"layer1.0.conv1": 4, "layer1.0.conv2": 4, "layer1.1.conv1": 2, "layer1.1.conv2": 2}
    planned = mt.plan(net, mt.Packed(gamma=2), meta_images(), at={"layer[12].*": mt.Packed(gamma=4)})
    assert {name: method.gamma for name, method in planned.at.items()}["layer1.0"] == 4
    assert "gamma=4" in str(planned)


def test_at_refuses_what_cannot_be() -> None:
    """Groups that do not divide, and settings that are the network's alone."""
    net = on_meta(resnet18)
    with pytest.raises(mt.InputError, match=r"layer4\.1\.conv1.*gamma=3|gamma=3.*layer4\.1\.conv1"):
        mt.plan(net, mt.Packed(), meta_images(), at={"layer4.1": mt.Packed(gamma=3)})
    with pytest.raises(mt.InputError, match=r"gamma.*bn1"):
        mt.plan(net, mt.Packed(), meta_images(), at={"bn1": mt.Packed(gamma=2)})
    with pytest.raises(mt.InputError, match=r"alpha.*gamma"):
        mt.plan(net, mt.Packed(), meta_images(), at={"layer4": mt.Packed(alpha=3)})


# Counts


@st.composite
def packings(draw: st.DrawFn) -> tuple[int, float, int, list[int], list[int]]:
    """Members, α, γ, and widths that the ratio α/M = r/8 and γ divide, with 64 channels left for each group."""
    members, gamma = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    eighths = draw(st.integers(math.ceil(8 / members), 8))
    widths = [8 * 64 * gamma * draw(st.integers(1, 2)) for _ in range(draw(st.integers(2, 4)))]
    kernels = [draw(st.sampled_from([1, 3, 5])) for _ in range(len(widths) + 1)]
    return members, members * eighths / 8, gamma, widths, kernels


@pytest.mark.slow
@settings(max_examples=8)
@given(packings())
def test_every_layer_has_the_weights_of_the_formula(packing: tuple[int, float, int, list[int], list[int]]) -> None:
    """§4.2: M · (αC/M) · (αD/M) · s² / γ, and no γ in the first layer and the last."""
    members, alpha, gamma, widths, kernels = packing
    sizes = [3, *widths, 5]
    with torch.device("meta"):
        layers = [nn.Conv2d(c, d, s, padding=s // 2, bias=False) for c, d, s in zip(sizes, sizes[1:], kernels, strict=False)]
    planned = mt.plan(nn.Sequential(*layers), mt.Packed(members=members, alpha=alpha, gamma=gamma), meta_images(8))
    thin = [3, *(alpha * width / members for width in widths), 5]
    each = [c * d * s * s for c, d, s in zip(thin, thin[1:], kernels, strict=False)]
    inner = sum(each[1:-1]) / gamma
    assert planned.counts is not None
    assert planned.counts.parameters == members * (each[0] + inner + each[-1])


@pytest.mark.parametrize("members", [4, 9])
def test_alpha_of_the_root_of_m_costs_one_network(members: int) -> None:
    """Between first and last layer: as many weights, and as many multiply-adds."""
    root = math.isqrt(members)
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(3, 48, 3), nn.Conv2d(48, 96, 3, bias=False), nn.Conv2d(96, 5, 1))
    ens = mt.ensemble(net, mt.Packed(members=members, alpha=float(root)), meta_images(8))
    assert ens.get_parameter("1.weight").numel() == net[1].weight.numel()
    counts = ens.plan.counts
    assert counts is not None
    ends = 2 * (3 * 9 * 36 * 48 + 5 * 16 * 96)  # the first and last layers' multiply-adds, which grow by the root
    assert counts.multiply_adds - root * ends == counts.base_multiply_adds - ends


def test_alpha_need_not_be_whole() -> None:
    """Widths go to the nearest; the plan says what rounding did."""
    planned = mt.plan(on_meta(resnet18), mt.Packed(members=3, alpha=1.7), meta_images())
    assert "resized to 0.566667 of the width by its constructor; rounded: conv1 36.2667 → 36" in planned.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["densenet", "convnext"])
def test_with_all_of_the_width_it_is_deep(case: str) -> None:
    """α = M and γ = 1: the same tensors, the same start."""
    model, x = ZOO[case].model(), ZOO[case].example()
    packed, deep = (mt.ensemble(model, method, x, seed=3) for method in (mt.Packed(alpha=4), mt.Deep()))
    assert_same(dict(packed.state_dict()), dict(deep.state_dict()))


@pytest.mark.slow
def test_members_start_apart_and_by_the_seed() -> None:
    """No two members share a tensor that is not constant; the seed says everything."""
    model, x = ZOO["resnet"].model(), ZOO["resnet"].example()
    one, same, other = (mt.ensemble(model, mt.Packed(), x, seed=seed) for seed in (1, 1, 2))
    assert_same(dict(one.state_dict()), dict(same.state_dict()))
    weight = one.get_parameter("groups.1.0.conv1.weight")
    assert not any(torch.equal(weight[i], weight[j]) for i in range(4) for j in range(i))
    assert not torch.equal(weight, other.get_parameter("groups.1.0.conv1.weight"))


# Settings


@pytest.mark.slow
def test_a_kept_module_is_thin_and_shared() -> None:
    """keep= shares the stem, as wide as members need it."""
    model, x = ZOO["resnet"].model(), ZOO["resnet"].example()
    ens = mt.ensemble(model, mt.Packed(), x, keep=["conv1", "bn1"], seed=0)
    assert ens.get_parameter("conv1.weight").shape == (2, 3, 3, 3)
    assert ens.get_parameter("fc.weight").shape == (4, 5, 4)
    mt.check(ens, x)


def test_a_subset_keeps_its_width() -> None:
    """Outputs, counts, files."""
    model, x = ZOO["resnet"].model(), ZOO["resnet"].example()
    ens = mt.ensemble(model, mt.Packed(), x, seed=0).eval()
    few = ens.subset([2])
    assert few.method == mt.Packed(members=1, of=4)
    assert few.method.ratio == ens.method.ratio == 0.5
    assert_same(few(*x.args)[0], ens(*x.args)[2])
    assert few.subset([0]).method == few.method
    assert few.plan.counts is not None
    assert few.plan.counts.parameters == sum(p.numel() for p in few.parameters())


# Files


@pytest.mark.slow
def test_a_file_rebuilds_groups_and_widths(tmp_path: Path) -> None:
    """Settings by layer included; without the model where it is one of ours."""
    net, x = resnet18(width=0.25).double(), IMAGES
    ens = mt.ensemble(net, mt.Packed(gamma=2), x, at={"layer4.1": mt.Packed(gamma=4)}, seed=0).eval()
    mt.save(ens, tmp_path / "a")
    for back in (
        mt.load(tmp_path / "a"),
        mt.load(tmp_path / "a", net),
        mt.load(tmp_path / "a", lambda ratio: resnet18(width=0.25 * ratio).double()),
    ):
        assert_same(back(x), ens(x))
        assert back.plan.at == ens.plan.at
        assert back.template.layer4[1].conv2.groups == 4
    few = ens.subset([1, 3])
    mt.save(few, tmp_path / "b")
    assert_same(mt.load(tmp_path / "b")(x), few(x))


def test_a_file_of_channels_is_rebuilt_from_the_model(tmp_path: Path) -> None:
    """Thinned by channels, with inputs of several kinds; the weights of the model given are not used."""
    case = ZOO["densenet"]
    ens = mt.ensemble(case.model(), mt.Packed(), case.example(), seed=0)
    mt.save(ens, tmp_path / "a")
    assert_same(mt.load(tmp_path / "a", case.model(seed=9))(*case.example().args), ens(*case.example().args))
    with pytest.raises(mt.FileError, match=r"mt\.load\(.*model"):
        mt.load(tmp_path / "a")
    with pytest.raises(mt.FileError, match="another architecture"):
        mt.load(tmp_path / "a", ZOO["resnet"].model())


# Channels of a trained network


def trained() -> nn.Module:
    """A ResNet whose weights and statistics are not those of the start."""
    torch.manual_seed(0)
    net = resnet18(width=0.25).double()
    for _ in range(3):
        net(torch.randn(8, 3, 16, 16, dtype=torch.float64))
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_()
    return net.eval()


def rows_of(part: Tensor, whole: Tensor) -> list[int]:
    """Which channels of the whole a vector's entries are; fails if one is none of them."""
    found = [(whole == value).nonzero().flatten().tolist() for value in part]
    assert all(len(hits) == 1 for hits in found)
    return [hits[0] for hits in found]


@pytest.mark.slow
def test_each_member_keeps_channels_of_its_own() -> None:
    """Weights, norms and statistics of the same channels everywhere, and half of them in common."""
    net = trained()
    ens = mt.ensemble(net, mt.Packed(pretrained=True), IMAGES, seed=0)
    assert set(ens.plan.init.values()) == {"channels of the given model"}
    assert "whose weights are kept" in ens.plan.notes[0]
    kept = []
    for m in range(4):
        member = ens.member(m)
        stream = rows_of(member.bn1.bias, net.bn1.bias)
        inner = rows_of(member.layer1[0].bn1.bias, net.layer1[0].bn1.bias)
        assert_same(member.bn1.running_var, net.bn1.running_var[stream])
        assert_same(member.conv1.weight, net.conv1.weight[stream])
        assert_same(member.layer1[0].conv1.weight, net.layer1[0].conv1.weight[inner][:, stream])
        assert_same(member.layer1[0].conv2.weight, net.layer1[0].conv2.weight[stream][:, inner])
        last = rows_of(member.layer4[1].bn2.bias, net.layer4[1].bn2.bias)
        assert_same(member.fc.weight, net.fc.weight[:, last])
        assert_same(member.fc.bias, net.fc.bias)
        assert len(stream) == 8
        kept.append(set(last))
    assert len(set.intersection(*kept)) >= 32
    assert len(set.union(*kept)) > 100
    assert len({tuple(sorted(k)) for k in kept}) == 4


def test_important_channels_stay_and_others_are_drawn() -> None:
    """The upper half by importance, the rest by the seed, in the order in which they stood."""
    importance = torch.tensor([5.0, 1.0, 9.0, 3.0, 8.0, 2.0, 7.0, 4.0])
    choices = [important_and_random(seed)(importance, 4) for seed in range(30)]
    assert all({2, 4} <= set(c) and len(set(c)) == 4 and c == sorted(c) for c in choices)
    assert set().union(*choices) == set(range(8))
    assert important_and_random(3)(importance, 4) == choices[3]
    assert important_and_random(0)(importance, 8) == list(range(8))
    assert len({important_and_random(seed)(importance, 1)[0] for seed in range(30)}) > 4


@pytest.mark.slow
def test_pretrained_with_groups_keeps_what_lies_inside_them() -> None:
    """The connections between groups are lost, and no others."""
    net = trained()
    at = {"layer3.0.conv2": mt.Packed(pretrained=True, gamma=4)}
    plain = mt.ensemble(net, mt.Packed(pretrained=True), IMAGES, seed=0)
    ens = mt.ensemble(net, mt.Packed(pretrained=True), IMAGES, seed=0, at=at)
    mine, whole = ens.get_parameter("layer3.0.conv2.weight"), plain.get_parameter("layer3.0.conv2.weight")
    assert mine.shape == (4, 32, 8, 3, 3)
    assert_same(mine[1, 8:16], whole[1, 8:16, 8:16])
    mt.check(ens, IMAGES)


def test_pretrained_refuses_what_it_cannot_do() -> None:
    """A factory has no trained weights; members with channels of their own share no layer."""
    with pytest.raises(mt.InputError, match="factory"):
        mt.ensemble(lambda ratio: resnet18(width=0.25 * ratio).double(), mt.Packed(pretrained=True), IMAGES)
    with pytest.raises(mt.InputError, match="keep="):
        mt.ensemble(resnet18(width=0.25).double(), mt.Packed(pretrained=True), IMAGES, keep=["conv1"])


@pytest.mark.slow
def test_pretrained_of_the_whole_width_is_the_network_itself() -> None:
    """Nothing to choose."""
    net = trained()
    ens = mt.ensemble(net, mt.Packed(members=2, alpha=2, pretrained=True), IMAGES, seed=0).eval()
    assert_same(ens(IMAGES)[1], net(IMAGES))
    assert any("members start equal" in note for note in ens.plan.notes)


@pytest.mark.slow
def test_a_pretrained_ensemble_is_saved_as_any_other(tmp_path: Path) -> None:
    """And loads without the weights that it came from."""
    ens = mt.ensemble(trained(), mt.Packed(pretrained=True), IMAGES, seed=0)
    mt.save(ens, tmp_path / "a")
    assert_same(mt.load(tmp_path / "a")(IMAGES), ens(IMAGES))


@pytest.mark.slow
def test_its_tensors_are_those_of_the_paper() -> None:
    """ResNet-50 at α = 2: every hidden width is half, inputs and classes stay."""
    ens = mt.ensemble(on_meta(resnet50), mt.Packed(gamma=2), meta_images())
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(ens.template)}
    assert shapes["conv1.weight"] == (4, 32, 3, 3, 3)
    assert shapes["layer3.1.conv2.weight"] == (4, 128, 64, 3, 3)
    assert shapes["layer3.1.conv1.weight"] == (4, 128, 512, 1, 1)
    assert shapes["fc.weight"] == (4, 10, 1024)


# Copies: all members start as one and the same thin network (supplement F)


def cnn() -> nn.Module:
    """A convolutional network with BatchNorm, wide enough that γ = 2 divides a layer of its members."""
    layers = [nn.Conv2d(1, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1)]
    return nn.Sequential(*layers, nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 3))


def factory(ratio: float) -> nn.Module:
    """A perceptron at any width."""
    return MLP(5, (32,), 3, width=ratio)


COPIES = {
    "thin": (lambda: MLP(5, (32,), 3, norm="hidden"), mt.Packed(members=4, alpha=2)),
    "groups": (lambda: MLP(5, (512, 512), 3), mt.Packed(members=4, alpha=2, gamma=2)),
    "full width": (lambda: MLP(5, (32,), 3), mt.Packed(members=4, alpha=4)),
    "full width in groups": (lambda: MLP(5, (128, 128, 128), 3), mt.Packed(members=2, alpha=2, gamma=2)),
    "channels": (lambda: nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3)), mt.Packed(members=4, alpha=2)),
    "pretrained": (lambda: MLP(5, (32,), 3), mt.Packed(members=4, alpha=2, pretrained=True)),
    "factory": (lambda: factory, mt.Packed(members=4, alpha=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", COPIES)
def test_copies_of_one_network(case: str) -> None:
    """Every member has the values of member 0, which are those of the first fresh member, or of the model at full width."""
    build, method = COPIES[case]
    model, x = build(), torch.randn(4, 5)
    ens = mt.ensemble(model, method, x, seed=0, start="copies")
    fresh = mt.ensemble(model, method, x, seed=0)
    for name, tensor in ens.state_dict().items():
        assert (tensor == tensor[:1]).all(), name
    if case == "full width":
        assert_same(ens.member(1).state_dict(), model.state_dict())
    else:
        assert_same(dict(ens.member(1).named_parameters()), dict(fresh.member(0).named_parameters()))
    assert any((t != t[:1]).any() for t in fresh.state_dict().values() if t.ndim > 1)


def test_the_plan_says_how_copies_start() -> None:
    """Initialised anew, once for all members, and as copies of the model at full width."""
    methods = (mt.Packed(members=4, alpha=alpha) for alpha in (2, 4))
    thin, full = (mt.plan(MLP(5, (32,), 3), method, torch.randn(2, 5), start="copies") for method in methods)
    assert any("one network" in note for note in thin.notes)
    assert all("the same for all members" in rule for rule in thin.init.values())
    assert set(full.init.values()) == {"copied from the given model"}
    assert not any("anew" in note for note in full.notes)


@pytest.mark.parametrize(("start", "diverse"), [("copies", False), ("fresh", True)])
def test_without_stochasticity_members_stay_equal(start: str, diverse: bool) -> None:
    """Table 7 of the supplement, its first line: the same start and batches leave a mutual information of exactly 0."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 1, 4, 4, generator=generator), torch.randint(3, (24,), generator=generator)
    ens = mt.ensemble(cnn(), mt.Packed(members=3, alpha=1.5, gamma=2), x[:4], seed=0, start=start).train()
    assert ens.template[3].groups == 2
    before = ens.template[3].weight.detach().clone()
    optimizer = torch.optim.SGD(ens.param_groups(lr=0.05, weight_decay=5e-4), momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        ens.loss(x[step * 6 : step * 6 + 6], y[step * 6 : step * 6 + 6], nn.functional.cross_entropy).backward()
        optimizer.step()
    assert not torch.equal(ens.template[3].weight.detach(), before)
    information = mt.predict(ens, x).mutual_information
    assert bool((information > 0).all()) == diverse
    assert diverse or not information.any()
