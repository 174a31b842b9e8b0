"""Laplace: one trained network; members draw the last layer from a Gaussian posterior, fitted after training.

Daxberger, Kristiadi, Immer, Eschenhagen, Bauer, Hennig, "Laplace Redux: Effortless Bayesian Deep Learning", NeurIPS 2021,
https://arxiv.org/abs/2106.14806; on the last layer: Kristiadi, Hein, Hennig, ICML 2020, https://arxiv.org/abs/2002.10118

The posterior of the last layer's weights and bias is N(θ, (H + δ I)⁻¹). H = Σ_n Λ_n ⊗ φ_n φ_nᵀ is the generalised
Gauss-Newton matrix, with the layer's inputs φ_n, a 1 appended for the bias, and the Hessians Λ_n of the loss in the outputs.
Kronecker-factored it is Σ_n Λ_n ⊗ (1/N Σ_n φ_n φ_nᵀ). The prior's precision δ maximises the marginal likelihood,

    log p(D) ≈ log p(D | θ) − ½ δ ‖θ‖² + ½ P log δ − ½ log det (H + δ I).

A regression's noise variance is that of the residuals. The network is trained as usual, or was trained before: then
`ens.finish(train)` alone fits the posterior, without training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.conversion.anatomy.known_layers import without_norm
from multitudes.conversion.anatomy.structure import Structure, heads
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import names_matching
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, listed
from multitudes.method import Given, Method
from multitudes.methods.layers import one_run
from multitudes.methods.layers.one_run import OneRun, Shifted, add_shifts, shift_name, shifted_parts
from multitudes.prediction.tasks import variance_of
from multitudes.settings import Count, above, explained

LARGEST = 20_000
"""The largest number of weights for which a full matrix is formed."""


@explained
@dataclass(frozen=True, kw_only=True)
class Laplace(OneRun, Method):
    """Draws of the last layer around a trained network: ``[M, B, ...]``."""

    members: Count = 10

    hessian: Literal["kron", "full"] = "kron"
    """The form of H: Kronecker-factored, or all of it, for at most 20,000 weights."""

    precision: Annotated[float, above(0)] | None = None
    """The prior's precision δ; None takes the one of the largest marginal likelihood."""

    head: str | None = None
    """The last layer, by name; None finds it by running the example."""

    def _head(self, structure: Structure) -> str:
        """Returns the name of the last layer."""
        names = [name for name, _ in structure.model.named_modules() if name]
        if self.head is not None:
            found = set(names_matching(names, [self.head], f"Laplace(head={self.head!r})")[self.head])
            loose: set[str] = set()
        else:
            found, loose = heads(structure)
        if len(found) != 1 or loose:
            linear = [
                name for name in structure.order if name in found and isinstance(structure.model.get_submodule(name), nn.Linear)
            ]
            instead = f"name it, Laplace(head={linear[-1]!r})" if linear else "use MultiHead or SWAG"
            raise InputError(f"Laplace needs one last layer, but the outputs have {listed(found | loose) or 'none'}: {instead}")
        return found.pop()

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses a last layer that is not linear, or that is tied."""
        name = self._head(structure)
        part = structure.model.get_submodule(name)
        if not isinstance(part, nn.Linear) or without_norm(name, part) is not None:
            line = without_norm(name, part)
            kind = type(part).__name__ if line is None else "layer that computes its weight"
            return {name: f"Laplace takes a last layer nn.Linear, and this is a {kind}: {line or 'use MultiHead or SWAG'}"}
        tied = one_run.tied_parts(structure.model)
        held = [key for key, other in structure.model.named_parameters(remove_duplicate=False) if other is part.weight]
        return {name: tied.get(name, f"its weight is tied: {' and '.join(held)}")} if len(held) > 1 else {}

    def prepare(self, given: Given) -> nn.Module:
        """Adds shifts to the last layer."""
        name = self._head(given.structure)
        return self.converted(given, {name: one_run.tensors_to_shift(given.model.get_submodule(name))})

    def convert(self, part: nn.Module, keys: Sequence[str]) -> None:
        """Gives the last layer room for its posterior, in place."""
        layer: Any = part
        zeros = layer.weight.detach().new_zeros
        rows, columns = layer.out_features, layer.in_features + (layer.bias is not None)
        notes = {"laplace_drawn": torch.zeros((), dtype=torch.bool, device=layer.weight.device)}
        notes |= {f"laplace_{name}": zeros(()) for name in ("precision", "noise", "evidence")}
        if self.hessian == "kron":
            notes |= {"laplace_inputs": zeros(columns, columns), "laplace_outputs": zeros(rows, rows)}
            notes["laplace_spread"] = zeros(rows, columns)
        else:
            size = rows * columns
            if size > LARGEST:
                raise InputError(f"Laplace(hessian='full') takes at most {LARGEST} weights, not {size}: use hessian='kron'")
            notes["laplace_factor"] = zeros(size, size)
        add_shifts(part, Posterior, keys, notes)

    def neutral(self) -> Laplace:
        """Returns settings for one member."""
        return Laplace(members=1, head=self.head)

    @torch.no_grad()
    def after_training(self, ensemble: Ensemble, batches: Iterable[tuple[Inputs, Any]]) -> None:
        """Fits the posterior by one pass over the training data, and draws the members."""
        self.before_training(ensemble)
        name, layer = shifted_parts(ensemble.template)[0]
        curvature = Curvature(ensemble.task, self.hessian == "full")
        with torch.random.fork_rng(devices=[]):
            _pass_over(ensemble, name, batches, curvature)
        _posterior(layer, curvature, self.precision)
        ensemble.redraw()


class Posterior(Shifted):
    """Mixin of a linear layer with a Gaussian posterior."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws Δ ~ N(0, (H + δ I)⁻¹), once the posterior is fitted.

        By the symmetric root: eigenvectors have arbitrary signs, which rounding decides, and members do not depend on them.
        """
        layer: Any = self
        if not bool(layer.laplace_drawn):
            return super().draw(generator)
        rows, columns = layer.out_features, layer.in_features + ("bias" in self.formed_keys)
        noise = torch.randn(rows, columns, generator=generator)
        if "laplace_factor" in layer._buffers:
            shift = (layer.laplace_factor.cpu().float() @ noise.flatten()).view(rows, columns)
        else:
            basis, other = layer.laplace_outputs.cpu().float(), layer.laplace_inputs.cpu().float()
            shift = basis @ ((basis.T @ noise @ other) * layer.laplace_spread.cpu().float()) @ other.T
        shifts = {shift_name("weight"): shift[:, : layer.in_features]}
        return shifts | ({shift_name("bias"): shift[:, -1]} if "bias" in self.formed_keys else {})


@dataclass
class Curvature:
    """The sums over the training data that the posterior is made of, in double precision."""

    task: str
    """The ensemble's task."""
    full: bool
    """Whether all of H is summed."""
    count: int = 0
    """Number of examples, N."""
    log_likelihood: float = 0.0
    """log p(D | θ)."""
    squares: float = 0.0
    """Sum of squared residuals of a regression."""
    targets: int = 0
    """Number of a regression's targets."""
    inputs: Any = 0.0
    """Σ φ φᵀ."""
    outputs: Any = 0.0
    """Σ Λ."""
    matrix: Any = 0.0
    """H."""

    def add(self, features: Tensor, outputs: Tensor, target: Tensor) -> None:
        """Adds a batch: the last layer's inputs ``[n, D]``, its outputs ``[n, K]`` and the targets."""
        root = self._root(outputs, target)
        self.count += len(features)
        self.inputs = self.inputs + features.T @ features
        self.outputs = self.outputs + torch.einsum("nkc,njc->kj", root, root)
        for c in range(root.shape[2]) if self.full else ():
            rows = (root[:, :, c, None] * features[:, None, :]).flatten(1)  # [n, (K D)]
            self.matrix = self.matrix + rows.T @ rows

    def _root(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Returns a root S of each example's Λ = S Sᵀ, ``[n, K, C]``, and adds to the log likelihood."""
        if self.task == "classes":
            probs = outputs.softmax(1)
            self.log_likelihood -= float(F.cross_entropy(outputs, target, reduction="sum"))
            return probs.sqrt().diag_embed() - probs[:, :, None] * probs.sqrt()[:, None, :]
        target = target.reshape(len(outputs), -1).to(outputs)
        if self.task in ("binary", "multilabel"):
            self.log_likelihood -= float(F.binary_cross_entropy_with_logits(outputs, target, reduction="sum"))
            return (outputs.sigmoid() * (-outputs).sigmoid()).sqrt().diag_embed()
        if self.task == "gaussian":
            mean, raw = outputs.chunk(2, 1)
            variance = variance_of(raw)
            self.log_likelihood -= float(F.gaussian_nll_loss(mean, target, variance, full=True, reduction="sum"))
            return torch.cat([variance.rsqrt(), raw.sigmoid() / variance / math.sqrt(2)], 1).diag_embed()
        self.squares += float((outputs - target).square().sum())
        self.targets += target.numel()
        return torch.eye(outputs.shape[1]).to(outputs).expand(len(outputs), -1, -1)

    def noise(self) -> float:
        """Returns the noise variance of a regression, 1 in other tasks, and completes the log likelihood."""
        if self.task != "regression":
            return 1.0
        variance = max(self.squares / self.targets, 1e-12)
        self.log_likelihood = -0.5 * self.targets * (math.log(2 * math.pi * variance) + 1)
        return variance


def _pass_over(ensemble: Ensemble, name: str, batches: Iterable[tuple[Inputs, Any]], curvature: Curvature) -> None:
    """Runs the network over the data, and adds the last layer's inputs and outputs to the curvature."""
    network = ensemble.member(0).eval()
    layer: Any = network.get_submodule(name) if name else network
    seen: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, args, output: seen.append((args[0].detach(), output.detach())))
    try:
        for call, target in batches:
            seen.clear()
            found = tree.tensors(network(*call.args, **call.kwargs))
            if len(seen) != 1 or not any(t.shape == seen[0][1].shape and torch.equal(t, seen[0][1]) for t in found):
                raise InputError(
                    f"Laplace needs the outputs of the last layer {name!r} to be those of the network, but they are changed "
                    "after it: let the network return them as they are"
                )
            if target is None:
                raise InputError("Laplace needs targets too: give a dataset of pairs (input, target)")
            features, outputs = (t.double().flatten(0, -2) for t in seen[0])
            if layer.bias is not None:
                features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
            target = target.to(outputs.device)
            if curvature.task == "classes" and not target.is_floating_point():
                target = target.flatten()
                features, outputs, target = (t[target >= 0] for t in (features, outputs, target))  # labels below 0 are none
            curvature.add(features, outputs, target.double() if target.is_floating_point() else target)
    finally:
        hook.remove()
    if not curvature.count:
        raise InputError("Laplace got no examples to fit its posterior: pass the training set, ens.finish(train)")


def _posterior(layer: Any, curvature: Curvature, precision: float | None) -> None:
    """Stores the posterior in the last layer's buffers."""
    noise = curvature.noise()
    tensors = layer.stored()
    theta = torch.cat([tensors["weight"], tensors["bias"][:, None]], 1) if "bias" in tensors else tensors["weight"]
    square = float(theta.double().square().sum())
    if curvature.full:
        values, basis = torch.linalg.eigh(curvature.matrix / noise)
    else:
        across, inputs = torch.linalg.eigh(curvature.inputs / curvature.count)
        along, outputs = torch.linalg.eigh(curvature.outputs / noise)
        values = along.clamp(min=0)[:, None] * across.clamp(min=0)
    values = values.clamp(min=0)
    delta = best_precision(values.flatten(), square) if precision is None else precision
    spread = (values + delta).rsqrt()
    if curvature.full:
        layer.laplace_factor.copy_((basis * spread) @ basis.T)
    else:
        for name, value in (("inputs", inputs), ("outputs", outputs), ("spread", spread)):
            layer.get_buffer(f"laplace_{name}").copy_(value)
    layer.laplace_precision.fill_(delta)
    layer.laplace_noise.fill_(noise)
    layer.laplace_evidence.fill_(curvature.log_likelihood + log_prior_terms(values.flatten(), square, delta))
    layer.laplace_drawn.fill_(True)


def log_prior_terms(values: Tensor, square: float, delta: float) -> float:
    """Returns the terms of the log marginal likelihood that depend on δ, for H's eigenvalues and ‖θ‖²."""
    return 0.5 * (float((math.log(delta) - (values + delta).log()).sum()) - delta * square)


def best_precision(values: Tensor, square: float) -> float:
    """Returns the prior precision of the largest marginal likelihood, for H's eigenvalues and ‖θ‖²."""
    low, high = -8.0, 8.0
    for _ in range(6):  # a finer grid around the best point each time
        step = (high - low) / 32
        best = max((low + i * step for i in range(33)), key=lambda power: log_prior_terms(values, square, 10.0**power))
        low, high = best - step, best + step
    return 10.0**best
