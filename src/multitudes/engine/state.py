"""Engine: a template module, its member tensors, and the facts that conversion found out about it."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import BatchAxis, Inputs
from multitudes.engine.modules import (
    Paths,
    batch_norms,
    constant,
    copy_with,
    empty_dicts,
    has_attention,
    hooked,
    inside,
    is_channels_last,
    join_name,
    named_parts,
    owning_module,
    paths_in,
    register_at,
    registers_of,
    with_attribute,
)
from multitudes.engine.tree import Tree
from multitudes.engine.tree import tensors as tensors_in
from multitudes.errors import RunError

MODES = ("train", "eval")
COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers that count batches in `num_batches_tracked`, and read that only without a momentum."""
SEEDS = "draw_seeds"
"""Name of the buffer with the members' seeds, which methods with draws add to the model. No forward reads it."""


REBUILT = (
    "lock", "paths", "registers", "parts", "parameter_places", "buffer_places", "recurrent", "caches", "counters", "slices"
)  # fmt: skip
"""Attributes of an engine that refer to its modules: they are made again when it is copied or unpickled."""


@dataclass(frozen=True)
class Traits:
    """Facts about a template, found by trial runs at conversion. They restrict how executors may run it."""

    copy_per_member: bool = False
    """Backward runs forward again (checkpointing), so the loop makes a copy of the template for each member."""
    no_replay: bool = False
    """The loop must compute the shared trunk again for each member, because replay would give wrong results."""
    mutates: bool = False
    """Forward writes into its inputs, so each member gets a copy of them."""
    coupled: frozenset[str] = frozenset()
    """Shared BatchNorm layers whose input depends on the member. In training they use statistics over all members' rows."""
    written_buffers: frozenset[str] = frozenset()
    """Buffers other than BatchNorm's that forward writes into or replaces. Forward gets copies, stored again after the call."""
    random: bool = False
    """The output in training depends on the seed, even with dropout modules switched off."""
    vmap_per_member: bool = False
    """vmap is proven for calls with `per_member=True`, where each member has different inputs."""
    slots_in_turn: bool = False
    """Summed first layers with other inputs for each slot are proven one slot after another (`run_slots_in_turn`)."""
    slot_norms: frozenset[str] = frozenset()
    """Shared BatchNorm layers whose input differs between slots, if slots hold different inputs."""
    fold_per_member: bool = False
    """fold is proven for training calls with `per_member=True`, where each member has different inputs."""
    plain_weights: bool = True
    """Only a layer's own forward reads its weights, so a method may replace them by effective weights (W ∘ mask)."""
    data_dependent: bool = False
    """A member's values decide which operations run (an if, a loop), so members cannot be rows of one batch."""
    ragged: bool = False
    """Values decide how many entries a tensor has (a boolean mask, nonzero), so rows may have different numbers of entries."""
    backward_in_eval: bool = True
    """Backward runs in eval mode too. Reversible layers have one in training mode alone: gradients are compared there."""
    mixes_rows: bool = False
    """Rows see each other in training, and not in eval mode: in training, rows of different members must run apart."""


@dataclass
class Engine:
    """A template module, and the facts that executors need to run it.

    The template is the base model. Some of its tensors have a leading member axis, ``[M, ...]``, under the same names.
    """

    template: nn.Module
    members: int
    owned: frozenset[str]
    """Names of the tensors with a member axis. All others are shared by members."""
    shared_norms: frozenset[str] = frozenset()
    """Names of the BatchNorm layers that members share."""
    uniform: frozenset[str] = frozenset()
    """Integer buffers (batch counters, index tables) that have a member axis but equal values for all members."""
    batch_axis: BatchAxis = 0
    chunk: int | None = None
    """Largest number of members to run at once; None means all."""
    input_bytes: float = 0.0
    """Bytes of memory that one member needs per entry of the input tensors; 0 if unknown."""
    tuned: dict[str, dict[str, str]] = field(default_factory=dict)
    """By type of device, the executors that `ens.tune` found fastest. Where there are none, a call on a GPU may choose another
    executor than `picked` by the number of its rows."""
    is_traced: bool = False
    """Whether the template is a traced graph: vmap runs it by kernels of its own, also for few members."""
    summed: frozenset[str] = frozenset()
    """Tensors with a member axis that layers sum over members (MIMO's first layers). With per_member=True vmap splits them."""
    traits: Traits = Traits()
    row_axes: dict[str, list[Any]] = field(default_factory=dict)
    """Batch axes in the inputs and outputs of each layer with member tensors, one entry per call of the layer."""
    proven: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(MODES, ("loop",)))
    """For each mode, the executors whose results agreed with the loop's at conversion."""
    why: dict[str, str] = field(default_factory=dict)
    """For each executor that is not proven, the reason: usually the operation it cannot run."""
    picked: dict[str, str] = field(default_factory=lambda: dict.fromkeys(MODES, "loop"))
    """For each mode, the executor in use."""
    untried: frozenset[str] = frozenset()
    """Executors that were left to later, since this device would not choose them; "per member" means calls per member."""
    blocks_left_out: int = 0
    """Number of blocks that proofs ran forward only, since they are like others."""
    example: Inputs | None = None
    """The small example on which executors were tried, to try others later."""
    registers: dict[str, list[tuple[dict[str, Any], str]]] = field(init=False, repr=False, compare=False)
    """For each tensor, its places: a module's `_parameters` or `_buffers` dict, and the key. A tied tensor has several."""

    def __post_init__(self) -> None:
        named = named_parts(self.template)
        self.paths = paths_in(named)
        self.registers = registers_of(self.template, self.paths)
        self.parts = [part for _, part in named]
        kinds = {name: places[0][1] for name, places in self.paths.items()}
        self.parameter_places = {name: self.registers[name][0] for name in kinds if kinds[name] == "_parameters"}
        self.buffer_places = {name: self.registers[name][0] for name in kinds if kinds[name] == "_buffers"}
        self.structure = hashlib.sha256(repr((self.paths, self.sites())).encode()).hexdigest()
        self.channels_last = False
        self.drawn: dict[str, Tensor] = {}
        self.versions: dict[str, int] = {}
        parts = [(n, vars(part).get("draws")) for n, part in named]
        self.drawable = {SEEDS} | {join_name(n, k) for n, keys in parts if isinstance(keys, tuple) for k in keys}
        self.recurrent = [part for part in self.parts if isinstance(part, nn.RNNBase)]
        self.caches = empty_dicts(self.template)
        self.counters = [vars(part) for part in self.parts if "at" in vars(part) and isinstance(vars(part).get("draws"), tuple)]
        # kept by the loop, by name: a tensor, its alias, its slices
        self.slices: dict[str, tuple[Tensor, Tensor, tuple[Tensor, ...]]] = {}
        self.has_attention = has_attention(self.template)
        self.lock = threading.RLock()  # a call swaps tensors of the template, so only one thread may call at a time

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in REBUILT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @property
    def device_type(self) -> str:
        """The type of the device of the template's first tensor."""
        places = self.parameter_places or self.buffer_places
        return next((register[key].device.type for register, key in places.values()), "cpu")

    @property
    def shares(self) -> bool:
        """True if some tensors are shared, so that some work may be the same for all members."""
        return len(self.owned) < len(self.registers)

    def is_hooked(self) -> bool:
        """Whether a module of the template has hooks that may see values."""
        return any(
            part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
            for part in self.parts
        ) and bool(hooked(self.template))

    @contextlib.contextmanager
    def with_draws(self, draws: Mapping[str, Tensor]) -> Iterator[None]:
        """Replaces the stored draws, or parameters, in a with-block. The engine then has as many members as there are draws."""
        before = self.drawn, self.members
        self.drawn, self.members = dict(draws), len(next(iter(draws.values())))
        try:
            yield
        finally:
            self.drawn, self.members = before

    def tensors_of_rows(self, members: Tensor) -> dict[str, Tensor]:
        """Returns the member buffers of each row, ``[B, ...]``; `members` ``[B]`` names the member of each row."""
        owned = {name: buffer for name, buffer in self.buffers().items() if name in self.owned}
        return {name: buffer[members.to(buffer.device)] for name, buffer in owned.items()}

    @constant
    def sites(self) -> list[tuple[str, bool]]:
        """Names the outermost modules that hold member tensors directly; says whether each takes a member for each row."""
        owners = {owning_module(name) for name in self.owned if name != SEEDS}
        parts = {name: part for name, part in named_parts(self.template) if name in owners}
        outermost = [name for name in parts if not name or not inside(name.rpartition(".")[0], owners)]
        return [(name, bool(getattr(type(parts[name]), "takes_rows", False))) for name in outermost]

    @constant
    def writes_owned(self) -> bool:
        """Whether forward may write into buffers of members: those of norms, and others that it was seen to write into."""
        norms = {join_name(name, key) for name, norm in batch_norms(self.template).items() for key in norm._buffers}
        return not self.owned.isdisjoint(norms | self.traits.written_buffers)

    @constant
    def shares_work(self) -> bool:
        """Whether a tenth of the weights or more multiplies the same for all members, in layers without tensors of members."""
        owners = frozenset(owning_module(name) for name in self.owned if name != SEEDS)
        sizes = {
            name: tensor.numel() for name, tensor in self.parameters().items() if tensor.ndim > 1 and name not in self.owned
        }
        shared = sum(size for name, size in sizes.items() if not inside(owning_module(name), owners))
        return 10 * shared >= sum(tensor.numel() for tensor in self.parameters().values())

    @constant
    def batch_counters(self) -> list[str]:
        """Names the shared counters of batches that forward only counts up: layers of torch with a fixed momentum."""
        layers = {name: part for name, part in batch_norms(self.template).items() if type(part) in COUNTING}
        names = {join_name(name, "num_batches_tracked") for name, part in layers.items() if part.momentum is not None}
        return sorted(names & self.buffer_places.keys() - self.owned)

    @constant
    def places(self, kind: str) -> list[tuple[tuple[str, ...], list[tuple[str, str]]]]:
        """Returns the path of each module with tensors of one kind, "_parameters" or "_buffers", and their names and keys."""
        return _by_module({name: places[:1] for name, places in self.paths.items() if places[0][1] == kind}, kind)

    @constant
    def places_of(self, names: tuple[str, ...], kind: str) -> list[tuple[tuple[str, ...], list[tuple[str, str]]]]:
        """Returns all places of some tensors in the form of `places`."""
        return _by_module({name: self.paths[name] for name in names}, kind)

    def _read(self, kind: str) -> dict[str, Tensor]:
        """Returns the tensors of one kind, for a trace: by way of the modules, as these read them in forward.

        If a trace came to a dict by two ways, each compiled call would check that they still lead to the same dict: for a
        ResNet-18 half the time of all checks.
        """
        found = {}
        for path, named in self.places(kind):
            register = register_at(self.template, path, kind)
            for name, key in named:
                found[name] = register[key]
        return found

    def has_backward(self, mode: str) -> bool:
        """Whether the network has a backward in this mode."""
        return mode == "train" or self.traits.backward_in_eval

    def parameters(self) -> dict[str, Tensor]:
        """Returns all parameters by name, including those of `with_draws`; a tied one appears once."""
        if torch.compiler.is_compiling():
            stored = self._read("_parameters")
        else:
            stored = {name: register[key] for name, (register, key) in self.parameter_places.items()}
        return {name: self.drawn.get(name, tensor) for name, tensor in stored.items()} if self.drawn else stored

    def buffers(self) -> dict[str, Tensor]:
        """Returns all buffers by name, including those of `with_draws`."""
        if torch.compiler.is_compiling():
            stored = self._read("_buffers")
        else:
            stored = {name: register[key] for name, (register, key) in self.buffer_places.items()}
        return {**stored, **{name: draw for name, draw in self.drawn.items() if name not in self.parameter_places}}

    def shared_buffers(self) -> dict[str, Tensor]:
        """Returns the buffers that members share, by name."""
        if self.buffer_places.keys() <= self.owned and not self.drawn:
            return {}
        return {name: buffer for name, buffer in self.buffers().items() if name not in self.owned}

    def refresh(self) -> None:
        """Recomputes which integer buffers are equal for all members. Call it after buffers are set from outside."""
        names = self.owned - self.drawable
        integers = {n: b for n, b in self.buffers().items() if n in names and not (b.is_floating_point() or b.is_complex())}
        equal = (n for n, b in integers.items() if not b.is_meta and bool((b == b[:1]).all()))
        self.uniform = frozenset(equal) - self.traits.written_buffers - {SEEDS}
        self.versions = {n: integers[n]._version for n in self.uniform if not n.endswith("num_batches_tracked")}
        self.channels_last = any(is_channels_last(p[0] if n in self.owned else p) for n, p in self.parameters().items())

    def common_counts(self) -> dict[str, Tensor]:
        """Returns copies of the buffers in `uniform` (counters and index tables) without the member axis, by name.

        Counters of batches are left out in eval mode, where nothing reads or writes them.
        """
        if torch.compiler.is_compiling():
            if not self.template.training:
                return {}
            names = {name for name in self.uniform if name.endswith("num_batches_tracked")}
            return {name: buffer[0].clone() for name, buffer in self.buffers().items() if name in names}
        buffers = self.buffers()
        if any(buffers[n]._version != v for n, v in self.versions.items() if n not in self.drawn):
            self.refresh()
        names = set(self.uniform) - self.drawn.keys()
        if not self.template.training:
            names = {name for name in names if not name.endswith("num_batches_tracked")}
        return {name: buffers[name][0].clone() for name in buffers if name in names}

    def adopt(self, trial: Engine) -> None:
        """Takes over the traits and proofs of a trial engine with fewer members."""
        plain_weights = self.traits.plain_weights
        self.take_proofs(trial)
        self.traits = replace(trial.traits, plain_weights=plain_weights)
        self.refresh()

    def take_proofs(self, trial: Engine) -> None:
        """Takes over what was proved of a copy of this engine."""
        self.traits, self.row_axes, self.blocks_left_out = trial.traits, trial.row_axes, trial.blocks_left_out
        self.why, self.proven, self.untried = trial.why, trial.proven, trial.untried


def call(engine: Engine, tensors: dict[str, Tensor], inputs: Inputs) -> tuple[Tree, dict[str, Tensor]]:
    """Calls the template with these tensors in place of the stored ones. Returns the output and the buffers that changed.

    Outputs that cannot be stacked over members and carry no result, such as caches, are None (`tree.without_objects`).
    """
    buffers = engine.shared_buffers()
    used = {**buffers, **tensors} if buffers else tensors
    traced, written = torch.compiler.is_compiling(), engine.traits.written_buffers
    marks = {name: None if traced else write_mark(used[name]) for name in written if name in used}
    if traced and not written:
        return tree.without_objects(_traced_call(engine, used, inputs)), {}
    if engine.traits.copy_per_member:
        member = copy_with(engine.template, used)
        output, after = member(*inputs.args, **inputs.kwargs), dict(member.named_buffers())
    else:
        output, after = _call_with(engine, used, inputs)
    changed = {n: tensor for n, tensor in after.items() if n in used and tensor is not used[n]} if after else {}
    for name, mark in marks.items():
        if name in after and (traced or write_mark(after[name]) != mark):
            changed[name] = after[name]
    return tree.without_objects(output), changed


def _traced_call(engine: Engine, tensors: dict[str, Tensor], inputs: Inputs) -> Tree:
    """Works like torch.func.functional_call, which takes dynamo ten times as long to trace."""
    assert engine.structure  # read here, so that dynamo compiles ensembles of another structure apart
    counted = {name: tensors[name] for name in engine.batch_counters() if name in tensors} if engine.template.training else {}
    counts = {name: torch.zeros_like(counter) for name, counter in counted.items()}
    tensors, stored = {**tensors, **counts} if counts else tensors, []
    try:
        for kind in ("_parameters", "_buffers"):
            for path, named in engine.places_of(tuple(tensors), kind):
                register, before = register_at(engine.template, path, kind), {}
                for name, key in named:
                    before[key] = register[key]
                    register[key] = tensors[name]
                stored.append((register, before))
        output = engine.template(*inputs.args, **inputs.kwargs)
    finally:
        for register, before in stored:
            register.update(before)
    if counts:
        torch._foreach_add_(list(counted.values()), list(counts.values()))
    return output


def write_mark(tensor: Tensor) -> Any:
    """Returns a value that changes when a tensor is written into. If that cannot be known, no two marks are equal."""
    if tensor.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return object()
    return tensor._version, tensor.data_ptr()


def _call_with(engine: Engine, tensors: dict[str, Tensor], inputs: Inputs) -> tuple[Tree, dict[str, Tensor]]:
    """Works like torch.func.functional_call, and also returns tensors that modules hold after forward, by name.

    These are the tensors that forward replaced, and the buffers that it may have written into.
    """
    places, stored = engine.registers, []
    written, after = engine.traits.written_buffers, {}
    for counter in engine.counters:  # the last member's calls may have been more or fewer than at conversion
        counter["at"] = 0
    try:
        for name, tensor in tensors.items():
            for register, key in places[name]:
                stored.append((name, register, key, register[key], tensor))
                register[key] = tensor
        if engine.recurrent:
            with _without_flattening(engine.recurrent):
                output = engine.template(*inputs.args, **inputs.kwargs)
        else:
            output = engine.template(*inputs.args, **inputs.kwargs)
        for name, register, key, _, tensor in stored:
            if (register[key] is not tensor or name in written) and name not in after:
                after[name] = register[key]
    finally:
        for _, register, key, before, _ in stored:
            register[key] = before
        for attributes, key in engine.caches:  # what forward computed from this member's weights is not the next one's
            if type(attributes[key]) is dict and tensors_in(attributes[key]):
                attributes[key].clear()
        for part in engine.recurrent:  # their list of weights would keep the last member's graph alive
            part._flat_weights = [part._parameters.get(name) for name in part._flat_weights_names]
    return output, after


@contextlib.contextmanager
def _without_flattening(parts: list[nn.RNNBase]) -> Iterator[None]:
    """Keeps recurrent layers from flattening their weights for cuDNN, which would copy members' slices or warn."""
    with warnings.catch_warnings(), with_attribute(parts, "flatten_parameters", _do_nothing):
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


def _by_module(paths: Paths, kind: str) -> list[tuple[tuple[str, ...], list[tuple[str, str]]]]:
    """Returns, for each module that holds some of the places, its path, and the names and keys of its tensors of one kind."""
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name, places in paths.items():
        for path, own, key in places:
            if own == kind:
                found.setdefault(path, []).append((name, key))
    return list(found.items())


def _do_nothing() -> None:
    pass


def write_back(engine: Engine, changed: list[dict[str, Tensor]]) -> None:
    """Stores the buffers that forward changed; `changed` has one dict per member, in order."""
    if not any(changed):
        return
    buffers = engine.buffers()
    with torch.no_grad():
        for name in [n for n in changed[0] if n in engine.owned and changed[0][n].shape != buffers[n].shape[1:]]:
            grown = torch.stack([entries.pop(name) for entries in changed]).detach()  # a table that has grown with its input
            for register, key in engine.registers[name]:
                register[key] = grown
        first = {name: value for entries in reversed(changed) for name, value in entries.items()}  # of the first with rows
        for m, entries in enumerate(changed):
            for name, value in entries.items():
                if name in engine.owned:
                    buffers[name][m].copy_(value)
                elif torch.compiler.is_compiling():  # values cannot be compared in a trace; conversion has compared them
                    buffers[name].copy_(first[name])
                elif value is first[name] or torch.equal(value, first[name]):
                    buffers[name].copy_(value)
                else:
                    raise SharedWrite(name)


class SharedWrite(RunError):
    """Raised when members set a shared buffer to different values.

    in_place  they write into it
    draws     members are draws: a training step runs one of them, so forward may set the buffer, if it puts a new one there
    """

    def __init__(self, name: str, in_place: bool = False, draws: bool = False) -> None:
        self.in_place = in_place
        key = name.rpartition(".")[2]
        instead = f"set a new one, self.{key} = ..., and not write into it" if in_place and draws else "leave it as it is"
        super().__init__(
            f"{name} is shared, but each member's forward sets it to a different value: use a method whose members own it, "
            f"such as mt.Deep(members=4), without keep= on its layer; or have forward {instead}"
        )
