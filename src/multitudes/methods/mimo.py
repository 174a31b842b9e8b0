"""MIMO: one network with M inputs and M outputs, trained on M examples at once.

Havasi, Jenatton, Fort, Liu, Snoek, Lakshminarayanan, Dai, Tran, "Training independent subnetworks for robust prediction",
ICLR 2021, https://arxiv.org/abs/2010.06610

The first layer takes M inputs side by side, and there are M heads. In training each slot holds a different example, and head m
learns the label of slot m. At prediction all slots hold the same example. A first layer on M inputs equals the sum of M first
layers, one for each slot: its weight has a member axis, and its outputs are summed over slots. With the same example in all
slots, that is one layer with the sum of the weights: the network is then a single one with M heads. An embedding is a layer on
one-hot vectors: M tables, whose rows are added. All that reads inputs elsewhere (masks, the place of the last token) reads
those of the member's own slot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.input_reads import InputReads, input_reads, is_additive
from multitudes.conversion.anatomy.known_layers import pads_as_tensorflow, taught_name, without_norm
from multitudes.conversion.anatomy.structure import Structure, heads, last_layers
from multitudes.engine import tree
from multitudes.engine.converted import convert_layer
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import (
    as_same_kind,
    detached_copy,
    hooked,
    inside,
    light_copy,
    named_tensors,
    owned_modules,
    owning_module,
)
from multitudes.engine.slots import Turn
from multitudes.ensemble import Ensemble
from multitudes.method import Batch, Given, Layout, Method, by_rank
from multitudes.settings import Count, between, explained


@explained
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
        """Refuses first layers that are no sum over slots, and inputs that reach the outputs around first layers."""
        try:
            reads = input_reads(structure)
        except NotImplementedError:
            return {"": WRAPPED}
        if not reads.first or reads.around or reads.loose:
            return {"": _no_first_layer(reads)}
        bare = _bare_outputs(structure, reads)
        elsewhere = {owning_module(name) for name in structure.read_elsewhere}
        reasons = {}
        for name in sorted(reads.first):
            layer = structure.model.get_submodule(name)
            if why := _obstacle(name, layer, reads.calls[name]):
                reasons[name] = why
            elif name in bare:
                reasons[name] = (
                    "it is the first layer, and the last before an output: put a layer between them, as slots need heads"
                )
            elif name in reads.both:
                reasons[name] = (
                    "it reads the input and, in another call, hidden activations: give each call its own layer; in a "
                    "recurrence, put a layer before it"
                )
            elif others := _tied(structure.model, layer) & structure.order.keys() - reads.first:
                reasons[name] = (
                    f"its weight is tied to {min(others)}, which reads no input: give each its own weight "
                    "(tie_word_embeddings=False in configurations of transformers)"
                )
            elif name in elsewhere:
                reasons[name] = (
                    "its weight is read outside the layer's own forward, where the weights of all slots would be seen: give "
                    "each use its own weight, or use another method, such as MultiHead"
                )
        return reasons

    def prepare(self, given: Given) -> nn.Module:
        """Makes the first layers sum their outputs over slots."""
        new = light_copy(given.model)
        for name in input_reads(given.structure).first:
            layer: Any = new.get_submodule(name)
            attributes = (("axes", layer.weight.ndim), ("standardised", is_standardised(layer)))
            convert_layer(layer, Slotted, attributes)
        return new

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own weights in the first layers, and its own heads."""
        slotted = {name: part for name, part in structure.model.named_modules() if isinstance(part, Slotted)}
        last, loose = heads(structure)
        last -= slotted.keys()  # in a residual network without a head of its own, first layers are among the last
        modules = owned_modules(structure.model, lambda name: inside(name, frozenset(last)))
        weights = {id(part.weight) for part in slotted.values()}
        summed = frozenset(name for name, tensor in named_tensors(structure.model) if id(tensor) in weights)
        because = dict.fromkeys(slotted, "one weight for each slot; the outputs are summed")
        note = f"first layers: {', '.join(sorted(slotted))}; heads: {', '.join(sorted(last | loose))}"
        beside = input_reads(structure).beside
        if beside:
            names = ", ".join(beside)
            note += f"; in training each slot has its own {names}: what reads that behind first layers runs once per slot"
        return Layout(modules, frozenset(loose), summed=summed, because=because, note=note)

    @property
    def trains_by_part(self) -> bool:
        """True: in training, each slot holds a different example."""
        return True

    def bake(self, member: nn.Module) -> None:
        """Sums the weights of the slots, under each of their names."""
        joined: dict[int, nn.Parameter] = {}
        held = {id(tensor): tensor for tensor in member.parameters()}  # so that no new tensor gets the id of an old one
        for layer in list(member.modules()):
            if isinstance(layer, Slotted):
                layer.join(joined)
        for part in member.modules():  # a table may be tied to a module that forward does not call
            for key, tensor in part._parameters.items():
                part._parameters[key] = joined.get(id(tensor), tensor)
        del held

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


def _bare_outputs(structure: Structure, reads: InputReads) -> set[str]:
    """Names the first layers that an output comes from without any other layer in between."""
    last = [last_layers(replace(structure, output_nodes=(node,)))[0] for node in structure.output_nodes]
    return set().union(*(names for names in last if names <= reads.first))


def _no_first_layer(reads: InputReads) -> str:
    """Says why a network has no first layers that could be slots, and what to do."""
    if reads.loose:
        return (
            f"the input meets {reads.loose}, which is not the weight of a known layer that reads the input: call an nn.Linear, "
            "convolution or nn.Embedding on the input"
        )
    if reads.around:
        return (
            f"{reads.around} reaches the output without passing through the first layer ({', '.join(sorted(reads.first))}), so "
            "heads would see their examples apart: put a layer before the branch, or use another method, such as MultiHead"
        )
    return "no layer with a weight reads its input: put an nn.Linear, a convolution or nn.Embedding first"


def _obstacle(name: str, layer: nn.Module, call: tuple[Any, Any]) -> str | None:
    """Returns why a layer on the input cannot be a sum over slots; None if it can."""
    kind = type(layer).__name__
    if isinstance(layer, nn.RNNBase):
        return f"the {kind} would need slots inside its recurrence: put an nn.Linear before it"
    if isinstance(layer, nn.MultiheadAttention):
        return "attention on the raw input is no sum over slots: put an nn.Linear before it"
    if (line := without_norm(name, layer)) is not None:
        return f"its weight is computed, so it is no sum over slots: first {line}"
    unusual = [key for key in ("max_norm", "sparse", "scale_grad_by_freq") if getattr(layer, key, None)]
    if unusual:
        return (
            f"{unusual[0]}={getattr(layer, unusual[0])} changes the gradients or rows of its table: build the {kind} without it"
        )
    if isinstance(getattr(layer, "weight", None), nn.Parameter) and (is_standardised(layer) or _adds_up(layer, call)):
        return None
    return (
        f"{kind} on the network's input is no product with its weight: put an nn.Linear, convolution or nn.Embedding before it"
    )


WRAPPED = (
    "forward runs layers inside torch.func (vmap, grad, jacrev), where what becomes of its inputs cannot be followed: "
    "use another method, such as mt.MultiHead(members=3) or mt.BatchEnsemble()"
)
"""Why a network is refused in which tensors hide in wrappers of torch."""

PRODUCTS = tuple(kind.forward for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding))
"""What layers run whose outputs are known to add up over summands of their weight."""


def _adds_up(layer: nn.Module, call: tuple[Any, Any]) -> bool:
    """Whether a layer is known to be a sum over summands of its weight, or shows it on the arguments of a call."""
    names = {name for name, _ in layer.named_parameters()}
    if type(layer).forward in PRODUCTS and not hooked(layer):
        return True
    try:
        return names <= {"weight", "bias"} and is_additive(layer, call)
    except Exception:  # a layer that runs in its own precision only, or writes into its weight
        return False


def _tied(model: nn.Module, layer: Any) -> set[str]:
    """Names the modules that hold this layer's weight, too."""
    parts = [(n, part) for n, part in model.named_modules(remove_duplicate=False) if part is not layer]
    return {name for name, part in parts if any(tensor is layer.weight for tensor in part._parameters.values())}


class Slotted:
    """Mixin of a first layer with a weight for each slot; it is placed before the layer's own class.

    The layer adds up over summands of its weight and bias. So with M inputs it is the sum over slots of the layer with the
    slot's weight and an M-th of the bias, and with one input in all slots it is the layer with the sum of the weights.
    """

    weight: nn.Parameter
    bias: Tensor | None
    axes: int
    """Axes of the weight without that of the slots."""
    standardised: bool
    """Whether the layer standardises its weight (`is_standardised`)."""
    slot_turn: Turn | None = None
    """The slot whose turn it is, if slots run one after another."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the sum of the outputs of all slots, in the shape of the plain layer's output."""
        stored, turn = self.weight, self.slot_turn
        bias = getattr(self, "bias", None)
        if turn is None and stored.ndim > self.axes:  # all slots hold the same example
            if isinstance(self, nn.Embedding):  # few of its rows are read
                return torch.stack([self._plain(table, bias, args, kwargs) for table in stored.unbind(0)]).sum(0)
            return self._plain(stored.sum(0), bias, args, kwargs)
        own: Tensor = stored
        if turn is None:
            whole = torch.ops.multitudes.member_sum(stored) if self.standardised else stored
            share = None if bias is None else bias / torch.ops.multitudes.member_count(stored)
        else:
            own, whole = stored[turn.slot], stored.sum(0)
            share = None if bias is None else bias / turn.members
        standardised = self.standardised
        y = standardised_product(self, own, whole, share, *args) if standardised else self._plain(own, share, args, kwargs)
        return turn.join(y) if turn is not None else tree.apply(torch.ops.multitudes.member_sum, y)

    def _plain(self, weight: Tensor, bias: Tensor | None, args: Any, kwargs: Any) -> Any:
        """Calls the layer's own forward with this weight and bias."""
        layer: Any = self
        stored = dict(layer._parameters)
        layer._parameters.update({"weight": weight, **({} if bias is None else {"bias": bias})})
        try:
            return type(layer).made_of[1].forward(layer, *args, **kwargs)
        finally:
            layer._parameters.update(stored)

    def join(self, joined: dict[int, nn.Parameter]) -> None:
        """Turns this layer into a plain one with the sum of the slots' weights; `joined` keeps tied weights tied."""
        layer: Any = self
        if self.weight.ndim > self.axes:
            whole = joined.setdefault(id(self.weight), as_same_kind(self.weight, self.weight.detach().sum(0)))  # type: ignore[arg-type]
            layer.weight = whole
        layer.__class__ = type(layer).made_of[1]


BIT = "transformers.models.bit.modeling_bit.WeightStandardizedConv2d"


def is_standardised(layer: Any) -> bool:
    """Whether a layer is a convolution of timm or transformers that standardises its weight over each output channel."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(layer).__mro__}
    return "StdConv2d" in (taught_name(layer) or "") or BIT in names


def standardised_product(layer: Any, own: Tensor, whole: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Returns the convolution of one slot, whose weight is scaled by the statistics of the sum of all slots' weights.

    So the slots add up to the convolution with the standardised sum of their weights, which is what all slots compute on the
    same example.
    """
    flat, total = own.flatten(1), whole.flatten(1)
    scale = (total.var(1, correction=0, keepdim=True) + layer.eps).rsqrt()
    if hasattr(layer, "gain"):
        scale = scale * (layer.gain * layer.scale).view(-1, 1)
    weight = ((flat - flat.mean(1, keepdim=True)) * scale).view_as(own)
    if pads_as_tensorflow(layer):
        from timm.layers import pad_same

        x = pad_same(x, layer.kernel_size, layer.stride, layer.dilation)
    elif getattr(layer, "pad", None) is not None:
        x = layer.pad(x)
    return torch.nn.functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
