"""timm without torchvision's operators: PyPI's torchvision cannot load them beside a torch for the CPU, and timm needs none.

What torchvision registers shapes for when it is imported has to be known by name at least, and before that import.
"""

from __future__ import annotations

import torch

OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
"""Kept here, since torch forgets what it declares as soon as nobody holds it."""

for operator in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, operator):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
