"""Features: what each member's last layer is given, taken while an ensemble predicts.

Members run one by one as plain networks, and a hook on the last layer keeps its input. Their outputs are compared with those of
the ensemble, so features always belong to the outputs beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.selected_output import output_of
from multitudes.errors import InputError, RunError

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

NEAR = 0.05
"""Largest difference of a member's outputs alone and in the ensemble, relative to their size; wide enough for bfloat16."""


@dataclass(frozen=True, eq=False)
class Features:
    """The inputs of the members' last layers: one vector for each member and example."""

    values: Tensor
    """``[M, N, D]``; what else a layer has, such as pixels or tokens, is averaged."""
    origins: Tensor | None = None
    """Where all logits of a linear last layer are nearest to 0, −W⁺ b: ``[M, D]``. None for other layers."""

    def rows(self, rows: Any) -> Features:
        """Returns the features of some examples."""
        return Features(self.values[:, rows], self.origins)

    def subset(self, members: Sequence[int]) -> Features:
        """Returns the features of some members."""
        chosen = list(members)
        return Features(self.values[chosen], None if self.origins is None else self.origins[chosen])

    @classmethod
    def cat(cls, parts: Sequence[Features | None]) -> Features | None:
        """Concatenates features of the same members along the examples; None if a part has none."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return cls(torch.cat([part.values for part in known], 1), known[0].origins)

    def __repr__(self) -> str:
        return f"Features({list(self.values.shape)})"


class FeatureWatch:
    """Collects the features of all batches."""

    def __init__(self, ensemble: Ensemble, layer: str | None, output: str | None) -> None:
        self.ensemble, self.layer, self.output = ensemble, layer, output
        self.members: list[nn.Module] = []
        self.parts: list[Tensor] = []
        self.given: Tensor | None = None

    def take(self, call: Inputs, outputs: Sequence[Any], count: int) -> None:
        """Adds the features of a batch of `count` examples, for which the ensemble returned `outputs`, in chunks of members."""
        if not self.members:  # the first call has fitted the draws to the shapes of the inputs
            self._prepare(call)
        whole = [output_of(chunk, self.output) for chunk in outputs]
        rows = [row for chunk in whole for row in chunk]
        found = []
        for m, (member, row) in enumerate(zip(self.members, rows, strict=True)):
            own = output_of(member(*call.args, **call.kwargs), self.output)
            if not float((own - row).nan_to_num(0.0).abs().amax()) <= NEAR * max(float(row.abs().amax()), 1e-6):
                raise RunError(f"member {m} alone gives other outputs than in the ensemble: its features cannot be taken")
            found.append(self._pooled(member, count))
        self.parts.append(torch.stack(found).float().cpu())

    def _prepare(self, call: Inputs) -> None:
        self.members = [self.ensemble.member(m) for m in range(self.ensemble.members)]
        if self.layer is None:
            self.layer = self.ensemble.find_head(*call.args, **call.kwargs)
        for member in self.members:
            parts = dict(member.named_modules())
            if self.layer not in parts:
                raise InputError(
                    f"features={self.layer!r}: the network has no such layer; there are {', '.join(filter(None, parts))}"
                )
            parts[self.layer].register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        self.given = next((t for t in tree.tensors((args, kwargs)) if t.is_floating_point()), None)

    def _pooled(self, member: nn.Module, count: int) -> Tensor:
        """Returns the input of the last layer as ``[B, D]``: channels are the second axis of a convolution, else the last."""
        given, self.given = self.given, None
        if given is None or given.ndim < 2 or len(given) != count:
            shape = None if given is None else list(given.shape)
            raise InputError(
                f"layer {self.layer!r} was given {shape} for {count} examples, which are no features: name another layer, "
                "features='...'"
            )
        by_channel = isinstance(member.get_submodule(self.layer or ""), nn.modules.conv._ConvNd)
        return (
            given.flatten(2).mean(2)
            if by_channel and given.ndim > 2
            else given.flatten(1, -2).mean(1)
            if given.ndim > 2
            else given
        )

    def features(self) -> Features:
        """Returns the features of all batches."""
        heads = [member.get_submodule(self.layer or "") for member in self.members]
        values = torch.cat(self.parts, 1)
        linear = [head for head in heads if isinstance(head, nn.Linear) and head.in_features == values.shape[2]]
        if len(linear) < len(heads):
            return Features(values)
        return Features(values, torch.stack([_origin(head) for head in linear]).float().cpu())


def _origin(head: nn.Linear) -> Tensor:
    """Returns −W⁺ b."""
    weight = head.weight.detach().double()
    if head.bias is None:
        return weight.new_zeros(weight.shape[1])
    return -(torch.linalg.pinv(weight) @ head.bias.detach().double())
