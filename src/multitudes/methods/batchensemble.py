"""BatchEnsemble: one network; each member scales the inputs and outputs of its layers by two vectors.

Wen, Tran, Ba, "BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning", ICLR 2020,
https://arxiv.org/abs/2002.06715

Member m has the weights W ∘ (s_m r_mᵀ), which are never formed: y = ((x ∘ r_m) W) ∘ s_m + b_m (eq. 5). Here r is `alpha`,
which scales a layer's inputs, and s is `gamma`, which scales its outputs. Biases belong to members. Norms are shared, with one
set of statistics over the rows of all members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.formed_weights import formed_weights, layers_by_name, mostly_shared, shared_matrices
from multitudes.conversion.anatomy.known_layers import (
    CONVOLUTIONS,
    TRANSPOSED,
    FormedAttention,
    along_channels,
    channels,
    computes_weight,
    over_channels,
    product_of,
    projections,
    restore_layer,
    restore_projections,
    weight_of,
    without_fast_path,
)
from multitudes.conversion.anatomy.parameter_reads import Roles
from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine.choose import is_exporting
from multitudes.engine.converted import Formed, check_names, convert_layer
from multitudes.engine.draws import bake_parameters, run_with
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import join_name, light_copy
from multitudes.engine.seeds import member_seed
from multitudes.ensemble import Ensemble
from multitudes.method import Batch, Given, Layout, Method, split_rows
from multitudes.settings import at_least, below, explained

FACTORS = ("alpha", "gamma", "alpha_out", "gamma_out")
"""Names of the factors of known layers; those of formed weights are `weight_alpha`, `weight_gamma` and so on."""


@explained
@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Method):
    """One network; two vectors of factors for each member and layer: ``[M, B, ...]``."""

    init: Literal["normal", "signs", "ones"] = "normal"
    """Initial factors: "normal" is N(1, 0.5²), "signs" is 1 or -1 at random, "ones" makes all members equal."""

    feed: Literal["all", "part"] = "all"
    """In training, "all": each member sees every row; "part": the rows are divided among members."""

    lr_factor: Annotated[float, at_least(0), below(1e9)] = 1.0
    """The learning rate of factors and biases, as a multiple of that of the shared weights."""

    reduction: Literal["sum", "mean"] = "mean"
    """The members' losses are averaged, since they share their weights."""

    shares_weights: ClassVar[bool] = True
    origin: ClassVar[str] = "factors by init, biases of the given model"

    def prepare(self, given: Given) -> nn.Module:
        """Adds factors to every known layer; they start at one."""
        new = light_copy(given.model)
        for name in layers_by_name(given.structure):
            scale(new.get_submodule(name))
        for name, keys in formed_weights(given.structure).items():
            roles = given.structure.weight_roles
            scale_weights(new.get_submodule(name), {key: roles.get(join_name(name, key)) for key in keys})
        without_fast_path(new, Scaled)
        return new

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses weights for which no rule is known, if they are most of the model."""
        return mostly_shared(structure, formed_weights(structure))

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Returns a copy of the network with the factors of member m."""
        factors = factor_names(network)
        new = light_copy(network, factors.__contains__)
        generator = torch.Generator().manual_seed(member_seed(given.seed, m))
        with torch.no_grad():
            for name, factor in new.named_parameters():
                if name in factors:
                    factor.copy_(drawn(factor.shape, self.init, generator))
        return new

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own factors and biases in converted layers."""
        tensors, because = factor_names(structure.model), shared_matrices(structure, formed_weights(structure))
        biases: set[int] = set()
        for name, layer in structure.model.named_modules():
            if isinstance(layer, Scaled):
                biases |= {id(p) for key, p in layer.biases().items()}
            if isinstance(layer, ScaledWeights):
                because[name] = f"factors of {', '.join(layer.formed_keys)}"
        for name, layer in structure.model.named_modules():  # all names of a bias, which may be tied
            tensors |= {join_name(name, key) for key, p in layer._parameters.items() if id(p) in biases}
        return Layout(tensors=frozenset(tensors), because=because)

    def bake(self, member: nn.Module) -> None:
        """Multiplies the factors into the weights, W ∘ (s rᵀ)."""
        for layer in member.modules():
            if isinstance(layer, Scaled):
                layer.plain()

    def neutral(self) -> BatchEnsemble:
        """Returns settings for one member with all factors at one."""
        return replace(self, members=1, init="ones")

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares a training step; with feed="part" each row goes to one member."""
        whole = super().batch(inputs, target, rng, per_member, count)
        return whole if per_member or self.feed == "all" else split_rows(whole, self.members, rng)

    def param_groups(self, ensemble: Ensemble, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Makes groups of shared weights, factors (no weight decay) and members' biases; the last two take `lr_factor`."""
        groups: dict[str, dict[str, Any]] = {
            "shared": {"lr": lr, "weight_decay": weight_decay},
            "factors": {"lr": lr * self.lr_factor, "weight_decay": 0.0},
            "biases": {"lr": lr * self.lr_factor, "weight_decay": weight_decay},
        }
        factors = factor_names(ensemble.template)
        for name, parameter in ensemble.named_parameters():
            owned = name in ensemble.engine.owned
            kind = "factors" if name in factors and owned else "biases" if owned else "shared"
            if parameter.requires_grad:
                groups[kind].setdefault("params", []).append(parameter)
                groups[kind].setdefault("names", []).append(name)
                groups[kind]["kind"] = kind
        return [group for group in groups.values() if "params" in group]


def drawn(shape: torch.Size, init: str, generator: torch.Generator) -> Tensor:
    """Draws initial factors by the rule `init`."""
    if init == "ones":
        return torch.ones(shape)
    if init == "signs":
        return torch.randint(2, shape, generator=generator, device="cpu").float() * 2 - 1
    return 1 + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


class Scaled:
    """Mixin of a layer with factors; it is placed before the layer's own class."""

    def factors(self) -> list[str]:
        """Returns the names of the layer's factors."""
        layer: Any = self
        return [key for key in FACTORS if key in layer._parameters]

    def biases(self) -> dict[str, Tensor]:
        """Returns the layer's biases by name; torch's attention has one in its child."""
        layer: Any = self
        recurse = isinstance(layer, nn.MultiheadAttention)
        return {key: p for key, p in layer.named_parameters(recurse=recurse) if key.endswith("bias")}

    def plain(self) -> None:
        """Turns this layer into a plain one, with the factors multiplied into its weights."""
        raise NotImplementedError


class ScaledProduct(Scaled):
    """Mixin of a linear layer or convolution: scales inputs by `alpha` and outputs by `gamma`."""

    takes_rows = True

    alpha: Tensor
    gamma: Tensor
    bias: Tensor | None
    product: Any

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Runs the layer with scaled inputs and outputs; shapes are those of the plain layer."""
        layer: Any = self
        if self.alpha.ndim == 1 and not computes_weight(layer) and self._pays_to_form(input):
            return self._formed_product(input, *args, **kwargs)
        y = self.product(self, input * along_channels(layer, self.alpha, input), *args, **kwargs)
        y = y * along_channels(layer, self.gamma, y)
        return y if self.bias is None else y + along_channels(layer, self.bias, y)

    def _pays_to_form(self, input: Tensor) -> bool:
        """Whether to multiply the factors into the weights rather than into inputs and outputs.

        In training it spares the first layer the gradient of its inputs, which factors of inputs would need: in a convolution
        of few channels that gradient costs more than all the rest. In prediction it pays if a member's input is larger than
        the weights; an exported graph is for any number of rows, and does not ask.
        """
        if torch.is_grad_enabled():
            return not input.requires_grad
        layer: Any = self
        return not is_exporting() and bool(layer.weight.numel() <= input.numel())

    def _formed_product(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Runs the layer with the factors multiplied into its weights."""
        layer: Any = self
        weight = over_channels(layer, layer.weight, self.alpha, self.gamma)
        y = run_with(layer, {"weight": weight}, self.product, self, input, *args, **kwargs)
        return y if self.bias is None else y + along_channels(layer, self.bias, y)

    def plain(self) -> None:
        """Turns this layer into a plain one, with the factors multiplied into its weights."""
        layer: Any = self
        weight = over_channels(layer, weight_of(layer), self.alpha, self.gamma)
        del layer.alpha, layer.gamma
        restore_layer(layer, weight, self.bias)


class ScaledAttention(Scaled, FormedAttention):
    """Attention whose four projections have factors."""

    alpha: Tensor
    gamma: Tensor
    alpha_out: Tensor
    gamma_out: Tensor

    def weights(self) -> tuple[list[Tensor], Tensor]:
        """Returns the scaled weights of query, key and value, and of the output projection."""
        alpha = self.alpha.split([self.embed_dim, self.kdim, self.vdim])
        factors = zip(projections(self), self.gamma.view(3, -1, 1), alpha, strict=True)
        out = self.out_proj.weight * self.gamma_out[:, None] * self.alpha_out
        return [w * s * r for w, s, r in factors], out

    def plain(self) -> None:
        """Turns this module into plain attention, with the factors multiplied into its weights."""
        weights, out = self.weights()
        for name in FACTORS:
            delattr(self, name)
        restore_projections(self, weights, out)


class ScaledWeights(Formed, Scaled):
    """Mixin of a module whose weights are formed: W ∘ (s rᵀ) over their last two axes, or over the channels of a kernel."""

    def form(self, key: str, stored: Tensor) -> Tensor:
        """Returns the member's weight."""
        layer: Any = self
        return stored * layer._parameters[f"{key}_alpha"] * layer._parameters[f"{key}_gamma"]

    def factors(self) -> list[str]:
        """Returns the names of the factors."""
        return [f"{key}_{kind}" for key in self.formed_keys for kind in ("alpha", "gamma")]

    def biases(self) -> dict[str, Tensor]:
        """Returns the module's biases by name; a recurrent layer has several."""
        layer: Any = self
        return {k: p for k, p in layer._parameters.items() if p is not None and k.startswith("bias") and p.ndim == 1}

    def plain(self) -> None:
        """Turns this module into its plain class, with the factors multiplied into its weights."""
        layer: Any = self
        weights = self.formed()
        for name in self.factors():
            delattr(layer, name)
        del layer.formed_keys
        layer.__class__ = type(layer).made_of[1]
        bake_parameters(layer, weights)


def factor_names(network: nn.Module) -> set[str]:
    """Names the factors in a network."""
    scaled = [(name, part) for name, part in network.named_modules() if isinstance(part, Scaled)]
    return {join_name(name, key) for name, part in scaled for key in part.factors()}


def scale_weights(layer: Any, roles: Mapping[str, Roles | None]) -> None:
    """Adds factors of one to these weights of a module, in place. Its other tensors keep their names.

    `roles` are those of the weights' axes in products: where they are not known, a weight is a matrix or a stack of matrices.
    """
    check_names(layer, [f"{key}_{kind}" for key in roles for kind in ("alpha", "gamma")])
    for key, role in roles.items():
        weight = layer._parameters[key]
        kernel = isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)) or (role is not None and role.kernel)
        inputs, outputs = (1, 0) if kernel else (weight.ndim - 1, weight.ndim - 2)
        if role is not None and role.inputs is not None and role.outputs is not None and {*role[:2]} != {-1, -2} and not kernel:
            inputs, outputs = role.inputs % weight.ndim, role.outputs % weight.ndim
        spread = range(2, weight.ndim) if kernel else ()
        for kind, summed in (("alpha", outputs), ("gamma", inputs)):
            sizes = [1 if axis == summed or axis in spread else size for axis, size in enumerate(weight.shape)]
            layer.register_parameter(f"{key}_{kind}", nn.Parameter(weight.new_ones(sizes)))
    convert_layer(layer, ScaledWeights, formed_keys=tuple(roles))


def scale(layer: Any) -> None:
    """Adds factors of one to a layer, in place. Its other tensors keep their names."""
    weight = next(layer.parameters())
    options = {"dtype": weight.dtype, "device": weight.device}

    def ones(size: int) -> nn.Parameter:
        return nn.Parameter(torch.ones(size, **options))

    check_names(layer, FACTORS)
    if isinstance(layer, nn.MultiheadAttention):
        convert_layer(layer, ScaledAttention)
        layer.alpha, layer.gamma = ones(layer.embed_dim + layer.kdim + layer.vdim), ones(3 * layer.embed_dim)
        layer.alpha_out, layer.gamma_out = ones(layer.embed_dim), ones(layer.embed_dim)
        return
    product, (inputs, outputs) = product_of(layer), channels(layer)
    assert product is not None, f"{type(layer).__name__} is not a known layer"
    convert_layer(layer, ScaledProduct, (("product", product),))
    layer.alpha, layer.gamma = ones(inputs), ones(outputs)
