"""Members' values: what each member answers, under the names by which it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from multitudes.prediction.values import CLASSES


class Members(Mapping[str, Tensor]):
    """Members' values by name, ``[M, N, ...]``, as they were given: "logits" or "probs", or "mean" and "variance".

    Also as attributes, where `probs` and `labels` are made of logits too.
    """

    def __init__(self, values: Mapping[str, Tensor], task: str) -> None:
        self._values = dict(values)
        self._task = task

    def __getitem__(self, name: str) -> Tensor:
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
            first = next(iter(values.values()))
            limit = 0.0 if "logits" in values else 0.5
            return first.argmax(2) if self._task == "classes" else (first > limit).long()
        raise AttributeError(f"members have {', '.join(values)}, and no {name}")

    @property
    def shape(self) -> torch.Size:
        """``[M, N, ...]``"""
        return next(iter(self._values.values())).shape

    def __repr__(self) -> str:
        return f"Members({', '.join(f'{name}={list(value.shape)}' for name, value in self._values.items())})"
