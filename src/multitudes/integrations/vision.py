"""timm and torchvision: trained weights from a local file, and the data configuration that a network was trained with.

    model = vision.load_weights(timm.create_model("resnet18"), "resnet18.safetensors")
    prepare = vision.preparation(model)                    # mean, std and size of timm's pretrained_cfg
    ens = mt.ensemble(model, mt.BatchEnsemble(members=4), prepare(images))

timm and torchvision are not imported: a network of timm carries its configuration, and so do torchvision's weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import FileError, InputError
from multitudes.files.ensemble_file import load_into

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How images become inputs: resized, cropped to the middle, and normalised by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    """Height and width of the inputs."""
    resize: int
    """The shorter side, to which images are resized before the crop."""
    interpolation: str = "bicubic"
    """"bicubic" or "bilinear", with antialiasing."""
    squash: bool = False
    """Whether both sides are resized to `resize`, whatever the image's proportions."""

    def __call__(self, images: Tensor) -> Tensor:
        """Prepares uint8 images, or floats from 0 to 1: ``[B, C, H, W]`` → ``[B, C, *size]``"""
        if images.ndim != 4 or images.shape[1] != len(self.mean):
            raise InputError(f"give images [B, {len(self.mean)}, H, W], not {list(images.shape)}")
        if not images.numel():
            raise InputError(f"there are no images: they are {list(images.shape)}")
        x = images.float() / 255 if images.dtype == torch.uint8 else images
        if not x.is_floating_point() or float(x.min()) < 0 or float(x.max()) > 1:
            raise InputError("give uint8 images, or floats from 0 to 1: these are normalised already, or on another scale")
        height, width = x.shape[2:]
        sides = (
            (self.resize, int(self.resize * width / height))
            if height < width
            else (int(self.resize * height / width), self.resize)
        )
        sides = (self.resize, self.resize) if self.squash else sides
        if sides != (height, width):
            x = F.interpolate(x, sides, mode=self.interpolation, antialias=True, align_corners=False).clamp(0, 1)
        top, left = (round((side - crop) / 2) for side, crop in zip(x.shape[2:], self.size, strict=True))
        x = x[:, :, top : top + self.size[0], left : left + self.size[1]]
        mean, std = (torch.tensor(one, device=x.device, dtype=x.dtype).view(-1, 1, 1) for one in (self.mean, self.std))
        return (x - mean) / std


def preparation(source: Any) -> Preparation:
    """Returns how the images of a trained network are prepared.

    source   a network of timm, its `pretrained_cfg`, or weights of torchvision such as ResNet18_Weights.DEFAULT
    """
    if callable(getattr(source, "transforms", None)):
        found = source.transforms()
        if type(found).__name__ != "ImageClassification":
            raise InputError(f"{source} are weights of {type(found).__name__}: prepare your data by {source}.transforms()")
        crop, resize = _one(found.crop_size), _one(found.resize_size)
        mode = str(getattr(found.interpolation, "value", found.interpolation))
        return Preparation(mean=tuple(found.mean), std=tuple(found.std), size=(crop, crop), resize=resize, interpolation=mode)
    config = getattr(source, "pretrained_cfg", source)
    config = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(config, Mapping) or not {"mean", "std", "input_size"} <= config.keys():
        raise InputError(
            f"a {type(source).__name__} has no data configuration: give a network of timm.create_model, its pretrained_cfg, or "
            "weights of torchvision"
        )
    _, height, width = config["input_size"]
    way = config.get("crop_mode") or "center"
    if way not in ("center", "squash") or height != width:
        raise InputError(
            f"inputs of {height} × {width} with crop_mode={way!r} are not prepared here: take timm.data.create_transform"
        )
    resize = math.floor(min(height, width) / (config.get("crop_pct") or 0.875))
    mode = config.get("interpolation") or "bicubic"
    return Preparation(
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        size=(height, width),
        resize=resize,
        interpolation=mode,
        squash=way == "squash",
    )


def load_weights(model: Model, path: str | PathLike[str]) -> Model:
    """Returns a copy of the model with the trained weights of a local file: safetensors, or a checkpoint of torch.

    A checkpoint is read with weights_only=True, so no code of it is run; weights may lie under "state_dict" or "model".
    """
    source = Path(path)
    if source.suffix == ".safetensors" or not source.is_file():
        return load_into(model, source)  # type: ignore[return-value]
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # its parts may be anything
        raise FileError(
            f"{source} is no checkpoint of tensors and plain values: nothing of it is loaded. Get the weights as safetensors"
        ) from error
    for key in ("state_dict", "model"):
        found = found[key] if isinstance(found, dict) and isinstance(found.get(key), dict) else found
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise FileError(f"{source} holds no state dict: give a file of torch.save(model.state_dict(), path)")
    return load_into(model, {name.removeprefix("module."): tensor for name, tensor in found.items()})  # type: ignore[return-value]


def _one(size: Any) -> int:
    return int(size[0] if isinstance(size, (list, tuple)) else size)
