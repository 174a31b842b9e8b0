"""transformers: outputs that are not tensors, and networks that draw masks with numpy; timm: initialisers with arguments."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

import numpy
import pytest
import torch

import multitudes as mt
from multitudes.conversion.anatomy.initialise import reinitialised

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CODER = {
    f"{side}_{what}": n
    for side in ("encoder", "decoder")
    for what, n in (("layers", 1), ("ffn_dim", 24), ("attention_heads", 2))
}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 16, "num_hidden_layers": 1, "ffn_dim": 24, "num_attention_heads": 2, "word_embed_proj_dim": 16},
    ),
    "bart": ("BartForConditionalGeneration", {"d_model": 16, "max_position_embeddings": 16, **CODER}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    ),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_cache_is_left_out_of_the_outputs(kind: str) -> None:
    """The other outputs are those of the members, and the given model and its configuration stay as they were."""
    name, options = NETWORKS[kind]
    torch.manual_seed(0)
    net = getattr(transformers, name)(transformers.AutoConfig.for_model(kind, **SMALL, **options)).eval()
    config = copy.deepcopy(net.config.to_dict())
    ids = torch.randint(3, 50, (2, 6))
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if kind in ("bart", "t5") else {})}
    assert net(**inputs).past_key_values is not None
    ens = mt.ensemble(net, mt.Deep(members=2), mt.Inputs(**inputs, output_hidden_states=True), seed=0, check=False).eval()
    assert any(note.startswith("the output past_key_values (") for note in ens.plan.notes)
    output = ens(**inputs, output_hidden_states=True)
    assert output.past_key_values is None
    for m in range(2):
        plain = ens.member(m).eval()(**inputs, output_hidden_states=True)
        assert type(output) is type(plain)
        torch.testing.assert_close(output.logits[m], plain.logits)
        states = "decoder_hidden_states" if kind in ("bart", "t5") else "hidden_states"
        for ours, theirs in zip(getattr(output, states), getattr(plain, states), strict=True):
            torch.testing.assert_close(ours[m], theirs)
    assert net.config.to_dict() == config


def test_labels_give_one_loss_for_each_member() -> None:
    name, options = NETWORKS["gpt2"]
    net = getattr(transformers, name)(transformers.AutoConfig.for_model("gpt2", **SMALL, **options)).eval()
    ids = torch.randint(3, 50, (2, 6))
    ens = mt.ensemble(net, mt.Deep(members=3), mt.Inputs(input_ids=ids, labels=ids), seed=0, check=False).eval()
    output = ens(input_ids=ids, labels=ids)
    assert output.loss.shape == (3,)
    torch.testing.assert_close(output.loss[1], ens.member(1).eval()(input_ids=ids, labels=ids).loss)


def test_wav2vec2_moves_no_randomness() -> None:
    """It draws masks with numpy in training, and skips layers with torch."""
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, conv_dim=(8, 8), conv_stride=(5, 4),
        conv_kernel=(10, 8), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8, num_labels=3,
        mask_time_length=2, mask_time_prob=0.3, vocab_size=20,
    )  # fmt: skip
    net, x = transformers.Wav2Vec2ForSequenceClassification(config).train(), torch.randn(2, 800)

    def states() -> list[Any]:
        return [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]

    before = states()
    for method in (mt.Deep(members=2), mt.Packed(members=2), mt.EMP(members=2)):
        with contextlib.suppress(mt.MultitudesError):  # a refusal must not move it either
            mt.ensemble(net, method, x, seed=0, check=False)
        assert states() == before, method


def test_members_of_resnetv2_start_as_the_base_does() -> None:
    """Its constructor runs init_weights(zero_init_last=False); the default would start every block's last convolution at 0."""
    torch.manual_seed(0)
    base, other = (timm.create_model("resnetv2_18", num_classes=3) for _ in range(2))
    new = reinitialised(base, 0)[0]
    for name, parameter in other.named_parameters():
        if parameter.ndim > 1:
            assert new.get_parameter(name).std().item() == pytest.approx(parameter.std().item(), rel=0.2), name
