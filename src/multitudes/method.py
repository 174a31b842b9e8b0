"""Method: what a method may say. Each method is one final, frozen dataclass in one file of `multitudes.methods`.

The registry is `Method.all()`: every subclass, so there is nothing to fill. Tests, documentation, error lists and the
shell take their lists from it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.structure import Structure as Structure
from multitudes.engine import tree
from multitudes.engine.draws import draw_all
from multitudes.engine.inputs import BatchAxis, Inputs, stack_slots, take_rows
from multitudes.engine.modules import Factory
from multitudes.errors import InputError
from multitudes.settings import Count, check_settings

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

Criterion = Callable[[Any, Any], Tensor]
"""Any torch loss with mean reduction, called as criterion(output, target)."""


M = TypeVar("M", bound="Method")


@dataclass(frozen=True)
class Batch:
    """One training step's data, as a method wants it: `ens(*batch.inputs, **batch.kwargs)`, then `ens.reduce`."""

    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    per_member: bool = False
    count: int = 0
    """How many rows there are."""
    slots: Tensor | None = None
    """Where each member has rows of its own: which, ``[M, L]``; `Ensemble.batch` takes them."""


@dataclass(frozen=True)
class Layout:
    """Which parts of a model belong to members: whole modules, and single tensors of others; the rest is shared."""

    modules: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    """Tensors of members that a layer adds up."""
    note: str = ""
    """What the plan should say about the choice."""
    because: Mapping[str, str] = field(default_factory=dict)
    """What the plan should say about single modules."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The settings of a method, and what it says about tensors, batches and losses."""

    members: Count = 4
    """How many members, M."""

    reduction: Literal["sum", "mean"] = "sum"
    """How the members' losses are joined: their sum, so that weights a member owns learn as they would alone, or mean."""

    shares_weights: ClassVar[bool] = False
    """Whether members differ only by what the method adds to the given weights."""

    draws: ClassVar[bool] = False
    """Whether members are drawn, and `batch` draws for each training step."""

    origin: ClassVar[str] = "by the method"
    """Where what members own comes from, if they start by `start`."""

    works_in: ClassVar[bool] = True
    """Whether what the method adds can be worked into a member's layers, so that they are the given model's again."""

    keeps_layers: ClassVar[bool] = True
    """Whether keep= can take layers from the method."""

    draws_by_shape: ClassVar[bool] = False
    """Whether draws have the shapes of what a call has inside the network."""

    layer_settings: ClassVar[tuple[str, ...]] = ()
    """The settings that may differ from layer to layer, by `at=`."""

    def __post_init__(self) -> None:
        check_settings(self)

    @staticmethod
    def all() -> list[type[Method]]:
        """Every method there is, yours included."""
        import_module("multitudes.methods")  # the one import upwards: a registry loads what registers itself
        return sorted(Method.__subclasses__(), key=lambda method: method.__name__)

    def prepare(
        self: M, model: nn.Module, factory: Factory | None, inputs: Inputs, seed: int, at: Mapping[str, M]
    ) -> nn.Module:
        """The network that one member is made of; by default the model itself. `at` has other settings for some modules."""
        return model

    def refused(self, structure: Structure) -> dict[str, str]:
        """Modules that the method cannot take, and why; by default none."""
        return {}

    @property
    def keeps_weights(self) -> bool:
        """Whether each member starts with weights of the given model, by `start`, instead of anew."""
        return False

    def start(
        self: M,
        model: nn.Module,
        network: nn.Module,
        inputs: Inputs,
        seed: int,
        m: int,
        at: Mapping[str, M],
    ) -> nn.Module:
        """Member m with weights of the given model; `network` is what `prepare` made of it, the seed the ensemble's."""
        raise NotImplementedError(f"{type(self).__name__} does not say how members start")

    def layout(self, structure: Structure) -> Layout:
        """Which parts of the model belong to members."""
        raise NotImplementedError(f"{type(self).__name__} does not say which tensors belong to members")

    def neutral(self: M) -> M:
        """The settings under which, started from copies, the ensemble is the base model."""
        return replace(self, members=1)

    def subset(self: M, count: int) -> M:
        """The settings of an ensemble of so many of the members."""
        return replace(self, members=count)

    @property
    def trains_by_part(self) -> bool:
        """Whether a training step is something else than a call of all members."""
        return self.draws or getattr(self, "feed", "all") == "split"

    def drawn_for_step(self, network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
        """What a training step draws, by these seeds: ``[D, ...]`` by name."""
        return draw_all(network, seeds)

    def fit_shapes(self, network: nn.Module, inputs: Inputs, batch_axis: BatchAxis) -> bool:
        """Looks, in place, at the shapes that a call has inside the network, where draws depend on them: are they others?"""
        return False

    def bake(self, member: nn.Module) -> None:
        """Makes a member's layers those of the given model again, in place, with what the method adds to them worked in."""

    def compact(self, ensemble: Ensemble) -> Ensemble:
        """An ensemble for prediction with the same outputs, without what its members do not use."""
        name = type(self).__name__
        raise InputError(f"{name} has nothing to compact: each of its members uses all that it has")

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """What one training step of so many rows is called with; by default every member sees every row."""
        kwargs = {**inputs.kwargs, "per_member": True} if per_member else inputs.kwargs
        return Batch(inputs.args, kwargs, target, per_member, count)

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """The members' losses, joined."""
        if "rows" in batch.kwargs:
            return criterion(outputs, batch.target)
        losses = []
        for m in range(self.members):
            target = tree.take(batch.target, m) if batch.per_member else batch.target
            losses.append(criterion(tree.take(outputs, m), target))
        total = torch.stack(losses).sum()
        return total if self.reduction == "sum" else total / self.members

    def penalty(self, ensemble: Ensemble, count: int) -> Tensor | None:
        """What the loss adds that depends on weights only, for a batch of so many rows in all."""
        return None

    def effective_size(self, ensemble: Ensemble) -> int:
        """How many different networks there are to predict with."""
        return self.members

    def param_groups(self, ensemble: Ensemble, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser."""
        named = [(name, p) for name, p in ensemble.named_parameters() if p.requires_grad]
        own = {"params": [p for _, p in named], "names": [n for n, _ in named], "kind": "all"}
        return [{**own, "lr": lr, "weight_decay": weight_decay}]

    def settings(self) -> dict[str, Any]:
        """The fields by name, as they are saved."""
        return dataclasses.asdict(self)


def split_rows(batch: Batch, members: int, rng: torch.Generator) -> Batch:
    """The same data, each row by one member: blocks of rows, as even as they can be, beginning with any member."""
    count = batch.count
    first = int(torch.randint(members, (), generator=by_rank(rng)))
    rows = (torch.arange(count) * members // max(count, members) + first) % members
    return replace(batch, kwargs={**batch.kwargs, "rows": rows})


def into_slots(batch: Batch, batch_axis: BatchAxis) -> Batch:
    """Each member's own rows of a batch."""
    assert batch.slots is not None
    for name, leaf in tree.leaves(batch.target):
        if not isinstance(leaf, Tensor) or (leaf.ndim and len(leaf) != batch.count):
            shown = f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            where = f"target {name}" if name else "the target"
            raise InputError(f"{where} is {shown}: slots have rows of their own, so give a tensor of {batch.count} rows")
    whole = Inputs(*batch.inputs, **batch.kwargs)
    call = stack_slots([take_rows(whole, batch_axis, index) for index in batch.slots], batch_axis)
    targets = [tree.apply(functools.partial(_entries, index), batch.target) for index in batch.slots]
    return Batch(call.args, {**call.kwargs, "per_member": True}, tree.stack(targets), True, batch.slots.shape[1])


def _entries(index: Tensor, target: Tensor) -> Tensor:
    return target[index.to(target.device)] if target.ndim else target


def by_rank(rng: torch.Generator) -> torch.Generator:
    """A generator of this process's own, from one that is the same for all: batches are shuffled by it, weights are not."""
    distributed = torch.distributed
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng)) + rank)
