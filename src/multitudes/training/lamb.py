"""LAMB: Adam whose step is scaled to each tensor's norm, for each member apart.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020,
https://arxiv.org/abs/1904.00962

With m and v Adam's means of g and g², corrected for their start at zero,

    u = m / (√v + ε) + λ w          w ← w − η (‖w‖ / ‖u‖) u

where the ratio is 1 if either norm is 0. A tensor ``[M, ...]`` of members has M norms, one for each member's slice, so that a
member learns as it would alone. Other tensors, and the first layer of MIMO, whose slots are summed, have one norm. Tensors of
one axis (biases, norms, the factors of BatchEnsemble) have neither weight decay λ nor the ratio, and tensors with λ = 0 have no
ratio either: both as in timm, by which the A3 procedure was run. Gradients are not clipped here: see `Recipe.clip`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from multitudes.errors import InputError


class LAMB(torch.optim.Optimizer):
    """LAMB for ensembles: ``LAMB(ens.param_groups(lr=0.008, weight_decay=0.02, optimizer=LAMB))``.

    stacked  whether tensors have a leading axis of members; the groups of an ensemble say it themselves. For a plain network,
             ``LAMB(net.parameters(), lr=0.008, stacked=False)``
    """

    by_member: ClassVar[bool] = True
    """Tells `Ensemble.param_groups` that members are not mixed, and that groups must say which tensors are stacked."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        stacked: bool | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "stacked": stacked})
        if any(group["stacked"] is None for group in self.param_groups):
            raise InputError(
                "LAMB must know which tensors have an axis of members: use LAMB(ens.param_groups(..., optimizer=LAMB)), "
                "or LAMB(net.parameters(), stacked=False) for a plain network"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step, and returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    def _step(self, weight: Tensor, group: dict[str, Any]) -> None:
        """Takes the step of one tensor."""
        state, grad, (first, second) = self.state[weight], weight.grad, group["betas"]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["step"] += 1
        state["mean"].lerp_(grad, 1 - first)
        state["square"].mul_(second).addcmul_(grad, grad, value=1 - second)
        spread = (state["square"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
        update = state["mean"] / (1 - first ** state["step"]) / spread
        if group["weight_decay"] and weight.ndim - group["stacked"] > 1:
            update.add_(weight, alpha=group["weight_decay"])
            update.mul_(_ratio(weight, update, group["stacked"]))
        weight.sub_(update, alpha=group["lr"])


def _ratio(weight: Tensor, update: Tensor, stacked: bool) -> Tensor:
    """Returns the norm of the weight over that of the update, of each member if they are stacked; 1 if either is 0."""
    axes = tuple(range(int(stacked), weight.ndim))
    above, below = (torch.linalg.vector_norm(tensor, dim=axes, keepdim=True) for tensor in (weight, update))
    return torch.where((above > 0) & (below > 0), above / below, 1.0)
