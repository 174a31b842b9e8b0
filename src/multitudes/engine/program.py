"""The program of a network: the operations of one call, with their shapes, and the multiply-adds.

It is recorded on the meta device, where operations have shapes and cost no arithmetic. A network whose values decide what it
runs cannot run there; its program is recorded on its own device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from multitudes.engine import tree
from multitudes.engine.counting import formula_of
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.listening import Listening, result_of
from multitudes.engine.modules import (
    as_same_kind,
    detached_copy,
    duplicate,
    kept_tensors,
    light_copy,
    named_tensors,
    plain_attention,
)
from multitudes.engine.seeds import seeded
from multitudes.engine.writes import Writes, Written

META = torch.device("meta")

LAYOUT = frozenset(
    f"aten.{name}.default" for name in "clone contiguous view _unsafe_view reshape expand t alias _reshape_alias".split()
)
"""Operations that change the layout of a tensor and none of its values: whether they run depends on sizes."""


@dataclass(frozen=True)
class Program:
    """The operations of one call in their order, the shapes of their results, and their multiply-adds."""

    names: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    """For each operation, the shapes of its results."""
    arguments: tuple[str, ...]
    """For each operation, its arguments that are numbers, flags, or lists of these."""
    multiply_adds: int
    outputs: tuple[tuple[int, ...], ...] = ()
    """The shapes of what the call returns."""

    @property
    def operations(self) -> list[tuple[Any, ...]]:
        """Each operation with the shapes of its results and its numbers."""
        return list(zip(self.names, self.shapes, self.arguments, strict=True))

    def covers(self, large: Program, rows: int | None = None) -> bool:
        """Whether this program, of a smaller call, is the same as that of a larger call but for the sizes of axes.

        A smaller call that takes another branch proves nothing about the larger one, and neither does one whose tensors lost
        an axis, or have a single entry along one. With `rows`, the number of rows of the larger call, this call has one row.
        """
        if self.names != large.names:
            return False
        pairs = [pair for a, b in zip(self.shapes, large.shapes, strict=True) for pair in zip(a, b, strict=False)]
        return all(
            len(a) == len(b) and all(few > 1 or many in (0, 1, rows) for few, many in zip(a, b, strict=True)) for a, b in pairs
        )


class Tracer:
    """Records the programs of a network, which stays as it is.

    A copy that runs with values has the memory of its parameters, until forward would write into one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.network = shapes_only(model)
        self.on_meta = True
        self.shares = True
        self.decisions = Decisions()

    def program(self, inputs: Inputs, mode: str = "eval") -> Program:
        """Returns the program of one call. Raises what the network raises on its own device."""
        if self.on_meta:
            try:
                return _record(self.network, shape_inputs(inputs), mode)
            except (NotImplementedError, RuntimeError) as error:
                if "meta" not in str(error):
                    raise
                self.network, self.on_meta = light_copy(self.model), False  # values decide what runs
        try:
            return self._with_values(inputs, mode)
        except Written:  # only now are copies of the parameters needed
            self.network, self.shares = detached_copy(self.model, {}), False
            return self._with_values(inputs, mode)

    def _with_values(self, inputs: Inputs, mode: str) -> Program:
        """Records the program of a call on the network's own device. Raises `Written` before a write into shared parameters."""
        writes = Writes(dict(self.network.named_parameters()) if self.shares else {}, refuse=True)
        with self.decisions, writes:
            program = _record(self.network, fresh_inputs(inputs), mode)
        writes.check()
        return program


class Decisions(TorchFunctionMode):
    """Notes the truth values and numbers that forward reads from tensors: by them values decide what runs.

    If all of them are equal, as for a mask that has only ones, `on_meta` gives the same answer in runs without values.
    """

    READS = frozenset("__bool__ __float__ __index__ __int__ item tolist".split())

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self.answers = False

    def on_meta(self) -> Decisions:
        """Returns a mode that answers as before. Raises a RuntimeError if the answers were different ones."""
        if any(value != self.values[0] for value in self.values):
            raise RuntimeError("values decide what runs")
        other = Decisions()
        other.values, other.answers = self.values[:1], True
        return other

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in self.READS:
            return func(*args, **(kwargs or {}))
        if self.answers and self.values:
            return self.values[0]
        self.values.append(func(*args, **(kwargs or {})))
        return self.values[-1]


def shapes_only(module: nn.Module) -> nn.Module:
    """Copies a module to the meta device, with the tensors in plain attributes too: it has shapes and no values."""
    memo: dict[int, Any] = {id(tensor): tensor.detach().to(META) for _, tensor in kept_tensors(module)}
    for _, tensor in named_tensors(module):
        memo[id(tensor)] = as_same_kind(tensor, tensor.detach().to(META))
    return duplicate(module, memo)


def without_values(inputs: Inputs) -> Inputs:
    """Returns the same call on the meta device."""
    return inputs.refill([tensor.detach().to(META) for tensor in inputs.tensors()])


def shape_inputs(inputs: Inputs) -> Inputs:
    """Returns the same call on the meta device, in which whole numbers keep their values: masks may decide what runs.

    It is for modes that run operations by `result_of`.
    """
    exact = (not t.is_floating_point() and not t.is_complex() for t in inputs.tensors())
    tensors = zip(inputs.tensors(), exact, strict=True)
    return inputs.refill([t.detach().clone() if whole else t.detach().to(META) for t, whole in tensors])


def _record(module: nn.Module, inputs: Inputs, mode: str) -> Program:
    recorder = _Recorder()
    modes = [(part, part.training) for part in module.modules()]
    module.train(mode == "train")
    try:
        with torch.no_grad(), plain_attention(), seeded(0), recorder:
            outputs = tree.tensors(module(*inputs.args, **inputs.kwargs))
    finally:
        for part, training in modes:
            part.training = training
    return Program(
        tuple(recorder.names),
        tuple(recorder.shapes),
        tuple(recorder.arguments),
        recorder.flops // 2,
        tuple(tuple(tensor.shape) for tensor in outputs),
    )


class _Recorder(Listening):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.shapes: list[tuple[tuple[int, ...], ...]] = []
        self.arguments: list[str] = []
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = result_of(func, args, kwargs)
        if str(func) not in LAYOUT:
            self.names.append(str(func))
            self.shapes.append(tuple(tuple(t.shape) for t in tree.tensors(result)))
            self.arguments.append(repr([a for a in (*args, *kwargs.values()) if _is_numeric(a)]))
        formula = formula_of(func)
        if formula is not None:
            self.flops += math.ceil(formula(*args, **kwargs, out_val=result))
        return result


def _is_numeric(argument: Any) -> bool:
    if isinstance(argument, (list, tuple)):
        return all(isinstance(entry, (bool, int, float)) for entry in argument)
    return isinstance(argument, (bool, int, float))
