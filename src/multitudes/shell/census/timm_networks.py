"""timm's families: the smallest network of each, as registered, and for Packed and Deep with other arguments.

A family is the module of a network's entry point. Which network is the smallest is counted once, on the meta device, and stored
in timm_smallest.json; families that it lacks, of other versions of timm, are counted when they are met.

`python -m multitudes.shell.census.timm_networks` counts all families again and writes the file.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multitudes.engine.inputs import Inputs
from multitudes.shell.census.networks import ROWS, Network

FILE = "timm_smallest.json"
OTHERS = {"depth": 2, "img_size": 64, "num_classes": 7}
"""Arguments that are tried beside the registered ones."""
SMALL = (64, 96)
"""The sides of images for networks that take any size: the first on which they run."""
RESIZABLE = ("Packed", "Deep")
"""Methods that are tried with other arguments: those that make every tensor anew."""


@functools.cache
def timm() -> Any:
    """Imports timm. Its torchvision may lack compiled operators, which no network needs: they are declared by name."""
    declare_operators()
    return import_module("timm")


@functools.cache
def declare_operators() -> torch.library.Library | None:
    """Declares torchvision's operators by name where its compiled ones do not load beside this torch.

    The library is kept, since torch forgets the names with it. Names that are declared twice end the process.
    """
    if _compiled_operators():
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _compiled_operators() -> bool:
    """Loads torchvision's compiled operators, as its import does; returns whether there are any that load."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    try:
        for file in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(file)
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


@functools.cache
def networks() -> list[Network]:
    """Lists the smallest network of every family, and its variants."""
    chosen = choices()
    every = []
    for family in timm().list_modules():
        choice = chosen.get(family) or counted(family)
        if choice is None:
            continue
        every.append(network(family, choice["name"]))
        for argument in choice["takes"]:
            every.append(network(family, choice["name"], **{argument: OTHERS[argument]}))
    return every


def network(family: str, name: str, **given: Any) -> Network:
    """Describes a network of timm; `given` are arguments of `timm.create_model`."""
    shown = f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})" if given else name

    def build() -> nn.Module:
        return timm().create_model(name, **given)

    def inputs(model: nn.Module) -> Inputs:
        channels, side, _ = _input_size(model, given.get("img_size"))
        return Inputs(torch.randn(ROWS, channels, side, side))

    return Network("timm", family, shown, build, inputs, methods=RESIZABLE if given else (), settings=given)


def _input_size(model: Any, side: int | None) -> tuple[int, int, int]:
    """Returns channels and sides of the images: small ones where the network runs on them, else the registered ones."""
    registered = tuple(model.pretrained_cfg.get("input_size", (3, 224, 224)))
    smallest = model.pretrained_cfg.get("min_input_size") or registered
    for size in (side, *SMALL, smallest[1]):
        if size is None or size >= registered[1]:
            continue
        try:
            with torch.no_grad():
                model(torch.zeros(ROWS, registered[0], size, size))
        except Exception:  # a network may fail in any way on images that are too small
            continue
        return registered[0], size, size
    return registered


def choices() -> dict[str, dict[str, Any]]:
    """Reads the stored choices, by family."""
    text = resources.files("multitudes.shell.census").joinpath(FILE).read_text(encoding="utf-8")
    stored: dict[str, dict[str, Any]] = json.loads(text)["families"]
    return stored


def counted(family: str) -> dict[str, Any] | None:
    """Counts the parameters of a family's networks on the meta device, and returns the smallest; None if none is built."""
    sizes = {name: size for name in timm().list_models(module=family) if (size := _size(name)) is not None}
    if not sizes:
        return None
    name = min(sizes, key=lambda each: (sizes[each], each))
    takes = [argument for argument, value in OTHERS.items() if _size(name, **{argument: value}) not in (None, sizes[name])]
    if _size(name, img_size=OTHERS["img_size"]) is not None and "img_size" not in takes:
        takes.append("img_size")
    return {"name": name, "parameters": sizes[name], "takes": sorted(takes)}


def _size(name: str, **given: Any) -> int | None:
    """Counts a network's parameters; None if timm does not build it so on the meta device."""
    try:
        with torch.device("meta"):
            model = timm().create_model(name, **given)
    except Exception:  # arguments that it does not take, or values that the meta device lacks
        return None
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    every = {family: choice for family in timm().list_modules() if (choice := counted(family)) is not None}
    missing = sorted(set(timm().list_modules()) - set(every))
    sys.stderr.write(f"{len(every)} families; not built on the meta device: {missing}\n")
    rows = ",\n".join(f"  {json.dumps(family)}: {json.dumps(choice)}" for family, choice in every.items())
    target = Path(__file__).with_name(FILE)
    target.write_text(f'{{"timm": "{timm().__version__}", "families": {{\n{rows}\n}}}}\n', encoding="utf-8")
