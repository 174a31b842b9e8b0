"""MCDropout: one network with dropout at prediction too; each member is one dropout mask.

Gal, Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning", ICML 2016,
https://arxiv.org/abs/1506.02142

Training is ordinary dropout: every unit of every row is dropped independently, in one pass. At prediction each member has one
mask of the shape of a row's activation, the same for all rows, so that predictions do not depend on how rows are batched; with
`filterwise` it is a mask over channels. The model's dropout modules become live, or dropout is added before layers or norms.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from multitudes.conversion.anatomy.first_layers import first_layers
from multitudes.conversion.anatomy.formed_weights import formed_weights, layers_by_name
from multitudes.conversion.anatomy.known_layers import known_layers, without_fast_path
from multitudes.conversion.anatomy.structure import Structure, is_layer, is_norm
from multitudes.engine import tree
from multitudes.engine.draws import Drawing, add_seeds, drawing_layers, drawn_names, make_drawing, remove_draws
from multitudes.engine.inputs import BatchAxis, Inputs
from multitudes.engine.modules import light_copy, names_matching
from multitudes.engine.state import SEEDS
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError
from multitudes.method import Batch, Criterion, Given, Layout, Method
from multitudes.methods.layers.dropout import FILTERWISE, MaskedDropout, measure, reset_call_counts
from multitudes.methods.layers.priors import DropPrior
from multitudes.settings import Count, Rate, as_tuple, check_rules, explained

WORDS = ("auto", "existing", "layers", "norm")
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Dropout that replaces dropped units by a constant and rescales the rest: not a mask."""


@explained
@dataclass(frozen=True, kw_only=True)
class MCDropout(DropPrior, Method):
    """One network; a mask for each member and each dropout: ``[M, B, ...]``."""

    members: Count = 10

    p: Rate | None = None
    """The dropout rate; None keeps the rates of the model's own dropout, and takes 0.1 for added dropout."""

    position: str | tuple[str, ...] = "auto"
    """Where units are dropped: in "existing" dropout modules, before all "layers" but the first, before each "norm", or before
    modules named by globs. "auto" takes existing dropout if its rate is above 0, else layers."""

    filterwise: bool = False
    """Whether whole channels are dropped."""

    reduction: Literal["sum", "mean"] = "mean"
    """How the losses of several draws become one."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    draws_by_shape: ClassVar[bool] = True
    origin: ClassVar[str] = "drawn by the seed"

    def __post_init__(self) -> None:
        as_tuple(self, "position")
        super().__post_init__()
        globs = (self.position,) if isinstance(self.position, str) else self.position
        empty = not globs or not all(globs)
        check_rules(self, (empty, "position", "position must name a place: 'layers', 'norm', or globs of modules"))

    def sites(self, structure: Structure) -> list[str]:
        """Names the dropout modules to convert, or the modules that get dropout before them."""
        model = structure.model
        existing = self._existing(structure)
        where = self.position
        if where == "auto":
            where = "existing" if existing else "layers"
        if where == "existing":
            found = existing
            missing = "no dropout module with a rate above 0: position='layers' adds dropout before layers"
        elif where == "layers":
            first = first_layers(structure)
            layers = {**layers_by_name(structure), **formed_weights(structure)}
            known = [n for n, part in model.named_modules() if n in layers and not isinstance(part, nn.MultiheadAttention)]
            found = [n for n in known if n not in first and n in structure.takes_tensor and is_layer(model.get_submodule(n))]
            missing = f"no linear layer or convolution after the first: {_elsewhere(structure, first)}"
        elif where == "norm":
            found = [n for n, part in model.named_modules() if is_norm(part) and n in structure.order]
            missing = "no norm layer: position='layers' adds dropout before layers"
        else:
            globs = [where] if isinstance(where, str) else list(where)
            names = [n for n, _ in model.named_modules() if n]
            hits = names_matching(names, globs, f"MCDropout(position={self.position!r})")
            found = [n for n in names if any(n in hit for hit in hits.values())]
            missing = "no such module"
        if not found:
            raise ConversionError(f"MCDropout(position={self.position!r}): the model has {missing}")
        return found

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses nothing: units can be dropped before any layer, and layers that cannot be named are left whole."""
        return {}

    def _existing(self, structure: Structure) -> list[str]:
        """Names the dropout modules that run on the example, with a rate above 0."""
        parts = [(n, part) for n, part in structure.model.named_modules() if n in structure.order]
        return [n for n, part in parts if isinstance(part, _DropoutNd) and not isinstance(part, ALPHA) and part.p > 0]

    def prepare(self, given: Given) -> nn.Module:
        """Makes dropout active at prediction too, and adds it where `position` says. Masks are drawn later."""
        new = light_copy(given.model)
        for name in self.sites(given.structure):
            part: Any = new.get_submodule(name)
            weight = self._weight_behind(given.structure, name) if self.prior == "elbo" else ""
            if isinstance(part, ALPHA):
                raise ConversionError(
                    f"MCDropout cannot convert {name} ({type(part).__name__}): it also shifts and scales the kept units, so it"
                    " is not a mask. Replace it with nn.Dropout, or leave it out of position="
                )
            if isinstance(part, _DropoutNd):
                rate = part.p if self.p is None else self.p
                filterwise = self.filterwise or isinstance(part, FILTERWISE)
                make_drawing(part, MaskedDropout, rate=rate, weight_behind=weight, calls=[], at=0, filterwise=filterwise)
                part.p = rate
            else:
                rate = 0.1 if self.p is None else self.p
                make_drawing(part, MaskedDropout, rate=rate, weight_behind=weight, calls=[], at=0, filterwise=self.filterwise)
        without_fast_path(new, Drawing)
        add_seeds(new)
        return new

    def _weight_behind(self, structure: Structure, site: str) -> str:
        """Names the weight that multiplies the dropped units: of the site itself, or of the layer that runs next."""
        model, order = structure.model, structure.order
        own = {
            n: part for n, part in model.named_modules() if n in order and any(p is not None for p in part._parameters.values())
        }
        later = [n for n in own if order[n] >= order[site]]
        behind = min(later, key=order.__getitem__, default=None)
        known = {n for n, part in known_layers(model) if not isinstance(part, nn.MultiheadAttention)}
        if behind not in known or len(structure.inputs_of.get(site, [])) > 1:
            raise ConversionError(
                f"MCDropout(prior='elbo'): the prior is on the weights that dropped units are multiplied with, but {site} does "
                "not run once and directly before a linear layer or convolution: name other places with position=, or use "
                "prior='none'"
            )
        return f"{behind}.weight" if behind else "weight"

    def fit_shapes(self, network: nn.Module, inputs: Inputs, batch_axis: BatchAxis, like: nn.Module | None = None) -> bool:
        """Records the shape of each dropout call, and the axis of its rows."""
        return measure(network, inputs, batch_axis, like)

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own masks and seed. The plan names dropout that is off at prediction."""
        because = {
            name: f"dropped with probability {layer.rate:g} {'there' if isinstance(layer, _DropoutNd) else 'before it'}"  # type: ignore[attr-defined]
            for name, layer in drawing_layers(structure.model)
        }
        quiet = sorted(set(structure.functional_dropout) | {n for n, part in structure.model.named_modules() if _quiet(part)})
        note = f"off at prediction: dropout in {', '.join(quiet)}" if quiet else ""
        return Layout(tensors=drawn_names(structure.model) | {SEEDS}, because=because, note=note)

    def bake(self, member: nn.Module) -> None:
        """Leaves masks in a whole member, since no weight can hold them; makes the layers of a kept submodule plain."""
        if SEEDS in member._buffers:
            delattr(member, SEEDS)
            if any(len(layer.calls) > 1 for _, layer in drawing_layers(member)):  # type: ignore[attr-defined]
                member.register_forward_pre_hook(reset_call_counts)
            return
        for _, layer in list(drawing_layers(member)):
            remove_draws(layer)

    def neutral(self) -> MCDropout:
        """Returns settings for one member that drops nothing."""
        return replace(self, members=1, p=0.0)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares one pass with ordinary dropout."""
        whole = super().batch(inputs, target, rng, per_member, count)
        return whole if per_member else replace(whole, kwargs={**whole.kwargs, "draws": [0]})

    def drawn_for_step(self, network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Returns empty masks: in training, torch's dropout draws for each unit of each row."""
        buffers = dict(network.named_buffers())
        return {name: buffers[name].new_zeros(1, 0) for name in drawn_names(network)}

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """Returns the loss of the one pass; with separate data for each member, combines the members' losses."""
        if "draws" not in batch.kwargs:
            return super().loss(outputs, batch, criterion)
        return criterion(tree.take(outputs, 0), batch.target)

    def kept_rates(self, ensemble: Ensemble) -> dict[str, float]:
        """Returns for each weight behind dropout the probability that an input is kept, by name."""
        kept: dict[str, float] = {}
        layers: Any = drawing_layers(ensemble.template)
        for _, layer in layers:
            kept[layer.weight_behind] = kept.get(layer.weight_behind, 1.0) * (1 - layer.rate)
        return kept

    def effective_size(self, ensemble: Ensemble) -> int:
        """Returns 2 to the power of the number of masked units."""
        masks = [b for n, b in ensemble.template.named_buffers() if n in drawn_names(ensemble.template)]
        return int(2 ** sum(mask[0].numel() for mask in masks))


def _elsewhere(structure: Structure, first: Collection[str]) -> str:
    """Says what to type for a network without known layers to drop before."""
    named = [name for name in structure.order if name and name not in first and name in structure.takes_tensor]
    if not named:
        return "use another method, such as mt.Deep(members=4)"
    return f"name modules to drop units before, as in mt.MCDropout(position=[{named[-1]!r}])"


def _quiet(part: nn.Module) -> bool:
    """Whether a module drops units in training but not at prediction: it has dropout that was not converted."""
    if isinstance(part, nn.MultiheadAttention):
        return part.dropout > 0
    if isinstance(part, nn.RNNBase):
        return part.dropout > 0 and part.num_layers > 1
    return isinstance(part, _DropoutNd) and part.p > 0 and not isinstance(part, MaskedDropout)
