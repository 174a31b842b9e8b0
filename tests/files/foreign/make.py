"""Makes the checkpoints of this folder again, with torch-uncertainty 0.13 and masksembles 1.1.1 in a folder of their own:

    pip install --target FOLDER --no-deps torch-uncertainty==0.13.0 masksembles==1.1.1 einops
    python tests/files/foreign/make.py FOLDER

Each file has a state dict as the peer saves it, the inputs `x`, and the outputs that the peer's model has in eval mode.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).resolve().parent
M = 2


def load(folder: Path, name: str) -> Any:
    """Imports a module of torch-uncertainty without its packages' own imports, which need Lightning and more."""
    sys.path.insert(0, str(folder))
    hub = sys.modules.setdefault("torch_uncertainty.utils", ModuleType("torch_uncertainty.utils"))
    vars(hub)["load_hf"] = None  # downloads, which are not used here
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if package not in sys.modules and package != "torch_uncertainty.layers":
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [str(folder.joinpath(*parts[:end]))]
    return importlib.import_module(name)


def train_a_little(net: nn.Module, x: torch.Tensor) -> nn.Module:
    """Gives norms statistics of their own, and factors and biases other values than at the start."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(3):
            net.train()(x)
        for name, p in net.named_parameters():
            if p.ndim <= 2 and "mask" not in name:
                p += 0.2 * torch.randn(p.shape, generator=generator)
    return net.eval()


def write(name: str, net: nn.Module, x: torch.Tensor, state: dict[str, torch.Tensor], repeat: bool = False) -> None:
    """Writes a file; `repeat` for layers that expect the rows of all members."""
    with torch.no_grad():
        outputs = net(x.repeat(M, *(1 for _ in x.shape[1:])) if repeat else x).unflatten(0, (M, -1))
    tensors = {f"state.{key}": value.contiguous() for key, value in state.items()}
    save_file({**tensors, "x": x, "outputs": outputs.contiguous()}, HERE / f"{name}.safetensors")
    print(name, tuple(outputs.shape), (HERE / f"{name}.safetensors").stat().st_size)


def main(folder: Path) -> None:
    """Writes all files."""
    torch.manual_seed(0)
    x, small = torch.randn(3, 3, 8, 8), {"in_channels": 3, "num_classes": 4, "arch": 18, "width_multiplier": 1 / 32}
    resnets = "torch_uncertainty.models.classification.resnet"
    options = {**small, "num_estimators": M, "style": "cifar", "conv_bias": False}
    packed = load(folder, f"{resnets}.packed").packed_resnet(alpha=2, gamma=1, **options)
    batched = load(folder, f"{resnets}.batched").batched_resnet(**options)
    mimo = load(folder, f"{resnets}.mimo").mimo_resnet(**options)
    for name, net in (("packed", packed), ("batched", batched), ("mimo", mimo)):
        train_a_little(net, torch.randn(8, 3, 8, 8))
        write(name, net, x, net.state_dict())
    layers = load(folder, "torch_uncertainty.layers.masksembles")
    masked = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), layers.MaskedConv2d(12, 10, 3, M, 2.0), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), layers.MaskedLinear(10, 4, M, 2.0),
    )  # fmt: skip
    train_a_little(masked, torch.randn(8, 3, 8, 8))
    write("masked", masked, x, masked.state_dict(), repeat=True)
    package: Any = importlib.import_module("masksembles.torch")
    own = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), package.Masksembles2D(12, M, 2.0), nn.Conv2d(12, 12, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), package.Masksembles1D(12, M, 2.0), nn.Linear(12, 4),
    )  # fmt: skip
    train_a_little(own, torch.randn(8, 3, 8, 8))
    masks = {f"{name}.masks": part.masks for name, part in own.named_modules() if hasattr(part, "masks")}
    write("masksembles", own, x, {**own.state_dict(), **masks}, repeat=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
