"""Members: a module that runs the graph of one member once, for all members."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from multitudes.files.export import products as products  # registers its rules
from multitudes.files.export.forms import Stored, Value, of_member, plain, stacked, to_leading, values_in
from multitudes.files.export.rules import RULES, Run, Step
from multitudes.files.export.shapes import pointwise
from multitudes.files.export.trace import MemberGraph

IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size", "_assert_async")
"""Operations that only check their inputs."""
ELEMENTWISE = ("where", "hardswish", "log_sigmoid")
"""Operations on each element that have no tag of such; `where` has none if one side is a number."""


class AllMembers(nn.Module):
    """Runs the operations of a member's graph, each for all members at once: ``[M, B, ...]``.

    The first call, on the example, finds the shapes in which weights are needed, and stores them so.
    """

    def __init__(self, graph: MemberGraph, example: list[Tensor], in_turn: bool = False) -> None:
        super().__init__()
        self.in_turn = in_turn
        self.graph = [graph]  # in a list: no part of the module
        self.members = graph.members
        self.unrolled: set[str] = set()
        self._asked: dict[str, dict[str, Tensor]] = {name: {} for name in graph.tensors}
        """For each stored tensor, the shapes that operations asked for; "" for the tensor as it is."""
        self._places: dict[tuple[str, str], str] | None = None
        with torch.no_grad():
            self(*example)
        self._store()

    def _store(self) -> None:
        """Stores each tensor in the shape that operations ask for. One that is asked for in several is stored as it is."""
        places: dict[tuple[str, str], str] = {}
        for index, (name, shapes) in enumerate(self._asked.items()):
            if not shapes:
                continue
            key, tensor = next(iter(shapes.items())) if len(shapes) == 1 else ("", self.graph[0].tensors[name])
            places[name, key] = place = f"tensor{index}"
            self.register_buffer(place, tensor.contiguous())
        self._places = places
        self.graph[0].tensors.clear()
        self._asked = {}

    def _prepare(self, name: str, key: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns a stored tensor in the shape that `make` gives it, named by `key`."""
        if self._places is None:
            self._asked[name][key] = make(self.graph[0].tensors[name])
            return self._asked[name][key]
        if (name, key) in self._places:
            return getattr(self, self._places[name, key])
        return make(getattr(self, self._places[name, ""]))

    def _stored(self, name: str) -> Value:
        graph = self.graph[0]
        read = functools.partial(self._prepare, name, "", lambda tensor: tensor)
        stored = Stored(name, graph.sizes[name], read)
        return Value(stored, "leading" if name in graph.owned else "shared", self.members)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Returns the outputs of all members, ``[M, B, ...]``."""
        run = Run(self.members, self._prepare)
        output = run.of(self._run_in_turn(run, tensors) if self.in_turn else self._run(run, tensors, {}))
        self.unrolled |= run.unrolled
        whole = to_leading(output)
        return whole if output.batched else whole.expand(self.members, *whole.shape[1:])

    def _run(self, run: Run, tensors: tuple[Tensor, ...], found: dict[fx.Node, Any]) -> Value:
        """Runs the operations whose results are not in `found` yet. Returns the output."""
        graph = self.graph[0]
        given = dict(zip(graph.inputs, tensors, strict=True))
        for node in graph.graph.nodes:
            if node in found:
                continue
            if node.op == "placeholder":
                found[node] = Value(given[node.name]) if node.name in given else self._stored(node.name)
            elif node.op == "call_function":
                found[node] = self._called(run, node, found)
        return found[graph.output]

    def _run_in_turn(self, run: Run, tensors: tuple[Tensor, ...]) -> Value:
        """Runs one member after another. What members share is computed once."""
        graph, outputs = self.graph[0], []
        common: dict[fx.Node, Any] = {}
        own = self._depending()
        for m in range(self.members):
            found = dict(common)
            for node in graph.graph.nodes:
                if node.op == "placeholder" and node.name in graph.owned:
                    found[node] = Value(self._stored(node.name).tensor[m])
            outputs.append(self._run(run, tensors, found).tensor)
            common = {node: value for node, value in found.items() if node not in own}
        return stacked(outputs, self.members)

    def _depending(self) -> set[fx.Node]:
        """Returns the operations whose results depend on the member."""
        graph = self.graph[0]
        found: set[fx.Node] = set()
        for node in graph.graph.nodes:
            if node.name in graph.owned or any(before in found for before in node.all_input_nodes):
                found.add(node)
        return found

    def _called(self, run: Run, node: fx.Node, found: dict[fx.Node, Any]) -> Any:
        args, kwargs = (fx.map_arg(given, found.__getitem__) for given in (node.args, node.kwargs))
        return apply(run, node.target, _thawed(args), _thawed(kwargs))


def apply(run: Run, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs one operation for all members: by its rule if it has one that fits, otherwise member by member."""
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, torch._ops.OpOverload):
        return target(*args, **kwargs)
    step = Step(target, args, kwargs)
    if step.name in IGNORED:
        return None
    if step.name == "sym_size":
        return args[0].shape[args[1]]
    values = values_in([args, kwargs])
    if not any(value.batched for value in values) and step.name != "embedding":
        return _wrapped(target(*plain(args), **plain(kwargs)))
    elementwise = torch.Tag.pointwise in target.tags or step.name in ELEMENTWISE
    rule = RULES.get(step.name) or (pointwise if elementwise else None)
    result = None if rule is None else rule(run, step)
    if result is not None:
        return result
    run.unrolled.add(step.name)
    return stacked([target(*of_member(args, m), **of_member(kwargs, m)) for m in range(run.members)], run.members)


def _wrapped(output: Any) -> Any:
    if isinstance(output, Tensor):
        return Value(output)
    return [_wrapped(one) for one in output] if isinstance(output, (list, tuple)) else output


def _thawed(argument: Any) -> Any:
    """Returns plain lists, tuples and dicts instead of fx's own."""
    if isinstance(argument, dict):
        return {name: _thawed(one) for name, one in argument.items()}
    if isinstance(argument, list):
        return [_thawed(one) for one in argument]
    return tuple(_thawed(one) for one in argument) if isinstance(argument, tuple) else argument
