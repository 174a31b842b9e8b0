"""Imports what networks of the asked libraries need, in the process from which pairs are forked; elsewhere it does nothing."""

from __future__ import annotations

import os
from importlib import import_module

from multitudes.shell.census.networks import installed

LIBRARIES_ASKED = "MULTITUDES_CENSUS"
"""The environment variable with the names of the libraries; the process that forks reads nothing else from its parent."""

HEAVY = {"timm": (), "transformers": ("transformers.modeling_utils",), "geometric": ("torch_geometric.nn",)}
"""Modules that a library's networks import when they are built; listing timm's networks imports timm."""

for library in os.environ.get(LIBRARIES_ASKED, "").split():
    if library in HEAVY and installed(library):
        import_module(f"multitudes.shell.census.{library}_networks").networks()
        for name in HEAVY[library]:
            import_module(name)
