"""Shortcuts: convolutions and BatchNorm of all members, in the place of their modules' forward.

A module of torch calls a function, torch asks the mode, and the mode finds the rule: that takes as long as a small layer.
During a call of all members, modules of the types below run their layer at once. For anything but a common image, or images
whose channels lie beside each other, they run their own forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch

from multitudes.engine.kernels.places import BESIDE, Members
from multitudes.engine.kernels.ways import is_grouped


@contextlib.contextmanager
def taking_shortcuts(parts: Iterable[nn.Module], members: Members) -> Iterator[None]:
    """Replaces the forward of convolutions and BatchNorm layers whose tensors all have members, in a with-block."""
    taken = []
    if torch._C._len_torch_function_stack() == 1:  # another mode than ours must see every function
        taken = [part for part in parts if type(part) in FORWARDS and _is_plain(part, members)]
    try:
        for part in taken:
            vars(part)["forward"] = partial(FORWARDS[type(part)], part, members)
        yield
    finally:
        for part in taken:
            vars(part).pop("forward", None)


def _is_plain(part: Any, members: Members) -> bool:
    """Whether a module has the forward and the settings of its type, and each of its tensors has members."""
    tensors = (*part._parameters.values(), *part._buffers.values())
    if "forward" in vars(part) or not {id(tensor) for tensor in tensors if tensor is not None} <= members.given.keys():
        return False
    if type(part) in NORMS:
        return counts_by_members(part) and part.track_running_stats == (part._buffers["running_mean"] is not None)
    return part.groups == 1 and part.padding_mode == "zeros" and type(part.padding) is tuple


def most_take_shortcuts(parts: Iterable[nn.Module]) -> bool:
    """Whether at least half of the layers may take shortcuts. In other networks, tensors that are wrapped once cost less."""
    layers = [type(part) in FORWARDS for part in parts if part._parameters]
    return 2 * sum(layers) >= len(layers) > 0


def counts_by_members(part: Any) -> bool:
    """Whether a module counts batches and never reads the count: the counters of all members can be raised at once."""
    return type(part) in NORMS and part.momentum is not None


def _groups(members: Members, x: Tensor) -> int:
    """Returns the groups of a convolution of members: one if they read a common image; 0 if they lie in another place."""
    place = members.place(x)
    if place is None:
        return 0 if functorch.is_functorch_wrapped_tensor(x) else 1
    return members.count if place == BESIDE else 0


def _convolve(function: Callable[..., Tensor], layer: Any, members: Members, input: Tensor) -> Tensor:
    """Runs the convolution of a module on a common image, or on images beside each other if grouped is the way to run them."""
    with torch._C.DisableTorchFunction():
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        if type(input) is Tensor and input.ndim == weight.ndim - 1 and (groups := _groups(members, input)):
            x, how = members.lowered(input), (layer.stride, layer.padding, layer.dilation)
            if groups == 1 or is_grouped(x, groups, weight, *how):
                kernel = members.lowered(weight.flatten(0, 1))
                bias = None if bias is None else members.lowered(bias.flatten())
                return members.put(function(x, kernel, bias, *how, groups), BESIDE)
    return type(layer).forward(layer, input)


def _norm(axes: tuple[int, ...], layer: Any, members: Members, input: Tensor) -> Tensor:
    """Runs BatchNorm of a module on images beside each other, as its own forward does on those of one member."""
    with torch._C.DisableTorchFunction():
        own, kept = layer._parameters, layer._buffers
        mean, variance, training = kept["running_mean"], kept["running_var"], layer.training
        placed = type(input) is Tensor and members.place(input) == BESIDE and input.ndim in axes
        by_batch = training or mean is None
        if placed and not (by_batch and input.numel() == input.shape[1]):  # torch refuses one value per channel
            if training and (count := kept["num_batches_tracked"]) is not None:
                count.add_(1)
            tensors = (own["weight"], own["bias"], mean, variance)
            weight, bias, mean, variance = [None if tensor is None else tensor.view(-1) for tensor in tensors]
            how = by_batch, layer.momentum, layer.eps, torch.backends.cudnn.enabled
            return members.put(torch.batch_norm(input, weight, bias, mean, variance, *how), BESIDE)
    return type(layer).forward(layer, input)


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

FORWARDS: dict[type, Callable[..., Tensor]] = {
    nn.Conv1d: partial(_convolve, torch.conv1d),
    nn.Conv2d: partial(_convolve, torch.conv2d),
    nn.Conv3d: partial(_convolve, torch.conv3d),
    **{norm: partial(_norm, axes) for norm, axes in zip(NORMS, [(2, 3), (4,), (5,)], strict=True)},
}
"""Types of modules, and what runs in the place of their forward; subclasses keep their own."""
