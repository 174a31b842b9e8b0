"""Numbers that are written in the code of constructors: they are arguments too.

Many networks have widths as constants in the `__init__` of their blocks, in helpers that are called while they are built, or
among the defaults of either. `functions_of` names these functions, `numbers_of` lists the whole numbers in their code, and
inside `rewritten` they run with other numbers. Each place of a number in the code counts alone, though Python stores equal
numbers once: 64 may be a width in one line and a divisor in the next.
"""

from __future__ import annotations

import dis
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

Path = tuple[Any, ...]
"""Where a number stands among arguments: names of arguments and fields, keys and indices, from outside to inside."""


class Place(NamedTuple):
    """Where a number stands in the code of a function."""

    function: str
    """The function's module and name."""
    value: int
    """The number."""
    steps: Path
    """The step of the code, and keys inside its constant."""
    parameter: str = ""
    """The parameter whose default the number is."""


LEAST = 4
"""Smaller numbers are sizes of kernels, strides and counts."""
LOADS = ("LOAD_CONST", "LOAD_SMALL_INT")
"""The steps of Python's code that bring up a constant."""
BYTE = 256

BUILDING = threading.RLock()
"""Held while functions or classes are changed: two threads would restore each other's changes."""


def functions_of(build: Callable[[], nn.Module]) -> dict[str, types.FunctionType]:
    """Returns the Python functions that run while a network is built, by name: those of the packages of its modules.

    Under a profiler, which needs the same hook of Python, these are the constructors of its modules alone.
    """
    ran: set[types.CodeType] = set()
    if watched := sys.getprofile() is None:
        sys.setprofile(lambda frame, event, _: ran.add(frame.f_code) if event == "call" else None)
    try:
        net = build()
    finally:
        if watched:
            sys.setprofile(None)
    kinds = {kind for part in net.modules() for kind in type(part).__mro__}
    packages = {kind.__module__.partition(".")[0] for kind in kinds} - {"torch", "builtins", "typing", "abc"}
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in packages]
    scopes: list[Any] = [*modules, *kinds]
    scopes += [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    functions = {f for scope in scopes for value in list(vars(scope).values()) for f in _unwrapped(value)}
    ran |= {init.__code__ for kind in kinds if isinstance(init := vars(kind).get("__init__"), types.FunctionType)}
    return {
        f"{f.__module__}.{f.__qualname__}": f
        for f in functions
        if f.__code__ in ran and f.__module__.partition(".")[0] in packages
    }


def _unwrapped(value: Any) -> Iterator[types.FunctionType]:
    value = getattr(value, "__func__", value)
    while isinstance(value, types.FunctionType):
        yield value
        value = getattr(value, "__wrapped__", None)


def numbers_of(functions: Mapping[str, types.FunctionType]) -> dict[Place, int]:
    """Returns the whole numbers in the code and defaults of functions: by function, value and place."""
    numbers = {}
    for name, function in sorted(functions.items()):
        code, defaults = function.__code__, function.__defaults__ or ()
        parameters = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        places = [Place(name, value, ("code", *steps)) for steps, value in _in_code(code, ())]
        places += [Place(name, value, ("defaults", *s), parameters[s[0]]) for s, value in _inside(defaults, ())]
        places += [Place(name, value, ("keywords", *s), str(s[0])) for s, value in _inside(function.__kwdefaults__, ())]
        numbers.update({place: place.value for place in places})
    return numbers


def _in_code(code: types.CodeType, place: Path) -> Iterator[tuple[Path, int]]:
    for step in dis.get_instructions(code):
        if step.opname in LOADS and (step.arg or 0) < BYTE:
            yield from _inside(step.argval, (*place, step.offset))


def _inside(value: Any, place: Path) -> Iterator[tuple[Path, int]]:
    if type(value) is int and value >= LEAST:
        yield place, value
    elif isinstance(value, types.CodeType):
        yield from _in_code(value, place)
    elif isinstance(value, (tuple, dict)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(part, (*place, key))


@contextmanager
def rewritten(functions: Mapping[str, types.FunctionType], changes: Mapping[Place, int]) -> Iterator[None]:
    """Lets functions run with other numbers in a with-block. `changes` are by path, as in `numbers_of`."""
    by_function: dict[str, dict[Path, int]] = {}
    for place, value in changes.items():
        by_function.setdefault(place.function, {})[place.steps] = value
    before = {name: _parts(functions[name]) for name in by_function}
    try:
        for name, new in by_function.items():
            code, defaults, keywords = before[name]
            inner = {part: _below(new, part) for part in ("code", "defaults", "keywords")}
            _set_parts(
                functions[name],
                (
                    _replaced(code, inner["code"]),
                    _replaced(defaults, inner["defaults"]),
                    _replaced(keywords, inner["keywords"]),
                ),
            )
        yield
    finally:
        for name, parts in before.items():
            _set_parts(functions[name], parts)


def _parts(function: types.FunctionType) -> tuple[Any, Any, Any]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _set_parts(function: types.FunctionType, parts: tuple[Any, Any, Any]) -> None:
    function.__code__, function.__defaults__, function.__kwdefaults__ = parts


def _below(changes: Mapping[Path, int], key: Any) -> dict[Path, int]:
    return {place[1:]: value for place, value in changes.items() if place[0] == key}


def _replaced(value: Any, changes: Mapping[Path, int]) -> Any:
    """Returns a constant with other numbers at some places inside it."""
    if not changes:
        return value
    if () in changes:
        return changes[()]
    if isinstance(value, types.CodeType):
        return _code_with(value, changes)
    if isinstance(value, dict):
        return {key: _replaced(part, _below(changes, key)) for key, part in value.items()}
    return tuple(_replaced(part, _below(changes, key)) for key, part in enumerate(value))


def _code_with(code: types.CodeType, changes: Mapping[Path, int]) -> types.CodeType:
    """Returns code in which some steps bring up constants of their own, at the end of the list of constants."""
    constants, steps = list(code.co_consts), bytearray(code.co_code)
    shared: dict[int, int] = {}
    for step in dis.get_instructions(code):
        inner = _below(changes, step.offset)
        if not inner:
            continue
        constant = _replaced(step.argval, inner)
        index = shared.get(constant, len(constants)) if type(constant) is int else len(constants)
        if index == len(constants):
            constants.append(constant)
        if type(constant) is int:
            shared[constant] = index
        steps[step.offset : step.offset + 2] = bytes([dis.opmap["LOAD_CONST"], index])
    return code.replace(co_consts=tuple(constants), co_code=bytes(steps))


def split(group: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Splits the numbers of a function by value, largest first; those of one value into single ones."""
    parts = by_value(group)
    return parts if len(parts) > 1 else [(place,) for place in group] if len(group) > 1 else []


def by_value(places: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Groups the numbers of a function by value, largest first."""
    alike: dict[int, list[Any]] = {}
    for place in sorted(places, key=lambda place: -place.value):
        alike.setdefault(place.value, []).append(place)
    return [tuple(part) for part in alike.values()]
