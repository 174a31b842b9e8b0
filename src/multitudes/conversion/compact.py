"""compact: members without the channels that they do not use, as an ensemble of thinner networks with the same outputs.

A channel that a mask drops is cut where the mask stands: a layer gathers what it reads, or spreads what it gives. Where two
layers have nothing between them but what works channel by channel, the channel goes on both sides, with the norms between.
Behind a norm a dropped channel is a constant, not zero: then the next layer reads one more channel, of ones, which carries
all constants at once, at the padded border too. All of it is tried in double precision against the members as they were;
what is not the same there stays uncut, and the plan says so.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from multitudes.conversion.anatomy.graph import walk
from multitudes.conversion.anatomy.known_layers import channel_axis, weight_of
from multitudes.conversion.anatomy.structure import Structure, observe, own_tensors
from multitudes.conversion.cut_layers import ChannelCut, Link, cuttable, width, without_channels
from multitudes.conversion.plan import Counts
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
from multitudes.engine.proof.executors import first_members, pick, prove_executors
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.replay import STEERS
from multitudes.engine.state import Engine
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError

UNARY = """Relu LeakyRelu Elu Celu Selu Gelu Silu Mish Sigmoid LogSigmoid Tanh Hardtanh Hardswish Hardsigmoid Softplus Softsign
    Threshold Prelu PreluKernel Exp Cos Sin Abs Neg Sqrt Clamp ClampMin ClampMax Clone ToCopy Alias MaxPool2DWithIndices
    MaxPool3DWithIndices View ReshapeAlias UnsafeView Squeeze Unsqueeze AdaptiveAvgPool2D AdaptiveAvgPool3D
    MkldnnAdaptiveAvgPool2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleBilinear2D""".split()
NORMS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")
BINARY = ("Add", "Sub", "Mul", "Div")
"""Operations that work channel by channel, whatever their values: names of their autograd nodes."""

WORKED_IN = "masks are worked into its weights, and all its channels stay: "


@clean_autograd()
def compact_members(ensemble: Ensemble, masks: Mapping[str, Tensor], position: str) -> Ensemble:
    """The ensemble without the channels that masks ``[M, C]`` drop, each before or behind its layer."""
    plain = [ensemble.member(m).eval() for m in range(ensemble.members)]
    before, call = position == "before", _noise(ensemble)
    structure = observe(plain[0], call)
    found = [] if _steered(plain[0], call) else links(structure)
    linked = {link.target if before else link.source: link for link in found}
    trial = _Trial(plain, call, [] if before else [link.target for link in found])
    if trial.dtype is None:  # too coarse to tell: cut where the mask stands alone, which is right whatever comes before
        linked = {}
    once = _once(structure, masks.keys(), before)
    cuts, left = [], {}
    for name, mask in masks.items():
        if not cuttable(plain[0].get_submodule(name)):
            attention = isinstance(plain[0].get_submodule(name), nn.MultiheadAttention)
            left[name] = WORKED_IN + ("attention reads them together" if attention else "they stand in groups")
            continue
        kept = torch.stack([row.nonzero().flatten() for row in mask])
        cut = ChannelCut(name, kept, before, linked.get(name))
        if cut.link is not None and not _pays(cut, plain[0], once):
            cut = replace(cut, link=None)
        if name in once and not before:
            layer: Any = ensemble.template.get_submodule(name)
            cut = replace(cut, whole=(weight_of(layer), layer.bias))
        cuts.append(cut if before or cut.link is None else trial.with_constants(cut))
    if not trial.holds(cuts):
        cuts = _one_by_one(trial, cuts)
        inexact = [name for name in masks if name not in left and all(cut.layer != name for cut in cuts)]
        left |= dict.fromkeys(inexact, f"{WORKED_IN}without some of them it would give something else")
    if not cuts:
        raise ConversionError("nothing can be compacted:\n" + "\n".join(f"  {name}: {why}" for name, why in left.items()))
    new = _stacked(ensemble, [without_channels(member, m, cuts) for m, member in enumerate(plain)], cuts, left)
    apart = [replace(cut, link=None, constants=None) if cut.link and cut.link.source in once else cut for cut in cuts]
    if _work(new) > _work(ensemble) and trial.holds(apart):  # what works once for all members had better go on so
        new = _stacked(ensemble, [without_channels(member, m, apart) for m, member in enumerate(plain)], apart, left)
    if not trial.agrees(new):
        raise ConversionError(
            f"{type(ensemble.method).__name__} cannot be compacted: put together, members give something else"
        )
    return new


def _work(ensemble: Ensemble) -> int:
    return ensemble.plan.counts.multiply_adds if ensemble.plan.counts else 0


def _one_by_one(trial: _Trial, cuts: list[ChannelCut]) -> list[ChannelCut]:
    """The cuts that change nothing, each on both sides of a link, or else where the mask stands alone."""
    good: list[ChannelCut] = []
    for cut in cuts:
        alone = replace(cut, link=None, constants=None)
        good += next(([way] for way in (cut, alone) if trial.holds([*good, way])), [])
    return good


def _once(structure: Structure, masked: Collection[str], before: bool) -> set[str]:
    """The layers whose products are the same for all members: what no mask comes before."""
    layers = structure.layers()
    feeding = {
        name: _feeding(structure, [n for call in structure.inputs_of[name] for n in call], set(layers))[0] for name in layers
    }
    found: set[str] = set()
    for name in layers:  # in the order in which they run
        given = all(source in found and (before or source not in masked) for source in feeding[name])
        if given and not (before and name in masked):
            found.add(name)
    return found


def _pays(cut: ChannelCut, member: nn.Module, once: set[str]) -> bool:
    """Whether to cut on both sides of a link: a layer that works once for all members would work for each of them."""
    assert cut.link is not None
    if cut.link.source not in once:
        return True
    members, ones = cut.kept.shape
    ends: list[Any] = [member.get_submodule(name) for name in (cut.link.source, cut.link.target)]
    share = ones / width(ends[1], reads=True)
    work = [float(part.weight.numel()) for part in ends]
    alone = work[0] + members * work[1] * (share if cut.before else 1.0)
    return members * share * sum(work) < alone


def _steered(member: nn.Module, inputs: Inputs) -> bool:
    """Whether values decide what is computed: then one call does not show what depends on a channel."""
    watch = _Watch()
    call = fresh_inputs(inputs)
    with torch.no_grad(), plain_attention(), watch:
        member(*call.args, **call.kwargs)
    return watch.steered


class _Watch(TorchFunctionMode):
    """Notices when values decide what is computed."""

    steered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        chosen = name == "__getitem__" and any(tensor.dtype is torch.bool for tensor in tree.tensors(args[1:]))
        self.steered |= name in STEERS or chosen
        return func(*args, **(kwargs or {}))


class _Trial:
    """Members as they were, in double precision where they run in it, and whether cutting them changes anything."""

    def __init__(self, members: list[nn.Module], inputs: Inputs, watched: list[str]) -> None:
        self.members = [detached_copy(member, {}).double() for member in members]
        self.dtype: torch.dtype | None = torch.float64
        self.inputs = inputs.refill([t.double() if t.is_floating_point() else t for t in inputs.tensors()])
        self.read: list[dict[str, Tensor]] = []
        """For each member, what some of its layers read."""
        try:
            self.expected = [self._watch(member, watched) for member in self.members]
        except Exception:  # the model fixes a precision somewhere: it is tried in its own
            self.members, self.inputs, self.read, self.dtype = (
                [detached_copy(member, {}) for member in members],
                inputs,
                [],
                None,
            )
            self.expected = [self._watch(member, watched) for member in self.members]

    def _watch(self, member: nn.Module, watched: list[str]) -> list[Tensor]:
        self.read.append({})
        for name in watched:
            member.get_submodule(name).register_forward_pre_hook(
                lambda _, args, name=name, read=self.read[-1]: read.update({name: args[0].detach()})
            )
        output = self._run(member)
        for name in watched:
            member.get_submodule(name)._forward_pre_hooks.clear()
        return output

    def _run(self, member: nn.Module) -> list[Tensor]:
        found = []
        for size in (0.01, 100.0, 1.0):  # what is only done to large values, or to small ones, is seen too
            call = fresh_inputs(self.inputs)
            call = call.refill([t * size if t.is_floating_point() else t for t in call.tensors()])
            with torch.no_grad(), plain_attention(), torch.random.fork_rng():
                torch.manual_seed(0)
                found += tree.tensors(member(*call.args, **call.kwargs))
        return found

    def with_constants(self, cut: ChannelCut) -> ChannelCut:
        """The cut with what its link's target reads in dropped channels; without the link where that is no constant."""
        assert cut.link is not None
        found = []
        for member, read, kept in zip(self.members, self.read, cut.kept, strict=True):
            values = read[cut.link.target].movedim(channel_axis(member.get_submodule(cut.link.target)), 0).flatten(1)
            constant = values[:, 0].clone()
            constant[kept] = 0
            spread = (values - values[:, :1]).abs().amax(1)
            spread[kept] = 0
            if spread.max() > _rounding(values):
                return replace(cut, link=None)
            found.append(constant)
        return replace(cut, constants=torch.stack(found) if any(bool(values.any()) for values in found) else None)

    def agrees(self, ensemble: Ensemble) -> bool:
        """Whether an ensemble's members give what these members gave."""
        found = [self._run(ensemble.member(m).to(self.dtype)) for m in range(ensemble.members)]
        return all(
            _same(a, b) for mine, theirs in zip(found, self.expected, strict=True) for a, b in zip(mine, theirs, strict=True)
        )

    def holds(self, cuts: list[ChannelCut]) -> bool:
        """Whether members without these channels give what they gave."""
        for m, (member, expected) in enumerate(zip(self.members, self.expected, strict=True)):
            try:
                found = self._run(without_channels(member, m, cuts))
            except (RuntimeError, ValueError, IndexError):  # what does not run without these channels cannot go without them
                return False
            if not all(_same(a, b) for a, b in zip(found, expected, strict=True)):
                return False
        return True


def _same(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=_rounding(expected), equal_nan=True)


def _rounding(values: Tensor) -> float:
    """What rounding may do to values of this size: their precision, after a few thousand operations."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    return 1e5 * torch.finfo(values.dtype).eps * max(float(values.abs().nan_to_num(posinf=0.0).max()), 1e-3)


def _noise(ensemble: Ensemble) -> Inputs:
    """A call like the example that the ensemble was made with, of random numbers."""
    device = next(tensor.device for _, tensor in named_tensors(ensemble.template))
    call = Inputs.like(ensemble.plan.example, device)
    generator = torch.Generator().manual_seed(0)

    def noise(t: Tensor, high: int) -> Tensor:
        if t.is_floating_point() or t.is_complex():
            return torch.randn(t.shape, generator=generator).to(t)
        return torch.randint(2 if t.dtype is torch.bool else high, t.shape, generator=generator).to(t)

    member = ensemble.member(0).eval()
    for high in (1000, 100, 10, 2):  # a whole number may be an index, of a table whose length is not known
        found = call.refill([noise(t, high) for t in call.tensors()])
        try:
            with torch.no_grad():
                given = tree.tensors(member(*fresh_inputs(found).args, **fresh_inputs(found).kwargs))
        except (IndexError, RuntimeError):
            continue
        if all(bool(t.isfinite().all()) for t in given if t.is_floating_point()):
            return found
    return call


def links(structure: Structure) -> list[Link]:
    """Pairs of layers with nothing between them but norms and what has no parameters, the first feeding the second alone."""
    model, layers = structure.model, set(structure.layers())
    feeding = {name: _feeding(structure, [n for call in structure.inputs_of[name] for n in call], layers) for name in layers}
    users = Counter(source for sources, *_ in feeding.values() for source in sources)
    users.update(_feeding(structure, list(structure.output_nodes), layers)[0])
    found = []
    for name in sorted(layers, key=structure.order.__getitem__):
        sources, norms, between = feeding[name]
        source = next(iter(sources), "")
        if len(sources) != 1 or norms is None or users[source] != 1 or source == name:
            continue
        ends = model.get_submodule(source), model.get_submodule(name)
        once = len(structure.inputs_of[source]) == len(structure.inputs_of[name]) == 1
        fits = all(map(cuttable, ends)) and width(ends[0], reads=False) == width(ends[1], reads=True)
        if once and fits and all(_by_channel(node, channel_axis(ends[0])) for node in between):
            found.append(Link(source, name, tuple(sorted(norms))))
    return found


def _by_channel(node: Any, channel: int) -> bool:
    """Whether an operation is known to work channel by channel: others may look like it on one input, and not on another."""
    kind = node.name().rpartition("Backward")[0]
    sources = [source for source, _ in node.next_functions]
    if kind in NORMS or "AccumulateGrad" in node.name():
        return True
    if kind in BINARY:
        return None not in sources  # something without a gradient may be made of all channels
    if kind.startswith("AvgPool"):
        return not any(node._saved_padding) and not node._saved_ceil_mode
    if kind == "Mean" and hasattr(node, "_saved_dim"):
        rank = len(node._saved_self_sym_sizes)
        return rank + channel not in [dim if dim < rank else dim - 2**64 + rank for dim in node._saved_dim]
    return kind in UNARY


def _feeding(structure: Structure, nodes: list[Any], layers: set[str]) -> tuple[set[str], set[str] | None, list[Any]]:
    """The layers met first on the way back, the norms in between, and all operations there.

    None stands for norms where other parameters come in.
    """
    sources: set[str] = set()
    between_nodes: list[Any] = []
    norms: set[str] | None = set()

    def module_of(node: Any) -> str:
        return structure.produced_by.get(node, ("", 0))[0]

    for node in walk(nodes, stop=lambda node: module_of(node) in layers):
        made_by = module_of(node)
        if made_by in layers:
            sources.add(made_by)
            continue
        between_nodes.append(node)
        leaf = structure.names.get(id(getattr(node, "variable", None)))
        between = owning_module(leaf) if leaf is not None else made_by
        part = structure.model.get_submodule(between)
        if leaf is not None or (between and own_tensors(part)):
            norms = norms | {between} if norms is not None and isinstance(part, (_BatchNorm, nn.PReLU)) else None
    return sources, norms, between_nodes


def _stacked(ensemble: Ensemble, members: list[nn.Module], cuts: list[ChannelCut], left: dict[str, str]) -> Ensemble:
    """Thin members as an ensemble; what no cut has touched is shared as before."""
    touched = frozenset(owning_module(name) for name in ensemble.engine.owned)
    touched |= {n for cut in cuts if cut.link for n in (cut.link.source, cut.link.target, *cut.link.norms)}
    parts = [dict(named_tensors(member)) for member in members]
    whole = {cut.layer for cut in cuts if cut.whole is not None and cut.link is None}
    owned = frozenset(
        n for n in parts[0] if inside(owning_module(n), touched) and (owning_module(n) not in whole or n.endswith(".gives"))
    )
    values = {}
    for name, tensor in parts[0].items():
        own = torch.stack([part[name].detach() for part in parts]) if name in owned else tensor.detach()
        values[name] = as_same_kind(tensor, own)
    template = copy_with(members[0], values)
    norms = frozenset(name for name in batch_norms(template) if name not in touched)
    before = ensemble.engine
    engine = Engine(template, ensemble.members, owned, norms, batch_axis=before.batch_axis, chunk=before.chunk)
    engine.refresh()
    inputs = _noise(ensemble)
    few = first_members(engine, 2 if count_rows(inputs, engine.batch_axis) != 2 else 3)
    prove_executors(few, inputs)
    engine.adopt(few)
    pick(engine)
    said = {name: _said(name, cuts, left) for name in touched}
    entries = [*ensemble.plan.converted, *ensemble.plan.shared]
    counts = _counted(ensemble, engine, inputs)
    was = ensemble.plan.counts.multiply_adds if ensemble.plan.counts else 0
    note = f"compact, for prediction: {was:,} multiply-adds for all members have become {counts.multiply_adds:,}"
    planned = replace(
        ensemble.plan,
        init={},
        memory={},
        converted=tuple(replace(entry, reason=said[entry.name]) for entry in entries if entry.name in said),
        shared=tuple(entry for entry in entries if entry.name not in said),
        counts=counts,
        notes=(*(n for n in ensemble.plan.notes if not n.startswith("in training")), note),
    )
    return Ensemble(
        engine, ensemble.method, task=ensemble.task, seed=ensemble.seed, base=ensemble.base, plan=planned, compact=True
    )


def _said(name: str, cuts: list[ChannelCut], left: dict[str, str]) -> str:
    """What has become of a module."""
    for cut in cuts:
        count = cut.kept.shape[1]
        if cut.link is None and cut.layer == name:
            return f"{'reads' if cut.before else 'gives'} {count} channels for each member"
        if cut.link is not None and name in (cut.link.target, *cut.link.norms):
            return f"{count} channels for each member between it and {cut.link.source}"
        if cut.link is not None and name == cut.link.source and cut.layer == name:
            return f"{count} channels for each member between it and {cut.link.target}"
    return left.get(name, "thinner for each member, with the layer behind it")


def _counted(ensemble: Ensemble, engine: Engine, inputs: Inputs) -> Counts:
    was = ensemble.plan.counts
    assert was is not None, "a plan without counts"
    engine.template.eval()
    work = [
        multiply_adds(functools.partial(run_loop, first_members(engine, count), fresh_inputs(inputs)))
        for count in (1, engine.members)
    ]
    each = (work[1] - work[0]) // max(engine.members - 1, 1)
    own = sum(p[0].numel() for n, p in engine.template.named_parameters() if n in engine.owned)
    whole = sum(p.numel() for p in engine.template.parameters())
    return Counts(whole, was.base_parameters, work[1], was.base_multiply_adds, own, each)
