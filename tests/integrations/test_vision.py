"""Weights from files and data configurations, without timm; tests/thirdparty has its networks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import multitudes as mt
from multitudes.integrations import vision

CONFIG = {
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.25, 0.5),
    "input_size": (3, 8, 8),
    "crop_pct": 0.8,
    "interpolation": "bilinear",
}


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2)).eval()


def test_images_are_resized_cropped_and_normalised() -> None:
    prepare = vision.preparation(SimpleNamespace(pretrained_cfg=CONFIG))
    assert (prepare.size, prepare.resize) == ((8, 8), 10)
    images = torch.randint(256, (2, 3, 10, 14), dtype=torch.uint8)
    x = prepare(images)
    middle = images[:, :, 1:9, 3:11].float() / 255
    expected = (middle - torch.tensor(CONFIG["mean"]).view(3, 1, 1)) / torch.tensor(CONFIG["std"]).view(3, 1, 1)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(prepare(images.float() / 255), expected)
    assert prepare(torch.rand(1, 3, 33, 21)).shape == (1, 3, 8, 8)
    with pytest.raises(mt.InputError, match="normalised already"):
        prepare(x)
    with pytest.raises(mt.InputError, match=r"give images \[B, 3, H, W\]"):
        prepare(images[0])
    with pytest.raises(mt.InputError, match="has no data configuration"):
        vision.preparation(network())


@pytest.mark.parametrize("kind", ["safetensors", "pth", "nested"])
def test_weights_of_a_file(tmp_path: Path, kind: str) -> None:
    trained, model, x = network(), network(), torch.randn(2, 3, 6, 6)
    expected = trained(x)
    model(x)
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pth")
    state: Any = trained.state_dict()
    if kind == "safetensors":
        save_file(state, path)
    else:
        nested = {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}
        torch.save(nested if kind == "nested" else state, path)
    assert torch.equal(vision.load_weights(model, path)(x), expected)
    with pytest.raises(mt.FileError, match="is not a checkpoint of this"):
        vision.load_weights(nn.Linear(2, 2), path)


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match="there is no file"):
        vision.load_weights(network(), tmp_path / "none.pth")
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    with pytest.raises(mt.FileError, match="holds no state dict"):
        vision.load_weights(network(), tmp_path / "a.pth")
    torch.save(network(), tmp_path / "b.pth")
    with pytest.raises(mt.FileError, match="nothing of it is loaded"):
        vision.load_weights(network(), tmp_path / "b.pth")
