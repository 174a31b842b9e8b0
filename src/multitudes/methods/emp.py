"""EMP: Ensemble Model Patching: one network, a few of whose layers have K components; a member draws one for each of them.

Chang, Yao, Williamson, Bradley, "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
https://arxiv.org/abs/1905.09453

Every patched layer i draws z_i among its K components (eq. 4), all of its parameters from the same one. Patched are norms and
the output layer, whose parameters are few and matter much; the rest is shared, BatchNorm statistics included. A training step
has one draw; the prior is in the loss. `multitudes.methods.layers.patches` has what EMP and ECMP have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from multitudes.method import Method
from multitudes.methods.layers.patches import Patching


@dataclass(frozen=True, kw_only=True)
class EMP(Patching, Method):
    """One component for each patched layer: ``[M, B, ...]``."""

    elementwise: ClassVar[bool] = False
