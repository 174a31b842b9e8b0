"""Packed-Ensembles: M thin networks side by side, at about the cost of one network.

Laurent, Lafage, Tartaglione, Daniel, Martinez, Bursuc, Franchi, "Packed-Ensembles for Efficient Uncertainty Estimation",
ICLR 2023, https://arxiv.org/abs/2210.09184

A Packed-Ensemble (α, M, γ) is a network α times as wide whose layers have M γ groups, so that M networks of α/M of the
width run side by side, each with γ groups inside. Here the model is resized to α/M of its width, its
layers are divided into γ groups, and M of them are stacked. A layer of C inputs, D outputs and kernels of size s has
M (αC/M) (αD/M) s² / γ weights (§4.2); with α = √M and γ = 1 that is the single network's number.

γ follows appendix B of the supplement: a group has at least 64 channels, or γ shrinks; the first layer and the first layers
of residual blocks have no groups; shortcuts do. ``at=`` overrides these rules for single layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.known_layers import CONVOLUTIONS
from multitudes.conversion.anatomy.structure import Structure, block_starts
from multitudes.conversion.resize.pruning import ADVICE, SECONDS, Chooser, pruned
from multitudes.conversion.resize.resize import Resizing, built_again, reported, resized
from multitudes.engine.modules import detached_copy, inside, owned_modules
from multitudes.engine.seeds import member_seed
from multitudes.errors import ConversionError, InputError
from multitudes.method import Given, Layout, Method
from multitudes.settings import Count, above, at_least, check_rules, explained

CHANNELS_PER_GROUP = 64


@explained
@dataclass(frozen=True, kw_only=True)
class Packed(Method):
    """M networks of α/M of the width: ``[M, B, ...]``."""

    alpha: Annotated[float, at_least(1)] = 2.0
    """α, from 1 to M: the width of all members together, as a multiple of the given network's."""

    gamma: Count = 1
    """Groups within each member, γ."""

    pretrained: bool = False
    """Whether each member keeps a subset of the given model's trained channels, instead of fresh weights."""

    search_seconds: Annotated[float, above(0)] = field(default=SECONDS, repr=False)
    """How long to search for channels to remove, if the network cannot be built again by its constructor."""

    of: Count | None = None
    """Set by `subset`: the number of members that α was divided by."""

    origin: ClassVar[str] = "channels of the given model"
    layer_settings: ClassVar[tuple[str, ...]] = ("gamma",)

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.of or self.members
        check_rules(
            self,
            (most < self.members, "members of", "of must be at least members: it is the number of members before subset()"),
            (
                self.alpha > most,
                "members alpha",
                f"alpha must be a number from 1 to {most}" if most > 1 else "one member is the single network: use Single()",
            ),
        )

    @property
    def ratio(self) -> float:
        """The width of one member, α/M."""
        return self.alpha / (self.of or self.members)

    def prepare(self, given: Given) -> nn.Module:
        """Makes one member: the model at α/M of its width, in γ groups."""
        if self.pretrained:
            if given.factory is not None:
                raise InputError("Packed(pretrained=True) needs a trained model: give it instead of the factory")
            return self.start(given, given.model, 0)
        if given.resizing is not None:
            thin = built_again(given.model, given.factory, given.resizing, given.seed)
            return _in_groups(thin, given.resizing.grouped)
        same = self.ratio == 1
        thin = given.model if same else resized(given.structure, given.factory, self.ratio, given.seed, self.search_seconds)
        return self._grouped(thin, given)

    @property
    def keeps_weights(self) -> bool:
        """Whether `pretrained` is set."""
        return self.pretrained

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Makes member m from a subset of the given model's channels, chosen by the member's seed."""
        choose = important_and_random(member_seed(given.seed, m))
        try:
            thin = (
                pruned(given.structure, self.ratio, choose, self.search_seconds)
                if self.ratio < 1
                else detached_copy(given.model, {})
            )
        except ConversionError as error:
            what = str(error).replace(
                ADVICE, "Use Packed(pretrained=False), which starts with fresh weights and also takes a factory"
            )
            raise ConversionError(what) from error
        return self._grouped(reported(given.structure, thin, self.ratio, "channels, whose weights are kept"), given)

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own copy of every tensor."""
        return Layout(owned_modules(structure.model, lambda _: True), note=str(getattr(structure.model, "resizing", "")))

    def neutral(self) -> Packed:
        """Returns settings for one member of the full width."""
        return replace(self, members=1, alpha=1.0, gamma=1, pretrained=False, of=None)

    def subset(self, count: int) -> Packed:
        """Returns settings for fewer members of the same width."""
        return replace(self, members=count, of=self.of or self.members)

    def _grouped(self, thin: nn.Module, given: Given) -> nn.Module:
        at = {name: method.gamma for name, method in given.at.items()}
        if self.gamma == 1 and not at:
            return thin
        groups = groups_of(given.with_model(thin, given.seed).structure, self.gamma, at)
        return _in_groups(thin, groups)


def _in_groups(thin: nn.Module, groups: dict[str, int]) -> nn.Module:
    """Divides layers into groups, and notes that in the network's `resizing`."""
    if not groups:
        return thin
    resizing = getattr(thin, "resizing", None) or Resizing(1.0, "nothing")
    new = regrouped(thin, groups)
    new.resizing = replace(resizing, grouped=groups)  # type: ignore[assignment]
    return new


def important_and_random(seed: int) -> Chooser:
    """Chooses channels: half are the most important ones, the others are drawn at random from the rest."""
    generator = torch.Generator().manual_seed(seed)

    def choose(importance: Tensor, keep: int) -> list[int]:
        ranked = importance.cpu().argsort(descending=True).tolist()
        best, rest = ranked[: keep // 2], ranked[keep // 2 :]
        drawn = torch.randperm(len(rest), generator=generator)[: keep - len(best)].tolist()
        return sorted([*best, *(rest[i] for i in drawn)])

    return choose


def groups_of(structure: Structure, gamma: int, at: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of groups of each layer to divide: from `at` if it names the layer, else from γ."""
    skipped = {*structure.layers()[:1], *(block_starts(structure) if gamma > 1 else ())}
    found, unheard = {}, set(at.values())
    for name in structure.layers():
        layer = structure.model.get_submodule(name)
        if type(layer) not in (*CONVOLUTIONS, nn.Linear):
            continue
        own, sides = _sides(layer)
        said = [times for module, times in at.items() if inside(name, [module])]
        unheard -= set(said)
        if said:
            groups = own * said[-1]
            if any(side % groups for side in sides):
                raise InputError(
                    f"at= gives {name} gamma={said[-1]}, but {groups} groups do not divide its channels {sides}: use another"
                )
        else:
            allowed = [own * t for t in range(1, gamma + 1) if not any(s % (own * t) for s in sides)]
            wide = [g for g in allowed if min(sides) // g >= CHANNELS_PER_GROUP]
            groups = max(wide, default=own) if name not in skipped else own
        if groups > own:
            found[name] = groups
    if unheard:
        names = [name for name, times in at.items() if times in unheard]
        raise InputError(
            f"at= gives gamma to modules without a Linear, Conv1d, Conv2d or Conv3d layer: {', '.join(names)}. Name others"
        )
    return found


def _sides(layer: Any) -> tuple[int, tuple[int, int]]:
    """Returns a layer's number of groups, and its numbers of inputs and outputs."""
    if isinstance(layer, nn.Linear):
        return 1, (layer.in_features, layer.out_features)
    return layer.groups, (layer.in_channels, layer.out_channels)


class GroupedLinear(nn.Linear):
    """A linear layer in groups: the first group of inputs feeds the first group of outputs, and so on."""

    def __init__(self, inputs: int, outputs: int, groups: int, bias: bool = True) -> None:
        super().__init__(inputs // groups, outputs, bias)
        self.in_features, self.groups = inputs, groups

    def extra_repr(self) -> str:
        """Returns the text of nn.Linear, with the number of groups."""
        return f"{super().extra_repr()}, groups={self.groups}"

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[..., C]`` → ``[..., D]``"""
        parts = x.unflatten(-1, (self.groups, -1))  # [..., G, C/G]
        weight = self.weight.unflatten(0, (self.groups, -1))  # [G, D/G, C/G]
        y = torch.einsum("...gc,gdc->...gd", parts, weight).flatten(-2)
        return y if self.bias is None else y + self.bias


def regrouped(model: nn.Module, groups: Mapping[str, int]) -> nn.Module:
    """Returns a copy of a model with the named layers divided into groups; the diagonal blocks of their weights stay."""
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
