"""The draft of a conversion: what becomes of every tensor, and how the stack is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from multitudes.conversion.anatomy.initialise import build, reinitialised
from multitudes.conversion.anatomy.refusals import refusals
from multitudes.conversion.anatomy.structure import Structure, observe, own_tensors
from multitudes.conversion.arguments import check_method, check_names, check_options, layer_settings
from multitudes.conversion.plan import Entry, Plan
from multitudes.engine.inputs import BatchAxis, Inputs, checked_example, count_rows
from multitudes.engine.modules import (
    Factory,
    as_same_kind,
    batch_norms,
    copy_with,
    in_layout,
    inside,
    named_tensors,
    names_matching,
    owning_module,
)
from multitudes.engine.seeds import member_seed, seeded
from multitudes.engine.state import Engine
from multitudes.errors import InputError
from multitudes.method import Layout, Method
from multitudes.settings import check


@dataclass(frozen=True)
class Draft:
    """Everything that is known before tensors are stacked."""

    base: nn.Module
    """The model as it was given."""
    model: nn.Module
    """The network that one member is made of."""
    factory: Factory | None
    method: Method
    inputs: Inputs
    seed: int
    start: str
    batch_axis: BatchAxis
    chunk: int | None
    plan: Plan
    at: Mapping[str, Method]
    """The modules for which the method has other settings."""
    owned: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    shared_norms: frozenset[str] = frozenset()
    plain: bool = True
    """Nothing but a converted layer itself reads its weights."""

    def with_method(self, method: Method, at: Mapping[str, Method], kept: Sequence[str] = ()) -> Draft:
        """The draft of another method for the same model, but for what is shared on purpose."""
        model = method.prepare(self.base, self.factory, self.inputs, self.seed, at)
        for name in kept:
            method.bake(model.get_submodule(name))
        method.fit_shapes(model, self.inputs, self.batch_axis)
        return replace(self, method=method, at=at, model=model)

    @property
    def full(self) -> bool:
        """Whether a member has the tensors that the given model has."""
        own = {name: tensor.shape for name, tensor in named_tensors(self.model)}
        return all(own.get(name) == tensor.shape for name, tensor in named_tensors(self.base))

    @property
    def on_meta(self) -> bool:
        """Whether the model is only a shape, so that nothing can be run for its values."""
        return any(tensor.is_meta for _, tensor in named_tensors(self.model))

    @property
    def trial_members(self) -> int:
        """How many members are enough to try executors on: not as many as there are rows, lest the two be confused."""
        few = 2 if count_rows(self.inputs, self.batch_axis) != 2 else 3
        return few if self.method.draws else min(few, self.method.members)  # a step may have more draws than there are members

    def stack(self, members: int) -> Engine:
        """The template with this many members."""
        tensors = dict(named_tensors(self.model))
        stacked = {n: t.new_empty((members, *t.shape)) for n, t in tensors.items() if n in self.owned | self.summed}
        for m in range(members) if stacked and not self.on_meta else ():
            copies = self.start == "copies" and not self.method.shares_weights  # there all weights are the given ones
            source = tensors if copies else dict(named_tensors(self.fresh(m)[0]))
            for name, whole in stacked.items():
                share = (1 / members if self.start == "copies" else members**-0.5) if name in self.summed else 1.0
                whole.detach()[m].copy_(source[name].detach() * share if name in self.summed else source[name].detach())
        values = {}
        for name, tensor in tensors.items():
            value = in_layout(stacked[name].detach(), _format(tensor), True) if name in stacked else tensor.detach().clone()
            values[name] = as_same_kind(tensor, value)
        template = copy_with(self.model, values)
        engine = Engine(
            template, members, self.owned, self.shared_norms, batch_axis=self.batch_axis, chunk=self.chunk, summed=self.summed
        )
        engine.refresh()
        engine.traits = replace(engine.traits, plain_weights=self.plain)
        return engine

    def fresh(self, m: int) -> tuple[nn.Module, dict[str, str]]:
        """Member m, started anew, and the rule by which each tensor was initialised."""
        seed = member_seed(self.seed, m)
        if self.method.keeps_weights:
            own = self.method.start(self.base, self.model, self.inputs, self.seed, m, self.at)
            return own, dict.fromkeys(dict(named_tensors(own)), self.method.origin)
        if self.factory is None:
            return reinitialised(self.model, seed)
        made = self.method.prepare(build(self.factory, 1.0, seed), self.factory, self.inputs, seed, self.at)
        ours, theirs = ({n: t.shape for n, t in named_tensors(net)} for net in (self.model, made))
        if ours != theirs:
            odd = sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
            raise InputError(f"the factory makes different networks from call to call: they differ in {odd[:4]}")
        return made, dict.fromkeys(ours, "the factory")


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
) -> Draft:
    """Answers bad input, runs the example, and says what becomes of every module."""
    check_method(model, method)
    check_options(start, chunk, keep)
    check("seed", seed, int | None)
    seed = int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
    factory = None if isinstance(model, nn.Module) else model
    net = model if isinstance(model, nn.Module) else build(model, 1.0, seed)
    check_names(net, keep)
    settings = layer_settings(net, method, at)
    inputs = checked_example(net, example, batch_axis)
    kept = kept_modules(net, keep)
    if kept and not method.keeps_layers:
        raise InputError(f"keep={list(keep)}: {type(method).__name__} says by its own settings which layers it changes")
    refused = tuple(entry(net, n, why) for n, why in refusals(net).items() if not inside(n, kept))
    empty = Plan(type(net).__name__, method, (), (), refused, example=inputs.described(), at=settings, keep=tuple(kept))
    begun = Draft(net, net, factory, method, inputs, seed, start, batch_axis, chunk, empty, settings)
    if refused:
        return begun
    if type(method).prepare is not Method.prepare:  # an example that the model rejects is answered before it is changed
        reasons = method.refused(_observed(begun))
        refused = tuple(entry(net, n, why) for n, why in reasons.items() if not inside(n, kept))
        if refused:
            return replace(begun, plan=replace(begun.plan, refused=refused))
    begun = begun.with_method(method, settings, kept)
    if start == "copies" and not begun.full and not method.shares_weights:
        raise InputError(f"members of {method} are not of the given model's width, so they cannot start as its copies")
    net = begun.model
    structure = _observed(begun)
    layout = without(method.layout(structure), kept)
    layout = with_norms(net, layout)
    owned = _owned(net, layout)
    if kept and method.keeps_weights and not method.shares_weights:
        raise InputError(f"keep={list(keep)}: members of {method} keep channels of their own, so they can share no layer")
    if kept and not owned and method.members > 1:
        raise InputError(f"keep={list(keep)} leaves nothing to {method} that members could differ in")
    norms = frozenset(name for name in batch_norms(net) if name not in layout.modules)
    converted = {owning_module(name) for name in owned}
    plain = not any(owning_module(name) in converted for name in structure.read_elsewhere)
    planned = _entries(begun, layout, owned | layout.summed)
    return replace(begun, owned=owned, summed=layout.summed, shared_norms=norms, plain=plain, plan=planned)


def _observed(begun: Draft) -> Structure:
    try:
        with seeded(begun.seed, begun.model):
            return observe(begun.model, begun.inputs)
    except InputError:
        raise
    except Exception as error:
        text = f"the model rejects the example {begun.inputs}: {type(error).__name__}: {error}"
        raise InputError(text) from error


def kept_modules(model: nn.Module, keep: Sequence[str]) -> list[str]:
    """The modules that keep= names."""
    hits = names_matching([name for name, _ in model.named_modules()], list(keep), "keep=")
    return [name for names in hits.values() for name in names]


def without(layout: Layout, kept: Sequence[str]) -> Layout:
    """The layout without what is shared on purpose."""
    modules = frozenset(name for name in layout.modules if not inside(name, kept))
    loose = frozenset(name for name in layout.tensors if not inside(owning_module(name), kept))
    return replace(layout, modules=modules, tensors=loose)


def with_norms(model: nn.Module, layout: Layout) -> Layout:
    """A BatchNorm layer whose affine part belongs to members has statistics for each of them: it belongs to them whole."""
    affine = {owning_module(name) for name in layout.tensors if name.rpartition(".")[2] in ("weight", "bias")}
    norms = affine & batch_norms(model).keys()
    return replace(layout, modules=layout.modules | norms)


def _all_names(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Every name of every tensor, under the first name of the module that holds it."""
    first: dict[int, str] = {}
    found = []
    for alias, module in model.named_modules(remove_duplicate=False):
        name = first.setdefault(id(module), alias)
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and name == alias:
                found.append((f"{name}.{key}" if name else key, tensor))
    return found


def _belongs(name: str, layout: Layout) -> bool:
    return name in layout.tensors or owning_module(name) in layout.modules


def _owned(model: nn.Module, layout: Layout) -> frozenset[str]:
    """The tensors that carry members; a tied one counts by any of its names."""
    ours = {id(tensor) for name, tensor in _all_names(model) if _belongs(name, layout)}
    return frozenset(name for name, tensor in named_tensors(model) if id(tensor) in ours)


def _tied_across(model: nn.Module, layout: Layout) -> dict[str, str]:
    """Modules of members whose tensor is tied to one that is shared, and what to do about it."""
    names: dict[int, list[str]] = {}
    for name, tensor in _all_names(model):
        names.setdefault(id(tensor), []).append(name)
    found = {}
    for tied in names.values():
        ours, theirs = [n for n in tied if _belongs(n, layout)], [n for n in tied if not _belongs(n, layout)]
        if ours and theirs:
            found[owning_module(ours[0])] = (
                f"its {ours[0].rpartition('.')[2]} is tied to {theirs[0]}, which members share: give it a tensor of its own"
            )
    return found


def entry(model: nn.Module, name: str, reason: str, kind: type[nn.Module] | None = None) -> Entry:
    """A module as the plan shows it, under the type that it was given with."""
    module = model.get_submodule(name)
    scripted = isinstance(module, torch.jit.ScriptModule)
    own = [p for p in ({} if scripted else own_tensors(module)).values() if isinstance(p, nn.Parameter)]
    lazy = any(isinstance(p, UninitializedParameter) for p in own)
    return Entry(name, (kind or type(module)).__name__, reason, 0 if lazy else sum(p.numel() for p in own))


def _entries(begun: Draft, layout: Layout, owned: frozenset[str]) -> Plan:
    converted, shared, refused = [], [], []
    torn = _tied_across(begun.model, layout)
    given = (
        {name: type(part) for name, part in begun.base.named_modules()} if begun.method.keeps_weights or layout.summed else {}
    )
    for name, module in begun.model.named_modules():
        own = {f"{name}.{key}" if name else key for key in own_tensors(module)}
        if name in torn:
            refused.append(entry(begun.model, name, torn[name]))
        elif own & owned:
            some = "" if own <= owned else f": {', '.join(sorted(own & owned))}"
            said = layout.because.get(name)
            converted.append(entry(begun.model, name, said or f"each member has its own{some}", given.get(name)))
        elif own:
            usual = "one for all members" if begun.method.members > 1 else "as it is given"
            shared.append(entry(begun.model, name, layout.because.get(name, usual)))
    notes: tuple[str, ...] = (layout.note,) if layout.note else ()
    if owned and begun.start == "fresh" and begun.factory is None and not begun.method.keeps_weights:
        instead = " (start='copies' would)" if begun.full else ""
        notes += (f"what members own starts anew: the given weights are not used there{instead}",)
    return replace(begun.plan, converted=tuple(converted), shared=tuple(shared), refused=tuple(refused), notes=notes)


def _format(tensor: Tensor) -> torch.memory_format:
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == rank and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format
