"""Replay: the loop computes operations on shared tensors once for all members.

The loop calls the template once for each member. While the first member runs, `Replay` records every operation whose
tensors are common to all members, starting from the inputs and the shared tensors. When a later member reaches the same
operation on the same tensors, it gets the first member's result. So a shared trunk runs once, forward and backward: its
BatchNorm statistics are updated once, and its dropout is drawn once.

An operation is identified by its function, its plain arguments and the identity of its tensors; repeated ones by their
order. Random numbers that depend on neither inputs nor shared tensors are drawn for each member. Where a result could be
wrong, replay is switched off (`disabled`): when a member writes into a common tensor, or reads one that is written later;
when a tensor changes without a recorded write; and when a member's values decide which operations run. A later member that
writes into a common tensor runs again, without replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FACTORIES = frozenset(
    "arange as_tensor empty empty_strided eye full linspace logspace meshgrid ones tensor "
    "tril_indices triu_indices zeros".split()
)
"""Functions that make a tensor from plain values, without randomness."""

DRAWS = frozenset(
    "alpha_dropout bernoulli bernoulli_ binomial cauchy_ dropout dropout1d dropout2d dropout3d exponential_ "
    "feature_alpha_dropout feature_dropout fractional_max_pool2d fractional_max_pool3d geometric_ gumbel_softmax log_normal_ "
    "multinomial native_dropout normal normal_ poisson rand_like randint_like randn_like random_ rrelu rrelu_ uniform_".split()
)
"""Functions that draw random numbers."""

STEERS = frozenset(
    "__array__ __bool__ __complex__ __contains__ __float__ __index__ __int__ allclose argwhere equal is_nonzero item "
    "masked_select nonzero numpy tolist unique unique_consecutive".split()
)
"""Functions through which a tensor's values decide what runs next, or the shapes of later tensors."""

SELECTS = frozenset("_pack_padded_sequence argwhere masked_select nonzero unique unique_consecutive".split())
"""Functions whose output size depends on values."""

STATEFUL = DRAWS | frozenset("batch_norm instance_norm multi_head_attention_forward scaled_dot_product_attention".split())
"""Functions with side effects or randomness, which must not run again for another member."""

AUGMENTED = frozenset(f"__i{name}__" for name in "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor".split())
"""Augmented assignments, which write into their left operand."""

RESHAPES = frozenset("resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ as_strided_".split())
"""Functions that change a tensor's shape in place."""

MARKS = frozenset("register_hook register_post_accumulate_grad_hook retain_grad".split())
"""Functions that change how backward treats a tensor. They must run once per tensor, not once per member."""


class Diverged(BaseException):
    """Raised when a member's writes into shared tensors differ from the first member's."""


class ValueBeforeWrite:
    """A copy of a result, made before the first member wrote into the result."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Replay(TorchFunctionMode):
    """Records the first member's shared operations and replays them for the others. Enter it once for each member."""

    def __init__(self, shared: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.known: dict[int, Tensor] = {}
        self.rooted: set[int] = set()
        """Common tensors that were computed from inputs or shared tensors, not from constants alone."""
        self.versions: dict[int, int | None] = {}
        self.names: dict[int, str] = {}
        self.add_shared(shared)
        self.clashes: list[str] = []
        """Names of shared tensors that operations of a single member write into."""
        self.stateful: dict[int, int] = {}
        """For each storage written by stateful operations or in place, the number of those operations."""
        self.consumed: set[int] = set()
        """Storages of the arguments of stateful and in-place operations."""
        self.read: set[int] = set()
        """Storages of common tensors that operations of a single member have read."""
        self.results: dict[Hashable, list[Any]] = defaultdict(list)
        self.seen: dict[Hashable, int] = {}
        self.writes: dict[Hashable, int] = {}
        """How often the first member ran each common operation that writes."""
        self.forgotten: list[Tensor] = []
        self.objects: list[Any] = []
        """Arguments of recorded operations, kept alive: the id of an array that is gone could be that of another member's."""
        self.first = True
        self.disabled = False
        """Nothing is recorded or replayed any more; every operation runs for every member."""
        self.data_dependent = False
        """A member's values decided which operations ran."""
        self.ragged = False
        """Values decided the size of a tensor."""

    def add_shared(self, tensors: Mapping[str, Tensor]) -> None:
        """Registers tensors that all members have in common from the start, by name."""
        for name, tensor in tensors.items():
            self.known[id(tensor)] = tensor
            self.names[id(tensor)] = name
            self.rooted.add(id(tensor))
            self.versions[_storage(tensor)] = _version(tensor)

    def next_member(self) -> None:
        """Call it before each member but the first."""
        if self.first:
            self.first = False
            self.disabled |= any(_version(t) != self.versions.get(_storage(t)) for t in self.known.values())
        self.seen = {}

    def end_member(self) -> None:
        """Call it after each member. Raises Diverged if the member skipped a write of the first, so its values are wrong."""
        if not self.disabled and not self.first and any(self.seen.get(key, 0) < count for key, count in self.writes.items()):
            raise Diverged

    def is_shared(self, tensor: Tensor) -> bool:
        """Checks whether this tensor is the same for all members."""
        return not self.disabled and id(tensor) in self.known

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.ragged |= name in SELECTS or (name == "__getitem__" and any(t.dtype is torch.bool for t in _tensors(args)))
        if self.disabled:
            return func(*args, **kwargs)
        tensors = [*_tensors(args), *_tensors(kwargs)]
        rooted = any(id(tensor) in self.rooted for tensor in tensors)
        if not all(id(tensor) in self.known for tensor in tensors) or (name in DRAWS and not rooted):
            self._note_private(func, name, tensors, args, kwargs)
            return func(*args, **kwargs)
        if not (tensors or name in FACTORIES):
            return func(*args, **kwargs)
        key = (func, id(args[0])) if name in MARKS else (func, _signature(args), _signature(kwargs))
        turn = self.seen.get(key, 0)
        self.seen[key] = turn + 1
        if turn < len(self.results[key]):
            result = self.results[key][turn]
            return result.tensor.clone() if isinstance(result, ValueBeforeWrite) else result
        return self._run_common(key, rooted, func, name, args, kwargs)

    def _run_common(
        self,
        key: Hashable,
        rooted: bool,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs and records a common operation for the first time."""
        written = _written(func, name, args, kwargs)
        if written and not self.first:
            raise Diverged
        self.disabled |= name in RESHAPES or any(_storage(tensor) in self.read for tensor in written)
        state = None if rooted else torch.get_rng_state()
        result = func(*args, **kwargs)
        if state is not None and not torch.equal(state, torch.get_rng_state()):
            return result  # random numbers from constants alone: drawn for each member
        results = _tensors(result)
        if self.first and written:
            self.writes[key] = self.writes.get(key, 0) + 1
        if self.first and (results or written or name in MARKS):
            self.results[key].append(result)
            self.objects.append((args, kwargs))
            self.known.update((id(tensor), tensor) for tensor in results)
            self.versions.update((_storage(tensor), _version(tensor)) for tensor in [*results, *written, *_tensors(args)])
            if rooted:
                self.rooted.update(id(tensor) for tensor in [*results, *written])
            if name in STATEFUL or written:
                self.consumed.update(_storage(tensor) for tensor in _tensors(args))
                for storage in {_storage(tensor) for tensor in [*results, *written]}:
                    self.stateful[storage] = self.stateful.get(storage, 0) + 1
        return result

    def _note_private(
        self, func: Callable[..., Any], name: str, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Notes an operation of a single member. If it writes into a common tensor, that tensor stops being common."""
        self.data_dependent |= name in STEERS or (name == "__getitem__" and any(t.dtype is torch.bool for t in tensors))
        self.disabled |= self.data_dependent
        for target in _written(func, name, args, kwargs):
            if id(target) in self.known:
                self.clashes += [self.names[id(target)]] if id(target) in self.names else []
                self._release(target)
        self.read.update(_storage(tensor) for tensor in tensors if id(tensor) in self.known)

    def _release(self, target: Tensor) -> None:
        """Called before a member writes into a common tensor: the others recompute it, or get a copy of its old value.

        Raises Diverged if it is not the first member: the tensor is in the graphs, and has the writes, of those before it.
        """
        if not self.first:
            raise Diverged
        storage = _storage(target)
        makers = [key for key, results in self.results.items() if any(result is target for result in results)]
        if storage not in self.stateful:
            self._forget(storage)
        elif self.stateful[storage] == 1 and len(makers) == 1 and storage not in self.consumed:
            results, before = self.results[makers[0]], ValueBeforeWrite(target.clone())
            self._forget(storage)
            self.results[makers[0]] = [before if result is target else result for result in results]
        else:
            self.disabled = True

    def _forget(self, storage: int) -> None:
        """Forgets the tensors in this storage, so that each member computes them again."""
        identities = [id(tensor) for tensor in self.known.values() if _storage(tensor) == storage]
        for identity in identities:
            self.versions.pop(storage, None)
            self.forgotten.append(self.known.pop(identity))  # kept alive, so that no new tensor gets its id
        for key, results in list(self.results.items()):
            if any(_storage(tensor) == storage for result in results for tensor in _tensors(result)):
                del self.results[key]
                self.writes.pop(key, None)


def _signature(value: Any) -> Hashable:
    """Returns arguments as a hashable value: tensors and objects by identity, plain values by type and value."""
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format)):
        return (type(value), value)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_signature, value))
    if isinstance(value, dict):
        return (dict, *((key, _signature(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return (slice, value.start, value.stop, value.step)
    return id(value)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    return []


def _storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a tensor without storage
        return id(tensor)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _written(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that this operation writes into."""
    targets = _tensors(kwargs.get("out"))
    schema = getattr(func, "_schema", None) or getattr(getattr(func, "default", None), "_schema", None)
    if schema is not None:
        named = [(kwargs.get(spec.name) if at >= len(args) else args[at], spec) for at, spec in enumerate(schema.arguments)]
        return targets + _tensors([value for value, spec in named if spec.is_write])
    in_place = name.endswith("_") and not name.endswith("__")
    operator = name in ("__setitem__", "__set__") or name in AUGMENTED
    if args and (in_place or operator or kwargs.get("inplace") is True):
        targets += _tensors(args[0])
    return targets
