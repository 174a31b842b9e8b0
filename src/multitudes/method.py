"""Method: the base class of every method. A method is one frozen dataclass in one file of `multitudes.methods`.

A method decides which tensors belong to members (`layout`). Everything else here has a default. `Method.all()` lists every
subclass, so there is no registry to fill: tests, documentation, error messages and the shell take their lists from it.

Methods of other packages are found by their entry points. The name is the class in lower case, as the shell has it:

    [project.entry-points."multitudes.methods"]
    norms = "own_method:Norms"
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.formed_weights import unknown_layers
from multitudes.conversion.anatomy.stale_values import stale_values
from multitudes.conversion.anatomy.structure import Structure as Structure
from multitudes.conversion.anatomy.structure import run_example
from multitudes.conversion.resize.resize import Resizing
from multitudes.engine import tree
from multitudes.engine.draws import draw_all, drawn_member
from multitudes.engine.inputs import BatchAxis, Inputs, axes, stack_slots, take_rows
from multitudes.engine.modules import Factory
from multitudes.engine.proof.smaller import SmallExample, smaller
from multitudes.engine.rows import split_evenly
from multitudes.engine.seeds import member_seed
from multitudes.errors import InputError
from multitudes.settings import Count, Settings, check_settings
from multitudes.terminal import step

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

Criterion = Callable[[Any, Any], Tensor]
"""Any torch loss with mean reduction, called as criterion(output, target)."""


M = TypeVar("M", bound="Method")


@dataclass(frozen=True)
class Batch:
    """The data of one training step: out = ens(*batch.inputs, **batch.kwargs), then ens.reduce(out, batch, criterion)."""

    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    per_member: bool = False
    count: int = 0
    """The number of rows."""
    slots: Tensor | None = None
    """The rows of each member, ``[M, L]``, if members have different rows (MIMO); `Ensemble.batch` gathers them."""


@dataclass(frozen=True)
class Given:
    """The input of a method: the user's model, the example, the seed, and settings for single modules."""

    model: nn.Module
    inputs: Inputs
    """The example, with at least two rows."""
    factory: Factory | None = None
    """Makes the model at another width, if the user gave a factory."""
    seed: int = 0
    at: Mapping[str, Any] = field(default_factory=dict)
    """For the modules that at= matches, by name: the method with other settings."""
    batch_axis: BatchAxis = 0
    resizing: Resizing | None = None
    """How the network of one member was made, if a file says so: then it is made so again."""

    @functools.cached_property
    def small(self) -> SmallExample:
        """The smallest example on which the model runs the same operations."""
        step("a smaller example")
        return smaller(self.model, self.inputs, self.batch_axis)

    @functools.cached_property
    def structure(self) -> Structure:
        """The model's structure, observed on the small example. The model runs once, when this property is first read."""
        example = self.small.inputs
        step("the network's structure")
        try:
            return run_example(self.model, example, self.seed)
        except InputError:
            if example is self.inputs:
                raise
        vars(self)["small"] = SmallExample(self.inputs, self.inputs, self.small.large)  # its rows belong together
        return run_example(self.model, self.inputs, self.seed)

    @functools.cached_property
    def stale(self) -> list[tuple[str, str]]:
        """Modules and attributes in which the model keeps what it computed from its weights in an earlier call."""
        return stale_values(self.model, self.small.inputs)

    def observed(self, network: nn.Module) -> Structure:
        """Runs another network on the small example, and returns its structure."""
        step("the members' structure")
        return run_example(network, self.small.inputs, self.seed, values=False)  # the given model ran with them

    def with_model(self, model: nn.Module, seed: int) -> Given:
        """Returns a copy with another model of the same architecture. The example is not run again."""
        other = replace(self, model=model, seed=seed)
        vars(other).update(small=self.small, structure=replace(self.structure, model=model))
        return other

    def with_settings(self, at: Mapping[str, Any]) -> Given:
        """Returns a copy with other settings for single modules. The example is not run again."""
        other = replace(self, at=at)
        vars(other).update({key: value for key, value in vars(self).items() if key in ("small", "structure", "stale")})
        return other


@dataclass(frozen=True)
class Layout:
    """Which parts of a model belong to members: whole modules, and single tensors of other modules. The rest is shared."""

    modules: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    """Weights with a member axis in layers that sum their outputs over members (MIMO's first layer)."""
    note: str = ""
    """A line for the head of the plan."""
    because: Mapping[str, str] = field(default_factory=dict)
    """The reason that the plan prints for a module, by the module's name."""


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """The settings of a method, and how it treats tensors, batches and losses."""

    members: Count = 4
    """The number of members, M."""

    reduction: Literal["sum", "mean"] = "sum"
    """How the members' losses become one: "sum" trains a member's own weights as if it were alone; "mean" averages."""

    shares_weights: ClassVar[bool] = False
    """Whether all members use the given weights, and differ only in tensors that the method adds."""

    draws: ClassVar[bool] = False
    """Whether members are random draws. A training step makes new draws."""

    origin: ClassVar[str] = "by the method"
    """The plan's text for how the members' tensors start, in methods that override `start`."""

    keeps_layers: ClassVar[bool] = True
    """Whether keep= may exclude layers from conversion."""

    draws_by_shape: ClassVar[bool] = False
    """Whether the draws have the shapes of activations, so that other input shapes need other draws."""

    made_in_training: ClassVar[bool] = False
    """Whether members come from the course of a training run: before it they are all the given network."""

    layer_settings: ClassVar[tuple[str, ...]] = ()
    """The settings that `at=` may change for single layers."""

    def __post_init__(self) -> None:
        check_settings(self)

    @staticmethod
    def all() -> list[type[Method]]:
        """Lists every method: also your own subclasses, and those of installed packages."""
        import_module("multitudes.methods")  # the one import upwards: a registry loads what registers itself
        refused = _load_plugins()
        return sorted((kind for kind in Method.__subclasses__() if kind not in refused), key=lambda kind: kind.__name__)

    def refused(self, structure: Structure) -> dict[str, str]:
        """Names the modules that the method cannot convert, with the reason.

        By default none; a method that shares weights refuses layers that it does not know.
        """
        return unknown_layers(structure) if self.shares_weights else {}

    def prepare(self, given: Given) -> nn.Module:
        """Makes the network of one member; by default it is the model itself."""
        return given.model

    @property
    def keeps_weights(self) -> bool:
        """Whether members start with weights of the given model, made by `start`, instead of fresh weights."""
        return self.shares_weights

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Makes member m from `network`, which `prepare` returned; by default with the draws of the member's seed."""
        if not self.draws:
            raise NotImplementedError(
                f"{type(self).__name__} must override start(): its members keep given weights and are not random draws"
            )
        return drawn_member(network, member_seed(given.seed, m))

    def layout(self, structure: Structure) -> Layout:
        """Decides which parts of the network belong to members."""
        raise NotImplementedError(
            f"{type(self).__name__} must override layout(), which names the tensors that belong to members"
        )

    def neutral(self: M) -> M:
        """Returns the settings under which the ensemble must equal the given model; the self-check compares the two."""
        return replace(self, members=1)

    def subset(self: M, count: int) -> M:
        """Returns the settings for an ensemble of only `count` of the members."""
        return replace(self, members=count)

    @property
    def trains_by_part(self) -> bool:
        """Whether a training step differs from a plain call of all members."""
        return self.draws or getattr(self, "feed", "all") == "part"

    def drawn_for_step(self, network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Makes the draws of a training step from these seeds: ``[D, ...]`` by buffer name."""
        return draw_all(network, seeds)

    def fit_shapes(self, network: nn.Module, inputs: Inputs, batch_axis: BatchAxis, like: nn.Module | None = None) -> bool:
        """Records the activation shapes of a call, for methods whose draws have these shapes. Returns True if they changed.

        `like` is another network of the method whose shapes were recorded: what values showed of it holds for this one.
        """
        return False

    def bake(self, member: nn.Module) -> None:
        """Turns the converted layers of a single member into plain layers, in place: masks and factors go into the weights."""

    def compact(self, ensemble: Ensemble) -> Ensemble:
        """Makes a smaller ensemble with the same outputs, for prediction only."""
        raise InputError(f"{type(self).__name__} has nothing to compact: members use all weights. Use the ensemble as it is")

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares the data of one training step with `count` rows. By default every member sees every row."""
        kwargs = {**inputs.kwargs, "per_member": True} if per_member else inputs.kwargs
        return Batch(inputs.args, kwargs, target, per_member, count)

    def likelihood(self, criterion: Criterion, task: str) -> Criterion:
        """Returns the loss of one member on this task; by default the criterion itself. A method with a prior may scale it."""
        return criterion

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """Combines the members' losses into one, by `reduction`."""
        if "rows" in batch.kwargs:
            return criterion(outputs, batch.target)
        losses = []
        for m in range(self.members):
            target = tree.take(batch.target, m) if batch.per_member else batch.target
            losses.append(criterion(tree.take(outputs, m), target))
        total = torch.stack(losses).sum()
        return total if self.reduction == "sum" else total / self.members

    def after_step(self, ensemble: Ensemble) -> None:
        """Updates tensors that the optimizer does not, such as running means of weights. `fit` calls it after each step."""

    def before_training(self, ensemble: Ensemble) -> None:
        """Forgets what an earlier run has left. `fit` calls it when a new run begins."""

    def after_epoch(self, ensemble: Ensemble, done: float) -> None:
        """Notes what members are made of later, such as a checkpoint. `fit` calls it after each epoch, before validation.

        `done` is the share of the epochs that are done, 1 after the last.
        """

    def after_training(self, ensemble: Ensemble, batches: Iterable[tuple[Inputs, Any]]) -> None:
        """Makes members of what training has left, and of the training data: inputs and targets, in one pass.

        `fit` calls it once training has ended, for the last weights and for those of the best epoch; in other cases call
        `ens.finish(data)`.
        """

    @classmethod
    def overrides(cls, *hooks: str) -> bool:
        """Whether the method acts in any of these hooks of a run, such as "after_epoch"."""
        return any(getattr(cls, hook) is not getattr(Method, hook) for hook in hooks)

    def penalty(self, ensemble: Ensemble, count: int) -> Tensor | None:
        """Returns a prior to add to the loss, or None; `count` is the number of rows of the whole step."""
        return None

    def effective_size(self, ensemble: Ensemble) -> int:
        """Returns the number of different networks that can occur as members."""
        return self.members

    def param_groups(self, ensemble: Ensemble, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Makes the parameter groups of an optimizer."""
        named = [(name, p) for name, p in ensemble.named_parameters() if p.requires_grad]
        own = {"params": [p for _, p in named], "names": [n for n, _ in named], "kind": "all"}
        return [{**own, "lr": lr, "weight_decay": weight_decay}]

    def as_typed(self) -> str:
        """Returns the method as code, with `members` and the settings that are not defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        shown = [f"{n}={v!r}" for n, v in self.settings().items() if n == "members" or v != defaults[n]]
        prefix = "mt." if type(self).__module__.startswith("multitudes.") else ""
        return f"{prefix}{type(self).__name__}({', '.join(shown)})"

    def settings(self) -> dict[str, Any]:
        """Returns the method's fields by name, as files store them."""
        return dataclasses.asdict(self)


def split_rows(batch: Batch, members: int, rng: torch.Generator) -> Batch:
    """Assigns each row of a batch to one member, in blocks of nearly equal size, starting with a random member."""
    first = int(torch.randint(members, (), generator=by_rank(rng)))
    device = next((tensor.device for tensor in tree.tensors((batch.inputs, batch.kwargs))), torch.device("cpu"))
    rows = split_evenly(batch.count, members, first, device)
    return replace(batch, kwargs={**batch.kwargs, "rows": rows})


def into_slots(batch: Batch, batch_axis: BatchAxis) -> Batch:
    """Gathers the rows of each member, by `batch.slots`."""
    assert batch.slots is not None
    for name, leaf in tree.leaves(batch.target):
        if not isinstance(leaf, Tensor) or (leaf.ndim and len(leaf) != batch.count):
            shown = f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            where = f"target {name}" if name else "the target"
            raise InputError(f"{where} is {shown}: members get different rows, so give a tensor with {batch.count} rows")
    whole = Inputs(*batch.inputs, **batch.kwargs)
    call = stack_slots([take_rows(whole, batch_axis, index) for index in batch.slots], batch_axis)
    _fix_sizes(call, batch_axis)
    targets = [tree.apply(functools.partial(_entries, index), batch.target) for index in batch.slots]
    return Batch(call.args, {**call.kwargs, "per_member": True}, tree.stack(targets), True, batch.slots.shape[1])


def _fix_sizes(call: Inputs, batch_axis: BatchAxis) -> None:
    """Tells torch.compile that only rows vary in slots ``[M, B, ...]``.

    They have an axis more than the inputs of a prediction. After one, it would take all sizes that differ for variable ones,
    channels too, for which inductor does not compile convolutions.
    """
    dynamo = sys.modules.get("torch._dynamo")  # a program that compiles has imported it
    if dynamo is None or torch.compiler.is_compiling():
        return
    for tensor, axis in zip(call.tensors(), axes(call, batch_axis), strict=True):
        rows = None if axis is None else axis % (tensor.ndim - 1) + 1
        dynamo.mark_static(tensor, [place for place in range(tensor.ndim) if place != rows])


def _entries(index: Tensor, target: Tensor) -> Tensor:
    return target[index.to(target.device)] if target.ndim else target


def by_rank(rng: torch.Generator) -> torch.Generator:
    """Returns a generator for this process, seeded by `rng`, which is the same in all processes. For shuffling batches only."""
    distributed = torch.distributed
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng)) + rank)


PLUGINS = "multitudes.methods"
"""The group of the entry points of other packages' methods."""
_refused: list[type] = []
_asked: set[str] = set()


def _load_plugins() -> list[type]:
    """Imports other packages' methods, once. Returns those that are refused: their names are those of other methods.

    A plugin that cannot be imported, or is no method, or has the name of another, is told in a warning and left out: it can be
    broken by an update that has nothing to do with what the caller wants.
    """
    if PLUGINS in _asked:
        return _refused
    _asked.add(PLUGINS)  # before the imports: a plugin may ask for all methods itself
    taken = set(vars(import_module("multitudes.methods")))
    for entry in entry_points(group=PLUGINS):
        where = f"the method {entry.name!r} of {entry.dist.name if entry.dist else 'a package'} ({entry.value})"
        try:
            found = entry.load()
        except Exception as error:
            told = " ".join(str(error).split())
            _warn(
                f"{where} cannot be imported: {type(error).__name__}: {told}. Update or uninstall that package. It is left out"
            )
            continue
        if not isinstance(found, type) or Method not in found.__bases__:
            _warn(f"{where} is no direct subclass of multitudes.Method: let its entry point name one. It is left out")
        elif found.__name__ in taken:
            _refused.append(found)
            _warn(f"{where} has the name of another method, {found.__name__}: rename the class. It is left out")
        elif entry.name.lower() != found.__name__.lower():
            _warn(f"{where} is called {found.__name__.lower()} in the shell: rename its entry point")
        taken.add(getattr(found, "__name__", ""))
    return _refused


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)
