"""Masks of the `masksembles` package: layers of their own there, in front of the layer whose inputs they mask.

https://github.com/nikitadurasov/masksembles. The package keeps masks out of the state dict, so they are read from the layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.call_form import call_of
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError, InputError

KINDS = ("Masksembles1D", "Masksembles2D")


def without_mask_layers(model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a copy of the network with nn.Identity in place of the package's layers, and their masks ``[M, C]`` by name."""
    masks = {name: part.masks.detach() for name, part in model.named_modules() if type(part).__name__ in KINDS}
    if not masks:
        raise InputError(f"the network has no layer of the masksembles package: {' or '.join(KINDS)}")
    if len({len(mask) for mask in masks.values()}) > 1:
        raise InputError(f"all mask layers must have equally many masks: { ({n: len(mask) for n, mask in masks.items()}) }")
    plain = copy.deepcopy(model)
    for name in masks:
        outer, _, key = name.rpartition(".")
        setattr(plain.get_submodule(outer), key, nn.Identity())
    return plain, masks


@torch.no_grad()
def with_package_masks(ens: Ensemble, model: nn.Module, masks: Mapping[str, Tensor], example: Any) -> Ensemble:
    """Gives the layers of an ensemble the package's masks, and ones to all others; the outputs must be the package's."""
    behind = _layers_behind(ens, masks, example)
    for name, part in ens.template.named_modules():
        mask: Any = part._buffers.get("mask")
        if mask is not None:
            wanted = masks[behind[name]] if name in behind else torch.ones_like(mask)
            mask.copy_(wanted.repeat_interleave(mask.shape[1] // wanted.shape[1], 1))
    ens.engine.refresh()
    _check_outputs(ens, model, example)
    return ens


def _layers_behind(ens: Ensemble, masks: Mapping[str, Tensor], example: Any) -> dict[str, str]:
    """Returns the name of the mask layer in front of each layer that has one: the last that ran before it."""
    network = ens.member(0).eval()
    maskable = {name: part._buffers["mask"] for name, part in ens.template.named_modules() if "mask" in part._buffers}
    ran: list[str] = []
    parts = {name: network.get_submodule(name) for name in (*masks, *maskable)}
    hooks = [part.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, part in parts.items()]
    try:
        call = call_of(network, example)
        network(*call.args, **call.kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    behind: dict[str, str] = {}
    for place, name in enumerate(ran):
        if name in masks:
            after = [n for n in ran[place + 1 :] if n in maskable and not maskable[n].shape[1] % masks[name].shape[1]]
            if not after:
                raise ConversionError(f"no linear layer or convolution behind {name} can have its mask: move the mask layer")
            behind[after[0]] = name
    return behind


def _check_outputs(ens: Ensemble, model: nn.Module, example: Any) -> None:
    """Refuses masks that change the function: the package's model must have the same outputs on the example."""
    theirs, modes = copy.deepcopy(model).eval(), {part: part.training for part in ens.template.modules()}
    call = call_of(theirs, example)
    repeated = call.refill([tensor.repeat(ens.members, *(1 for _ in tensor.shape[1:])) for tensor in call.tensors()])
    expected = [t.unflatten(0, (ens.members, -1)) for t in tree.tensors(theirs(*repeated.args, **repeated.kwargs))]
    ens.eval()
    found = tree.tensors(ens(*call.args, **call.kwargs))
    for part, mode in modes.items():
        part.training = mode
    ens.training = ens.template.training
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(found, expected, strict=True)):
        raise ConversionError(
            "the masks of this network do not stand in front of linear layers and convolutions, so its outputs would differ: "
            "place each mask layer right before the layer that it masks"
        )
