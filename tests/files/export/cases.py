"""Networks for tests of exported files, and how a file is compared with its ensemble."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes import models
from multitudes.files.export.onnx_file import Session

onnx = pytest.importorskip("onnx")

NAMES = """probs label confidence margin entropy expected_entropy mutual_information variation_ratio disagreement max_logit
    energy member_probs member_logits abstain""".split()


class MLP(nn.Module):
    """Linear layers with both norms and dropout."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a, self.bn = nn.Linear(8, width), nn.BatchNorm1d(width)
        self.b, self.ln, self.drop = nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(0.1)
        self.c = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.drop(torch.relu(self.ln(self.b(torch.relu(self.bn(self.a(x))))))))


class UNet(nn.Module):
    """A skip across a pooled branch, joined along the channels."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.down, self.bottom = self.block(3, width), nn.Sequential(nn.MaxPool2d(2), self.block(width, 2 * width))
        self.up, self.mix = nn.ConvTranspose2d(2 * width, width, 2, 2), self.block(2 * width, width)
        self.head = nn.Conv2d(width, 5, 1)

    def block(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.head(self.mix(torch.cat([skip, self.up(self.bottom(skip))], 1)))


class Convolutions(nn.Module):
    """Layers around which methods put vectors: in groups, transposed, side by side, and a norm at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.an = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.b, self.bn = nn.Conv2d(12, 12, 3, padding=1, groups=4), nn.BatchNorm2d(12)
        self.c, self.cn = nn.Conv2d(12, 8, 1), nn.BatchNorm2d(8, affine=False)
        self.d, self.dn = nn.ConvTranspose2d(8, 6, 2, 2), nn.BatchNorm2d(6)
        self.head, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.an(self.a(x)))
        x = torch.relu(self.dn(self.d(self.cn(self.c(x + self.bn(self.b(x)))))))
        return self.last(self.head(x.mean((2, 3))))


def bert() -> nn.Module:
    hf = pytest.importorskip("transformers")
    settings = {
        "vocab_size": 200,
        "hidden_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "initializer_range": 0.3,
    }
    config = hf.BertConfig(**settings, intermediate_size=96, max_position_embeddings=16, num_labels=4)
    return hf.BertForSequenceClassification(config)


def words(count: int) -> mt.Inputs:
    mask = (torch.rand(count, 7) > 0.3).long()
    mask[:, 0] = 1
    return mt.Inputs(torch.randint(200, (count, 7)), attention_mask=mask)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "mlp": (MLP, lambda count: torch.randn(count, 8)),
    "resnet": (lambda: models.ResNet(18, width=0.125), lambda count: torch.randn(count, 3, 16, 16)),
    "vit": (lambda: models.ViT(image=16, size=48, depth=1), lambda count: torch.randn(count, 3, 16, 16)),
    "unet": (UNet, lambda count: torch.randn(count, 3, 8, 8)),
    "convolutions": (Convolutions, lambda count: torch.randn(count, 3, 8, 8)),
    "bert": (bert, words),
}


def made(network: str, method: mt.Method, **options: Any) -> tuple[mt.Ensemble, Callable[[int], Any]]:
    """An ensemble with statistics, shifts and attention unlike those of a fresh network, in which some members are alike."""
    torch.manual_seed(0)
    make, inputs = NETWORKS[network]
    output = "logits" if network == "bert" else None
    ens = mt.ensemble(make(), method, inputs(3), seed=0, output=output, **options)
    if network == "vit":
        for parameter in ens.parameters():
            parameter.data.mul_(3)  # as they start, attention is nearly the same for all
    for name, buffer in ens.named_buffers():
        if name.endswith("running_mean"):
            buffer.data.normal_()
        elif name.endswith("running_var"):
            buffer.data.uniform_(0.5, 2.0)
        elif ".shift_" in name:
            buffer.data.normal_(std=0.1)
    return ens.eval(), inputs


def call_of(x: Any) -> mt.Inputs:
    return x if isinstance(x, mt.Inputs) else mt.Inputs(x)


def off(path: Path, ens: mt.Ensemble, x: Any) -> float:
    """The largest difference between the members' logits in a file and those of the ensemble."""
    call = call_of(x)
    session = Session(path.read_bytes())
    found = session(session.inputs, call.tensors())["member_logits"]
    with torch.no_grad():
        return float((found - ens(*call.args, **call.kwargs).transpose(0, 1)).abs().max())


def opened(path: Path) -> tuple[Any, dict[str, Any]]:
    model = onnx.load(path)
    return model, json.loads({entry.key: entry.value for entry in model.metadata_props}["multitudes"])
