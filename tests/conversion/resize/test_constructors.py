"""Networks made again by those who know how: our own, transformers by their configuration, timm by its constructors."""

from __future__ import annotations

import copy
import importlib
import math
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes import models
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize import constructors
from multitudes.conversion.resize.constructors import recipe_of
from multitudes.engine.inputs import Inputs
from multitudes.models.network import nearest

pytestmark = pytest.mark.slow


class Transformers:
    """The package, imported when it is first used: that takes seconds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("transformers"), name)


hf = Transformers()
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(0))
TEXT = {"vocab_size": 11, "num_labels": 5}
PATCHES = {"image_size": 32, "patch_size": 16}
STREAM = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}


def clip() -> nn.Module:
    """Two towers, each with a configuration of its own inside the whole one."""
    words = {**STREAM, "vocab_size": 11, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}
    return hf.CLIPModel(hf.CLIPConfig(text_config=words, vision_config={**STREAM, **PATCHES}, projection_dim=8))


BUILD: dict[str, tuple[Callable[[], nn.Module], mt.Inputs]] = {
    "vit": (lambda: hf.ViTForImageClassification(hf.ViTConfig(**STREAM, **PATCHES, num_labels=5)), mt.Inputs(IMAGE)),
    "resnet": (
        lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 2], layer_type="basic", num_labels=5)
        ),
        mt.Inputs(IMAGE),
    ),
    "convnext": (
        lambda: hf.ConvNextForImageClassification(
            hf.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, num_labels=5)
        ),
        mt.Inputs(IMAGE),
    ),
    "bert": (
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**STREAM, **TEXT, max_position_embeddings=8)),
        mt.Inputs(IDS, attention_mask=torch.ones_like(IDS)),
    ),
    "swin": (
        lambda: hf.SwinForImageClassification(
            hf.SwinConfig(
                image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, num_labels=5,
            )
        ),
        mt.Inputs(IMAGE),
    ),
    "gpt2": (
        lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=24, n_head=3, n_layer=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
        ),
        mt.Inputs(IDS, use_cache=False),
    ),
    "llama": (
        lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(
                hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=40,
                vocab_size=11, max_position_embeddings=8,
            )
        ),
        mt.Inputs(IDS, use_cache=False),
    ),
    "t5": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(d_model=24, d_kv=8, num_heads=3, d_ff=40, num_layers=2, vocab_size=11)
        ),
        mt.Inputs(input_ids=IDS, decoder_input_ids=IDS, use_cache=False),
    ),
    "distilbert": (
        lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(dim=24, hidden_dim=40, n_heads=3, n_layers=2, **TEXT, max_position_embeddings=8)
        ),
        mt.Inputs(IDS),
    ),
    "clip": (clip, mt.Inputs(input_ids=IDS, pixel_values=IMAGE)),
}  # fmt: skip

HALF: dict[str, dict[str, Any]] = {
    "vit": {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 3, "num_hidden_layers": 2, "patch_size": 16},
    "resnet": {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 2]},
    "convnext": {"hidden_sizes": [4, 6], "depths": [1, 1]},
    "bert": {
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_attention_heads": 3,
        "vocab_size": 11,
        "max_position_embeddings": 8,
    },
    "swin": {"embed_dim": 8, "num_heads": [2, 4], "depths": [1, 1], "window_size": 4},
    "gpt2": {"n_embd": 12, "n_head": 3, "n_inner": None, "n_positions": 8},
    "llama": {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 20},
    "t5": {"d_model": 12, "d_kv": 4, "num_heads": 3, "d_ff": 20},
    "distilbert": {"dim": 12, "hidden_dim": 20, "n_heads": 3},
    "clip": {"projection_dim": 8},
}
"""What the configuration of a network of half the width says."""


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in ("vit", "gpt2") else [pytest.mark.slow]) for n in BUILD])
def test_transformers_are_resized_by_their_configuration(name: str) -> None:
    """Widths are halved in every layer that runs, and nothing else changes; twice half the width is the width.

    The biases of relative positions, one for each head, stay.
    """
    build, x = BUILD[name]
    model = build().eval()
    thin = mt.resize(model, 0.5, x, seed=0).eval()
    assert thin.resizing.way == "its configuration"
    assert {key: getattr(thin.config, key) for key in HALF[name]} == HALF[name]
    before, after = (net(*x.args, **x.kwargs) for net in (model, thin))
    first = "logits_per_image" if name == "clip" else "logits"
    assert after[first].shape == before[first].shape
    assert shapes(thin).keys() == shapes(model).keys()
    assert count(thin) < 0.6 * count(model)
    for layer in observe(model, x).layers():
        assert count(thin.get_submodule(layer)) < count(model.get_submodule(layer)) or "relative" in layer, layer
    assert shapes(mt.resize(thin, 2, x)) == shapes(model)


@pytest.mark.slow
def test_a_configuration_inside_another_is_resized_too() -> None:
    """Both towers of CLIP; the space that they share is an output, and stays."""
    thin = mt.resize(BUILD["clip"][0](), 0.5, BUILD["clip"][1], seed=0)
    for inner in (thin.config.text_config, thin.config.vision_config):
        assert (inner.hidden_size, inner.intermediate_size, inner.num_attention_heads) == (12, 20, 3)
    assert thin.text_projection.weight.shape == (8, 12)


def test_tied_weights_stay_tied() -> None:
    """Also in double precision, where new tensors take the place of the given ones."""
    thin = mt.resize(BUILD["gpt2"][0]().double(), 0.5, BUILD["gpt2"][1])
    assert thin.lm_head.weight is thin.transformer.wte.weight
    assert thin.lm_head.weight.dtype == torch.float64


def test_modes_dtype_and_frozen_parameters_carry_over() -> None:
    """The given model and its configuration are as they were."""
    model = BUILD["vit"][0]().to(torch.bfloat16).eval()
    next(iter(model.children())).train().requires_grad_(False)
    said, before = model.config.to_dict(), copy.deepcopy(model.state_dict())
    x = BUILD["vit"][1]
    thin = mt.resize(model, 0.5, x.refill([t.to(torch.bfloat16) if t.is_floating_point() else t for t in x.tensors()]))
    assert {t.dtype for t in thin.parameters()} == {torch.bfloat16}
    for net in (model, thin):
        assert not net.training
        assert next(iter(net.children())).training
    frozen = [[n for n, p in net.named_parameters() if not p.requires_grad] for net in (model, thin)]
    assert frozen[0] == frozen[1] != []
    assert model.config.to_dict() == said
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_its_own_initialisation() -> None:
    """The new network starts as transformers start it: normal with the configuration's range, by seed."""
    model, x = BUILD["vit"]
    one, same, other = (mt.resize(model(), 0.5, x, seed=seed) for seed in (1, 1, 2))
    key = next(name for name, p in one.named_parameters() if p.shape == (20, 12))
    assert one.get_parameter(key).std().item() == pytest.approx(0.02, rel=0.2)
    torch.testing.assert_close(one.state_dict(), same.state_dict(), rtol=0, atol=0)
    assert not torch.equal(one.get_parameter(key), other.get_parameter(key))


def test_on_the_meta_device() -> None:
    """Nothing is allocated."""
    with torch.device("meta"):
        model = BUILD["vit"][0]()
    thin = mt.resize(model, 0.5, IMAGE.to("meta"))
    assert all(tensor.is_meta for tensor in thin.state_dict().values())
    assert thin.config.hidden_size == 12


@pytest.mark.parametrize(("heads", "size", "inner", "ratio"), [(3, 8, 40, 0.3), (5, 7, 17, 1.4), (4, 9, 33, 0.7)])
def test_heads_stay_and_divide_the_width(heads: int, size: int, inner: int, ratio: float) -> None:
    """Whatever is asked, the stream is the nearest multiple of the heads, and other widths the nearest number."""
    sizes = {"hidden_size": heads * size, "num_hidden_layers": 1, "num_attention_heads": heads, "intermediate_size": inner}
    with torch.device("meta"):
        model = hf.ViTForImageClassification(hf.ViTConfig(**sizes, **PATCHES))
    new = mt.resize(model, ratio, IMAGE.to("meta"))
    assert new.config.num_attention_heads == heads
    assert new.config.hidden_size == nearest(heads * size * ratio, heads)
    assert new.config.intermediate_size == nearest(inner * ratio)


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_widths_are_resized_one_by_one(kind: type) -> None:
    """Each to its nearest product; a list stays one."""
    stages = kind([6, 10, 19])
    config = hf.ResNetConfig(embedding_size=4, hidden_sizes=stages, depths=[1, 1, 1], layer_type="basic")
    config.hidden_sizes = stages
    with torch.device("meta"):
        model = hf.ResNetForImageClassification(config)
    new = mt.resize(model, 0.7, IMAGE.to("meta"))
    assert new.config.hidden_sizes == kind([4, 7, 13])
    assert new.config.embedding_size == 3


def with_another_head() -> nn.Module:
    model = BUILD["vit"][0]()
    model.classifier = nn.Linear(24, 7)
    return model


def with_another_rate() -> nn.Module:
    model = BUILD["vit"][0]()
    model.vit.embeddings.dropout.p = 0.4
    return model


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], object]]] = {
    "head": (with_another_head, lambda net: net.classifier.out_features),
    "rate": (with_another_rate, lambda net: net.vit.embeddings.dropout.p),
}


@pytest.mark.parametrize(("change", "ratio"), [("head", 0.5), ("rate", 2)])
def test_a_change_that_the_configuration_does_not_know_is_not_lost(change: str, ratio: float) -> None:
    """It is kept, or the network refused by the name of what would be lost."""
    build, read = CHANGES[change]
    model = build()
    try:
        new = mt.resize(model, ratio, IMAGE)
    except mt.ConversionError as error:
        assert re.search("by its configuration: .* instead of ", str(error))
    else:
        assert read(new) == read(model)


def test_our_networks_by_their_arguments() -> None:
    """At any width, on the device where they are."""
    with torch.device("meta"):
        net = models.ResNet(18, classes=7, stem="imagenet", width=0.5, channels=1)
    new = mt.resize(net, 0.5, torch.empty(2, 1, 32, 32, device="meta"))
    assert isinstance(new, models.ResNet)
    assert new.resizing.way == "its constructor"
    assert new.arguments == {**net.arguments, "width": 0.25}
    assert all(tensor.is_meta for tensor in new.state_dict().values())


def test_torch_layers_have_no_recipe() -> None:
    """Also one that merely calls something its config."""
    net = nn.Linear(2, 3)
    net.config, net.pretrained_cfg = {"hidden_size": 3}, {"architecture": "linear"}  # type: ignore[assignment]
    assert recipe_of(observe(net, mt.Inputs(torch.randn(2, 2)))) is None


class Mixer(nn.Module):
    """As timm's networks are: the constructor takes widths, the function of the architecture gives them."""

    def __init__(self, embed_dim: int = 16, num_heads: int = 4, num_classes: int = 1000, drop: float = 0.0) -> None:
        super().__init__()
        self.embed, self.drop = nn.Linear(4, embed_dim), nn.Dropout(drop)
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.head = nn.Linear(embed_dim, num_classes)
        self.embed_dim = self.num_features = embed_dim
        self.pretrained_cfg: dict[str, Any] = {"architecture": "mixer_tiny"}

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.embed(x))
        return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))


@pytest.fixture
def mixer(monkeypatch: pytest.MonkeyPatch) -> type[nn.Module]:
    """A stand-in for timm with one architecture, `mixer_tiny`, whose widths are fixed; timm itself is in `make zoo`."""
    importlib.import_module("torch_pruning")  # which looks for timm as it is imported
    home, timm = types.ModuleType("timm.models.mixer"), types.ModuleType("timm")

    class Tiny(Mixer):
        pass

    Tiny.__module__, Tiny.__name__ = "timm.models.mixer", "Tiny"
    home.Tiny = Tiny  # type: ignore[attr-defined]
    timm.create_model = lambda name: {"mixer_tiny": lambda: home.Tiny(embed_dim=16, num_heads=4, drop=0.1)}[name]()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.models.mixer", home)
    return Tiny


@pytest.mark.parametrize(("ratio", "width"), [(2, 32), (0.7, 12)])
def test_timm_networks_by_their_constructor(mixer: type[nn.Module], ratio: float, width: int) -> None:
    """Where that takes widths; classes, heads and the architecture's other settings are kept."""
    model = mixer(embed_dim=16, num_heads=4, num_classes=7, drop=0.1)
    new = mt.resize(model, ratio, torch.randn(2, 3, 4))
    assert new.resizing.way == "timm's constructor"
    assert type(new) is mixer
    assert (new.embed_dim, new.attention.num_heads, new.head.out_features, new.drop.p) == (width, 4, 7, 0.1)


def test_timm_is_left_as_it_was(mixer: type[nn.Module]) -> None:
    """The constructor is only replaced while the network is made, also where that fails."""
    before = dict(vars(mixer))
    model, x = mixer(), torch.randn(2, 3, 4)
    mt.resize(model, 2, x)
    assert dict(vars(mixer)) == before
    model.pretrained_cfg["architecture"] = "none"
    typed = re.escape("mt.ensemble(lambda: timm.create_model('none', <your arguments>), mt.Packed(...), x)")
    with pytest.raises(mt.ConversionError, match=f"by timm's constructor: KeyError(.|\n)*{typed}"):
        mt.resize(model, 2, x)
    assert dict(vars(mixer)) == before


@pytest.mark.parametrize("ratio", [0.5, 2])
def test_what_the_user_gave_to_timm_is_kept(mixer: type[nn.Module], ratio: float) -> None:
    """A rate and a number of classes that the architecture does not know are found by value."""
    new = mt.resize(mixer(num_classes=7, drop=0.3), ratio, torch.randn(2, 3, 4))
    assert (new.resizing.way, new.drop.p, new.head.out_features) == ("timm's constructor", 0.3, 7)


def test_a_timm_network_that_was_changed_is_not_made_as_before(mixer: type[nn.Module]) -> None:
    """A layer that no argument gives is kept by channels, or the network refused."""
    model = mixer(num_classes=7)
    model.drop = nn.Sequential(nn.ReLU(), nn.Dropout(0.1))
    with pytest.raises(mt.ConversionError, match=r"by timm's constructor: .*drop.* instead of .*Sequential"):
        mt.resize(model, 2, torch.randn(2, 3, 4))
    assert len(mt.resize(model, 0.5, torch.randn(2, 3, 4)).drop) == 2


@dataclass
class Depth:
    """The part of a configuration that says how deep a network is."""

    depth: int = 3


class Patched(nn.Module):
    """Patches with positions: it stores neither the size of its images nor its configuration, but what follows from them."""

    def __init__(self, cfg: Depth | None = None, img_size: tuple[int, int] = (56, 56), width: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 5)
        self.positions = nn.Parameter(torch.randn(1, (img_size[0] // 4) * (img_size[1] // 4), width))
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range((cfg or Depth()).depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            h = h + block(h).relu()
        return self.head(h.mean(1))


class InStages(Patched):
    """Its depth is one number, or one for each half."""

    def __init__(self, depth: int | tuple[int, int] = (3, 3), img_size: int = 56, width: int = 8) -> None:
        super().__init__(Depth(depth if isinstance(depth, int) else sum(depth)), (img_size, img_size), width)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for timm with both networks."""
    importlib.import_module("torch_pruning")  # which looks for timm as it is imported
    timm = types.ModuleType("timm")
    for kind in (Patched, InStages):
        monkeypatch.setattr(kind, "__module__", "timm.models.patched")
        monkeypatch.setattr(kind, "pretrained_cfg", {"architecture": kind.__name__}, raising=False)
    timm.create_model = lambda name: {"Patched": lambda: Patched(Depth(3)), "InStages": InStages}[name]()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)


@pytest.mark.parametrize(
    "build",
    [lambda: Patched(Depth(3), (16, 16)), lambda: Patched(Depth(1)), lambda: InStages(2), lambda: InStages((2, 1), 32)],
    ids=["size", "depth in a configuration", "one number for two", "both"],
)
def test_sizes_and_depths_that_no_attribute_has_are_found(patched: None, build: Callable[[], nn.Module]) -> None:
    """A size differs as the number of positions does, or its root; depths are lengths of lists, also inside a dataclass."""
    model = build()
    side = 4 * math.isqrt(model.positions.shape[1])
    thin = mt.resize(model, 0.5, torch.randn(2, 3, side, side))
    assert thin.resizing.way == "timm's constructor"
    assert (thin.positions.shape, len(thin.blocks)) == ((1, model.positions.shape[1], 4), len(model.blocks))


class Switched(nn.Module):
    """A switch behind numbers that might be anything, and a number that is stored by another name."""

    def __init__(self, width: int = 8, one: int = 5, two: int = 6, three: int = 7, extra: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.num_extra = extra
        self.first, self.head = nn.Linear(4, width, bias=bias), nn.Linear(width, 3)
        self.more = nn.Parameter(torch.randn(extra, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(torch.cat([x, self.more.expand(len(x), -1, -1)], 1)).mean(1))


def test_switches_are_tried_before_numbers_that_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size in the model was tried for every number first: for a ViT with `qkv_bias=False` the time was over."""
    recipes: list[Any] = []
    differences = constructors._Fit._differences
    monkeypatch.setattr(constructors._Fit, "_differences", lambda fit, one: [recipes.append(one), differences(fit, one)][1])
    x = torch.randn(2, 3, 4)
    model = Switched(extra=9, bias=False)
    found = recipe_of(observe(model, Inputs(x)))
    assert found is not None and found.arguments["extra"] == 9 and found.arguments["bias"] is False
    assert len(recipes) < 20
