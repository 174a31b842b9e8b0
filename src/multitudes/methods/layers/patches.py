"""Patches: layers with K components; a member draws one component for the layer, or one for each element.

W = Σ_k 1[Z = k] ∘ (M_k + σ ε_k), eq. 1 of "Ensemble Model Patching" (https://arxiv.org/abs/1905.09453). Methods differ in Z:
one z for the layer (EMP), one for each element (ECMP). Table 2 lists other members of the family: with K = 2 and the second
component at zero, one z for each input unit is dropout, and one z for each weight is DropConnect; one z for all layers of the
network is an explicit ensemble.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.first_layers import first_layers
from multitudes.conversion.anatomy.formed_weights import RECURRENT
from multitudes.conversion.anatomy.initialise import reinitialised
from multitudes.conversion.anatomy.known_layers import without_fast_path, without_norm
from multitudes.conversion.anatomy.refusals import untie
from multitudes.conversion.anatomy.structure import Structure, is_norm, output_layers
from multitudes.engine import tree
from multitudes.engine.converted import Formed
from multitudes.engine.draws import (
    Drawing,
    add_draws,
    add_seeds,
    bake_draws,
    bake_weights,
    drawing_layers,
    drawn_names,
    make_drawing,
    run_with,
)
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import join_name, light_copy, names_matching, owning_module, registers_of
from multitudes.engine.seeds import member_seed
from multitudes.engine.state import SEEDS
from multitudes.errors import ConversionError
from multitudes.method import Batch, Criterion, Given, Layout, Method
from multitudes.methods.layers.noise import add_noise, noise_name, noisy_keys
from multitudes.methods.layers.priors import UNSCALED, log_likelihood, normal_prior
from multitudes.settings import Count, above, as_tuple, at_least, check_rules

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

WORDS = ("norm", "input", "output")
SPREAD = 0.1
"""The standard deviation between the initial components of norms, so that no two are equal."""

P = TypeVar("P", bound="Patching")


class Patched(Drawing):
    """Mixin of a layer with K components of each parameter."""

    replaced: tuple[str, ...]
    """Names of the parameters that have components."""
    components: int
    elementwise: bool
    sigma: float
    zero: bool
    probabilities: tuple[float, ...] | None
    shapes: dict[str, tuple[int, ...]]

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws a component for the layer, or for each element, and the noise around it."""
        if self.elementwise:
            found = {_choice(key): self._choose(self.shapes[key], generator) for key in self.replaced}
        else:
            found = {"choice": self._choose((1,), generator)}
        if self.sigma:
            found.update(
                {
                    noise_name(key): torch.randn(self.shapes[key], generator=generator, dtype=torch.float32, device="cpu")
                    for key in self.replaced
                }
            )
        return found

    def _choose(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if self.probabilities is None:
            return torch.randint(self.components, tuple(shape), generator=generator, device="cpu")
        weights = torch.tensor(self.probabilities, dtype=torch.float64)
        return torch.multinomial(weights, math.prod(shape), replacement=True, generator=generator).view(tuple(shape))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer with the drawn components as its parameters."""
        return run_with(self, self.weights(), super().forward, *args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Turns the layer back into its plain class, with the drawn components as its parameters."""
        bake_weights(self, self.weights())

    def weights(self) -> dict[str, Tensor]:
        """Returns the parameters that the drawn components make, by name."""
        return {key: self._weight(key) for key in self.replaced}

    def _weight(self, key: str) -> Tensor:
        """Returns one parameter: the drawn component, or for each element the component drawn for it, plus noise."""
        layer: Any = self
        stored: Tensor = layer._parameters[key]
        if self.zero:
            stored = torch.cat([stored, torch.zeros_like(stored[:1])])
        if self.elementwise:
            value = stored.gather(0, getattr(layer, _choice(key)).long()[None])[0]
        else:
            value = stored.index_select(0, layer.choice)[0]
        return value + self.sigma * getattr(layer, noise_name(key)) if self.sigma else value


class PatchedWeights(Formed, Patched):
    """Mixin of a layer with components that other modules may read, or that keeps a list of its weights (nn.LSTM)."""

    def form(self, key: str, stored: Tensor) -> Tensor:
        """Returns the parameter that the drawn components make."""
        return self._weight(key)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer, which reads the drawn components."""
        return super(Patched, self).forward(*args, **kwargs)  # type: ignore[misc]


def _choice(key: str) -> str:
    return f"{key.replace('.', '_')}_choice"


@dataclass(frozen=True, kw_only=True)
class Patching:
    """Settings and behaviour that EMP and ECMP share."""

    members: Count = 20
    """The number of draws at prediction, S."""

    components: Count = 5
    """The number of components of each patched layer, K."""

    patch: str | tuple[str, ...] = "norm+output"
    """The layers to patch: "norm", "input", "output" joined by "+", or globs. The default takes norms and output if present."""

    init: Literal["random", "copies"] = "random"
    """"random": norms start around the given values, other layers with fresh weights; "copies": all as the given layer."""

    gamma: float | None = None
    """The initial weight of patched norms; None takes the given values."""

    sigma: Annotated[float, at_least(0)] = 0.0
    """The standard deviation σ of the noise around all trainable parameters, patched (eq. 1) and shared (eq. 3). Above 0, each
    member and each draw stores noise for every parameter."""

    probabilities: tuple[Annotated[float, at_least(0)], ...] | None = None
    """The probability of each component; None for equal ones."""

    zero_component: bool = False
    """Whether the last component is fixed at zero."""

    draw: Literal["step", "row"] = "step"
    """"step": one draw for a training step; "row": one for each row."""

    prior: Literal["l2", "elbo", "none"] = "l2"
    """The prior in the loss: "l2" is appendix C.1's penalty, "elbo" is eq. 6 with precisions and component probabilities."""

    strength: Annotated[float, at_least(0)] = 0.001
    """With prior="l2", λ times the number of rows of the whole batch."""

    tau: Annotated[float, at_least(0)] = 1.0
    """With prior="elbo", the prior's precision for weights, τ."""

    rho: Annotated[float, at_least(0)] = 1.0
    """With prior="elbo", the prior's precision for biases, ρ."""

    examples: Count | None = None
    """With prior="elbo", the size of the training set: eq. 6 is for a sum over examples, and the loss is their mean. If an
    example has several labels (pixels, tokens), the number of labels."""

    tau_output: Annotated[float, above(0)] | None = None
    """For regression, the precision of an observation in the target's own units: its inverse is added to the predictive
    variance (appendix B.3). With prior="elbo" it weighs the squared error, so train on targets in their own units."""

    reduction: Literal["sum", "mean"] = "mean"
    """How the losses of several draws become one."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    origin: ClassVar[str] = "drawn by the seed"
    keeps_layers: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        as_tuple(self, "patch")
        if self.probabilities is not None:
            with contextlib.suppress(TypeError, ValueError):  # refused below
                object.__setattr__(self, "probabilities", tuple(map(float, self.probabilities)))
        super().__post_init__()  # type: ignore[misc]
        chances = self.probabilities
        uneven = chances is not None and (len(chances) != self.components or abs(sum(chances) - 1) > 1e-6)
        words = self.patch.split("+") if isinstance(self.patch, str) else []
        unknown = bool(words) and words[0] in WORDS and not set(words) <= set(WORDS)
        alone = self.zero_component and self.components < 2
        unscaled = self.prior == "elbo" and self.examples is None
        check_rules(
            self,
            (alone, "components zero_component", "zero_component=True needs components=2 or more"),
            (uneven, "components probabilities", f"probabilities must be {self.components} numbers that add up to 1"),
            (unscaled, "prior examples", UNSCALED),
            (unknown or not self.patch, "patch", "patch must be 'norm', 'input' and 'output' joined by '+', or globs"),
        )

    def patched(self, structure: Structure) -> list[str]:
        """Names the layers that get components, in the model's order."""
        model, name = structure.model, type(self).__name__
        has_own = {n for n, part in model.named_modules() if any(p is not None for p in part._parameters.values())}
        globs = [self.patch] if isinstance(self.patch, str) else list(self.patch)
        words = globs[0].split("+") if isinstance(self.patch, str) and globs[0].split("+")[0] in WORDS else []
        if words:
            norms = {n for n, part in model.named_modules() if is_norm(part)}
            found = {"norm": norms, "input": first_layers(structure), "output": output_layers(structure)}
            found = {word: layers & has_own for word, layers in found.items()}  # a codebook may be a buffer
            missing = [word for word in words if not found[word]]
            chosen = set().union(*(found[word] for word in words))
            if not chosen or (missing and self.patch != "norm+output"):
                what = " or ".join(missing)
                raise ConversionError(
                    f"{name}(patch={self.patch!r}): the model has no {what} layer: {_others(structure, name)}"
                )
            if self.patch == "norm+output":
                chosen = chosen - tied_layers(model).keys() or chosen
        else:
            names = [n for n, _ in model.named_modules()]
            hits = names_matching(names, globs, f"{name}(patch={self.patch!r})")
            matched = {hit for found_here in hits.values() for hit in found_here}
            chosen = {n for n in has_own if any(n == m or n.startswith(f"{m}.") for m in matched)}
            if not chosen:
                raise ConversionError(f"{name}(patch={self.patch!r}): the modules that match have no parameters: name others")
        return [n for n, _ in model.named_modules() if n in chosen]

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses layers whose parameters are tied, or that compute them."""
        tied = tied_layers(structure.model)
        attention = [n for n, part in structure.model.named_modules() if isinstance(part, nn.MultiheadAttention)]
        found = {}
        patched = self.patched(structure)
        noisy = noisy_keys(structure.model, apart=patched) if self.sigma else {}
        for name in [*patched, *noisy]:
            part = structure.model.get_submodule(name)
            kinds = (nn.MultiheadAttention, nn.RNNBase) if name in noisy else (nn.MultiheadAttention,)
            if name in tied:
                found[name] = f"its {tied[name]}, which members share: {untie(join_name(name, tied[name].split()[0]))}"
            elif any(n != name and (not n or name.startswith(f"{n}.")) for n in attention):
                found[name] = "its attention module reads the parameters directly"
            elif isinstance(part, nn.MultiheadAttention) and name in noisy:
                continue
            elif (line := without_norm(name, part)) is not None:
                found[name] = f"it computes its weight, which has no components: first {line}"
            elif isinstance(part, kinds):
                found[name] = f"a {type(part).__name__} does not read its parameters from the module that holds them"
            elif name in noisy and _read_elsewhere(structure, name):
                found[name] = "its parameters are read outside its own forward, which would not see the noise: use sigma=0"
        return found

    def prepare(self, given: Given) -> nn.Module:
        """Gives the patched layers K components of each parameter."""
        names, seed = self.patched(given.structure), given.seed
        new = light_copy(given.model)
        stored = self.components - self.zero_component
        starts = self._starts(given.model, names, [member_seed(seed, k) for k in range(stored)])
        every = [f"{n}.{key}" for n, part in new.named_modules() for key in part._parameters]
        places = {name: index for index, name in enumerate(every)}
        for name in names:
            layer: Any = new.get_submodule(name)
            keys = tuple(key for key, p in layer._parameters.items() if p is not None)
            shapes = {key: tuple(layer._parameters[key].shape) for key in keys}
            norm = is_norm(layer)  # with components its tensors are no vectors any more
            for key in keys:
                own = [start[join_name(name, key)] for start in starts if start and not norm]
                value = self._started(layer, key, own, norm, stored, member_seed(seed, stored + places[f"{name}.{key}"]))
                old = layer._parameters[key]
                layer._parameters[key] = nn.Parameter(value.to(old), requires_grad=old.requires_grad)
            probabilities = None if self.probabilities is None else tuple(self.probabilities)
            formed = isinstance(layer, RECURRENT) or _read_elsewhere(given.structure, name)
            make_drawing(
                layer, PatchedWeights if formed else Patched, replaced=keys, components=self.components,
                elementwise=self.elementwise, sigma=self.sigma, zero=self.zero_component, probabilities=probabilities,
                shapes=shapes, **({"formed_keys": keys} if formed else {}),
            )  # fmt: skip
            device = layer._parameters[keys[0]].device
            small = torch.uint8 if self.elementwise and self.components <= 256 else torch.int64
            dtypes = {True: layer._parameters[keys[0]].dtype, False: small}
            first = layer.draw(torch.Generator().manual_seed(0)).items()
            add_draws(layer, {k: torch.zeros_like(v, dtype=dtypes[v.is_floating_point()], device=device) for k, v in first})
        if self.sigma:
            add_noise(new, self.sigma, apart=names)
        without_fast_path(new, Drawing)
        add_seeds(new)
        return new

    def _starts(self, model: nn.Module, names: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Tensor]]:
        """Returns the parameters of freshly initialised copies of the patched layers, one for each seed; norms need none."""
        fresh = frozenset(name for name in names if not is_norm(model.get_submodule(name)))
        if self.init == "copies" or not fresh:
            return [{} for _ in seeds]
        try:
            copies = [reinitialised(model, seed, only=fresh)[0] for seed in seeds]
        except Exception:  # an initialiser that needs the values of other layers
            copies = [reinitialised(model, seed)[0] for seed in seeds]
        return [dict(copy.named_parameters(remove_duplicate=False)) for copy in copies]

    def _started(self, layer: nn.Module, key: str, own: list[Tensor], norm: bool, stored: int, seed: int) -> Tensor:
        """Returns the initial components of one parameter, ``[K, ...]``."""
        given = layer._parameters[key]
        assert given is not None
        value = given.detach().expand(stored, *given.shape).clone()
        if norm and key == "weight" and self.gamma is not None:
            value.fill_(self.gamma)
        if self.init == "copies":
            return value
        if not norm:
            return torch.stack([tensor.detach() for tensor in own])
        spread = SPREAD * torch.randn(
            value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32, device="cpu"
        )
        return value + spread.to(value)

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own draws and seed."""
        names = drawn_names(structure.model)
        layers = [name for name, _ in patched_layers(structure.model)]
        noisy = dict.fromkeys(
            (name for name, _ in drawing_layers(structure.model)), f"shared, with noise of σ = {self.sigma:g}"
        )
        because = {**noisy, **dict.fromkeys(layers, f"{self.components} components, {self._what()}")}
        how = "at random" if self.init == "random" else "as copies"
        note = f"{len(layers)} layers with {self.components} components, which start {how}"
        left = {n: why for n, why in tied_layers(structure.model).items() if n in output_layers(structure) and n not in layers}
        if left and self.patch == "norm+output":
            note += "; no components for " + ", ".join(f"{n}, whose {why}" for n, why in left.items())
        return Layout(tensors=names | {SEEDS}, because=because, note=note)

    def _what(self) -> str:
        return "one drawn for each element" if self.elementwise else "one drawn for the layer"

    def bake(self, member: nn.Module) -> None:
        """Turns each patched layer into a plain one, with the components that the member drew."""
        bake_draws(member)

    def neutral(self: P) -> P:
        """Returns settings for one member whose components all equal the given layer."""
        same: dict[str, Any] = {"init": "copies", "sigma": 0.0, "zero_component": False, "gamma": None, "probabilities": None}
        return replace(self, members=1, components=max(self.components, 2), **same)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares a training step with one draw, or with one for each row if draw="row"."""
        whole = Method.batch(self, inputs, target, rng, per_member, count)  # type: ignore[arg-type]
        if per_member:
            return whole
        count = 1 if self.draw == "step" else count
        seeds = torch.randint(2**62, (count,), generator=rng).tolist()
        more: dict[str, Any] = {"rows": torch.arange(count)} if self.draw == "row" else {}
        return replace(whole, kwargs={**whole.kwargs, "draws": seeds, **more})

    def likelihood(self, criterion: Criterion, task: str) -> Criterion:
        """Returns the criterion; with prior="elbo" it is the data term of eq. 9."""
        return log_likelihood(self, criterion, task) if self.prior == "elbo" else criterion

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """Combines the losses of several draws into one, by `reduction`."""
        if "rows" in batch.kwargs or "draws" not in batch.kwargs:
            return Method.loss(self, outputs, batch, criterion)  # type: ignore[arg-type]
        count = len(tree.tensors(outputs)[0])
        losses = [criterion(tree.take(outputs, d), batch.target) for d in range(count)]
        total = torch.stack(losses)
        return total.sum() if self.reduction == "sum" else total.mean()

    def penalty(self, ensemble: Ensemble, count: int) -> Tensor | None:
        """Returns the prior on all trainable parameters, for a step of `count` rows."""
        if self.prior == "none":
            return None
        patched = patched_names(ensemble.template)
        named = {name: p for name, p in ensemble.named_parameters() if p.requires_grad}
        sizes = {name: p.abs() if p.is_complex() else p for name, p in named.items()}
        squares = {name: p.flatten(1).square().sum(1) if name in patched else p.square().sum() for name, p in sizes.items()}
        if self.prior == "l2":
            terms = [square.sum() * (self.strength / count) for square in squares.values()]
            return torch.stack(terms).sum() if terms else None
        return normal_prior(self, {n: (s * self._weights(s)).sum() if n in patched else s for n, s in squares.items()})

    def _weights(self, squares: Tensor) -> Tensor:
        """Returns the probability of each learned component."""
        if self.probabilities is None:
            return torch.full_like(squares, 1 / self.components)
        return squares.new_tensor(self.probabilities[: len(squares)])

    def param_groups(self, ensemble: Ensemble, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Makes two groups: shared weights, and patches."""
        patched = patched_names(ensemble.template)
        groups = []
        for kind in ("shared", "patches"):
            named = [
                (n, p) for n, p in ensemble.named_parameters() if p.requires_grad and (n in patched) == (kind == "patches")
            ]
            if named:
                own = {"params": [p for _, p in named], "names": [n for n, _ in named], "kind": kind}
                groups.append({**own, "lr": lr, "weight_decay": weight_decay})
        return groups

    def effective_size(self, ensemble: Ensemble) -> int:
        """Returns the number of different networks that can be drawn.

        It is K to the power of the number of patched layers, or for ECMP of their elements.
        """
        layers = [layer for _, layer in patched_layers(ensemble.template)]
        if not self.elementwise:
            return int(self.components ** len(layers))
        elements = sum(math.prod(shape) for layer in layers for shape in layer.shapes.values())
        return int(self.components**elements)


def patched_names(network: nn.Module) -> frozenset[str]:
    """Names the parameters that have components."""
    return frozenset(join_name(name, key) for name, layer in patched_layers(network) for key in layer.replaced)


def patched_layers(network: nn.Module) -> list[tuple[str, Patched]]:
    """Lists the layers that have components, by name."""
    return [(name, layer) for name, layer in drawing_layers(network) if isinstance(layer, Patched)]


def _others(structure: Structure, method: str) -> str:
    """Says what to type for a network whose norms or output layers cannot be patched."""
    parts = [name for name, part in structure.model.named_modules() if name in structure.order and list(part.parameters(False))]
    named = [name for name in parts if name]
    return (
        f"name layers, as in mt.{method}(patch=[{named[-1]!r}])" if named else "use another method, such as mt.Deep(members=4)"
    )


def tied_layers(model: nn.Module) -> dict[str, str]:
    """Returns the modules with a parameter that is tied to another module's, and what it is tied to."""
    places = {id(part._parameters): name for name, part in model.named_modules()}
    tied = {}
    for held in registers_of(model).values():
        for register, key in held if len(held) > 1 else ():
            other = next(join_name(places[id(r)], k) for r, k in held if (id(r), k) != (id(register), key))
            tied[places[id(register)]] = f"{key} is tied to {other}"
    return tied


def _read_elsewhere(structure: Structure, name: str) -> bool:
    return any(owning_module(n) == name for n in structure.read_elsewhere)
