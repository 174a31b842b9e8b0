"""Shortcuts: how a frozen ensemble runs plain calls faster than an executor does."""

from __future__ import annotations

from typing import Any

from multitudes.engine.inputs import Inputs
from multitudes.engine.recorded import Recorded
from multitudes.engine.state import Engine
from multitudes.files.export.prepared import Prepared


class Shortcuts:
    """CUDA graphs on a GPU, and a graph of all members on a CPU. Calls that neither can run go the usual way."""

    def __init__(self) -> None:
        self.recorded, self.prepared = Recorded(), Prepared()

    def run(self, engine: Engine, call: Inputs) -> Any:
        """Runs all members on a call."""
        return (self.prepared if engine.device_type == "cpu" else self.recorded).run(engine, call)
