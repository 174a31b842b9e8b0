"""The usual network of a table, and how columns become its inputs: numbers standardised, categories as numbers from 1 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.mlp import MLP


class Tabular(nn.Module):
    """Embeds categories, puts them beside the numbers, and goes on with an MLP.

    numbers    the number of columns with numbers, which come first
    sizes      the number of categories in each of the other columns, with that of unknown ones, 0
    outputs    the number of outputs
    """

    def __init__(
        self, numbers: int, sizes: Sequence[int], outputs: int, hidden: Sequence[int] = (128, 128), dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.numbers = numbers
        self.tables = nn.ModuleList(nn.Embedding(size, min(16, (size + 1) // 2)) for size in sizes)
        width = numbers + sum(table.embedding_dim for table in self.tables)  # type: ignore[misc]
        self.body = MLP(width, hidden, outputs)
        if dropout:
            layers = [part for layer in self.body.layers for part in (layer, nn.Dropout(dropout)) if _comes(part, layer)]
            self.body.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, numbers + categories]`` → ``[B, outputs]``"""
        if not len(self.tables):
            return self.body(x)
        columns = x[:, self.numbers :].long()
        embedded = [table(columns[:, place]) for place, table in enumerate(self.tables)]
        return self.body(torch.cat([x[:, : self.numbers], *embedded], 1))


def _comes(part: nn.Module, layer: nn.Module) -> bool:
    """Whether dropout comes behind a layer: behind each ReLU."""
    return part is layer or isinstance(layer, nn.ReLU)


class Columns:
    """Turns the columns of a table into the inputs of `Tabular`, as it learnt from the training set.

    categories   names, or places, of columns that hold categories, beside those whose dtype says so
    """

    def __init__(self, categories: Sequence[Any] | None = None) -> None:
        self.categories = categories

    def fit(self, table: Any) -> Columns:
        """Learns the numbers' means and deviations, and the categories, of an array or a DataFrame."""
        from sklearn.preprocessing import OrdinalEncoder, StandardScaler

        names = list(table.columns) if hasattr(table, "columns") else list(range(table.shape[1]))
        chosen = set() if self.categories is None else {_place(names, one) for one in self.categories}
        self.codes = [place for place in range(len(names)) if place in chosen or _is_category(table, place)]
        self.numbers = [place for place in range(len(names)) if place not in self.codes]
        self.scaler = StandardScaler().fit(self._numbers(table)) if self.numbers else None
        unknown: Any = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "encoded_missing_value": -1}
        self.encoder = OrdinalEncoder(**unknown).fit(self._codes(table)) if self.codes else None
        return self

    @property
    def sizes(self) -> list[int]:
        """The number of categories in each column, with that of unknown and missing ones."""
        return [] if self.encoder is None else [len(known) + 1 for known in self.encoder.categories_]

    def transform(self, table: Any) -> Tensor:
        """Returns the inputs, ``[N, numbers + categories]``: categories from 1 on, 0 for unknown and missing ones."""
        import numpy as np

        parts = [self.scaler.transform(self._numbers(table))] if self.scaler is not None else []
        parts += [self.encoder.transform(self._codes(table)) + 1] if self.encoder is not None else []
        return torch.tensor(np.concatenate(parts, 1), dtype=torch.float64)

    def _numbers(self, table: Any) -> Any:
        from sklearn.utils import check_array

        return check_array(_taken(table, self.numbers), dtype="float64", input_name="X", ensure_min_samples=0)

    def _codes(self, table: Any) -> Any:
        import numpy as np

        return np.asarray(_taken(table, self.codes), dtype=object)


def _taken(table: Any, places: Sequence[int]) -> Any:
    return table.iloc[:, list(places)] if hasattr(table, "iloc") else table[:, list(places)]


def _is_category(table: Any, place: int) -> bool:
    """Whether the dtype of a DataFrame's column is no number."""
    if not hasattr(table, "dtypes"):
        return False
    kind = table.dtypes.iloc[place]
    if getattr(kind, "kind", "O") in "Mmc":
        raise InputError(f"column {table.columns[place]!r} is {kind}, neither numbers nor categories: make numbers of it")
    return not is_number(kind)


def is_number(kind: Any) -> bool:
    """Whether a dtype of numpy or pandas holds numbers."""
    return str(kind) != "category" and (getattr(kind, "_is_numeric", False) or getattr(kind, "kind", "O") in "biuf")


def _place(names: Sequence[Any], one: Any) -> int:
    if one in names:
        return names.index(one)
    if isinstance(one, int) and 0 <= one < len(names):
        return one
    raise InputError(f"categories= names {one!r}, but the columns are {', '.join(map(str, names[:8]))}: give names or places")
