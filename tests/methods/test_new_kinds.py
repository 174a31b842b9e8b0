"""New kinds of methods need no change of the core: a rank-one Bayesian network and a SWAG-like method, written here.

Both are written as a user would write them, in one place, and obey the laws that the package's own methods obey.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from laws import LAWS
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy.known_layers import known_layers
from multitudes.data import Data
from multitudes.engine import tree
from multitudes.engine.draws import (
    Drawing,
    add_seeds,
    bake_draws,
    bake_weights,
    drawing_layers,
    drawn_names,
    make_drawing,
    run_with,
)
from multitudes.engine.modules import detached_copy
from multitudes.engine.state import SEEDS
from multitudes.method import Batch, Criterion, Given, Layout, Structure

FAST, SLOW = (
    ("member", "save_load"),
    ("members_first", "unit", "rows", "untouched", "training", "executors", "by_rows", "chunk"),
)
LAWS_OF_DRAWS = [*FAST, *(pytest.param(law, marks=pytest.mark.slow) for law in SLOW)]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What both methods say: layers that draw, one draw for a training step."""

    reduction: Literal["sum", "mean"] = "mean"
    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    layer: ClassVar[type[Drawing]]

    def prepare(self, given: Given) -> nn.Module:
        """Adds draws to every linear layer."""
        new = detached_copy(given.model, {})
        for _, layer in [(name, part) for name, part in known_layers(new) if isinstance(part, nn.Linear)]:
            make_drawing(layer, self.layer, scale=self.scale)  # type: ignore[attr-defined]
            layer.start()  # type: ignore[operator]
        add_seeds(new)
        return new

    def layout(self, structure: Structure) -> Layout:
        """The draws belong to members."""
        return Layout(tensors=drawn_names(structure.model) | {SEEDS})

    def bake(self, member: nn.Module) -> None:
        """Turns a member into a plain network."""
        bake_draws(member)

    def neutral(self) -> Any:
        """No spread."""
        return replace(self, members=1, scale=0.0)  # type: ignore[call-arg]

    def batch(self, inputs: mt.Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """One draw."""
        whole = mt.Method.batch(self, inputs, target, rng, per_member, count)  # type: ignore[arg-type]
        seeds = torch.randint(2**62, (1,), generator=rng).tolist()
        return whole if per_member else replace(whole, kwargs={**whole.kwargs, "draws": seeds})

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """The loss of the draw."""
        if "draws" not in batch.kwargs:
            return mt.Method.loss(self, outputs, batch, criterion)  # type: ignore[arg-type]
        return criterion(tree.take(outputs, 0), batch.target)


class RankOneLayer(Drawing):
    """W ∘ (s rᵀ), with r and s drawn around learned means."""

    scale: float

    def start(self) -> None:
        """Adds the means, and the buffers of the draws."""
        layer: Any = self
        for key, size in (("r", layer.in_features), ("s", layer.out_features)):
            layer.register_parameter(f"{key}_mean", nn.Parameter(layer.weight.new_ones(size)))
            layer.register_buffer(f"{key}_noise", layer.weight.new_zeros(size), persistent=False)
        layer.draws = ("r_noise", "s_noise")

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Standard normal noise."""
        layer: Any = self
        return {key: torch.randn(getattr(layer, key).shape[-1:], generator=generator) for key in layer.draws}

    def weights(self) -> dict[str, Tensor]:
        """The weight of this draw."""
        layer: Any = self
        r, s = (getattr(layer, f"{key}_mean") + self.scale * getattr(layer, f"{key}_noise") for key in "rs")
        return {"weight": layer.weight * s[:, None] * r}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Shape: as the layer's own."""
        return run_with(self, self.weights(), super().forward, *args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Becomes the plain layer."""
        weights, layer = self.weights(), self
        for key in ("r_mean", "s_mean"):
            delattr(layer, key)
        bake_weights(layer, weights)


class SwagLayer(Drawing):
    """A weight drawn around the mean of the weights along training."""

    scale: float

    def start(self) -> None:
        """Adds the mean, the mean square and the number of steps."""
        layer: Any = self
        layer.register_buffer("mean", layer.weight.detach().clone())
        layer.register_buffer("square", layer.weight.detach() ** 2)
        layer.register_buffer("steps", torch.zeros((), device=layer.weight.device))
        layer.register_buffer("noise", torch.zeros_like(layer.weight), persistent=False)
        layer.draws = ("noise",)

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Standard normal noise."""
        layer: Any = self
        return {"noise": torch.randn(layer.weight.shape[-2:], generator=generator)}

    def weights(self) -> dict[str, Tensor]:
        """The weight itself in training; in eval mode a draw around its mean."""
        layer: Any = self
        spread = (layer.square - layer.mean**2).clamp(min=0).sqrt()
        centre = layer.weight + (layer.mean - layer.weight).detach()  # the mean, with the gradient of the weight
        return {"weight": layer.weight if layer.training else centre + self.scale * spread * layer.noise}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Shape: as the layer's own."""
        return run_with(self, self.weights(), super().forward, *args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Becomes the plain layer."""
        weights, layer = self.weights(), self
        for key in ("mean", "square", "steps"):
            delattr(layer, key)
        bake_weights(layer, weights)


@pytest.fixture(scope="module")
def kinds() -> dict[str, Any]:
    """The two methods; made here, so that no other test finds them in the registry by accident."""

    @dataclass(frozen=True, kw_only=True)
    class RankOne(Drawn, mt.Method):
        """A Bayesian network with rank-one factors (Dusenberry et al., 2020), https://arxiv.org/abs/2005.07186"""

        scale: float = 0.1
        layer: ClassVar[type[Drawing]] = RankOneLayer

        def penalty(self, ensemble: mt.Ensemble, count: int) -> Tensor:
            """Keeps the factors' means at one."""
            means = [p for name, p in ensemble.named_parameters() if name.endswith("_mean")]
            return torch.stack([((mean - 1) ** 2).sum() for mean in means]).sum() / count

    @dataclass(frozen=True, kw_only=True)
    class Wandering(Drawn, mt.Method):
        """Members drawn around the mean of the weights (Maddox et al., 2019), https://arxiv.org/abs/1902.02476"""

        scale: float = 1.0
        layer: ClassVar[type[Drawing]] = SwagLayer

        @torch.no_grad()
        def after_step(self, ensemble: mt.Ensemble) -> None:
            """Updates the running means."""
            for _, layer in drawing_layers(ensemble.template):
                part: Any = layer
                part.steps += 1
                part.mean += (part.weight - part.mean) / part.steps
                part.square += (part.weight**2 - part.square) / part.steps

    return {"RankOne": RankOne, "Wandering": Wandering}


@pytest.mark.parametrize("law", LAWS_OF_DRAWS)
@pytest.mark.parametrize("name", ["RankOne", "Wandering"])
def test_a_new_kind_obeys_the_laws(kinds: dict[str, Any], name: str, law: str) -> None:
    LAWS[law](kinds[name](members=4), ZOO["mlp"])


def test_fit_calls_after_step(kinds: dict[str, Any], tmp_path: Path) -> None:
    """SWAG's members differ once weights have moved; they and their statistics survive a file."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(64, 4)
    ens = mt.ensemble(net, kinds["Wandering"](members=4), x[:2], seed=0)
    before = ens.eval()(x)
    torch.testing.assert_close(before, before[:1].expand_as(before))
    mt.fit(ens, Data(x, x[:, 0].gt(0).long()), mt.Recipe(epochs=2, batch=16, lr=0.1, seed=0), progress=False)
    assert float(ens.get_buffer("0.steps")) == 8
    after = ens.eval()(x)
    assert not torch.allclose(after[0], after[1])
    mt.save(ens, tmp_path / "a.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "a.multitude", net).eval()(x), after)


def test_the_penalty_is_part_of_the_loss(kinds: dict[str, Any]) -> None:
    ens = mt.ensemble(nn.Sequential(nn.Linear(4, 3)), kinds["RankOne"](), torch.randn(2, 4), seed=0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with torch.no_grad():
        ens.get_parameter("0.r_mean").fill_(3.0)
    assert ens.loss(x, y, F.cross_entropy) > ens.method.penalty(ens, 8) == 4 * 4 / 8
