"""Checkpoints of other libraries: torch-uncertainty's packed, masked, batched and MIMO networks, loaded into an ensemble.

Their layers hold the plain layer inside, `conv1.conv.weight`, and members side by side in one axis:

    packed     grouped convolutions ``[(M D), C, ...]``, linear ``[M, D, C]``, the first ``[1, (M D), C]``, norms ``[(M D)]``
    batched    r_group ``[M, C]`` and s_group ``[M, D]``, here alpha and gamma; biases ``[M, D]``
    masked     mask.masks ``[M, C]``
    MIMO       first layer ``[D, (M C), ...]``, last layer ``[(M K), D]``

Here a member axis comes first, so tensors are reshaped, and layers without masks or factors get ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.ensemble import Ensemble
from multitudes.errors import FileError
from multitudes.storage import _safetensors

INNER = ("conv", "linear")
"""Names under which their layers hold the plain one."""
OURS = {"r_group": "alpha", "s_group": "gamma", "mask.masks": "mask"}
"""Our names of what their layers add."""
ADDED = ("alpha", "gamma", "mask")
"""What a method adds to a layer; one where the checkpoint has none."""
HEADS = ("fc", "linear", "head", "classifier")
"""Usual names of the last layer."""


def load_foreign(
    ensemble: Ensemble, checkpoint: str | PathLike[str] | Mapping[str, Tensor], names: Mapping[str, str] | None = None
) -> Ensemble:
    """Loads a checkpoint of torch-uncertainty into an ensemble of the same architecture and method. Returns the ensemble.

    Every tensor of both must find its place; else nothing is loaded, and the error names them.

    ensemble    your plain network, converted by the same method with the same settings, as in
                `mt.ensemble(resnet18(), mt.Packed(members=4, alpha=2, gamma=2), x)`
    checkpoint  a state dict, a safetensors file, or a file of torch.save, of which only tensors are read; that of a
                LightningModule too
    names       their names of modules and yours, {"linear": "fc"}, where they differ; the last layer's is found
    """
    own = ensemble.state_dict(keep_vars=True)
    theirs = _renamed(_read(checkpoint), own, dict(names or {}))
    values, wrong = {}, [f"unknown {name}" for name in theirs if name not in own]
    for name, tensor in own.items():
        value = _value(ensemble, name, tensor, theirs)
        if value is None:
            shown = f" is {list(theirs[name].shape)} instead of {list(tensor.shape)}" if name in theirs else " is missing"
            wrong.append(f"{name}{shown}")
        else:
            values[name] = value
    if wrong:
        more = f" and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise FileError(
            f"the checkpoint does not fit {ensemble.method} on this {type(ensemble.base).__name__}: "
            f"{'; '.join(wrong[:6])}{more}. Convert the same architecture with the same settings, and give other names of "
            "modules as names={'theirs': 'yours'}"
        )
    apart = [value for name, value in values.items() if name in ensemble.engine.owned]
    if ensemble.members > 1 and apart and all(bool((value == value[:1]).all()) for value in apart):
        raise FileError(
            f"the checkpoint has nothing that differs among members, so the {ensemble.members} members would be equal: it is "
            "of one network, or of another method. Load one network before its conversion, model.load_state_dict(...)"
        )
    _warn_of_joint_norms(ensemble, theirs)
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    ensemble.engine.refresh()
    ensemble.calibrator = None
    return ensemble


def _warn_of_joint_norms(ensemble: Ensemble, theirs: Mapping[str, Tensor]) -> None:
    """Warns of packed layer norms: theirs take mean and variance over the channels of all members, unless first=True."""
    layers = [name for name, layer in ensemble.base.named_modules() if isinstance(layer, nn.LayerNorm)]
    owned = [name for name in layers if f"{name}.weight" in theirs and f"{name}.weight" in ensemble.engine.owned]
    if ensemble.members > 1 and owned:
        warnings.warn(
            f"PackedLayerNorm of torch-uncertainty normalises all members together, unless it has first=True; here each member "
            f"has its own mean and variance. Compare outputs before you use them: {', '.join(owned[:4])}",
            stacklevel=3,
        )


def _read(checkpoint: str | PathLike[str] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by name, without the prefix of a LightningModule."""
    if isinstance(checkpoint, Mapping):
        found: Any = checkpoint
    elif Path(checkpoint).suffix == ".safetensors":
        found = _safetensors(Path(checkpoint))[1]
    elif not Path(checkpoint).is_file():
        raise FileError(f"there is no file {checkpoint}: check the path")
    else:
        try:
            found = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:
            raise FileError(
                f"{checkpoint} cannot be read without running code in it ({type(error).__name__}): save its state dict, "
                "safetensors.torch.save_file(model.state_dict(), 'a.safetensors')"
            ) from error
    if not isinstance(found, Mapping):
        raise FileError(f"{checkpoint} holds no state dict, but a {type(found).__name__}: save model.state_dict()")
    found = found.get("state_dict", found)
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if tensors and all(name.startswith("model.") for name in tensors):
        tensors = {name.removeprefix("model."): value for name, value in tensors.items()}
    return tensors


def _renamed(state: Mapping[str, Tensor], own: Mapping[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Returns the checkpoint's tensors under the ensemble's names."""
    modules = {name.rpartition(".")[0] for name in own}
    heads = [head for head in HEADS if head in modules]
    if len(heads) == 1:
        names = {**{head: heads[0] for head in HEADS if head not in modules}, **names}
    renamed = {}
    for name, tensor in state.items():
        for theirs, ours in OURS.items():
            if name.endswith(f".{theirs}"):
                name = f"{name.removesuffix(theirs)}{ours}"
        for theirs, ours in names.items():
            if name.startswith(f"{theirs}."):
                name = ours + name.removeprefix(theirs)
                break
        module, _, key = name.rpartition(".")
        outer, _, last = module.rpartition(".")
        if name not in own and last in INNER and outer:
            name = f"{outer}.{key}"
        renamed[name] = tensor
    return renamed


def _value(ensemble: Ensemble, name: str, tensor: Tensor, theirs: Mapping[str, Tensor]) -> Tensor | None:
    """Returns the checkpoint's value of a tensor, in its shape; None if there is none that fits."""
    engine, key = ensemble.engine, name.rpartition(".")[2]
    found = theirs.get(name)
    if found is None:
        return torch.ones_like(tensor) if key in ADDED else None
    if name in engine.summed and found.ndim > 1 and found.shape[1] == tensor.shape[0] * tensor.shape[2]:
        found = found.unflatten(1, (tensor.shape[0], -1)).movedim(1, 0)
    if found.shape == tensor.shape:
        return found
    if name in engine.owned and found.shape == tensor.shape[1:]:  # one for all members, such as a counter
        return found.expand_as(tensor)
    side_by_side = (tensor.shape[0] * tensor.shape[1], *tensor.shape[2:]) if tensor.ndim > 1 else None
    fits = side_by_side is not None and found.shape in (side_by_side, (1, *side_by_side))
    return found.reshape(tensor.shape) if name in engine.owned and fits else None
