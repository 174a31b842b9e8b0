"""Rules: how one operation of a member's graph runs for all members at once.

A rule gets the operation with its arguments and returns the value of all members, or None if it does not fit: the operation
then runs member by member. Rules are written on symbolic sizes, so that the batch size stays free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from multitudes.files.export.forms import Form, Value, plain

RULES: dict[str, Callable[[Run, Step], Any]] = {}
"""The rules by the operation's name, without its overload."""


class Run:
    """One run of the graph: the number of members, and the stored tensors in the shapes that rules ask for."""

    def __init__(self, members: int, prepare: Callable[[str, str, Callable[[Tensor], Tensor]], Tensor]) -> None:
        self.members = members
        self._prepare = prepare
        self.unrolled: set[str] = set()
        """Operations without a rule, which ran member by member."""

    def value(self, tensor: Tensor, form: Form) -> Value:
        """Returns a computed value of all members."""
        return Value(tensor, form, self.members)

    def of(self, value: Value) -> Value:
        """Returns a value that knows the number of members, also if it is shared."""
        return value.of(self.members)

    def prepared(self, value: Value, key: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns a weight in another shape. A stored one is kept in that shape, so the graph has no operation for it."""
        return make(value.tensor) if value.stored is None else self._prepare(value.stored.name, key, make)


class Step:
    """One operation and its arguments by name; those that are not given have their defaults."""

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        schema = target._schema.arguments
        self.target = target
        self.name = target.__name__.split(".")[0]
        self.names = [argument.name for argument in schema]
        given = dict(zip(self.names, args, strict=False)) | kwargs
        self.arguments = {a.name: given.get(a.name, a.default_value) for a in schema}
        self.keyword_only = {argument.name for argument in schema if argument.kwarg_only}

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def call(self, /, **changed: Any) -> Any:
        """Calls the operation, with some arguments replaced by tensors or numbers."""
        given = {**self.arguments, **changed}
        args = [plain(given[name]) for name in self.names if name not in self.keyword_only]
        return self.target(*args, **{name: plain(given[name]) for name in self.names if name in self.keyword_only})


def rule(*names: str) -> Callable[[Any], Any]:
    """Registers a rule for operations of these names."""

    def register(function: Any) -> Any:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register
