"""Draft a conversion: decide which tensors belong to members and which are shared, then stack the members."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from multitudes.conversion.anatomy.initialise import build, reinitialised
from multitudes.conversion.anatomy.refusals import refusals, untie
from multitudes.conversion.anatomy.stale_values import empty
from multitudes.conversion.anatomy.structure import Structure, own_tensors
from multitudes.conversion.anatomy.trained import trained_layer
from multitudes.conversion.anatomy.training_run import TrainingRun, may_write, run_in_training
from multitudes.conversion.arguments import checked_arguments
from multitudes.conversion.plan import Entry, Plan
from multitudes.engine.call_form import packing, signature_of
from multitudes.engine.converted import Formed
from multitudes.engine.draws import drawing_layers, set_draws, unwritten_names
from multitudes.engine.inputs import BatchAxis, count_rows
from multitudes.engine.modules import (
    Factory,
    as_same_kind,
    batch_norms,
    copy_with,
    in_layout,
    inside,
    join_name,
    named_tensors,
    note_names,
    owning_module,
    unwrapped,
    without_caches,
)
from multitudes.engine.seeds import member_seed
from multitudes.engine.state import SEEDS, Engine
from multitudes.errors import ConversionError, InputError, listed
from multitudes.method import Given, Layout, Method
from multitudes.terminal import step

MUCH = 1_000_000
"""If members share more numbers than this, only their own tensors are drawn."""
UNUSED = "the given weights look trained"
"""How the note begins on weights that training left, and that members do not start with."""


@dataclass(frozen=True)
class Draft:
    """A conversion before any tensor is stacked: the network of one member, and the tensors that belong to members."""

    given: Given
    method: Method
    network: nn.Module
    """The network of one member."""
    start: str
    """"fresh", or "copies" of one network: the given model, or one resized network if members have another width."""
    batch_axis: BatchAxis
    chunk: int | None
    plan: Plan
    owned: frozenset[str] = frozenset()
    """Tensors with a member axis."""
    summed: frozenset[str] = frozenset()
    """Tensors with a member axis that a layer adds up."""
    shared_norms: frozenset[str] = frozenset()
    """BatchNorm layers that members share."""
    plain_weights: bool = True
    """Whether the weights of converted layers are read by these layers only."""
    light: bool = False
    """Whether trials may share the memory of parameters with the given model: forward is known to write into none."""
    rules: dict[str, str] = field(default_factory=dict)
    """The rule by which each tensor was initialised, once members are stacked."""

    def prepared(
        self, method: Method, at: Mapping[str, Method], kept: Sequence[str] = (), like: nn.Module | None = None
    ) -> Draft:
        """Returns a copy for `method`, with its network of one member. The modules named in `kept` stay plain.

        Draws have the shapes of the small example; `like` is a network of the same method whose shapes are known.
        """
        step("the network of one member")
        network = method.prepare(self.given.with_settings(at))
        for name in kept:
            method.bake(network.get_submodule(name))
        method.fit_shapes(network, self.given.small.inputs, self.batch_axis, like)
        return replace(self, method=method, network=network, rules={})

    def neutral(self) -> Draft:
        """Returns the draft with the method's neutral settings, under which the ensemble must equal the given model."""
        return replace(self.prepared(self.method.neutral(), {}, self.plan.keep, self.network), start="copies")

    @property
    def full_width(self) -> bool:
        """Whether the network of one member has every tensor of the given model, in its shape."""
        shapes = {name: tensor.shape for name, tensor in named_tensors(self.network)}
        return all(shapes.get(name) == tensor.shape for name, tensor in named_tensors(self.given.model))

    @property
    def on_meta(self) -> bool:
        """Whether tensors have shapes but no values, so that nothing can be run."""
        return any(tensor.is_meta for _, tensor in named_tensors(self.network))

    @property
    def fresh(self) -> bool:
        """Whether every member starts with its own values, not as a copy of one network."""
        return self.start == "fresh" or self.method.shares_weights

    @property
    def trial_members(self) -> int:
        """Number of members that executors are tried on.

        Of a small network it differs from the number of rows, so that axes cannot be confused.
        """
        small = self.given.small
        few = 2 if small.large or count_rows(small.inputs, self.batch_axis) != 2 else 3
        return few if self.method.draws else min(few, self.method.members)  # a training step may have more draws than members

    def stack(self, members: int, light: bool = False) -> Engine:
        """Builds an engine of `members` members: every tensor that belongs to members gets a member axis.

        A `light` one, for a few runs, shares the memory of the other parameters with the given model; one of a single member
        shares that of all tensors but those that forward may write into.
        """
        tensors, alone = dict(named_tensors(self.network)), light and members == 1
        ours = {n: t for n, t in tensors.items() if n in self.owned | self.summed}
        stacked = {n: t.detach().unsqueeze(0) if alone else t.new_empty((members, *t.shape)) for n, t in ours.items()}
        source = tensors
        for m in range(members) if stacked and not self.on_meta else ():
            if self.fresh or (m == 0 and not self.full_width):  # copies of a thin network are copies of its first member
                network, rules = self.member(m)
                source = dict(named_tensors(network))
                self.rules.update(rules if m == 0 else {})
            if alone:
                unwritten = unwritten_names(self.network) | dict(self.network.named_parameters()).keys()
                shares = {n for n in stacked if n in unwritten and not source[n].is_inference()}
                stacked = {n: (source[n] if n in shares else source[n].clone()).detach().unsqueeze(0) for n in stacked}
                continue
            for name, whole in stacked.items():
                share = (1 / members if self.start == "copies" else members**-0.5) if name in self.summed else 1.0
                whole.detach()[m].copy_(source[name].detach() * share if name in self.summed else source[name].detach())
        values, notes = {}, note_names(self.network)
        for name, tensor in tensors.items():
            value = tensor.detach()
            if name in stacked:
                value = stacked[name] if alone else in_layout(stacked[name].detach(), _format(tensor), True)
            elif name not in notes and not (light and isinstance(tensor, nn.Parameter)):
                value = value.clone()
            values[name] = as_same_kind(tensor, value)
        template = copy_with(self.network, values)
        without_caches(template)
        empty(template, self.given.stale)
        engine = Engine(
            template,
            members,
            self.owned,
            self.shared_norms,
            batch_axis=self.batch_axis,
            chunk=self.chunk,
            summed=self.summed,
        )
        engine.refresh()
        engine.traits = replace(engine.traits, plain_weights=self.plain_weights)
        return engine

    def member(self, m: int) -> tuple[nn.Module, dict[str, str]]:
        """Returns a network with the values of member m, and the rule by which each tensor was initialised."""
        if self.method.keeps_weights:
            network = self.method.start(self.given, self.network, m)
            return network, dict.fromkeys(dict(named_tensors(network)), self.method.origin)
        seed = member_seed(self.given.seed, m)
        if self.given.factory is None:
            return self._initialised(seed)
        network = self.method.prepare(self.given.with_model(build(self.given.factory, 1.0, seed), seed))
        ours, theirs = ({n: t.shape for n, t in named_tensors(net)} for net in (self.network, network))
        if ours != theirs:
            differ = sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
            raise InputError(
                "the factory must return the same architecture on every call, but these tensors differ in shape or are missing:"
                f" {differ[:4]}. Remove random choices and state from the factory"
            )
        return network, dict.fromkeys(ours, "the factory")

    def _initialised(self, seed: int) -> tuple[nn.Module, dict[str, str]]:
        """Initialises the network of one member by a seed. If members share much, their own tensors alone get values."""
        tensors = dict(named_tensors(self.network))
        ours = self.owned | self.summed
        shared = tensors.keys() - ours
        if sum(tensors[name].numel() for name in shared) > MUCH and not any("parametrizations." in name for name in ours):
            with contextlib.suppress(Exception):  # an initialiser that needs the values of other layers
                return reinitialised(self.network, seed, only={owning_module(name) for name in ours}, shared=shared)
        return reinitialised(self.network, seed, shared=shared)


def make_draft(
    model: nn.Module | Factory,
    method: Method,
    example: Any,
    *,
    keep: Sequence[str],
    at: Mapping[str, Method] | None,
    seed: int | None,
    start: str,
    batch_axis: BatchAxis,
    chunk: int | None,
    output: str | int | None = None,
) -> Draft:
    """Checks the arguments, runs the example, and plans every module as converted, shared or refused.

    A draft whose plan has refused modules cannot be stacked.
    """
    given, kept = checked_arguments(model, method, example, keep, at, seed, start, batch_axis, chunk, output)
    one = "" if output is None else f"the ensemble returns the output {output!r}; others are left out"
    bare = "the network inside the wrapper is converted: compile or wrap the ensemble, as in torch.compile(ens)"
    inside_wrapper = bare if unwrapped(model) is not model else ""
    notes = tuple(filter(None, [packing(example, given.inputs, signature_of(given.model)), one, inside_wrapper]))
    plan = Plan(
        model=type(given.model).__name__,
        method=method,
        converted=(),
        shared=(),
        refused=(),
        example=given.inputs.described(),
        at=dict(given.at),
        keep=tuple(kept),
        notes=notes,
    )
    draft = Draft(given, method, given.model, start, batch_axis, chunk, plan)
    refused = _refused(given.model, refusals(given.model), kept)
    refused = refused or _refused(given.model, method.refused(given.structure), kept)  # now the model is run
    if refused:
        return replace(draft, plan=replace(plan, refused=refused))
    draft = draft.prepared(method, given.at, kept)
    structure = given.structure if draft.network is given.model else given.observed(draft.network)
    run = run_in_training(structure, given.seed)  # before draws get the shapes of the whole example
    if given.small.inputs is not given.inputs and method.fit_shapes(draft.network, given.inputs, batch_axis):
        set_draws(draft.network, 0)
    layout = with_norms(draft.network, without(method.layout(structure), kept))
    draft = _with_layout(draft, structure, layout, kept)
    return draft if draft.plan.refused else _without_unseen(draft, run, kept)


def _without_unseen(draft: Draft, run: TrainingRun, kept: Sequence[str]) -> Draft:
    """Refuses layers that run in training mode only, if members would share them: the method has not seen them.

    Refuses parameters that forward writes into, too, if members could not keep what it writes.
    """
    _check_trains(draft, run)
    unseen = run.layers - {owning_module(name) for name in draft.owned | draft.summed}
    reason = "it runs in training mode only, where members would share it: let forward return its output in eval mode too"
    given = draft.given.model
    shared = _refused(given, dict.fromkeys(sorted(unseen), reason), kept) if draft.method.members > 1 else ()
    refused = _refused(given, _writes(draft, run), ()) or shared
    light = run.runs and not run.written and not run.set_once
    if not refused:
        return replace(draft, light=light, plan=replace(draft.plan, notes=(*draft.plan.notes, *_undropped(draft, run))))
    plan, names = draft.plan, {entry.name for entry in refused}
    converted, shared = (tuple(e for e in entries if e.name not in names) for entries in (plan.converted, plan.shared))
    return replace(draft, plan=replace(plan, refused=refused, converted=converted, shared=shared))


def _check_trains(draft: Draft, run: TrainingRun) -> None:
    """Refuses a converted network that does not run in training mode where the given one does."""
    given = draft.given
    if run.runs or draft.network is given.model or not run_in_training(given.structure, given.seed).runs:
        return
    raise ConversionError(
        f"{draft.method.as_typed()} cannot convert this {draft.plan.model}: it could not be trained. In training mode forward "
        f"runs with the given layers, but not with the converted ones: {run.error[:400]}. If forward takes all that "
        "parameters() yields, let it name those that it needs, or use a method that adds none: "
        f"mt.Deep(members={draft.method.members})"
    )


def _undropped(draft: Draft, run: TrainingRun) -> list[str]:
    """Notes layers before which a method drops units at prediction, but which a training step did not call."""
    if not draft.method.draws_by_shape:
        return []
    names = sorted(name for name, _ in drawing_layers(draft.network) if name in run.left_out)
    return [f"in training, forward did not call {listed(names)}: nothing is dropped before it there"] if names else []


def _writes(draft: Draft, run: TrainingRun) -> dict[str, str]:
    """Names the modules whose parameters forward writes into in training mode, with the reason why members cannot."""
    trainable = {name for name, parameter in draft.network.named_parameters() if parameter.requires_grad}
    written, set_once = run.written & trainable & (draft.owned | draft.summed), run.set_once
    if draft.method.shares_weights and may_write(draft.given.model):  # what forward writes into a formed weight is lost
        plain = run_in_training(draft.given.structure, draft.given.seed)
        set_once, written = set_once | plain.set_once, written | (plain.written - run.written)
    reasons = {}
    for name in sorted(run.replaced - written if draft.method.members > 1 else ()):
        key = name.rpartition(".")[2]
        reasons[owning_module(name)] = (
            f"forward puts another tensor in place of its {key} in training mode, which members cannot keep: write into it, as "
            f"in with torch.no_grad(): self.{key}.copy_(new), and set self.{key}.requires_grad_(False) in the constructor"
        )
    for name in sorted(written):
        bounded = getattr(draft.network.get_submodule(owning_module(name)), "max_norm", None) is not None
        instead = (
            "compute with a changed copy (torch.nn.utils.parametrize), or if it does not train, set requires_grad_(False) and "
            f"write by self.{name.rpartition('.')[2]}.copy_(new)"
        )
        reasons[owning_module(name)] = (
            f"forward writes into its {name.rpartition('.')[2]} in training mode, and that would be lost for members: "
            f"{'set its max_norm to None' if bounded else instead}"
        )
    before = "let the factory call the network" if draft.given.factory else "call the model"
    for name in sorted(set_once):
        reasons[owning_module(name)] = (
            f"forward sets its {name.rpartition('.')[2]} by the first batch in training mode, which members cannot: "
            f"{before} once in training mode before, as in model.train()(x)"
        )
    return reasons


def _refused(model: nn.Module, reasons: Mapping[str, str], kept: Sequence[str]) -> tuple[Entry, ...]:
    return tuple(entry(model, name, why) for name, why in reasons.items() if not inside(name, kept))


def _with_layout(draft: Draft, structure: Structure, layout: Layout, kept: Sequence[str]) -> Draft:
    """Returns the draft with the tensors that belong to members, by the method's layout, and the plan's entries."""
    method, owned = draft.method, _owned(draft.network, layout)
    if kept and method.keeps_weights and not method.shares_weights:
        raise InputError(
            f"keep={list(kept)}: members of {type(method).__name__} keep different channels, so they cannot share a layer: "
            "leave keep= out"
        )
    if method.members > 1 and not (owned | layout.summed) - {SEEDS}:
        if kept:
            raise InputError(
                f"keep={list(kept)} leaves nothing for {type(method).__name__} to convert, so all members would be equal: "
                "keep fewer modules"
            )
        raise ConversionError(
            f"{type(method).__name__} knows no layer of this {draft.plan.model}, so all members would be equal. Use a method "
            "for any network: mt.Deep(members=4)"
        )
    trains = {name: p.requires_grad for name, p in draft.network.named_parameters()}
    own = [trains[name] for name in owned | layout.summed if name in trains]
    if method.members > 1 and draft.given.factory is None and own and not any(own) and any(trains.values()):
        modules = listed(sorted({owning_module(name) for name in owned if name in trains}))
        raise ConversionError(
            f"all members of {type(method).__name__} would be equal: of this {draft.plan.model} they would own parameters that "
            f"do not train, of {modules}. Use a method for any network: mt.Deep(members=4)"
        )
    converted = {name for name in map(owning_module, owned) if not isinstance(draft.network.get_submodule(name), Formed)}
    return replace(
        draft,
        owned=owned,
        summed=layout.summed,
        shared_norms=frozenset(name for name in batch_norms(draft.network) if name not in layout.modules),
        plain_weights=not any(owning_module(name) in converted for name in structure.read_elsewhere),
        plan=_entries(draft, layout, owned | layout.summed, structure.left_out),
    )


def without(layout: Layout, kept: Sequence[str]) -> Layout:
    """Returns the layout without the modules `kept`, which members share on purpose."""
    modules = frozenset(name for name in layout.modules if not inside(name, kept))
    tensors = frozenset(name for name in layout.tensors if not inside(owning_module(name), kept))
    return replace(layout, modules=modules, tensors=tensors)


def with_norms(model: nn.Module, layout: Layout) -> Layout:
    """Returns the layout in which a BatchNorm layer with a scale or shift per member has statistics per member too."""
    affine = {owning_module(name) for name in layout.tensors if name.rpartition(".")[2] in ("weight", "bias")}
    norms = affine & batch_norms(model).keys()
    return replace(layout, modules=layout.modules | norms)


def _all_names(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Lists tensors under each of their names (a tied tensor has several); a module that is registered twice is listed once."""
    first: dict[int, str] = {}
    tensors = []
    for alias, module in model.named_modules(remove_duplicate=False):
        name = first.setdefault(id(module), alias)
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and name == alias:
                tensors.append((join_name(name, key), tensor))
    return tensors


def _belongs(name: str, layout: Layout) -> bool:
    return name in layout.tensors or owning_module(name) in layout.modules


def _owned(model: nn.Module, layout: Layout) -> frozenset[str]:
    """Names the tensors with a member axis; a tied tensor belongs to members if one of its names does."""
    ours = {id(tensor) for name, tensor in _all_names(model) if _belongs(name, layout)}
    return frozenset(name for name, tensor in named_tensors(model) if id(tensor) in ours)


def _tied_across(model: nn.Module, layout: Layout) -> dict[str, str]:
    """Names the modules that belong to members but have a tensor tied to a shared one, with the reason for the refusal."""
    names: dict[int, list[str]] = {}
    for name, tensor in _all_names(model):
        names.setdefault(id(tensor), []).append(name)
    reasons = {}
    for tied in names.values():
        ours, theirs = [n for n in tied if _belongs(n, layout)], [n for n in tied if not _belongs(n, layout)]
        if ours and theirs:
            reasons[owning_module(ours[0])] = (
                f"its {ours[0].rpartition('.')[2]} is tied to {theirs[0]}, which members share: {untie(ours[0])}"
            )
    return reasons


def entry(model: nn.Module, name: str, reason: str, kind: type[nn.Module] | None = None) -> Entry:
    """Makes the plan's entry for a module; `kind` is its type in the given model, if conversion changed it."""
    module = model.get_submodule(name)
    scripted = isinstance(module, torch.jit.ScriptModule)
    parameters = [p for p in ({} if scripted else own_tensors(module)).values() if isinstance(p, nn.Parameter)]
    lazy = any(isinstance(p, UninitializedParameter) for p in parameters)
    return Entry(name, (kind or type(module)).__name__, reason, 0 if lazy else sum(p.numel() for p in parameters))


def _entries(draft: Draft, layout: Layout, owned: frozenset[str], left_out: Mapping[str, str]) -> Plan:
    """Returns the plan with an entry for every module that has tensors, and with notes, also on outputs that are left out."""
    converted, shared, refused = [], [], []
    tied = _tied_across(draft.network, layout)
    retyped = draft.method.keeps_weights or layout.summed  # layers of the network have types that the method added
    kinds = {name: type(part) for name, part in draft.given.model.named_modules()} if retyped else {}
    for name, module in draft.network.named_modules():
        tensors = {join_name(name, key) for key in own_tensors(module)}
        if name in tied:
            refused.append(entry(draft.network, name, tied[name]))
        elif tensors & owned:
            some = "" if tensors <= owned else f": {', '.join(sorted(tensors & owned))}"
            reason = layout.because.get(name) or f"each member has its own{some}"
            converted.append(entry(draft.network, name, reason, kinds.get(name)))
        elif tensors:
            usual = "one for all members" if draft.method.members > 1 else "unchanged"
            shared.append(entry(draft.network, name, layout.because.get(name, usual)))
    notes = (*draft.plan.notes, *([layout.note] if layout.note else []))
    new_weights = owned and not draft.method.keeps_weights and (draft.start == "fresh" or not draft.full_width)
    trained = new_weights and not draft.given.factory and trained_layer(draft.given.model, [e.name for e in converted])
    if trained:
        notes += (f"{UNUSED}, since {trained}, but {_unused(draft)}",)
    elif new_weights and draft.start == "copies":
        notes += ("members start as copies of one network of their width, initialised anew: the given weights are not used",)
    elif new_weights and draft.given.factory is None:
        instead = " (start='copies' keeps them)" if draft.full_width else ""
        notes += (f"converted layers are initialised anew: their given weights are not used{instead}",)
    notes += _several_outputs(draft.given.structure)
    notes += tuple(f"the output {name} ({kind}) is left out: it is no tensor" for name, kind in left_out.items())
    return replace(draft.plan, converted=tuple(converted), shared=tuple(shared), refused=tuple(refused), notes=notes)


def _several_outputs(structure: Structure) -> tuple[str, ...]:
    """Says that a network returns several tensors, whose widths stay, and which one to choose."""
    names = list(structure.output_shapes)
    if len(names) < 2:
        return ()
    likely = "logits" if "logits" in names else names[0]
    option = int(likely) if likely.isdigit() else likely
    what = "their widths stay as given, and the layers that make them count as last layers"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (f"the model returns {', '.join(names[:4])}{more}: {what}. If one is enough, choose it: output={option!r}",)


def _unused(draft: Draft) -> str:
    """Says that the given weights are not used, and what to type to keep them."""
    method = type(draft.method)
    keeping = ", ".join(kind.__name__ for kind in Method.all() if kind.shares_weights)
    copies = "start='copies' (and Recipe(batches='own'), or members stay equal)" if draft.full_width else ""
    pretrained = f"{method.__name__}(pretrained=True)" if "pretrained" in draft.method.settings() else ""
    instead = " or ".join(filter(None, [copies, pretrained]))
    return (
        f"{method.__name__} starts converted layers anew. To keep the weights: {instead}{', or ' if instead else ''}a method "
        f"that keeps them ({keeping}). If a new start is meant, give a factory: ensemble(lambda: Net(), ...)"
    )


def _format(tensor: Tensor) -> torch.memory_format:
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == rank and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format
