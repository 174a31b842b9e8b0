"""Validation: what an epoch is worth, and which was the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from multitudes.engine.sharding import full_tensor
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.scores.columns import classification_evidence, regression_evidence
from multitudes.scores.evidence import Settings


def validate(prediction: Prediction, ignore: int | None = None) -> tuple[dict[str, float], Tensor]:
    """The scores of an epoch by name, and each member's own, larger for better, ``[M]``; but for targets to `ignore`."""
    targets = checked_targets(prediction, ignore=ignore)
    if prediction.task in CLASSES:
        columns = classification_evidence(prediction, targets, Settings()).columns
        found = {"val_accuracy": _mean(columns["correct"]), "val_nll": _mean(columns["nll"])}
        return found, columns["member_correct"].double().mean(0)
    columns = regression_evidence(prediction, targets, Settings()).columns
    found = {"val_rmse": _mean(columns["squares"]) ** 0.5}
    if "log_density" in columns:
        found["val_lpd"] = _mean(columns["log_density"])
    return found, -columns["member_squares"].double().mean(0)


def selection_score(scores: Mapping[str, float]) -> float:
    """What the best epoch is best by, larger for better."""
    return scores["val_accuracy"] if "val_accuracy" in scores else -scores["val_rmse"]


def _mean(column: Tensor) -> float:
    return float(column.double().mean())


@dataclass
class Best:
    """The best epoch so far: of the ensemble, or of each member by itself."""

    by: str
    epoch: int | None = None
    value: list[float] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)

    def update(self, ensemble: Ensemble, epoch: int, scores: Mapping[str, float], each: Tensor) -> bool:
        """Takes an epoch's weights where they are better than all before; whether they are."""
        values = [selection_score(scores)] if self.by == "ensemble" else each.tolist()
        before = self.value or [float("-inf")] * len(values)
        better = [m for m, (new, old) in enumerate(zip(values, before, strict=True)) if new > old]
        if not better:
            return False
        own = {name: full_tensor(tensor.detach()).cpu() for name, tensor in ensemble.state_dict().items()}
        if self.by == "ensemble" or not self.state:
            self.state = {name: tensor.clone() for name, tensor in own.items()}
        else:
            for name, tensor in own.items():
                self.state[name][better] = tensor[better]
        self.value = [max(new, old) for new, old in zip(values, before, strict=True)]
        self.epoch = epoch
        return True

    def described(self) -> dict[str, Any]:
        """What is known of it, as JSON."""
        return {"by": self.by, "epoch": self.epoch, "value": self.value}


def best_by(ensemble: Ensemble, by: str) -> Best:
    """Where each member is to be best by itself, all tensors must be its own."""
    if by == "members":
        shared = [name for name in ensemble.state_dict() if name not in ensemble.engine.owned]
        if shared or ensemble.members == 1:
            raise InputError(
                f"Recipe(best='members') is for members that own all weights, and {type(ensemble.method).__name__} shares "
                f"{', '.join(shared[:3]) or 'them with no other'}: best='ensemble'"
            )
    return Best(by)
