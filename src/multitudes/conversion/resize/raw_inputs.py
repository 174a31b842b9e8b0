"""RawInputs: lets torch-pruning see inputs that a network concatenates with the outputs of layers.

torch-pruning follows gradients, and a raw input has none: in `torch.cat([numbers, a(x), b(y)], 1)` it would place the channels
of `a` and `b` where those of `numbers` are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)


class RawInputs(TorchFunctionMode):
    """In a with-block, gives raw inputs of concatenations a gradient, by a factor of ones that torch-pruning knows."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph
        """The DependencyGraph of torch-pruning."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CONCATENATIONS and args and isinstance(args[0], (tuple, list)):
            axis = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
            learned = sum(tensor.requires_grad for tensor in args[0])
            if isinstance(axis, int) and 0 < learned < len(args[0]):
                args = ([self._known(tensor, axis) for tensor in args[0]], *args[1:])
        return func(*args, **kwargs)

    def _known(self, tensor: Tensor, axis: int) -> Tensor:
        axis %= tensor.ndim
        if tensor.requires_grad or axis == 0 or not tensor.is_floating_point():
            return tensor
        import torch_pruning as tp

        shape = [tensor.shape[axis], *(1 for _ in tensor.shape[axis + 1 :])]
        shape = [1, *shape] if len(shape) == 3 else shape  # torch-pruning takes three axes for tokens
        ones = nn.Parameter(torch.ones(shape, dtype=tensor.dtype, device=tensor.device))
        self.graph.unwrapped_parameters.append(tp._helpers.UnwrappedParameters(parameters=ones, pruning_dim=len(shape) == 4))
        return tensor * ones
