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


METHODS = [mt.Single(), mt.Deep(), mt.MultiHead(), mt.TreeNet(), mt.Packed(), mt.BatchEnsemble(), mt.Masksembles(fewest=8)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("build", [vit, resnet, convnext, bert], ids=lambda build: build.__name__)
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
