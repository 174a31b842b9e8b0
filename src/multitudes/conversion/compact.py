"""compact: removes the channels that members do not use. The result is an ensemble of thinner networks with the same outputs.

A channel that a mask drops can be cut at its mask: the layer gathers fewer input channels, or scatters fewer output channels.
Two layers are linked if nothing but operations on single channels lies between them; then the channel is cut out of both, and
out of the norms between them. Behind a norm a dropped channel is a constant, not zero. Then one of these channels stays, and
its weights in the second layer sum up all constants; this is also right at a padded border.

Every cut is tried in double precision against the uncut members. A layer whose cut would change an output stays uncut, and
the plan says so.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from multitudes.conversion.anatomy.graph import walk
from multitudes.conversion.anatomy.known_layers import channel_axis, weight_of
from multitudes.conversion.anatomy.structure import Structure, observe, own_tensors
from multitudes.conversion.cut_layers import ChannelCut, Link, cuttable, width, without_channels
from multitudes.conversion.plan import Counts, Plan
from multitudes.engine import tree
from multitudes.engine.counting import multiply_adds
from multitudes.engine.inputs import Inputs, count_rows, fresh_inputs
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import (
    as_same_kind,
    batch_norms,
    copy_with,
    detached_copy,
    inside,
    named_tensors,
    owning_module,
    plain_attention,
)
from multitudes.engine.proof.executors import first_members, pick, prove_executors, rows_are_apart
from multitudes.engine.replay import STEERS
from multitudes.engine.seeds import seeded
from multitudes.engine.state import Engine
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError

UNARY = """Relu LeakyRelu Elu Celu Selu Gelu Silu Mish Sigmoid LogSigmoid Tanh Hardtanh Hardswish Hardsigmoid Softplus Softsign
    Threshold Prelu PreluKernel Exp Cos Sin Abs Neg Sqrt Clamp ClampMin ClampMax Clone ToCopy Alias MaxPool2DWithIndices
    MaxPool3DWithIndices View ReshapeAlias UnsafeView Squeeze Unsqueeze AdaptiveAvgPool2D AdaptiveAvgPool3D
    MkldnnAdaptiveAvgPool2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleBilinear2D""".split()
NORM_NODES = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")
BINARY = ("Add", "Sub", "Mul", "Div")
"""Names of the autograd nodes of operations that work channel by channel, for all values."""

ALIGNED, WIDE = 8, 32
"""On a GPU layers of at least `WIDE` channels keep a multiple of `ALIGNED`: others are computed several times as slowly."""

UNCUT = "keeps all its channels, with masks multiplied into its weights: "


def compact_members(ensemble: Ensemble, masks: Mapping[str, Tensor], position: str) -> Ensemble:
    """Returns the ensemble without the channels that masks ``[M, C]`` drop.

    masks       for each layer by name, the mask of every member
    position    "before": masks are on the inputs of their layers; "after": on the outputs
    """
    members = [ensemble.member(m).eval() for m in range(ensemble.members)]
    before, inputs = position == "before", _random_inputs(ensemble)
    structure = observe(members[0], inputs)
    chain = [] if _is_data_dependent(members[0], inputs) else links(structure)
    comparison = _Comparison(members, inputs, [] if before else [link.target for link in chain])
    if not comparison.in_double:  # rounding hides differences: cut at masks only, which is exact whatever comes before
        chain = []
    once = _computed_once(structure, masks.keys(), before)

    cuts, uncut = [], {}
    for name, mask in masks.items():
        layer = members[0].get_submodule(name)
        if cuttable(layer):
            kept = torch.stack([_kept(row, align=before and mask.is_cuda) for row in mask])
            link = next((link for link in chain if name == (link.target if before else link.source)), None)
            cut = _cheapest(ChannelCut(name, kept, before, link), ensemble.template, members[0], once)
            cuts.append(comparison.with_constants(cut))
        else:
            uncut[name] = UNCUT + _why_uncut(layer)
    if not comparison.same_without(cuts):
        cuts = _exact_cuts(comparison, cuts)
        inexact = masks.keys() - uncut.keys() - {cut.layer for cut in cuts}
        uncut |= {name: f"{UNCUT}without some of them its output would change" for name in masks if name in inexact}
    if not cuts:
        raise ConversionError(
            "nothing can be compacted, so use the ensemble as it is:\n"
            + "\n".join(f"  {name}: {why}" for name, why in uncut.items())
        )

    compact = _compact_ensemble(ensemble, members, cuts, uncut, inputs)
    if _work(compact) > _work(ensemble):  # layers that are computed once for all members had better stay so
        apart = [replace(cut, link=None, constants=None) if cut.link and cut.link.source in once else cut for cut in cuts]
        if comparison.same_without(apart):
            compact = _compact_ensemble(ensemble, members, apart, uncut, inputs)
    if _work(compact) >= _work(ensemble):
        raise ConversionError(
            f"compact() would be no gain, so use the ensemble as it is: its {_work(ensemble):,} multiply-adds for all members "
            f"would become {_work(compact):,}"
        )
    if not comparison.same_members(compact):
        raise ConversionError(
            f"{type(ensemble.method).__name__} cannot be compacted, since outputs would change: use the ensemble as it is"
        )
    return compact


def _kept(mask: Tensor, align: bool) -> Tensor:
    """Returns the channels that a mask keeps; with `align` as many as a multiple of `ALIGNED`, if there are `WIDE`.

    Those that fill up are dropped ones, whose weights are zero.
    """
    ones = int(mask.count_nonzero())
    count = min(len(mask), -(-ones // ALIGNED) * ALIGNED) if align and ones >= WIDE else ones
    order = mask.bool().to(torch.uint8).argsort(descending=True, stable=True)  # kept channels first
    return order[:count].sort().values


def _why_uncut(layer: nn.Module) -> str:
    if isinstance(layer, nn.MultiheadAttention):
        return "attention uses its channels together"
    return "its channels are in groups" if getattr(layer, "groups", 1) > 1 else f"no rule to cut a {type(layer).__name__}"


def _work(ensemble: Ensemble) -> int:
    return ensemble.plan.counts.multiply_adds if ensemble.plan.counts else 0


def _exact_cuts(comparison: _Comparison, cuts: list[ChannelCut]) -> list[ChannelCut]:
    """Selects the cuts that change no output, one after another; a link that does not work is replaced by a cut at the mask."""
    exact: list[ChannelCut] = []
    for cut in cuts:
        at_mask = replace(cut, link=None, constants=None)
        exact += next(([choice] for choice in (cut, at_mask) if comparison.same_without([*exact, choice])), [])
    return exact


def _computed_once(structure: Structure, masked: Collection[str], before: bool) -> set[str]:
    """Names the layers that are computed once for all members: those with no mask upstream."""
    upstream = _upstream_of_layers(structure)
    names: set[str] = set()
    for name in structure.layers():  # in the order in which they run
        same_input = all(source in names and (before or source not in masked) for source in upstream[name].layers)
        if same_input and not (before and name in masked):
            names.add(name)
    return names


def _cheapest(cut: ChannelCut, template: nn.Module, member: nn.Module, once: set[str]) -> ChannelCut:
    """Returns the cheapest form of a cut: without its link, if cutting both linked layers saves no work.

    A cut on the outputs of a layer that is computed once for all members gets that layer's whole weight.
    """
    if cut.link is not None and not _saves_work(cut, cut.link, member, once):
        cut = replace(cut, link=None)
    if cut.before or cut.layer not in once:
        return cut
    layer: Any = template.get_submodule(cut.layer)
    return replace(cut, whole=(weight_of(layer), layer.bias))


def _saves_work(cut: ChannelCut, link: Link, member: nn.Module, once: set[str]) -> bool:
    """Whether cutting both layers of a link saves work. The first may be computed once now, and then for each member."""
    if link.source not in once:
        return True
    members, ones = cut.kept.shape
    ends: list[Any] = [member.get_submodule(name) for name in (link.source, link.target)]
    share = ones / width(ends[1], reads=True)
    work = [float(part.weight.numel()) for part in ends]
    at_mask = work[0] + members * work[1] * (share if cut.before else 1.0)
    return members * share * sum(work) < at_mask


def _is_data_dependent(member: nn.Module, inputs: Inputs) -> bool:
    """Whether tensor values decide which operations run. Then one call does not show all uses of a channel."""
    watch = _DataDependence()
    call = fresh_inputs(inputs)
    with torch.no_grad(), plain_attention(), watch:
        member(*call.args, **call.kwargs)
    return watch.seen


class _DataDependence(TorchFunctionMode):
    """Records whether forward calls a function by which tensor values decide which operations run."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        selects = name == "__getitem__" and any(tensor.dtype is torch.bool for tensor in tree.tensors(args[1:]))
        self.seen |= name in STEERS or selects
        return func(*args, **(kwargs or {}))


class _Comparison:
    """Compares outputs of cut members with those of the uncut members, in double precision if the model runs in it."""

    def __init__(self, members: list[nn.Module], inputs: Inputs, watched: list[str]) -> None:
        self.layer_inputs: list[dict[str, Tensor]] = []
        """For each member, the inputs of the layers `watched`."""
        self.in_double = True
        self.members = [detached_copy(member, {}).double() for member in members]
        self.inputs = inputs.refill([t.double() if t.is_floating_point() else t for t in inputs.tensors()])
        try:
            self.expected = [self._run_watched(member, watched) for member in self.members]
        except Exception:  # the model fixes a precision somewhere: it is compared in its own
            self.layer_inputs = []
            self.in_double = False
            self.members = [detached_copy(member, {}) for member in members]
            self.inputs = inputs
            self.expected = [self._run_watched(member, watched) for member in self.members]

    def _run_watched(self, member: nn.Module, watched: list[str]) -> list[Tensor]:
        self.layer_inputs.append({})
        for name in watched:
            member.get_submodule(name).register_forward_pre_hook(
                lambda _, args, name=name, inputs=self.layer_inputs[-1]: inputs.update({name: args[0].detach()})
            )
        output = self._run(member)
        for name in watched:
            member.get_submodule(name)._forward_pre_hooks.clear()
        return output

    def _run(self, member: nn.Module) -> list[Tensor]:
        outputs = []
        for size in (0.01, 100.0, 1.0):  # some operations change only large values, or only small ones
            call = fresh_inputs(self.inputs)
            call = call.refill([t * size if t.is_floating_point() else t for t in call.tensors()])
            with torch.no_grad(), plain_attention(), seeded(0):
                outputs += tree.tensors(member(*call.args, **call.kwargs))
        return outputs

    def with_constants(self, cut: ChannelCut) -> ChannelCut:
        """Adds the constant inputs of the link's second layer in dropped channels. Removes the link if these inputs vary."""
        if cut.before or cut.link is None:
            return cut
        constants = []
        for member, inputs, kept in zip(self.members, self.layer_inputs, cut.kept, strict=True):
            values = inputs[cut.link.target].movedim(channel_axis(member.get_submodule(cut.link.target)), 0).flatten(1)
            constant = values[:, 0].clone()
            constant[kept] = 0
            spread = (values - values[:, :1]).abs().amax(1)
            spread[kept] = 0
            if spread.max() > _rounding(values):
                return replace(cut, link=None)
            constants.append(constant)
        return replace(cut, constants=torch.stack(constants) if any(bool(values.any()) for values in constants) else None)

    def same_members(self, ensemble: Ensemble) -> bool:
        """Whether the members of an ensemble have the outputs of the uncut members."""
        dtype = torch.float64 if self.in_double else None
        return all(_same(self._run(ensemble.member(m).to(dtype)), self.expected[m]) for m in range(ensemble.members))

    def same_without(self, cuts: list[ChannelCut]) -> bool:
        """Whether members without these channels have the outputs of the uncut members."""
        for m, (member, expected) in enumerate(zip(self.members, self.expected, strict=True)):
            try:
                outputs = self._run(without_channels(member, m, cuts))
            except (RuntimeError, ValueError, IndexError):  # the network does not run without these channels
                return False
            if not _same(outputs, expected):
                return False
        return True


def _same(outputs: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether outputs are equal up to rounding."""
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=_rounding(b), equal_nan=True)
        for a, b in zip(outputs, expected, strict=True)
    )


def _rounding(values: Tensor) -> float:
    """Returns the largest rounding error in values of this size, after a few thousand operations."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    return 1e5 * torch.finfo(values.dtype).eps * max(float(values.abs().nan_to_num(posinf=0.0).max()), 1e-3)


def _random_inputs(ensemble: Ensemble) -> Inputs:
    """Draws random inputs with the shapes and dtypes of the example that the ensemble was made with."""
    device = next(tensor.device for _, tensor in named_tensors(ensemble.template))
    example = Inputs.like(ensemble.plan.example, device)
    generator = torch.Generator().manual_seed(0)

    def draw(t: Tensor, high: int) -> Tensor:
        if t.is_floating_point() or t.is_complex():
            return torch.randn(t.shape, generator=generator).to(t)
        return torch.randint(2 if t.dtype is torch.bool else high, t.shape, generator=generator).to(t)

    member = ensemble.member(0).eval()
    for high in (1000, 100, 10, 2):  # a whole number may be an index into a table of unknown length
        inputs = example.refill([draw(t, high) for t in example.tensors()])
        try:
            with torch.no_grad():
                outputs = tree.tensors(member(*fresh_inputs(inputs).args, **fresh_inputs(inputs).kwargs))
        except (IndexError, RuntimeError):
            continue
        if all(bool(t.isfinite().all()) for t in outputs if t.is_floating_point()):
            return inputs
    return example


def links(structure: Structure) -> list[Link]:
    """Lists the pairs of layers where the output of the first goes only to the second.

    Only norms and channel-wise operations may lie between them.
    """
    model, upstream = structure.model, _upstream_of_layers(structure)
    users = Counter(source for above in upstream.values() for source in above.layers)
    users.update(_upstream(structure, list(structure.output_nodes), set(upstream)).layers)
    pairs = []
    for name, above in upstream.items():
        source = next(iter(above.layers), "")
        if len(above.layers) != 1 or above.norms is None or users[source] != 1 or source == name:
            continue
        ends = model.get_submodule(source), model.get_submodule(name)
        called_once = len(structure.inputs_of[source]) == len(structure.inputs_of[name]) == 1
        fits = all(map(cuttable, ends)) and width(ends[0], reads=False) == width(ends[1], reads=True)
        if called_once and fits and all(_by_channel(node, channel_axis(ends[0])) for node in above.nodes):
            pairs.append(Link(source, name, tuple(sorted(above.norms))))
    return pairs


def _by_channel(node: Any, channel: int) -> bool:
    """Whether an operation is known to work channel by channel; an unknown one may do so on some inputs only."""
    kind = node.name().rpartition("Backward")[0]
    sources = [source for source, _ in node.next_functions]
    if kind in NORM_NODES or "AccumulateGrad" in node.name():
        return True
    if kind in BINARY:
        return None not in sources  # an operand without a gradient may have been computed from all channels
    if kind.startswith("AvgPool"):
        return not any(node._saved_padding) and not node._saved_ceil_mode
    if kind == "Mean" and hasattr(node, "_saved_dim"):
        rank = len(node._saved_self_sym_sizes)
        return rank + channel not in [dim if dim < rank else dim - 2**64 + rank for dim in node._saved_dim]
    return kind in UNARY


@dataclass(frozen=True)
class _Upstream:
    """The path from some autograd nodes back to the nearest layers."""

    layers: set[str]
    norms: set[str] | None
    """Norms and PReLU layers on the path; None if it has other parameters."""
    nodes: list[Any]
    """Autograd nodes on the path."""


def _upstream_of_layers(structure: Structure) -> dict[str, _Upstream]:
    """Maps each layer, in the order in which layers run, to its path back to the nearest layers."""
    layers = structure.layers()
    return {
        name: _upstream(structure, [node for call in structure.inputs_of[name] for node in call], set(layers))
        for name in layers
    }


def _upstream(structure: Structure, nodes: list[Any], layers: set[str]) -> _Upstream:
    """Walks from these nodes back to the nearest layers."""
    sources: set[str] = set()
    passed: list[Any] = []
    norms: set[str] | None = set()

    def module_of(node: Any) -> str:
        return structure.produced_by.get(node, ("", 0))[0]

    for node in walk(nodes, stop=lambda node: module_of(node) in layers):
        module = module_of(node)
        if module in layers:
            sources.add(module)
            continue
        passed.append(node)
        parameter = structure.names.get(id(getattr(node, "variable", None)))
        owner = owning_module(parameter) if parameter is not None else module
        part = structure.model.get_submodule(owner)
        if parameter is not None or (owner and own_tensors(part)):
            norms = norms | {owner} if norms is not None and isinstance(part, (_BatchNorm, nn.PReLU)) else None
    return _Upstream(sources, norms, passed)


def _compact_ensemble(
    ensemble: Ensemble,
    members: list[nn.Module],
    cuts: list[ChannelCut],
    uncut: dict[str, str],
    inputs: Inputs,
) -> Ensemble:
    """Cuts the members and stacks them to an ensemble; modules without a cut are shared as before."""
    changed = frozenset(owning_module(name) for name in ensemble.engine.owned)
    changed |= {n for cut in cuts if cut.link for n in (cut.link.source, cut.link.target, *cut.link.norms)}
    engine = _stack([without_channels(member, m, cuts) for m, member in enumerate(members)], ensemble.engine, changed, cuts)
    few = first_members(engine, 2 if count_rows(inputs, engine.batch_axis) != 2 else 3)
    prove_executors(few, inputs, apart=rows_are_apart(ensemble.engine))
    engine.adopt(few)
    pick(engine)
    plan = _compact_plan(ensemble.plan, engine, {name: _reason(name, cuts, uncut) for name in changed}, inputs)
    if engine.device_type == "cpu" and plan.counts and _shares_little(plan.counts, engine.members):
        engine.picked["eval"] = "loop"
    return Ensemble(
        engine,
        ensemble.method,
        task=ensemble.task,
        seed=ensemble.seed,
        base=ensemble.base,
        plan=plan,
        compact=True,
    )


def _shares_little(counts: Counts, members: int) -> bool:
    """Whether all members one after another take at most a tenth more work than with what they share computed once."""
    shared = counts.multiply_adds - members * counts.multiply_adds_each
    return members * (shared + counts.multiply_adds_each) <= 1.1 * counts.multiply_adds


def _stack(thin: list[nn.Module], before: Engine, changed: frozenset[str], cuts: list[ChannelCut]) -> Engine:
    """Builds the engine of thin members; tensors of the modules `changed` get a member axis."""
    whole = {cut.layer for cut in cuts if cut.whole is not None and cut.link is None}  # weight and bias stay shared
    tensors = [dict(named_tensors(member)) for member in thin]
    owned = frozenset(
        name
        for name in tensors[0]
        if inside(owning_module(name), changed) and (owning_module(name) not in whole or name.endswith(".keeps"))
    )
    values = {}
    for name, tensor in tensors[0].items():
        value = torch.stack([each[name].detach() for each in tensors]) if name in owned else tensor.detach()
        values[name] = as_same_kind(tensor, value)
    template = copy_with(thin[0], values)
    shared_norms = frozenset(name for name in batch_norms(template) if name not in changed)
    engine = Engine(template, len(thin), owned, shared_norms, batch_axis=before.batch_axis, chunk=before.chunk)
    engine.refresh()
    return engine


def _compact_plan(plan: Plan, engine: Engine, reasons: dict[str, str], inputs: Inputs) -> Plan:
    """Returns the plan of the compact ensemble; modules with a reason are converted."""
    assert plan.counts is not None, "a plan without counts"
    entries = [*plan.converted, *plan.shared]
    counts = _counts(plan.counts, engine, inputs)
    note = (
        f"compact, for prediction: {plan.counts.multiply_adds:,} multiply-adds for all members have become "
        f"{counts.multiply_adds:,}"
    )
    return replace(
        plan,
        init={},
        memory={},
        converted=tuple(replace(entry, reason=reasons[entry.name]) for entry in entries if entry.name in reasons),
        shared=tuple(entry for entry in entries if entry.name not in reasons),
        counts=counts,
        notes=(*(n for n in plan.notes if not n.startswith("in training")), note),
    )


def _reason(name: str, cuts: list[ChannelCut], uncut: dict[str, str]) -> str:
    """Returns the plan's text about a module that is cut, or that could not be cut."""
    for cut in cuts:
        count = cut.kept.shape[1]
        if cut.link is None and cut.layer == name:
            return f"each member {'reads' if cut.before else 'computes'} {count} channels"
        if cut.link is not None and name in (cut.link.target, *cut.link.norms):
            return f"each member has {count} channels between it and {cut.link.source}"
        if cut.link is not None and name == cut.link.source and cut.layer == name:
            return f"each member has {count} channels between it and {cut.link.target}"
    return uncut.get(name, "each member computes only the channels that its next layer reads")


def _counts(before: Counts, engine: Engine, inputs: Inputs) -> Counts:
    engine.template.eval()
    one, every = (
        multiply_adds(functools.partial(run_loop, first_members(engine, count), fresh_inputs(inputs)))
        for count in (1, engine.members)
    )
    return Counts(
        parameters=sum(p.numel() for p in engine.template.parameters()),
        base_parameters=before.base_parameters,
        multiply_adds=every,
        base_multiply_adds=before.base_multiply_adds,
        parameters_each=sum(p[0].numel() for n, p in engine.template.named_parameters() if n in engine.owned),
        multiply_adds_each=(every - one) // max(engine.members - 1, 1),
    )
