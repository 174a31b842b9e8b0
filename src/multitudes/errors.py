"""The errors. Each says what is wrong, where, and what to type instead.

MultitudesError
├── InputError        an argument, a setting or an example that cannot be used (also a ValueError)
├── ConversionError   layers that a method cannot convert, all named at once
├── CheckError        a law that the ensemble breaks
├── RunError          a call whose result would be wrong (also a RuntimeError)
└── FileError         a file that is damaged, not ours, or of another architecture
"""

from __future__ import annotations


class MultitudesError(Exception):
    """Every error that multitudes raises on purpose."""


class InputError(MultitudesError, ValueError):
    """An argument, a setting or an example that cannot be used."""


class ConversionError(MultitudesError):
    """A model with layers that the method cannot convert."""


class CheckError(MultitudesError):
    """A law that the ensemble breaks."""


class RunError(MultitudesError, RuntimeError):
    """A call whose result would be wrong."""


class FileError(MultitudesError):
    """A file that is damaged, not ours, or of another architecture."""
