"""PaperRecipe: what a paper trained in one of its tables, as entries: a method, its network, its conversion and its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from multitudes import models
from multitudes.errors import InputError
from multitudes.method import Method
from multitudes.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method of a paper, with its network, its conversion and its training.

    ens = mt.ensemble(entry.network(), entry.method, x, **entry.conversion)
    mt.fit(ens, train, entry.recipe)
    mt.predict(ens, test, **entry.prediction)
    """

    method: Method
    """The method with the paper's settings."""

    recipe: Recipe
    """The recipe for `fit`."""

    model: str
    """The network, by its name in `multitudes.models`."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the network."""

    conversion: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `mt.ensemble`: keep=, start=, at=, task=."""

    prediction: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `mt.predict` that the paper's scores need: draws=, tau_output=."""

    def network(self, **more: Any) -> nn.Module:
        """Builds the network. Further arguments are for what depends on the dataset, such as inputs=13."""
        network: nn.Module = getattr(models, self.model)(**{**self.arguments, **more})
        return network

    def with_method(
        self,
        method: Method,
        *,
        arguments: Mapping[str, Any] | None = None,
        conversion: Mapping[str, Any] | None = None,
        prediction: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Entry:
        """Returns the entry of another method. `settings` change the recipe, `arguments` are added to the network's."""
        return replace(
            self,
            method=method,
            recipe=replace(self.recipe, **settings),
            arguments={**self.arguments, **(arguments or {})},
            conversion=self.conversion if conversion is None else conversion,
            prediction=self.prediction if prediction is None else prediction,
        )

    @property
    def rows(self) -> int:
        """Number of rows in a step: examples times MIMO's `repeat`."""
        return self.recipe.batch * int(getattr(self.method, "repeat", 1))


@dataclass(frozen=True, kw_only=True)
class PaperRecipe:
    """The entries of a paper's table, with their source and dataset."""

    entries: tuple[Entry, ...]
    """What is trained: one entry per method."""

    source: str
    """The paper and the place in it."""

    data: str
    """The training set."""

    decay: str
    """How the source states weight decay; the recipes' `weight_decay` follows from it."""

    silent: str = ""
    """Settings that the source omits or contradicts, and our choice."""

    detection: str = ""
    """Score and dataset of the paper's out-of-distribution detection."""

    train: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `data.folder` for training images that are read from files."""

    test: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `data.folder` for test images that are read from files."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first entry. Those of other entries may differ."""
        return self.entries[0].recipe

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods of all entries."""
        return tuple(entry.method for entry in self.entries)

    def entry(self, kind: type[Method]) -> Entry:
        """Returns the first entry of this kind of method: `find("mimo/cifar10").entry(mt.Deep)`."""
        for one in self.entries:
            if isinstance(one.method, kind):
                return one
        names = ", ".join(dict.fromkeys(type(one).__name__ for one in self.methods))
        raise InputError(f"this recipe has no {kind.__name__}: it has {names}")

    def network(self, **more: Any) -> nn.Module:
        """Builds the network of the first entry."""
        return self.entries[0].network(**more)
