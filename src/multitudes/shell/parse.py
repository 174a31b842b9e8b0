"""Parses arguments of the shell: `packed(alpha=2, gamma=2)`, `mypackage.nets:make`, `2,3,32,32`, `8x16:int64`."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from multitudes.engine.inputs import Inputs
from multitudes.errors import InputError, MultitudesError
from multitudes.method import Method
from multitudes.shell.typed import keywords, unknown_name


def methods_by_name() -> dict[str, type[Method]]:
    """Returns every method class under its name in the shell, which is in lower case."""
    return {kind.__name__.lower(): kind for kind in Method.all()}


def method(text: str, **settings: Any) -> Method:
    """Makes a method from its text. `settings` are defaults, which the text may override.

    >>> method("packed(alpha=2, gamma=2)")
    Packed(members=4, reduction='sum', alpha=2, gamma=2, pretrained=False, of=None)
    """
    name, bracket, _ = text.strip().partition("(")
    known = methods_by_name()
    kind = known.get(name.strip().lower())
    if kind is None:
        raise unknown_name("method", name.strip(), known)
    return kind(**{**settings, **(keywords(text.strip()) if bracket else {})})


def shape(text: str) -> list[int]:
    """Reads the shape of an input, batch first.

    >>> shape("2,3,32,32")
    [2, 3, 32, 32]
    """
    try:
        sizes = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError as error:
        raise InputError(f"--example {text!r} is not a shape: type whole numbers, batch first, as in 2,3,32,32") from error
    if min(sizes) < 1:
        raise InputError(f"--example {text!r}: sizes must be at least 1, as in 2,3,32,32")
    return sizes


def example(texts: Sequence[str]) -> Inputs:
    """Makes inputs from [NAME=]SHAPE[:TYPE[:COUNT]]: random numbers, or ids from 0 to COUNT − 1.

    >>> example(["8x16:int64:30000", "mask=8x16:bool"])
    Inputs([8, 16] torch.int64, mask=[8, 16] torch.bool)
    """
    random = torch.Generator().manual_seed(0)
    by_place, by_name = [], {}
    for text in texts:
        name, equals, rest = text.rpartition("=")
        value = _tensor(rest, random)
        if equals and not name.isidentifier():
            raise InputError(f"--example {text!r}: {name!r} is no name of an argument: type NAME=SHAPE, as in mask=8x16:bool")
        if equals:
            by_name[name] = value
        else:
            by_place.append(value)
    return Inputs(*by_place, **by_name)


def _tensor(text: str, random: torch.Generator) -> torch.Tensor:
    """Makes one input from SHAPE[:TYPE[:COUNT]]."""
    sizes, *kind = text.split(":")
    name, count = (*kind, "float32", "2")[:2] if not kind else (*kind, "2")[:2]
    dtype = getattr(torch, name, None)
    if len(kind) > 2 or not isinstance(dtype, torch.dtype) or dtype.is_complex:
        raise InputError(f"--example {text!r}: type SHAPE:TYPE, as in 8x16:int64, with a type such as float32, int64 or bool")
    if dtype.is_floating_point:
        if len(kind) > 1:
            raise InputError(f"--example {text!r}: only ids have a count, as in 8x16:int64:30000")
        return torch.randn(shape(sizes), generator=random).to(dtype)
    if not count.isdigit() or not int(count):
        raise InputError(f"--example {text!r}: {count!r} must be the number of different ids, as in 8x16:int64:30000")
    return torch.randint(2 if dtype == torch.bool else int(count), shape(sizes), generator=random).to(dtype)


def import_by_name(text: str) -> Any:
    """Imports the object NAME from MODULE, given as MODULE:NAME. Modules in the current folder are found too."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise InputError(f"{text!r} is not of the form MODULE:NAME, as in mypackage.nets:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with own_code(text):
            value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"there is no module {module!r}: run the command in its folder, or install it ({error})") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise unknown_name(f"name in {module}", part, _own_names(value))
        value = getattr(value, part)
    return value


@contextlib.contextmanager
def own_code(text: str) -> Iterator[None]:
    """Runs the user's code in a with-block: what it raises is told with its place. `text` is MODULE:NAME."""
    try:
        yield
    except MultitudesError:
        raise
    except Exception as error:  # the user's code may raise anything
        module = text.partition(":")[0].split(".")[0]
        if isinstance(error, ModuleNotFoundError) and (error.name is None or error.name.split(".")[0] == module):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        ours = str(Path(__file__).parents[1])
        places = [(f.filename, f.lineno) for f in frames if not f.filename.startswith((ours, "<frozen"))]
        if isinstance(error, SyntaxError):
            places.append((str(error.filename), error.lineno))
        where = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
        raise InputError(f"{text} fails: {type(error).__name__}: {error}{where}") from error


def _own_names(owner: Any) -> list[str]:
    """Returns the public names that a module or class defines, without those that it imports."""
    home = getattr(owner, "__module__", None) or owner.__name__
    public = {key: value for key, value in vars(owner).items() if not key.startswith("_") and not isinstance(value, ModuleType)}
    return [key for key, value in public.items() if getattr(value, "__module__", home) == home]
