"""MIMO: one network with M inputs and M outputs, trained on M examples at once.

Havasi, Jenatton, Fort, Liu, Snoek, Lakshminarayanan, Dai, Tran, "Training independent subnetworks for robust prediction",
ICLR 2021, https://arxiv.org/abs/2010.06610

The first layer takes M inputs side by side, and there are M heads. In training each slot holds a different example, and head m
learns the label of slot m. At prediction all slots hold the same example. A first layer on M inputs equals the sum of M first
layers, one for each slot: its weight has a member axis, and its outputs are summed over slots. With the same example in all
slots, that is one layer with the sum of the weights: the network is then a single one with M heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.first_layers import first_layers, norms_before, reaches_around
from multitudes.conversion.anatomy.known_layers import along_channels, product_of
from multitudes.conversion.anatomy.structure import Structure, heads
from multitudes.engine.converted import converted_class
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import as_same_kind, detached_copy, inside, owned_modules
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError
from multitudes.method import Batch, Given, Layout, Method, by_rank
from multitudes.settings import Count, between


@dataclass(frozen=True, kw_only=True)
class MIMO(Method):
    """One network with M input slots and M heads: ``[M, B, ...]``."""

    members: Count = 3

    rho: Annotated[float, between(0, 1)] = 0.0
    """The fraction of a training batch with the same example in all slots (§4, input repetition)."""

    repeat: Count = 1
    """How often each example occurs in a training batch (batch repetition)."""

    keeps_layers: ClassVar[bool] = False

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses first layers that cannot take M inputs."""
        found = {}
        first, last = first_layers(structure), heads(structure)[0]
        for name in sorted(first):
            layer = structure.model.get_submodule(name)
            if product_of(layer) is None or hasattr(layer, "parametrizations"):
                found[name] = f"a {type(layer).__name__} on the network's input cannot take several inputs side by side"
            elif getattr(layer, "groups", 1) > 1:
                found[name] = "it has groups, which would separate the slots"
            elif name in last:
                found[name] = "it is the first and the last layer: slots and heads would have nothing between them"
            elif any(other.rpartition(".")[0] == name for other in structure.read_elsewhere):
                found[name] = "its weight is read outside the layer's own forward, where the weights of all slots would be seen"
        for name in sorted(norms_before(structure, first)):
            found[name] = "it is a norm before the first layer, where it would mix the slots"
        return found

    def prepare(self, given: Given) -> nn.Module:
        """Makes the first layers sum their outputs over slots."""
        first = first_layers(given.structure)
        around = reaches_around(given.model, given.inputs, first)
        if not first or around:
            why = around or "no layer with a weight reads its input"
            raise ConversionError(
                f"MIMO cannot convert this {type(given.model).__name__}: {why}. Use another method, such as MultiHead"
            )
        new = detached_copy(given.model, {})
        for name in first:
            layer: Any = new.get_submodule(name)
            product = product_of(layer)
            assert product is not None, f"{name} is not a known layer"
            layer.__class__ = converted_class(Slotted, type(layer), (("product", product),))
        return new

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own weights in the first layers, and its own heads."""
        slotted = {name for name, part in structure.model.named_modules() if isinstance(part, Slotted)}
        last, loose = heads(structure)
        modules = owned_modules(structure.model, lambda name: inside(name, frozenset(last)))
        weights = frozenset(f"{name}.weight" if name else "weight" for name in slotted)
        because = dict.fromkeys(slotted, "one weight for each slot; the outputs are summed")
        note = f"first layers: {', '.join(sorted(slotted))}; heads: {', '.join(sorted(last | loose))}"
        return Layout(modules, frozenset(loose), summed=weights, because=because, note=note)

    @property
    def trains_by_part(self) -> bool:
        """True: in training, each slot holds a different example."""
        return True

    def bake(self, member: nn.Module) -> None:
        """Sums the weights of the slots."""
        for layer in member.modules():
            if isinstance(layer, Slotted):
                layer.join()

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Shuffles the batch for each slot; a fraction `rho` at the end is the same in all slots."""
        if per_member:
            return super().batch(inputs, target, rng, per_member, count)
        return replace(super().batch(inputs, target, rng, per_member, count), slots=self.slots(count, by_rank(rng)))

    def slots(self, count: int, rng: torch.Generator) -> Tensor:
        """Returns the rows in each slot, ``[M, L]`` with L = count · repeat: each slot shuffles the first ⌊L (1 − rho)⌋."""
        common = torch.arange(count).repeat(self.repeat)
        common = common[torch.randperm(len(common), generator=rng)]
        free = self.free_rows(len(common))
        own = [common[:free][torch.randperm(free, generator=rng)] for _ in range(self.members)]
        return torch.stack([torch.cat([mine, common[free:]]) for mine in own])

    def free_rows(self, length: int) -> int:
        """Returns the number of rows that each slot shuffles: ⌊L (1 − rho)⌋, whole in spite of rounding (10 (1 − 0.9) = 1)."""
        return int(round(length * (1 - self.rho), 6))

    def compact(self, ensemble: Ensemble) -> Ensemble:
        """Makes a MultiHead ensemble whose first layer has the sum of the slots' weights."""
        template = detached_copy(ensemble.template, {})
        self.bake(template)
        engine = replace(
            ensemble.engine, template=template, summed=frozenset(), picked=dict(ensemble.engine.picked),
            proven=dict(ensemble.engine.proven),
        )  # fmt: skip
        engine.refresh()
        heads_alone = next(kind for kind in Method.all() if kind.__name__ == "MultiHead")
        method = heads_alone(members=self.members, reduction=self.reduction)
        counts = ensemble.plan.counts
        slot = sum(p[0].numel() for n, p in ensemble.template.named_parameters() if n in ensemble.engine.summed)
        extra = (self.members - 1) * slot
        counts = counts and replace(
            counts, parameters=counts.parameters - extra, parameters_each=counts.parameters_each - slot
        )  # fmt: skip
        note = "compact: the first layer has the sum of the slots' weights"
        converted = tuple(e for e in ensemble.plan.converted if f"{e.name}.weight" not in ensemble.engine.summed)
        shared = tuple(e for e in ensemble.plan.converted if f"{e.name}.weight" in ensemble.engine.summed)
        shared = tuple(replace(e, reason="the sum over all slots") for e in shared)
        planned = replace(
            ensemble.plan, method=method, notes=(note,), counts=counts, converted=converted,
            shared=(*ensemble.plan.shared, *shared),
        )  # fmt: skip
        return Ensemble(engine, method, task=ensemble.task, seed=ensemble.seed, base=ensemble.base, plan=planned)


class Slotted:
    """Mixin of a first layer with a weight for each slot; it is placed before the layer's own class."""

    weight: nn.Parameter
    bias: Tensor | None
    product: Any

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the sum of the outputs of all slots, in the shape of the plain layer's output.

        A weight with a slot axis, ``[M, ...]``, means that all slots hold the same example: it is summed before the product.
        """
        layer: Any = self
        stored = self.weight
        usual = 2 if isinstance(layer, nn.Linear) else 2 + len(layer.kernel_size)
        if stored.ndim > usual:
            layer._parameters["weight"] = stored.sum(0)
        try:
            y: Tensor = self.product(self, input, *args, **kwargs)
        finally:
            layer._parameters["weight"] = stored
        y = torch.ops.multitudes.member_sum(y)
        return y if self.bias is None else y + along_channels(layer, self.bias, y)

    def join(self) -> None:
        """Turns this layer into a plain one with the sum of the slots' weights."""
        layer: Any = self
        usual = 2 if isinstance(layer, nn.Linear) else 2 + len(layer.kernel_size)
        if self.weight.ndim > usual:
            layer.weight = as_same_kind(self.weight, self.weight.detach().sum(0))
        layer.__class__ = type(layer).made_of[1]
