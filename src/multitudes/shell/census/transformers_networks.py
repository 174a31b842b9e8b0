"""Architectures of transformers with a head for classes, or a backbone: each once, with its configuration made small by value.

Widths, layers, heads and vocabularies are told by the names of the fields; a multiple of a width becomes the same multiple of
the small one. `SETTINGS` has what single architectures need beside.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from multitudes.engine.inputs import Inputs
from multitudes.shell.census.networks import ROWS, Network
from multitudes.shell.census.timm_networks import declare_operators

HEADS = {
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "sequence",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "image",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "audio",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES": "video",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "token",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES": "backbone",
}
"""The mappings of transformers in which an architecture is looked for; it is tried with the first that has it."""

WIDTH, LAYERS, ATTENTION_HEADS, VOCABULARY, TOKENS, SIDE, CLASSES = 32, 2, 4, 64, 8, 32, 5
EOS = 2
ABSENT = {"head_dim": WIDTH // ATTENTION_HEADS, "vocab_size": VOCABULARY}
"""Fields that some configurations leave empty by default, for a tokenizer or a checkpoint to fill."""

SMALL: tuple[tuple[str, int], ...] = (
    (r"type_vocab_size|num_channels|num_labels|.*stride.*|.*kernel.*|.*_token_id|.*_id", 0),
    (r".*vocab(ulary)?_size.*", VOCABULARY),
    (r"num_key_value_heads|.*kv_heads|num_global_key_value_heads", 2),
    (r".*(num_.*heads|n_heads?|attention_heads|num_heads)", ATTENTION_HEADS),
    (r"(q_lora|kv_lora)_rank", 16),
    (r".*head_dim|rotary_dim", WIDTH // ATTENTION_HEADS),
    (r".*(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|num_hidden_blocks|depth)", LAYERS),
    (r".*(intermediate_size|ffn_dim|d_ff|n_inner|inner_dim|feed_forward_size|mlp_dim|ff_dim)", 2 * WIDTH),
    (r".*(hidden_size|d_model|n_embd|embed_dim|embedding_size|embedding_dim|hidden_dim|emb_dim|d_embed|proj_dim|dim)", WIDTH),
    (r".*(max_position_embeddings|n_positions|max_seq.*|max_length|n_ctx|block_size)", VOCABULARY),
    (r"(num_local|num|n_routed|moe_num)_experts", 4),
    (r".*experts_per_tok|.*top_?k|n_group", 2),
    (r"topk_group", 1),
    (r"mask_(time|feature)_length", 2),
    (r"image_size|crop_size", SIDE),
    (r"patch_size", 8),
)
"""Small values of whole numbers, by the name of the field; the first that matches counts, and 0 keeps what is there."""

WINDOWS: dict[str, Any] = {"image_size": 64, "window_size": 2}
SPARSE: dict[str, Any] = {"block_size": 1, "num_random_blocks": 1}
"""Blocks so small that attention to few of them stays sparse on a short example; on others these networks change themselves."""
EVERY_HEAD: dict[str, Any] = {"num_key_value_heads": ATTENTION_HEADS}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v3", "esmc", "minicpm3"), EVERY_HEAD),
    **dict.fromkeys(("swin", "swinv2", "donut-swin", "maskformer-swin"), WINDOWS),
    **dict.fromkeys(("big_bird", "bigbird_pegasus"), SPARSE),
    "bit": {"num_groups": 4},
    "bros": {"hidden_size": 128},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "deepseek_v2": {**EVERY_HEAD, "num_experts_per_tok": 2},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
    "hgnet_v2": {"hidden_sizes": [256, 512, 1024, 2048]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "levit": {
        "image_size": 64,
        "patch_size": 16,
        "hidden_sizes": [32, 48, 64],
        "key_dim": [8] * 3,
        "num_attention_heads": [2, 3, 4],
    },
    "lilt": {"hidden_size": 96},
    "lw_detr_vit": {"image_size": 64, "patch_size": 16, "num_windows": 4},
    "mistral4": {**EVERY_HEAD, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32},
    "mobilevitv2": {"image_size": 64, "width_multiplier": 1.0},
    "nemotron": {"num_key_value_heads": 2},
    "perceiver": {"d_latents": 32, "num_latents": 8},
    "pp_lcnet_v3": {
        "conv_symmetric_num": 2,
        "block_configs": [
            [[3, 16, 16, 1, False]],
            [[3, 16, 32, 2, False]],
            [[3, 32, 32, 2, False]],
            [[3, 32, 64, 2, False]],
            [[5, 64, 128, 2, True], [5, 128, 128, 1, False]],
        ],
    },
    "reformer": {"axial_pos_embds": False, "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4},
    "sapiens2": {"image_size": [32, 32], "num_key_value_heads_per_layer": [ATTENTION_HEADS] * LAYERS},
    "shieldgemma2": {"yes_token_index": 3, "no_token_index": 4},
    "textnet": {"image_size": [32, 32], "stem_out_channels": 8},
    "tipsv2_vision_model": {"out_features": ["stage2"]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"use_cache": False},
    "zamba2": {"use_cache": False, "mamba_headdim": 8, "n_mamba_heads": 8},
}
"""What single architectures need beside `SMALL`."""


@functools.cache
def auto() -> Any:
    """Imports the mappings of transformers, which may import torchvision."""
    declare_operators()
    return import_module("transformers.models.auto.modeling_auto")


@functools.cache
def networks() -> list[Network]:
    """Lists every architecture once."""
    kinds: dict[str, tuple[str, str]] = {}
    for mapping, head in HEADS.items():
        for kind, name in getattr(auto(), mapping).items():
            kinds.setdefault(kind, (head, name[0] if isinstance(name, (tuple, list)) else name))
    by_name = {name: (kind, head) for kind, (head, name) in sorted(kinds.items())}  # a class may have several configurations
    return [
        Network("transformers", kind, name, functools.partial(build, kind, name), functools.partial(inputs, head))
        for name, (kind, head) in by_name.items()
    ]


def build(kind: str, name: str) -> nn.Module:
    """Builds an architecture from its small configuration."""
    transformers: Any = import_module("transformers")
    config = small_config(kind)
    model = getattr(transformers, name)(config)
    assert isinstance(model, nn.Module)
    return model


def small_config(kind: str) -> Any:
    """Makes the small configuration of an architecture."""
    configuration: Any = import_module("transformers.models.auto.configuration_auto")
    config_class = configuration.CONFIG_MAPPING[kind]
    whole = config_class().to_dict()
    config = config_class(**{**changes(whole), "num_labels": CLASSES, **SETTINGS.get(kind, {})})
    for part in (config, getattr(config, "text_config", None)):
        if part is not None and getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0
    if getattr(config, "is_encoder_decoder", False):
        config.eos_token_id, config.decoder_start_token_id = EOS, 0
    return config


def changes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a configuration that become smaller, configurations inside it included."""
    width = next(
        (config[key] for key in ("hidden_size", "d_model", "n_embd", "embed_dim", "dim") if _whole(config.get(key))), 0
    )
    layers = (
        0
        if "depths" in config
        else next(
            (v for k, v in config.items() if _whole(v) and re.fullmatch(r"(num_hidden_layers|n_layers?|num_layers)", k)), 0
        )
    )
    new: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and "model_type" in value:
            new[key] = {**value, **changes(value)}
        elif value is None and key in ABSENT:
            new[key] = ABSENT[key]
        elif _whole(value) and not ("depths" in config and "layers" in key):
            new[key] = _small(key, value, width)
        elif isinstance(value, (list, tuple)) and value:
            new[key] = _small_list(key, value, layers)
    return {key: value for key, value in new.items() if value != config[key]}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _small(key: str, value: int, width: int) -> int:
    """Returns a small value for a field: by its name, as the same multiple of the width, or as it is."""
    for pattern, small in SMALL:
        if re.fullmatch(pattern, key):
            if key.endswith("token_id"):
                return min(value, 2)
            return min(value, small) if small else value
    if width and value >= 64 and value % width == 0:
        return value // width * WIDTH
    return value


def _small_list(key: str, value: list[Any] | tuple[Any, ...], layers: int) -> Any:
    """Returns a small value for a list: one block per stage, narrow stages, an entry for each layer that is left."""
    if key in ("depths", "layer_depths", "num_blocks", "encoder_depths"):
        return type(value)(min(int(v), 1) for v in value)
    if re.fullmatch(r".*(num_heads|attention_heads)", key):
        return type(value)(min(int(v), 2) for v in value)
    if layers > LAYERS and len(value) == layers:
        return value[-LAYERS:]
    if all(_whole(v) for v in value) and re.search(r"sizes|dims|widths|embed_dim|conv_dim", key) and max(value) >= 64:
        return type(value)(max(8, v * WIDTH // max(value) // 8 * 8) for v in value)
    return value


def inputs(head: str, model: nn.Module) -> Inputs:
    """Makes an example by the name of the model's main input."""
    network: Any = model
    name = "input_ids" if head in ("sequence", "token") and network.main_input_name == "input_ids" else network.main_input_name
    return Inputs(**MAKERS[name](network.config, head))


def _ids(config: Any, head: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (ROWS, TOKENS))
    ids[:, -1] = EOS
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if config.model_type == "bros":
        given["bbox"] = torch.rand(ROWS, TOKENS, 8)
    return given


def _pixels(config: Any, head: str) -> dict[str, torch.Tensor]:
    vision = getattr(config, "vision_config", config)
    if hasattr(vision, "num_patches"):  # patches that are cut before, with their places
        count, entries = 4, vision.num_channels * vision.patch_size**2
        shapes = torch.tensor([[2, 2]] * ROWS)
        return {
            "pixel_values": torch.randn(ROWS, count, entries), "pixel_attention_mask": torch.ones(ROWS, count).long(),
            "spatial_shapes": shapes,
        }  # fmt: skip
    size: Any = getattr(vision, "image_size", SIDE) or SIDE
    sides = (size, size) if _whole(size) else tuple(size)
    frames = (getattr(config, "num_frames", 4),) if head == "video" else ()
    shape = (ROWS, *frames, getattr(vision, "num_channels", 3), *sides)
    return {"pixel_values": torch.randn(shape)}


def _waves(config: Any, head: str) -> dict[str, torch.Tensor]:
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return {"input_values": torch.randn(ROWS, config.max_length, config.num_mel_bins)}
    return {"input_values": torch.randn(ROWS, 2000)}


def _features(config: Any, head: str) -> dict[str, torch.Tensor]:
    if hasattr(config, "feature_projection_input_dim"):
        return {"input_features": torch.randn(ROWS, 20, config.feature_projection_input_dim)}
    steps = 2 * getattr(config, "max_source_positions", 10)
    return {"input_features": torch.randn(ROWS, getattr(config, "num_mel_bins", 80), steps)}


MAKERS: dict[str, Callable[[Any, str], dict[str, torch.Tensor]]] = {
    "input_ids": _ids,
    "inputs": lambda config, head: {"inputs": _ids(config, head)["input_ids"]},
    "pixel_values": _pixels,
    "pixel_values_videos": lambda config, head: {"pixel_values_videos": _pixels(config, "video")["pixel_values"]},
    "input_values": _waves,
    "input_features": _features,
}
"""Makers of the example, by the name of the model's main input."""
