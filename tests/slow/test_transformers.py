"""transformers from small configurations: every method converts each of them, and `check` holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt

pytestmark = pytest.mark.slow

HEADS = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 48, "num_labels": 5}


def vit() -> tuple[nn.Module, Any]:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**HEADS, image_size=16, patch_size=8)), torch.randn(3, 3, 16, 16)


def resnet() -> tuple[nn.Module, Any]:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [1, 1, 1], "num_labels": 5}
    return ResNetForImageClassification(ResNetConfig(**sizes)), torch.randn(3, 3, 32, 32)


def convnext() -> tuple[nn.Module, Any]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = {"hidden_sizes": [8, 16, 24], "depths": [1, 1, 1], "num_stages": 3, "num_labels": 5}
    return ConvNextForImageClassification(ConvNextConfig(**sizes)), torch.randn(3, 3, 32, 32)


def bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    ids, mask = torch.randint(20, (3, 6)), torch.ones(3, 6, dtype=torch.long)
    mask[:, 4:] = 0
    return BertForSequenceClassification(BertConfig(**HEADS, vocab_size=20)), mt.Inputs(ids, attention_mask=mask)


METHODS = [
    *(mt.Single(), mt.Deep(), mt.MultiHead(), mt.TreeNet(), mt.Packed(), mt.BatchEnsemble(), mt.Masksembles(fewest=8)),
    *(mt.EMP(members=2), mt.ECMP(members=2), mt.MCDropout(members=2), mt.DropConnect(members=2), mt.MIMO(members=2)),
]
BUILDS = [vit, resnet, convnext, bert]
PAIRS = [(build, method) for build in BUILDS for method in METHODS]


def named(value: Any) -> str:
    return type(value).__name__ if isinstance(value, mt.Method) else value.__name__


@pytest.mark.parametrize(("build", "method"), PAIRS, ids=named)
def test_it_converts_and_check_holds(build: Callable[[], tuple[nn.Module, Any]], method: mt.Method) -> None:
    """A refusal is a failure; Packed's members are made by the configuration, with half of the width."""
    model, x = build()
    ens = mt.ensemble(model.eval(), method, x, seed=0)
    assert mt.check(ens, x).laws
    assert ens(*mt.Inputs.of(x).args, **mt.Inputs.of(x).kwargs).logits.shape == (method.members, 3, 5)
    if isinstance(method, mt.Packed):
        assert ens.template.resizing.way == "its configuration"
        heads = [part for part in model.modules() if isinstance(part, nn.Linear) and part.out_features == 5]
        thin = [part for part in ens.template.modules() if isinstance(part, nn.Linear) and part.out_features == 5]
        assert [part.in_features for part in thin] == [part.in_features // 2 for part in heads] == [12]


@pytest.mark.parametrize("method", [m for m in METHODS if m.draws or isinstance(m, mt.MIMO)], ids=named)
@pytest.mark.parametrize("build", [vit, resnet, convnext], ids=named)
def test_it_takes_a_training_step(build: Callable[[], tuple[nn.Module, Any]], method: mt.Method) -> None:
    """By the step's own draws or slots: every parameter has a gradient that is a number."""
    model, x = build()
    ens = mt.ensemble(model, method, x, seed=0, check=False).train()
    ens.loss(x, torch.tensor([0, 3, 4]), lambda output, y: nn.functional.cross_entropy(output.logits, y)).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in ens.parameters())


def test_words_have_a_table_for_each_slot() -> None:
    """Words and their kinds; positions are shared."""
    model, x = bert()
    ens = mt.ensemble(model.eval(), mt.MIMO(members=2), x, seed=0)
    shapes = {name: parameter.shape for name, parameter in ens.named_parameters()}
    words, places = (next(n for n in shapes if f"{kind}_embeddings.weight" in n) for kind in ("word", "position"))
    assert (len(shapes[words]), len(shapes[places])) == (3, 2)
