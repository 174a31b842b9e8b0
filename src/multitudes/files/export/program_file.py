"""torch.export programs: the graph as a .pt2 file, or compiled for this machine by AOTInductor."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from multitudes.errors import RunError
from multitudes.files.export.trace import quiet

DESCRIPTION = "multitudes.json"
"""The name of the description inside the file."""


def to_bytes(program: ExportedProgram, about: dict[str, Any], aot: bool) -> tuple[bytes, Any]:
    """Returns the contents of the file, and the program as it is read back from them."""
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "a.pt2"
        if aot:
            module = _compiled(program, path, about)
        else:
            torch.export.save(program, str(path), extra_files={DESCRIPTION: json.dumps(about, allow_nan=False)})
            module = torch.export.load(str(path)).module()
        return path.read_bytes(), module


def _compiled(program: ExportedProgram, path: Path, about: dict[str, Any]) -> Any:
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    try:
        aoti_compile_and_package(
            program,
            package_path=str(path),
            inductor_configs={"aot_inductor.metadata": {"multitudes": json.dumps(about, allow_nan=False)}},
        )
    except Exception as error:  # a compiler that is missing, or an operation without a kernel
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"AOTInductor cannot compile the graph: {first}. It needs a C++ compiler: install one, or leave aot= out"
        ) from error
    return aoti_load_package(str(path))
