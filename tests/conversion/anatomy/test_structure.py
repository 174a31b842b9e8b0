"""Structure: what running the example tells about a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from nets.convolutional import WideResNet, wide_resnet_28_10
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy import structure as structures
from multitudes.conversion.anatomy.first_layers import first_layers
from multitudes.conversion.anatomy.input_reads import input_reads
from multitudes.conversion.anatomy.structure import (
    block_starts,
    blocks,
    is_layer,
    last_layers,
    last_third,
    observe,
    own_tensors,
)


def seen(case: str) -> object:
    """A model of the zoo as its example ran through it."""
    return observe(ZOO[case].model(), ZOO[case].example())


def test_layers_come_in_the_order_in_which_they_run() -> None:
    """However they are registered."""
    assert seen("head_first").layers() == ["body.0", "body.2", "classifier"]
    assert seen("vit").layers()[:3] == ["embed", "blocks.0.attention", "blocks.0.mlp.0"]
    assert seen("lstm").layers() == ["lstm", "head"]


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        (nn.Linear(2, 2), True),
        (nn.Conv2d(2, 2, 1), True),
        (nn.Embedding(2, 2), True),
        (nn.LSTM(2, 2), True),
        (nn.MultiheadAttention(2, 1), True),
        (nn.BatchNorm2d(2), False),
        (nn.LayerNorm((2, 2)), False),
        (nn.ReLU(), False),
        (nn.Sequential(nn.Linear(2, 2)), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), True),
        (nn.TransformerEncoderLayer(2, 1, 2), False),
    ],
)
def test_what_a_layer_is(module: nn.Module, layer: bool) -> None:
    """It owns a matrix itself, and nothing inside it does; norms are none."""
    assert is_layer(module) is layer


def test_own_tensors() -> None:
    """Those of the module itself, parametrized ones included, those of its children not."""
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    net.register_parameter("loose", nn.Parameter(torch.zeros(1)))
    assert set(own_tensors(net)) == {"loose"}
    assert set(own_tensors(net[0])) == {"bias", "parametrizations.weight.original0", "parametrizations.weight.original1"}


class Two(nn.Module):
    """Two outputs, from two layers; one passes a norm and a temperature; a third layer leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.norm = nn.Parameter(torch.ones(1)), nn.LayerNorm(5)
        self.one, self.two, self.aside, self.body = nn.Linear(6, 5), nn.Linear(6, 3), nn.Linear(6, 2), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.body(x))
        self.aside(h)
        return self.norm(self.one(h)) / self.temperature, self.two(h)


def test_last_layers_are_found_from_the_outputs() -> None:
    """One for each output; parameters met on the way belong to them; layers that lead nowhere do not."""
    layers, loose = last_layers(observe(Two(), mt.Inputs(torch.randn(3, 4))))
    assert layers == {"one", "two"}
    assert {"temperature", "norm.weight", "norm.bias"} <= loose
    assert not any(name.startswith("body") for name in loose)


def test_observing_leaves_the_model_alone() -> None:
    """No hook stays, no statistics move, no gradient is kept, the mode is as it was."""
    case = ZOO["resnet"]
    model = case.model(train=True)
    model.requires_grad_(False)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    observe(model, case.example())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert model.training
    assert not any(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_blocks() -> None:
    """Elements of containers that are made of layers, the innermost; without any, the layers."""
    assert blocks(WideResNet(blocks=2)) == [f"group{g}.{b}" for g in (1, 2, 3) for b in (0, 1)]
    assert blocks(ZOO["vit"].model()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert blocks(ZOO["mlp"].model()) == ["0", "2", "4"]


def test_the_last_third() -> None:
    """The first of the children that run last and hold a third of the blocks; too large a child is opened."""
    assert last_third(observe(wide_resnet_28_10(), mt.Inputs(torch.zeros(2, 3, 32, 32, device="meta")))) == "group3"
    assert last_third(seen("vit")) == "blocks.2"
    assert last_third(seen("mlp")) == "4"
    assert last_third(seen("resnet")) == "groups.2"


def test_a_module_that_never_runs_has_no_start() -> None:
    """And one that runs twice starts at its first call."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(self.second(self.first(x)))

    structure = observe(Odd(), mt.Inputs(torch.randn(2, 4)))
    assert structure.started("idle") is None
    assert structure.started("first") < structure.started("second")
    assert structure.started("") == 0


def starts(case: str) -> set[str]:
    """The first layers of the residual blocks of a model of the zoo."""
    return block_starts(seen(case))


def test_block_starts_of_residual_networks() -> None:
    """The first convolutions of each block, however its shortcut is made: convolved, padded or left as it is."""
    for case, ending in (
        ("resnet", "conv1"),
        ("resnet_bottleneck", "conv1"),
        ("wideresnet", "conv1"),
        ("pyramidnet", "conv1"),
        ("convnext", "depthwise"),
    ):
        names = [name for name, _ in ZOO[case].model().named_modules()]
        found = {name for name in names if "." in name and name.endswith(ending)}
        assert starts(case) == found
        assert len(found) >= 3 or case == "convnext"


def test_networks_without_residuals_have_no_starts() -> None:
    """Sums of biases and concatenations are no residuals."""
    for case in ("mlp", "cnn", "densenet", "unet", "lstm", "one_layer"):
        assert starts(case) == set()


def test_block_starts_in_parallel() -> None:
    """Query, key and value all stand first; a sum of two ways of the same length has no shortcut."""

    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(5))
            self.left, self.right, self.head = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = x + self.out(torch.tanh(self.q(x)) * self.k(x) + self.v(x))
            x = torch.tanh(self.left(x)) + self.right(x)
            x += 1.0
            return self.head(x)

    found = block_starts(observe(Parallel(), mt.Inputs(torch.randn(2, 4))))
    assert found == {"q", "k", "v"}


@pytest.mark.parametrize(
    "join",
    [
        lambda x, f: x - f,
        lambda x, f: torch.lerp(x, f, 0.5),
        lambda x, f: torch.stack([x, f]).sum(0),
        lambda x, f: torch.cat([x[None], f[None]]).mean(0),
        lambda x, f: torch.addcmul(x, f, f),
        lambda x, f: x + 0.5 * f + 1,
    ],
    ids=["minus", "lerp", "stack", "cat", "addcmul", "scaled"],
)
def test_sums_of_any_kind(join: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A residual block is one however its two ways are joined."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.head = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head(join(x, self.b(torch.tanh(self.a(x)))))

    assert block_starts(observe(Block(), mt.Inputs(torch.randn(2, 4)))) == {"a"}


def test_a_sum_of_three_ways() -> None:
    """Both branches beside the shortcut have a first layer."""

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.c, self.d, self.head = (nn.Linear(4, 4) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head(x + self.b(torch.tanh(self.a(x))) + self.d(torch.tanh(self.c(x))))

    assert block_starts(observe(Three(), mt.Inputs(torch.randn(2, 4)))) == {"a", "c"}


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("case", sorted(ZOO))
def test_a_large_model_is_observed_without_copies_as_with_them(
    case: str, values: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on the meta device, where it runs there."""
    model, inputs = ZOO[case].model(), mt.Inputs.of(ZOO[case].example())
    whole = observe(model, inputs)
    monkeypatch.setattr(structures, "LARGE", 0)
    light = observe(model, inputs, values)
    for name in ("order", "read_elsewhere", "functional_dropout", "summed_axes", "takes_tensor", "output_shapes", "left_out"):
        assert getattr(light, name) == getattr(whole, name), name
    assert last_layers(light) == last_layers(whole)
    assert first_layers(light) == first_layers(whole)
    ours, theirs = input_reads(light), input_reads(whole)
    assert (ours.first, ours.both, ours.beside, ours.loose) == (theirs.first, theirs.both, theirs.beside, theirs.loose)


class StartsByData(nn.Module):
    """Sets its scale by the first batch, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head, self.started = nn.Parameter(torch.ones(4)), nn.Linear(4, 2), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.started:
            self.scale.data.copy_(1 / x.std(0))
            self.started = True
        y: Tensor = self.head(x * self.scale)
        return y


class Force(nn.Module):
    """Returns the gradient of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]


def test_a_forward_that_writes_or_needs_gradients_is_observed_on_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "LARGE", 0)
    writes = StartsByData()
    assert not observe(writes, mt.Inputs(torch.randn(5, 4))).shares
    assert torch.equal(writes.scale, torch.ones(4))
    assert not observe(Force(), mt.Inputs(torch.randn(5, 3))).shares
