"""MIMO on networks of transformers and timm: tables, patches, sound; each slot with its own mask, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from laws.compare import summed
from timm import layers
from torch import Tensor, nn

import multitudes as mt

IDS = torch.tensor([[5, 6, 7, 8, 9, 2], [7, 8, 2, 1, 1, 1], [9, 9, 5, 5, 2, 1]])
MASK = (IDS != 1).long()
TOKENS = mt.Inputs(input_ids=IDS, attention_mask=MASK)
IMAGES, SOUND = torch.randn(3, 3, 16, 16), torch.randn(3, 400)
SIZE: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "num_labels": 4,
}
WORDS: dict[str, Any] = {**SIZE, "vocab_size": 12, "max_position_embeddings": 16, "pad_token_id": 1}
CAUSAL: dict[str, Any] = {"vocab_size": 12, "num_labels": 4, "pad_token_id": 1, "use_cache": False}

NETS: dict[str, tuple[Callable[[], nn.Module], Any, set[str]]] = {
    "bert": (
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**WORDS)), TOKENS, {"bert.embeddings.word_embeddings.weight"},
    ),
    "albert": (
        lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=8, **WORDS)), TOKENS,
        {"albert.embeddings.word_embeddings.weight"},
    ),
    "electra": (
        lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(embedding_size=8, **WORDS)), TOKENS,
        {"electra.embeddings.word_embeddings.weight"},
    ),
    "roberta": (
        lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**WORDS)), TOKENS,
        {f"roberta.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")},
    ),
    "gpt2": (
        lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=16, **CAUSAL)),
        TOKENS, {"transformer.wte.weight"},
    ),
    "opt": (
        lambda: hf.OPTForSequenceClassification(
            hf.OPTConfig(hidden_size=8, ffn_dim=8, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=8, **CAUSAL)
        ), TOKENS, {"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"},
    ),
    "t5": (
        lambda: hf.T5ForTokenClassification(
            hf.T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, num_labels=4)
        ), TOKENS, {"transformer.shared.weight"},
    ),
    "xlnet": (
        lambda: hf.XLNetForSequenceClassification(
            hf.XLNetConfig(vocab_size=12, d_model=8, n_layer=1, n_head=2, d_inner=8, num_labels=4, use_mems_eval=False)
        ), TOKENS, {"transformer.word_embedding.weight"},
    ),
    "beit": (
        lambda: hf.BeitForImageClassification(hf.BeitConfig(image_size=16, patch_size=8, **SIZE)), IMAGES,
        {"beit.embeddings.patch_embeddings.projection.weight"},
    ),
    "wav2vec2": (
        lambda: hf.Wav2Vec2ForSequenceClassification(
            hf.Wav2Vec2Config(conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8,
                              num_conv_pos_embedding_groups=2, classifier_proj_size=8, mask_time_prob=0.0, **SIZE)
        ), SOUND, {"wav2vec2.feature_extractor.conv_layers.0.conv.weight"},
    ),
}  # fmt: skip
"""Networks, an example, and the weights with slots."""


def logits(output: Any) -> Tensor:
    return output.logits


@pytest.mark.parametrize("name", NETS)
def test_networks_of_transformers(name: str) -> None:
    """Copies are the base model on the same example in all slots, and a training step reaches every slot."""
    build, x, weights = NETS[name]
    torch.manual_seed(0)
    net = build().eval()
    ens = mt.ensemble(net, mt.MIMO(members=2), x, seed=0, start="copies").eval()
    assert summed(ens) == weights
    call = mt.Inputs.of(x)
    with torch.no_grad():
        expected, found = logits(net(*call.args, **call.kwargs)), logits(ens(*call.args, **call.kwargs))
    torch.testing.assert_close(found, expected.expand(2, *expected.shape), rtol=1e-4, atol=1e-5)
    ens.train().loss(x, torch.tensor([0, 3, 1]), lambda out, y: F.cross_entropy(logits(out).reshape(3, -1), y)).backward()
    for weight in weights:
        grad = ens.get_parameter(weight).grad
        assert all(bool(slot.any()) for slot in grad)
        assert not torch.equal(grad[0], grad[1]) or "token_type" in weight  # all tokens are of one type


@pytest.mark.parametrize("name", ["bert", "albert", "electra"])
def test_tables_add_up_before_the_plain_network(name: str) -> None:
    """Other examples in each slot: a member is the plain network on the sum of the tables' rows, under its own slot's mask."""
    build, x, (weight,) = NETS[name]
    torch.manual_seed(0)
    ens = mt.ensemble(build().double(), mt.MIMO(members=2), x, seed=0).eval()
    order = torch.tensor([2, 0, 1])
    slots = {key: torch.stack([value, value[order]]) for key, value in x.kwargs.items()}
    found = logits(ens(**slots, per_member=True))
    rows = sum(table[ids] for table, ids in zip(ens.get_parameter(weight), slots["input_ids"], strict=True))
    for m in range(2):
        expected = logits(ens.member(m)(inputs_embeds=rows, attention_mask=slots["attention_mask"][m]))
        torch.testing.assert_close(found[m], expected)


@pytest.mark.parametrize("kind", ["StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"])
def test_weights_that_timm_standardises(kind: str) -> None:
    """Slots are scaled by the statistics of their sum, so that the same example sees the standardised sum; a step trains."""
    torch.manual_seed(0)
    net = nn.Sequential(
        getattr(layers, kind)(3, 8, 3, stride=2, bias=True), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 4)
    ).double()
    nn.init.normal_(net[0].bias)
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    ens = mt.ensemble(net, mt.MIMO(members=2), x, seed=0).train()
    with torch.no_grad():
        ens.get_parameter("0.weight").add_(0.1 * torch.randn_like(ens.get_parameter("0.weight")))
    weights, plain = ens.get_parameter("0.weight").detach(), ens.member(0)[0]
    torch.testing.assert_close(plain.weight.detach(), weights.sum(0))
    slots = torch.stack([x, x.roll(1, 0)])
    total = weights.sum(0).flatten(1)
    scale = (total.var(1, correction=0) + plain.eps).rsqrt() * (plain.gain.flatten() * plain.scale if "Scaled" in kind else 1.0)
    stems = []
    for m in range(2):
        own = (weights[m] - weights[m].mean((1, 2, 3), keepdim=True)) * scale.view(-1, 1, 1, 1)
        padded = F.pad(slots[m], (0, 1, 0, 1) if "Same" in kind else (1, 1, 1, 1))
        stems.append(F.conv2d(padded, own, stride=2))
    hidden = (sum(stems) + plain.bias.view(-1, 1, 1)).tanh().flatten(1)
    for m, output in enumerate(ens(slots, per_member=True)):
        torch.testing.assert_close(output, hidden @ ens.get_parameter("3.weight")[m].T + ens.get_parameter("3.bias")[m])
    ens.loss(x, torch.tensor([0, 1, 2]), F.cross_entropy).backward()
    assert all(bool(slot.any()) for slot in ens.get_parameter("0.weight").grad)
