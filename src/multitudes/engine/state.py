"""The template and its tensors: what every executor runs over."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from multitudes.engine.inputs import BatchAxis, Inputs
from multitudes.engine.modules import copy_with, is_channels_last, named_tensors, registers_of
from multitudes.engine.tree import Tree
from multitudes.errors import RunError

MODES = ("train", "eval")
SEEDS = "draw_seeds"
"""The name of the seeds by which members draw, beside the model's own tensors; no forward reads them."""


@dataclass(frozen=True)
class Traits:
    """What the trial runs at conversion found out about the template."""

    copy_per_member: bool = False
    """Its forward is run again during backward (checkpointing), so each member needs a copy of its own."""
    no_replay: bool = False
    """It writes into tensors in ways that cannot be followed, so nothing may be remembered from member to member."""
    mutates: bool = False
    """It writes into its inputs, so each member gets its own."""
    coupled: frozenset[str] = frozenset()
    """Shared BatchNorm layers that see what depends on members: in training they take statistics over all members' rows."""
    written_buffers: frozenset[str] = frozenset()
    """Buffers, BatchNorm's apart, that forward writes into or replaces: it is given copies, and they are stored afterwards."""
    random: bool = False
    """Another seed gives another output in training, dropout modules apart."""
    vmap_per_member: bool = False
    """vmap is also right where each member has inputs of its own."""
    fold_per_member: bool = False
    """fold is right in training where each member has inputs of its own."""
    plain_weights: bool = True
    """Nothing but a layer itself reads its weights, so that what a method adds can be worked into them."""
    data_dependent: bool = False
    """Values of a member decide what is computed, so that members cannot be run as rows of one batch."""
    ragged: bool = False
    """Values, of inputs too, decide how many entries there are, so that rows may have differently many."""


@dataclass
class Engine:
    """One template module, some of whose tensors carry a leading member axis under the base model's own names."""

    template: nn.Module
    members: int
    owned: frozenset[str]
    """Names of the tensors with a member axis; the rest is shared."""
    shared_norms: frozenset[str] = frozenset()
    """Names of the BatchNorm layers that members have in common."""
    uniform: frozenset[str] = frozenset()
    """Whole-number buffers (batch counters, index tables) that carry a member axis but are equal for all members."""
    batch_axis: BatchAxis = 0
    chunk: int | None = None
    """How many members may be run at once; None is all."""
    input_bytes: float = 0.0
    """What a member takes for each number of its inputs, in bytes; 0 where it is not known."""
    summed: frozenset[str] = frozenset()
    """Tensors with a member axis that layers add up, each member's own only where members have inputs of their own."""
    traits: Traits = Traits()
    row_axes: dict[str, list[Any]] = field(default_factory=dict)
    """For each layer that owns member tensors and each of its calls: the axes of the rows in what goes in and comes out."""
    proven: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(MODES, ("loop",)))
    """The executors that gave the right answer in the trial, for each mode."""
    why: dict[str, str] = field(default_factory=dict)
    """For each executor that is not proven, the operation that forbids it."""
    picked: dict[str, str] = field(default_factory=lambda: dict.fromkeys(MODES, "loop"))
    """The executor in use, for each mode."""
    registers: dict[str, list[tuple[dict[str, Any], str]]] = field(init=False, repr=False, compare=False)
    """Where each tensor stands: the registers and keys of the modules that hold it, several for a tied one."""

    def __post_init__(self) -> None:
        self.registers = registers_of(self.template)
        self.channels_last = False
        self.drawn: dict[str, Tensor] = {}
        self.versions: dict[str, int] = {}
        parts = [(n, vars(part).get("draws")) for n, part in self.template.named_modules()]
        self.drawable = {SEEDS} | {f"{n}.{k}" if n else k for n, keys in parts if isinstance(keys, tuple) for k in keys}
        self.recurrent = [part for part in self.template.modules() if isinstance(part, nn.RNNBase)]
        self.lock = threading.RLock()  # a call puts its tensors into the template for a while: one thread at a time

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("lock", "slots", "recurrent")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @property
    def shares(self) -> bool:
        """Whether some tensors are shared, so that there may be work to do once for all members."""
        return len(self.owned) < len(self.registers)

    @contextlib.contextmanager
    def with_draws(self, draws: Mapping[str, Tensor]) -> Iterator[None]:
        """For a while other draws than the stored ones, as many members as there are of them."""
        before = self.drawn, self.members
        self.drawn, self.members = dict(draws), len(next(iter(draws.values())))
        try:
            yield
        finally:
            self.drawn, self.members = before

    def tensors_of_rows(self, members: Tensor) -> dict[str, Tensor]:
        """Each row's own of what members own."""
        own = {name: buffer for name, buffer in self.buffers().items() if name in self.owned}
        return {name: buffer[members.to(buffer.device)] for name, buffer in own.items()}

    def parameters(self) -> dict[str, Tensor]:
        """All parameters by name, a tied one once."""
        return {name: tensor for name, tensor in self._tensors() if isinstance(tensor, nn.Parameter)}

    def buffers(self) -> dict[str, Tensor]:
        """All buffers by name, a shared one once; draws that stand in for a while among them."""
        own = {name: tensor for name, tensor in self._tensors() if not isinstance(tensor, nn.Parameter)}
        return {**own, **self.drawn}

    def _tensors(self) -> list[tuple[str, Tensor]]:
        if torch.compiler.is_compiling():
            return named_tensors(self.template)
        return [(name, held[0][0][held[0][1]]) for name, held in self.registers.items()]

    def refresh(self) -> None:
        """Looks again at what may be passed once for all members; called whenever buffers are set from outside."""
        names = self.owned - self.drawable
        whole = {n: b for n, b in self.buffers().items() if n in names and not (b.is_floating_point() or b.is_complex())}
        equal = (n for n, b in whole.items() if not b.is_meta and bool((b == b[:1]).all()))
        self.uniform = frozenset(equal) - self.traits.written_buffers - {SEEDS}
        self.versions = {n: whole[n]._version for n in self.uniform if not n.endswith("num_batches_tracked")}
        self.channels_last = any(is_channels_last(p[0] if n in self.owned else p) for n, p in self.parameters().items())

    def common_counts(self) -> dict[str, Tensor]:
        """What may be passed once for all members, as it stands: batch counters, and tables that are as they were."""
        if torch.compiler.is_compiling():
            names = {name for name in self.uniform if name.endswith("num_batches_tracked")}
        else:
            given = self.buffers()
            if any(given[n]._version != v for n, v in self.versions.items() if n not in self.drawn):
                self.refresh()
            names = set(self.uniform) - self.drawn.keys()
        return {name: buffer[0].clone() for name, buffer in self.buffers().items() if name in names}

    def adopt(self, trial: Engine) -> None:
        """Takes over what a trial on a few members has found."""
        self.traits = replace(trial.traits, plain_weights=self.traits.plain_weights)
        self.why, self.proven, self.row_axes = trial.why, trial.proven, trial.row_axes
        self.refresh()


def call(engine: Engine, tensors: dict[str, Tensor], inputs: Inputs) -> tuple[Tree, dict[str, Tensor]]:
    """The template called with these tensors in place of its own: the output, and the buffers that forward replaced."""
    given = {name: tensor for name, tensor in engine.buffers().items() if name not in engine.owned}
    given.update(tensors)
    traced = torch.compiler.is_compiling()
    marks = {name: None if traced else _mark(given[name]) for name in engine.traits.written_buffers if name in given}
    if torch.compiler.is_compiling() and not engine.traits.written_buffers:
        return functional_call(engine.template, given, inputs.args, inputs.kwargs), {}
    if engine.traits.copy_per_member:
        member = copy_with(engine.template, given)
        output, now = member(*inputs.args, **inputs.kwargs), dict(member.named_buffers())
    else:
        output, now = _call_with(engine, given, inputs)
    written = {name for name, mark in marks.items() if name in now and (traced or _mark(now[name]) != mark)}
    return output, {n: now[n] for n in given if n in now and (now[n] is not given[n] or n in written)}


def _mark(tensor: Tensor) -> Any:
    """Changes when something is written into a tensor, or its memory is replaced; never equal where that cannot be told."""
    if tensor.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return object()
    return tensor._version, tensor.data_ptr()


def _call_with(engine: Engine, given: dict[str, Tensor], inputs: Inputs) -> tuple[Tree, dict[str, Tensor]]:
    """As torch.func.functional_call, by slots found once, and with what stands in the registers afterwards."""
    places = [(register, key, tensor) for name, tensor in given.items() for register, key in engine.registers[name]]
    own = [register[key] for register, key, _ in places]
    recurrent = _as_they_lie(engine.recurrent) if engine.recurrent else contextlib.nullcontext()
    try:
        for register, key, tensor in places:
            register[key] = tensor
        with recurrent:
            output = engine.template(*inputs.args, **inputs.kwargs)
        now = {name: engine.registers[name][0][0][engine.registers[name][0][1]] for name in given}
    finally:
        for (register, key, _), tensor in zip(places, own, strict=True):
            register[key] = tensor
        for part in engine.recurrent:  # they keep a list of their weights, which would hold on to the last member's graph
            part._flat_weights = [part._parameters.get(name) for name in part._flat_weights_names]
    return output, now


@contextlib.contextmanager
def _as_they_lie(parts: list[nn.RNNBase]) -> Iterator[None]:
    """Recurrent layers take members' weights where they lie: cuDNN would move them into one piece, or warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        for part in parts:
            vars(part)["flatten_parameters"] = _nothing
        try:
            yield
        finally:
            for part in parts:
                del vars(part)["flatten_parameters"]


def _nothing() -> None:
    pass


def write_back(engine: Engine, changed: list[dict[str, Tensor]]) -> None:
    """Stores the buffers that forward replaced or wrote into; `changed` has one entry for each member, in order."""
    if not any(changed):
        return
    buffers = engine.buffers()
    with torch.no_grad():
        for name in [n for n in changed[0] if n in engine.owned and changed[0][n].shape != buffers[n].shape[1:]]:
            grown = torch.stack([entries.pop(name) for entries in changed]).detach()  # a table that grows with its input
            for register, key in engine.registers[name]:
                register[key] = grown
        for m, entries in enumerate(changed):
            for name, value in entries.items():
                if name in engine.owned:
                    buffers[name][m].copy_(value)
                elif torch.compiler.is_compiling():  # values cannot be compared there; the trial has compared them
                    buffers[name].copy_(changed[0][name])
                elif value is changed[0].get(name) or torch.equal(value, changed[0][name]):
                    buffers[name].copy_(value)
                else:
                    raise RunError(shared_write(name))


def shared_write(name: str) -> str:
    """What is said of a shared buffer that each member's forward would set."""
    return (
        f"buffer {name} is shared, but each member's forward gives it another value: "
        "let the layer belong to the members, or put it into eval mode"
    )
