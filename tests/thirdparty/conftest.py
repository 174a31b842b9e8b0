"""timm without torchvision's operators: PyPI's torchvision cannot load them beside a torch for the CPU, and timm needs none.

What torchvision registers shapes for when it is imported has to be known by name at least, and before that import.
"""

from __future__ import annotations

from multitudes.shell.census.timm_networks import declare_operators

declare_operators()
