"""Which executor a call takes: the one that was picked, where it is right for this call too."""

from __future__ import annotations

import torch
from torch import nn

from multitudes.engine.fold import batch_coupled
from multitudes.engine.modules import hooked, named_tensors
from multitudes.engine.state import Engine
from multitudes.errors import RunError

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Dropout whose noise is known to follow its input, so that a comparison may go without it."""

EXPORT_IS_TOLD = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
"""Before, dynamo said of every graph that it was for export."""


def choose(engine: Engine, per_member: bool = False) -> str:
    """The executor that a call would now take."""
    training = engine.template.training
    compiling = torch.compiler.is_dynamo_compiling()
    if engine.members > 1 and engine.shared_norms and (coupled := batch_coupled(engine, per_member)):
        right = engine.traits.fold_per_member if per_member else "fold" in engine.proven["train"]
        wanted = engine.picked["train"] == "vmap" or compiling or not right
        if wanted and vmap_is_right(engine, per_member):
            return "vmap"
        if not right:
            raise RunError(
                f"BatchNorm {', '.join(coupled)} is shared by members and would need the rows of all of them at once, "
                f"but fold cannot run this model: {engine.why.get('fold', 'not tried')}. "
                "Let it belong to the members, or put it into eval mode"
            )
        return "fold"
    picked = engine.picked["train" if training else "eval"]
    if picked == "vmap" and not vmap_is_right(engine, per_member):
        return "loop"
    if compiling and engine.members > 1 and engine.shares and training and vmap_is_right(engine, per_member):
        return "vmap"  # traced, the loop would run the shared trunk, and count its batches, once for each member
    return picked


def vmap_is_right(engine: Engine, per_member: bool) -> bool:
    """vmap keeps some operations in float32 under autocast, fixes the batch size in an export, and counts by chunks."""
    training = engine.template.training
    laid_out = engine.channels_last or (not torch.compiler.is_compiling() and bool(hooked(engine.template)))
    chunked = engine.chunk is not None and engine.chunk < engine.members
    in_chunks = chunked and engine.shares and training and not engine.traits.coupled
    proven = "vmap" in engine.proven["train" if training else "eval"] and (engine.traits.vmap_per_member or not per_member)
    device = next((tensor.device.type for _, tensor in named_tensors(engine.template)), "cpu")
    return proven and not is_exporting() and not in_chunks and not laid_out and not torch.is_autocast_enabled(device)


def draws_in_trunk(engine: Engine) -> bool:
    """Whether a shared trunk may have noise to draw or a buffer to set, which a traced loop would do for each member."""
    if not engine.template.training or engine.members == 1 or not engine.shares:
        return False
    live = any(isinstance(part, DROPOUTS) and part.p > 0 for part in engine.template.modules())
    return live or engine.traits.random or bool(engine.traits.written_buffers)


def is_exporting() -> bool:
    """Whether a graph is being traced for export."""
    if EXPORT_IS_TOLD:
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
