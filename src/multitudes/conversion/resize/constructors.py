"""Rebuild a network at another width: our own models by their arguments, transformers by configuration, timm by constructor."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from typing import Any

import torch
from torch import nn

from multitudes.conversion.resize.pruning import is_transformers
from multitudes.models.network import nearest

CPU = torch.device("cpu")

STREAMS = "hidden_size d_model n_embd dim embed_dim embedding_size hidden_sizes embed_dims dims".split()
"""Entries of a configuration that are widths divisible by the number of heads."""

INNER = """intermediate_size d_ff ffn_dim n_inner hidden_dim encoder_ffn_dim decoder_ffn_dim neck_hidden_sizes d_inner
    mlp_dim pooler_hidden_size decoder_hidden_size d_kv""".split()
"""Entries of a configuration that are other widths."""

HEADS = "num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads".split()
"""Entries of a configuration that are numbers of heads."""


def by_constructor(model: nn.Module, ratio: float, device: torch.device = CPU) -> nn.Module | None:
    """Rebuilds one of our models with scaled widths; None for other models."""
    from multitudes.models.network import Network

    if not isinstance(model, Network):
        return None
    with device:
        return model.resized(ratio)


def by_config(model: Any, ratio: float, device: torch.device = CPU) -> nn.Module | None:
    """Rebuilds a transformers model from its configuration with scaled widths and the same heads; None for other models."""
    if not is_transformers(model):
        return None
    with device:
        return type(model)(_scaled_config(model.config, ratio))


def _scaled_config(config: Any, ratio: float) -> Any:
    new = copy.deepcopy(config)
    heads = [_as_list(getattr(config, name)) for name in HEADS if getattr(config, name, None)]
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            setattr(new, name, _scaled_config(value, ratio))
        elif name == "head_dim" and value:
            setattr(new, name, nearest(value * ratio, 2))
        elif name in (*STREAMS, *INNER) and value and not isinstance(value, (bool, float, str)):
            widths = []
            for stage, width in enumerate(_as_list(value)):
                divisor = math.lcm(*(counts[min(stage, len(counts) - 1)] for counts in heads)) if name in STREAMS else 1
                widths.append(nearest(width * ratio, divisor))
            setattr(new, name, type(value)(widths) if isinstance(value, (list, tuple)) else widths[0])
    return new


def by_timm(model: Any, ratio: float, device: torch.device = CPU) -> nn.Module | None:
    """Rebuilds a timm model by its constructor, if the constructor takes widths; None for other models."""
    config = getattr(model, "pretrained_cfg", None) or {}
    name = config.get("architecture") if isinstance(config, dict) else getattr(config, "architecture", None)
    if not type(model).__module__.startswith("timm.") or not name:
        return None
    from unittest.mock import patch

    import timm

    arguments = inspect.signature(type(model)).parameters
    heads = next((part.num_heads for part in model.modules() if isinstance(getattr(part, "num_heads", None), int)), 1)
    changed: dict[str, Any] = {}
    for key in STREAMS:
        value = getattr(model, key, getattr(model, "num_features", None) if key == "embed_dim" else None)
        if key in arguments and isinstance(value, (int, list, tuple)):
            widths = [nearest(w * ratio, heads) for w in _as_list(value)]
            changed[key] = widths[0] if isinstance(value, int) else type(value)(widths)
    if not changed:
        return None
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    changed["num_classes"] = getattr(classifier, "out_features", getattr(model, "num_classes", 1000))
    size = next((part.img_size for part in model.modules() if getattr(part, "img_size", None)), None)
    if "img_size" in arguments and size is not None:
        changed["img_size"] = size
    kind, module = type(model), sys.modules[type(model).__module__]

    def resized(*args: Any, **kwargs: Any) -> nn.Module:
        return kind(*args, **{**kwargs, **changed})

    with device, patch.object(module, kind.__name__, resized):  # most of timm's functions fix the widths and take none
        return timm.create_model(name)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
