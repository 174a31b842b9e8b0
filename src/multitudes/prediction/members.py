"""Members: the outputs of every member, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from multitudes.prediction.values import CLASSES


class Members(Mapping[str, Tensor]):
    """Members' outputs by name, ``[M, N, ...]``: "logits" or "probs" for classification, "mean" and "variance" for regression.

    Each tensor is also an attribute. If only logits are stored, `members.probs` and `members.labels` are computed from them.
    """

    def __init__(self, values: Mapping[str, Tensor], task: str) -> None:
        self._values = dict(values)
        self._task = task

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            first = next(iter(self._values))
            raise KeyError(f"members have no {name!r}: the outputs of member 0 are pred.members.{first}[0]")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Tensor:
        values: dict[str, Tensor] = vars(self).get("_values", {})
        if name in values:
            return values[name]
        if name == "probs" and "logits" in values:
            return values["logits"].softmax(2) if self._task == "classes" else values["logits"].sigmoid()
        if name == "labels" and self._task in CLASSES:
            scores = next(iter(values.values()))
            threshold = 0.0 if "logits" in values else 0.5
            return scores.argmax(2) if self._task == "classes" else (scores > threshold).long()
        raise AttributeError(f"members have no {name}: use one of {', '.join(values)}")

    @property
    def shape(self) -> torch.Size:
        """``[M, N, ...]``"""
        return next(iter(self._values.values())).shape

    def __repr__(self) -> str:
        return f"Members({', '.join(f'{name}={list(value.shape)}' for name, value in self._values.items())})"
