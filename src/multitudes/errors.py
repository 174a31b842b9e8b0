"""The errors. Each says what is wrong, where, and what to type instead.

MultitudesError
├── InputError        an argument, a setting or an example that cannot be used (also a ValueError)
├── ConversionError   layers that a method cannot convert, all named at once
├── CheckError        a law of mt.check that the ensemble breaks
├── RunError          a call that cannot run, or whose result would be wrong (also a RuntimeError)
└── FileError         a file that is missing, damaged, not written by multitudes, or of another architecture
"""

from __future__ import annotations

from collections.abc import Collection


class MultitudesError(Exception):
    """Base class of all errors that multitudes raises."""


class InputError(MultitudesError, ValueError):
    """An argument, a setting or an example that cannot be used."""


class ConversionError(MultitudesError):
    """A model with layers that the method cannot convert."""


class CheckError(MultitudesError):
    """A law of `mt.check` that the ensemble breaks."""


class RunError(MultitudesError, RuntimeError):
    """A call that cannot run, or whose result would be wrong."""


class FileError(MultitudesError):
    """A file that is missing, damaged, not written by multitudes, or of another architecture."""


def listed(names: Collection[str], most: int = 3) -> str:
    """Writes names for a text: the first ones, and how many there are beside them."""
    first = ", ".join(sorted(names)[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"


NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "not enough memory", "out of memory")
"""Texts of errors that tell of too little memory."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error tells of too little memory: it says nothing about a model or a file."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)
