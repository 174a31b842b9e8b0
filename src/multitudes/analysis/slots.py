"""conditional_variance: how much each unit of a MIMO network depends on each of its inputs.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, §3.3 and Fig. 4,
https://arxiv.org/abs/2010.06610. For a pre-activation a and slot 1, with the other slots fixed,

    Var(a | x_2, ..., x_M) = E_{x_2, ..., x_M}[Var_{x_1}(a(x_1, ..., x_M))]

and likewise for the other slots. A unit that belongs to one subnetwork varies with one slot only. `ens(x, per_member=True)` is
the network with M inputs side by side: it runs slot m on x[m], and all layers behind the first ones once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from multitudes.engine.inputs import Inputs, count_rows, stack_slots, take_rows
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.settings import Count, check_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

NAMES = """relu relu_ relu6 leaky_relu leaky_relu_ prelu rrelu elu elu_ selu celu gelu silu mish softplus softsign sigmoid
    sigmoid_ logsigmoid tanh tanh_ hardtanh hardswish hardsigmoid""".split()
ACTIVATIONS = {getattr(home, name) for home in (F, torch, Tensor) for name in NAMES if callable(getattr(home, name, None))}
"""Functions whose input is a pre-activation."""


@dataclass(frozen=True)
class ConditionalVariance:
    """The variance of each pre-activation with respect to each input slot, the other slots fixed."""

    variance: Tensor
    """Conditional variance of unit u with respect to slot m, ``[M, U]``."""
    names: tuple[str, ...]
    """The modules that ran just before each activation function, in the order of the calls: they made the pre-activations."""
    layer: Tensor
    """The module of each unit, as an index of `names`: ``[U]``."""

    @property
    def share(self) -> Tensor:
        """Share of each slot in the sum of a unit's conditional variances, ``[M, U]``; NaN for units that never vary."""
        return self.variance / self.variance.sum(0)

    def figure(self, theme: Theme = "light") -> Figure:
        """Draws the shares of the slots as a histogram, and each unit between the slots that it depends on."""
        from multitudes.figures import conditional_variance as draw

        return draw(self.variance, theme=theme)


@torch.no_grad()
def conditional_variance(
    ensemble: Ensemble,
    x: Any,
    *,
    contexts: int | None = 16,
    channel_axis: Literal[1, -1] = 1,
    seed: int = 0,
) -> ConditionalVariance:
    """Measures how the pre-activations of a MIMO network vary with each input slot.

    x             examples, one batch: a tensor or mt.Inputs. The slot in question runs through all of them
    contexts      how often the examples in the other slots are drawn, uniformly from x; None takes every combination of them
    channel_axis  axis of the units in activations: 1, or -1 for tokens ``[B, T, C]``
    seed          seed of the contexts

    Pre-activations are the inputs of activation functions behind the first layers, up to the heads. A unit with positions
    (a channel of a convolution) has the mean of the variances at its positions.
    """
    if not isinstance(ensemble, Ensemble) or not ensemble.engine.summed:
        kind = type(ensemble.method).__name__ if isinstance(ensemble, Ensemble) else type(ensemble).__name__
        raise InputError(f"conditional_variance needs a network with several inputs side by side, and {kind} has one: use MIMO")
    if ensemble.members < 2:
        raise InputError("conditional_variance compares slots, but this ensemble has one: convert with mt.MIMO(members=2)")
    check_value("contexts", contexts, Count | None)
    check_value("channel_axis", channel_axis, Literal[1, -1])
    call = ensemble.call_form.inputs(x)
    axis = ensemble.engine.batch_axis
    count = count_rows(call, axis)
    if count < 2:
        raise InputError("x has one example, and then no unit varies: give at least two")
    sums: list[list[Tensor]] = []
    others = list(_contexts(count, ensemble.members - 1, contexts, seed))
    with _eval_mode(ensemble):
        for m in range(ensemble.members):
            for other in others:
                rows = [torch.full((count,), index) for index in other]
                rows.insert(m, torch.arange(count))
                names, seen = _observed(ensemble, stack_slots([take_rows(call, axis, index) for index in rows], axis))
                variances = [_variance(values, channel_axis) for values in seen]
                sums = sums or [[torch.zeros_like(v) for v in variances] for _ in range(ensemble.members)]
                sums[m] = [total + v for total, v in zip(sums[m], variances, strict=True)]
    variance = torch.stack([torch.cat(slot) for slot in sums]) / len(others)
    layer = torch.cat([torch.full((len(v),), index) for index, v in enumerate(sums[0])])
    return ConditionalVariance(variance, tuple(names), layer)


def _contexts(count: int, slots: int, number: int | None, seed: int) -> Iterator[tuple[int, ...]]:
    """Yields the examples in the other slots, as row numbers: every combination, or `number` random ones."""
    if number is None:
        yield from itertools.product(range(count), repeat=slots)
        return
    generator = torch.Generator().manual_seed(seed)
    for row in torch.randint(count, (number, slots), generator=generator).tolist():
        yield tuple(row)


def _variance(values: Tensor, channel_axis: int) -> Tensor:
    """Returns the variance of each unit over the batch, the mean over positions: ``[B, C, ...]`` → ``[C]``"""
    variance = values.double().var(0, correction=0).movedim(0 if channel_axis == 1 else -1, 0)
    return variance.reshape(len(variance), -1).mean(1).cpu()


def _observed(ensemble: Ensemble, slots: Inputs) -> tuple[list[str], list[Tensor]]:
    """Runs the slots, and returns the pre-activations that all members share, with their names."""
    with _Observer(ensemble.template) as observer:
        ensemble(*slots.args, **{**slots.kwargs, "per_member": True})
    if not observer.seen:
        raise InputError("no activation function was called between first layers and heads, so there are no pre-activations")
    return observer.names, observer.seen


class _Observer(TorchFunctionMode):
    """Keeps the inputs of activation functions in a with-block, and the names of the modules that ran before them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.last = ""
        self.names: list[str] = []
        self.seen: list[Tensor] = []
        self.handles: list[Any] = []

    def __enter__(self) -> _Observer:
        for name, part in self.network.named_modules():
            self.handles.append(part.register_forward_hook(functools.partial(self._ran, name)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()

    def _ran(self, name: str, *_: Any) -> None:
        self.last = name

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in ACTIVATIONS:
            value = args[0] if args else next(iter((kwargs or {}).values()))
            if not torch._C._functorch.is_batchedtensor(value):  # with a member axis it is one slot's, or a head's
                self.names.append(self.last)
                self.seen.append(value.detach().clone())
        return func(*args, **(kwargs or {}))


@contextmanager
def _eval_mode(ensemble: Ensemble) -> Iterator[None]:
    """Puts the ensemble into eval mode in a with-block, and restores the modes of all modules."""
    modes = {part: part.training for part in ensemble.template.modules()}
    try:
        ensemble.eval()
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        ensemble.training = modes[ensemble.template]
