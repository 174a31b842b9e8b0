"""Chooses the executor of a call: the picked one, unless it would give a wrong result for this call."""

from __future__ import annotations

import torch
from torch import nn

from multitudes.engine.fold import batch_coupled
from multitudes.engine.modules import under_autocast
from multitudes.engine.state import Engine
from multitudes.errors import RunError, listed

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Dropout modules. Comparisons of executors may switch them off, because their noise only multiplies the input."""

CAN_ASK_FOR_EXPORT = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
"""Before torch 2.13, torch.compiler.is_exporting() was true for every graph of dynamo."""


def choose(engine: Engine, per_member: bool = False) -> str:
    """Returns the name of the executor for a call in the template's current mode."""
    training = engine.template.training
    compiling = torch.compiler.is_dynamo_compiling()
    if engine.members > 1 and engine.shared_norms and (coupled := batch_coupled(engine, per_member)):
        right = engine.traits.fold_per_member if per_member else "fold" in engine.proven["train"]
        prefers_vmap = engine.picked["train"] == "vmap" or compiling or not right
        if prefers_vmap and vmap_is_right(engine, per_member):
            return "vmap"
        if not right:
            raise RunError(
                f"BatchNorm {listed(coupled)} is shared by members, so in training it must see all their rows at once. "
                f"That needs fold, which cannot run this model: {engine.why.get('fold', 'not tried')}. "
                "Let each member own this BatchNorm (leave it out of keep=), or put it into eval mode"
            )
        return "fold"
    picked = engine.picked["train" if training else "eval"]
    if picked == "fold" and (per_member or engine.chunk or torch.compiler.is_compiling() or engine.is_hooked()):
        picked = "vmap"  # fold was tuned for plain calls
    if picked == "vmap" and not vmap_is_right(engine, per_member):
        return "loop"
    longer = engine.members > 1 and ((engine.shares and training) or engine.device_type != "cpu")
    if compiling and longer and vmap_is_right(engine, per_member):
        return "vmap"  # a traced loop is M times as long, and runs the shared trunk, and counts its batches, once per member;
        # on a CPU the loop is as fast, and some operations under vmap make a graph for each batch size
    return picked


def vmap_is_right(engine: Engine, per_member: bool) -> bool:
    """Checks whether vmap is proven and gives the right result for this call.

    Even a proven vmap is wrong in an export (the batch size gets fixed), with hooks, for recurrent layers under autocast (which
    check the precision of what they are given), and in chunks if a shared BatchNorm would count each chunk as a batch.
    """
    training = engine.template.training
    unsupported = not torch.compiler.is_compiling() and engine.is_hooked()
    if engine.recurrent and under_autocast(engine.device_type):
        return False
    chunked = engine.chunk is not None and engine.chunk < engine.members
    in_chunks = chunked and engine.shares and training and not engine.traits.coupled
    proven = "vmap" in engine.proven["train" if training else "eval"] and (engine.traits.vmap_per_member or not per_member)
    return proven and not is_exporting() and not in_chunks and not unsupported


def draws_in_trunk(engine: Engine) -> bool:
    """Checks whether a shared trunk draws noise or writes a buffer: a compiled loop would do so once per member, not once."""
    if not engine.template.training or engine.members == 1 or not engine.shares:
        return False
    live = any(isinstance(part, DROPOUTS) and part.p > 0 for part in engine.template.modules())
    return live or engine.traits.random or bool(engine.traits.written_buffers)


def is_exporting() -> bool:
    """Checks whether a graph is being traced for export."""
    if CAN_ASK_FOR_EXPORT:
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
