"""The sample of the census: a few networks of every kind, so that every method and every kind of network occurs."""

from __future__ import annotations

from collections.abc import Sequence

from multitudes.shell.census.census import Pair

SAMPLE: dict[str, dict[str, tuple[str, ...]]] = {
    "own": {
        "mlp": (
            "BatchEnsemble", "Deep", "DropConnect", "ECMP", "EMP", "MCDropout", "MIMO", "Masksembles", "MultiHead", "Packed",
            "Single", "TreeNet",
        ),
        "unet": ("MultiHead", "Deep"),
        "lstm": ("Deep", "Packed", "BatchEnsemble"),
        "vit_by_hand": ("EMP", "BatchEnsemble"),
        "convnet_1d": ("Masksembles", "TreeNet"),
        "convnet_3d": ("MIMO", "MCDropout"),
        "nested_residual": ("Packed", "DropConnect"),
    },
    "timm": {
        "test_resnet": ("Packed", "Masksembles"),
        "test_vit": ("Packed", "EMP"),
        "test_vit(depth=2)": ("Deep",),
        "test_convnext": ("BatchEnsemble",),
    },
    "transformers": {
        "BertForSequenceClassification": ("Packed", "MIMO"),
        "GPT2ForSequenceClassification": ("Deep", "MultiHead"),
        "ViTForImageClassification": ("MIMO", "DropConnect"),
        "ResNetForImageClassification": ("ECMP", "TreeNet"),
    },
    "geometric": {"GCN": ("Deep",), "GINConv": ("MultiHead", "MCDropout")},
}  # fmt: skip
"""Methods to try, by library and network."""


def sampled(every: Sequence[Pair]) -> list[Pair]:
    """Returns the pairs of the sample."""
    return [pair for pair in every if pair.method in SAMPLE[pair.network.library].get(pair.network.name, ())]
