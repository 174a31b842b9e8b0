"""Batches and outputs of transformers as they are: dicts with labels, hidden states beside logits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.tokenization_utils_base import BatchEncoding

import multitudes as mt

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
    "num_labels": 3, "max_position_embeddings": 16, "output_hidden_states": True,
}  # fmt: skip
IDS = torch.randint(1, 50, (3, 8), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES))


@pytest.mark.parametrize("batch", [BATCH, BatchEncoding(BATCH)], ids=["dict", "BatchEncoding"])
def test_heads_on_hidden_states(batch: Any, tmp_path: Path) -> None:
    """The classifier is the head, though hidden states are returned; a member is BERT with its own classifier."""
    model = bert()
    ens = mt.ensemble(model, mt.MultiHead(members=2), batch, output="logits", check=False, seed=0).eval()
    assert [entry.name for entry in ens.plan.converted] == ["classifier"]
    items = [{"input_ids": IDS[i], "attention_mask": torch.ones(8, dtype=torch.long), "labels": i} for i in range(3)]
    pred = mt.predict(ens, items)
    assert pred.targets is not None and pred.targets.tolist() == [0, 1, 2]
    for m in range(2):
        plain = copy.deepcopy(model).eval()
        for key in ("weight", "bias"):
            getattr(plain.classifier, key).data = ens.state_dict()[f"classifier.{key}"][m]
        with torch.no_grad():
            torch.testing.assert_close(pred.members["logits"][m], plain(**BATCH).logits)
    mt.save(ens, tmp_path / "a.multitude")
    loaded = mt.load(tmp_path / "a.multitude", bert())
    torch.testing.assert_close(mt.predict(loaded, batch).members["logits"], pred.members["logits"], rtol=0, atol=0)


def test_packed_thins_the_configuration() -> None:
    """A member is BERT of half the width, with its weights."""
    ens = mt.ensemble(bert(), mt.Packed(members=2, alpha=1), BATCH, output="logits", check=False, seed=0).eval()
    thin = BertForSequenceClassification(BertConfig(**{**SIZES, "hidden_size": 16, "intermediate_size": 32})).eval()
    thin.load_state_dict({name: value[1] for name, value in ens.state_dict().items()}, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(ens(**BATCH)[1], thin(**BATCH).logits)
