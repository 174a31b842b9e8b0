"""Refuses modules that no method can convert: scripted, quantised, lazy, sparse ones; each with a way out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import Buffer, UninitializedBuffer, UninitializedParameter

from multitudes.engine.modules import detached_copy, owning_module
from multitudes.errors import listed

PLAIN_TENSORS = (Tensor, nn.Parameter, Buffer)


def refusals(model: nn.Module) -> dict[str, str]:
    """Names the modules that no method can convert, and why."""
    reasons: dict[str, str] = {}
    for name, module in model.named_modules():
        reason = _of_module(module)
        if reason:
            reasons[name] = reason
    by_address: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if not _of_tensor(parameter) and parameter.numel() and not parameter.is_meta:
            other = by_address.setdefault(parameter.data_ptr(), name)
            if other != name:
                reasons.setdefault(
                    owning_module(name), f"{name} and {other} are two parameters in the same memory: use one parameter for both"
                )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        reason = _of_tensor(tensor)
        if reason:
            reasons.setdefault(owning_module(name), reason)
    if not reasons and (changed := _changed_by_train(model)):
        kind = type(model.get_submodule(owning_module(changed[0]))).__name__
        reasons[""] = (  # not by layer: nor can members share them
            f"switching modes changes {listed(changed)}: {kind}.train() must leave weights as they are (merge_weights=False, "
            "where the layer has it), since a trial would change members twice; merge those of ens.member(m)"
        )
    return reasons


def _changed_by_train(model: nn.Module) -> list[str]:
    """Names the parameters that switching between training and eval mode changes, as layers do that merge weights."""
    own = any(type(part).train is not nn.Module.train for part in model.modules())
    if not own or any(parameter.is_meta for parameter in model.parameters()):
        return []
    probe, changed = detached_copy(model, {}), set[str]()
    for mode in (not model.training, model.training):
        before = {name: parameter.detach().clone() for name, parameter in probe.named_parameters()}
        probe.train(mode)
        changed |= {n for n, p in probe.named_parameters() if n not in before or not torch.equal(p, before[n])}
    return sorted(changed)


def _of_module(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted module cannot be copied; give the Python module that was scripted"
    if ".quantized" in type(module).__module__:
        return "its weights are packed for quantised arithmetic; convert first, quantise the members afterwards"
    return None


def _of_tensor(tensor: Tensor) -> str | None:
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        return "a lazy layer has no weights yet; run the model once on the example first"
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        return "the gradient hook on its tensor would be lost; register it on the ensemble's tensor after conversion"
    if tensor.is_quantized:
        return f"a tensor of dtype {tensor.dtype} cannot be stacked; convert first, quantise the members afterwards"
    if type(tensor) not in PLAIN_TENSORS and type(tensor.data) is not Tensor:
        return f"a {type(tensor).__name__} is not an ordinary tensor and cannot be stacked; convert the plain model first"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout} cannot be stacked; make it dense"
    return None


def untie(name: str) -> str:
    """Returns what to type to give a layer its own tensor in place of the tied one of this name."""
    return f"give the layer its own tensor, model.{name} = nn.Parameter(model.{name}.detach().clone())"
