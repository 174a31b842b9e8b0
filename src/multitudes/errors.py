"""The errors, each saying what is wrong, where, and what to type next.

MultitudesError
├── InputError        an argument, a setting or an example that cannot be used (also a ValueError)
├── ConversionError   layers that a method has to refuse, all named at once
├── CheckError        a law that does not hold for this ensemble
├── RunError          a call that this ensemble cannot answer rightly (also a RuntimeError)
└── FileError         a file that is damaged, foreign, or of another architecture
"""

from __future__ import annotations


class MultitudesError(Exception):
    """Every error that multitudes raises on purpose."""


class InputError(MultitudesError, ValueError):
    """An argument, a setting or an example that cannot be used."""


class ConversionError(MultitudesError):
    """A model that the method has to refuse."""


class CheckError(MultitudesError):
    """A law that does not hold for this ensemble."""


class RunError(MultitudesError, RuntimeError):
    """A call that this ensemble cannot answer rightly."""


class FileError(MultitudesError):
    """A file that is damaged, foreign, or of another architecture."""
