"""Listening: the base class of modes that watch torch's operations."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Listening(TorchDispatchMode):
    """A mode that sees every operation in a with-block, and does not load torch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler
