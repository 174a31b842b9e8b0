"""Packed-Ensembles: M thin networks side by side, at about the cost of one.

Laurent, Lafage, Tartaglione, Daniel, Martinez, Bursuc, Franchi, "Packed-Ensembles for Efficient Uncertainty Estimation",
ICLR 2023, https://arxiv.org/abs/2210.09184

A Packed-Ensemble (α, M, γ) is a network α times as wide whose layers have M γ groups, so that M networks of α/M of the
width run side by side, each with γ groups inside. That is what is made here: the model resized to α/M of its width, its
layers in γ groups, and M of them stacked. A layer of C inputs, D outputs and kernels of size s has M (αC/M) (αD/M) s² / γ
weights (§4.2): with α = √M and γ = 1 as many as the single network's.

γ follows appendix B of the supplement: at least 64 channels in each group, or γ shrinks; none in the first layer, nor in the
first layers of a residual block; shortcuts take it. What ``at=`` says of a layer stands instead of these rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.structure import Structure, block_starts, observe
from multitudes.conversion.resize.pruning import ADVICE, Chooser, pruned
from multitudes.conversion.resize.resize import Resizing, reported, resized
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import Factory, detached_copy, inside, owned_modules
from multitudes.engine.seeds import member_seed
from multitudes.errors import ConversionError, InputError
from multitudes.method import Layout, Method
from multitudes.settings import Count, at_least, check_rules

CHANNELS_PER_GROUP = 64
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class Packed(Method):
    """M networks of α/M of the width: ``[M, B, ...]``."""

    alpha: Annotated[float, at_least(1)] = 2.0
    """How many times as wide all members together are, α, from 1 to M."""

    gamma: Count = 1
    """Groups within each member, γ."""

    pretrained: bool = False
    """Whether each member keeps its own share of the given model's channels, instead of starting anew."""

    of: Count | None = None
    """Of a subset: how many members there were, whose widths together are α."""

    origin: ClassVar[str] = "channels of the given model"
    layer_settings: ClassVar[tuple[str, ...]] = ("gamma",)

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.of or self.members
        check_rules(
            self,
            (most < self.members, "members of", "of must be at least members, which are a subset of it"),
            (self.alpha > most, "members alpha", f"alpha must be a number from 1 to {most}"),
        )

    @property
    def ratio(self) -> float:
        """The width of one member, α/M."""
        return self.alpha / (self.of or self.members)

    def prepare(
        self, model: nn.Module, factory: Factory | None, inputs: Inputs, seed: int, at: Mapping[str, Packed]
    ) -> nn.Module:
        """One member: the model resized to α/M, in γ groups."""
        if self.pretrained:
            if factory is not None:
                raise InputError("Packed(pretrained=True) takes channels of a trained model: give the model, not a factory")
            return self.start(model, model, inputs, seed, 0, at)
        thin = model if self.ratio == 1 else resized(model, factory, self.ratio, inputs, seed)
        return self._grouped(thin, inputs, at)

    @property
    def keeps_weights(self) -> bool:
        """By `pretrained`."""
        return self.pretrained

    def start(
        self,
        model: nn.Module,
        network: nn.Module,
        inputs: Inputs,
        seed: int,
        m: int,
        at: Mapping[str, Packed],
    ) -> nn.Module:
        """A share of the given model's channels, chosen by the member's own seed."""
        choose = important_and_random(member_seed(seed, m))
        try:
            thin = pruned(model, self.ratio, inputs, choose) if self.ratio < 1 else detached_copy(model, {})
        except ConversionError as error:
            what = str(error).replace(ADVICE, "Packed(pretrained=False) starts anew, and takes a factory too")
            raise ConversionError(what) from error
        return self._grouped(reported(model, thin, self.ratio, "channels, whose weights are kept", inputs), inputs, at)

    def layout(self, structure: Structure) -> Layout:
        """Everything carries members."""
        return Layout(owned_modules(structure.model, lambda _: True), note=str(getattr(structure.model, "resizing", "")))

    def neutral(self) -> Packed:
        """One member of the full width."""
        return replace(self, members=1, alpha=1.0, gamma=1, pretrained=False, of=None)

    def subset(self, count: int) -> Packed:
        """Members keep their width."""
        return replace(self, members=count, of=self.of or self.members)

    def _grouped(self, thin: nn.Module, inputs: Inputs, at: Mapping[str, Packed]) -> nn.Module:
        groups = groups_of(thin, self.gamma, inputs, {name: method.gamma for name, method in at.items()})
        if not groups:
            return thin
        resizing = getattr(thin, "resizing", None) or Resizing(1.0, "nothing")
        new = regrouped(thin, groups)
        new.resizing = replace(resizing, grouped=groups)  # type: ignore[assignment]
        return new


def important_and_random(seed: int) -> Chooser:
    """Half of the channels that stay are the most important ones, the others are drawn from the rest."""
    generator = torch.Generator().manual_seed(seed)

    def choose(importance: Tensor, keep: int) -> list[int]:
        ranked = importance.cpu().argsort(descending=True).tolist()
        best, rest = ranked[: keep // 2], ranked[keep // 2 :]
        drawn = torch.randperm(len(rest), generator=generator)[: keep - len(best)].tolist()
        return sorted([*best, *(rest[i] for i in drawn)])

    return choose


def groups_of(model: nn.Module, gamma: int, inputs: Inputs, at: Mapping[str, int]) -> dict[str, int]:
    """The layers that are divided, and into how many groups: by the rules, or as `at` says of a layer or what it lies in."""
    if gamma == 1 and not at:
        return {}
    structure = observe(model, inputs)
    skipped = {*structure.layers()[:1], *(block_starts(structure) if gamma > 1 else ())}
    found, unheard = {}, set(at.values())
    for name in structure.layers():
        layer = model.get_submodule(name)
        if type(layer) not in (*CONVOLUTIONS, nn.Linear):
            continue
        own, sides = _sides(layer)
        said = [times for module, times in at.items() if inside(name, [module])]
        unheard -= set(said)
        if said:
            groups = own * said[-1]
            if any(side % groups for side in sides):
                raise InputError(f"at= says gamma={said[-1]} for {name}: {groups} groups do not divide its {sides} channels")
        else:
            allowed = [own * t for t in range(1, gamma + 1) if not any(s % (own * t) for s in sides)]
            wide = [g for g in allowed if min(sides) // g >= CHANNELS_PER_GROUP]
            groups = max(wide, default=own) if name not in skipped else own
        if groups > own:
            found[name] = groups
    if unheard:
        names = [name for name, times in at.items() if times in unheard]
        raise InputError(
            f"at= has gamma for {', '.join(names)}, where no Linear or Conv1d to Conv3d layer is run: only these take it"
        )
    return found


def _sides(layer: Any) -> tuple[int, tuple[int, int]]:
    """The groups that a layer has, and its numbers of inputs and outputs."""
    if isinstance(layer, nn.Linear):
        return 1, (layer.in_features, layer.out_features)
    return layer.groups, (layer.in_channels, layer.out_channels)


class GroupedLinear(nn.Linear):
    """A linear layer in groups: the first inputs make the first outputs, and so on."""

    def __init__(self, inputs: int, outputs: int, groups: int, bias: bool = True) -> None:
        super().__init__(inputs // groups, outputs, bias)
        self.in_features, self.groups = inputs, groups

    def extra_repr(self) -> str:
        """As a linear layer's, with its groups."""
        return f"{super().extra_repr()}, groups={self.groups}"

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[..., C]`` → ``[..., D]``"""
        parts = x.unflatten(-1, (self.groups, -1))  # [..., G, C/G]
        weight = self.weight.unflatten(0, (self.groups, -1))  # [G, D/G, C/G]
        y = torch.einsum("...gc,gdc->...gd", parts, weight).flatten(-2)
        return y if self.bias is None else y + self.bias


def regrouped(model: nn.Module, groups: Mapping[str, int]) -> nn.Module:
    """A copy whose named layers are in so many groups; of their weights the blocks on the diagonal stay."""
    new = detached_copy(model, {})
    for name, count in groups.items():
        layer: Any = new.get_submodule(name)
        own, (inputs, outputs) = _sides(layer)
        bias, weight = layer.bias is not None, layer.weight
        made: Any
        with weight.device:
            if isinstance(layer, nn.Linear):
                made = GroupedLinear(inputs, outputs, count, bias)
            else:
                kernel = layer.kernel_size, layer.stride, layer.padding, layer.dilation
                made = type(layer)(inputs, outputs, *kernel, count, bias, layer.padding_mode)
        made.to(weight.dtype)
        size, times = inputs // count, count // own
        for group in range(count):  # group g of the new ones reads part g % times of what its old group read
            rows = slice(group * outputs // count, (group + 1) * outputs // count)
            columns = slice(group % times * size, (group % times + 1) * size)
            made.weight.data[rows] = weight.data[rows, columns]
        made.weight.requires_grad_(weight.requires_grad)
        vars(made).update((key, value) for key, value in vars(layer).items() if key.endswith("_hooks"))
        made.bias = layer.bias
        made.train(layer.training)
        for parent in list(new.modules()):  # under each of its names
            for key, part in list(parent._modules.items()):
                if part is layer:
                    parent._modules[key] = made
    return new
