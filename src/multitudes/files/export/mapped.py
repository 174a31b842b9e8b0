"""Mapped: vector, matrix and Dirichlet calibration of the mixture, as operations of the exported graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.prediction.mappings import LEAST_LOG, Affine
from multitudes.prediction.temperature import Calibrator


class Mapped(nn.Module):
    """softmax(W q + b) of the mixture's log probabilities q ``[B, ..., K]``, in single precision."""

    weight: Tensor
    bias: Tensor

    def __init__(self, mapping: Affine) -> None:
        super().__init__()
        self.how = mapping.how
        self.register_buffer("weight", torch.tensor(mapping.weight).T.contiguous())
        self.register_buffer("bias", torch.tensor(mapping.bias))

    def forward(self, logs: Tensor) -> Tensor:
        """Returns the calibrated probabilities."""
        logs = logs.clamp(min=LEAST_LOG)
        product = logs * self.weight[:, 0] if self.how == "vector" else logs @ self.weight
        return (product + self.bias).softmax(-1)


def mapped(calibrator: Calibrator | None) -> Mapped | None:
    """Returns the mapping of a calibrator as a module, None if it has none."""
    mapping = None if calibrator is None else calibrator.mapping
    if mapping is None:
        return None
    if not isinstance(mapping, Affine):
        raise InputError(
            f"a calibrator of how={mapping.how!r} cannot be exported: its curves have steps that single precision cannot hold. "
            "Give one of mt.calibrate(held_out), or of how='dirichlet'"
        )
    return Mapped(mapping)
