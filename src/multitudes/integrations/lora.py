"""LoRA ensembles: one base model for all members, and low-rank adapters of each member's own.

Wang, Aitchison, Rudolph, "LoRA ensembles for large language model fine-tuning", 2023, https://arxiv.org/abs/2310.00035

A layer of member m computes with W + s B_m A_m, where peft adds A and B to the frozen W. Members own what peft lets train:
A, B and the modules to save, such as a new head. A starts at random and B at zero, so members differ in their heads at first.

peft is not imported here: its layers are known by their `reset_lora_parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine.modules import detached_copy
from multitudes.engine.seeds import member_seed, seeded
from multitudes.errors import InputError
from multitudes.method import Given, Layout, Method
from multitudes.settings import explained


@explained
@dataclass(frozen=True, kw_only=True)
class LoRA(Method):
    """A frozen base model, and adapters and heads of each member's own: ``[M, B, ...]``."""

    keeps_weights: ClassVar[bool] = True
    origin: ClassVar[str] = "adapters anew by peft's rule, other trainable tensors by their reset_parameters"

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own trainable tensors, those of peft's adapters and saved modules."""
        model = structure.model
        adapters = adapters_of(model)
        if not adapters:
            raise InputError(
                "LoRA finds no adapters of peft in this model: make them with peft.get_peft_model(model, LoraConfig(...))"
            )
        names = frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        if not names:
            raise InputError(
                "all adapters are frozen, so members could not differ: let peft make them with inference_mode=False"
            )
        return Layout(tensors=names, note=f"adapters: {len(adapters)} layers; members own what peft lets train")

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Returns a copy of the network with adapters and heads that start anew."""
        new = detached_copy(network, {})
        with torch.no_grad(), seeded(member_seed(given.seed, m)):
            inner = set()
            for part in adapters_of(new).values():
                inner |= {id(module) for module in part.modules()}
                for name in part.active_adapters:
                    part.reset_lora_parameters(name, init_of(new, name))
            for part in new.modules():
                own = list(part.parameters(recurse=False))
                reset = getattr(part, "reset_parameters", None)
                if id(part) not in inner and callable(reset) and own and all(p.requires_grad for p in own):
                    reset()
        return new


def adapters_of(model: nn.Module) -> dict[str, Any]:
    """Returns the layers of a model that have adapters of peft, by name."""
    return {name: part for name, part in model.named_modules() if hasattr(part, "reset_lora_parameters")}


def init_of(model: nn.Module, adapter: str) -> Any:
    """Returns how peft starts an adapter (`LoraConfig.init_lora_weights`), if that can be done anew for each member."""
    found = getattr(getattr(model, "peft_config", {}).get(adapter), "init_lora_weights", True)
    if found not in (True, False, "gaussian"):
        raise InputError(
            f"init_lora_weights={found!r} changes the base model, which members share: take LoraConfig(init_lora_weights=True)"
        )
    return found
