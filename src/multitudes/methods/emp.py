"""EMP: Ensemble Model Patching: one network; a few layers have K components, and a member draws one for each layer.

Chang, Yao, Williams-King, Lipson, "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
https://arxiv.org/abs/1905.09453

Every patched layer i draws z_i among its K components (eq. 4), and takes all of its parameters from that one. Norms and the
output layer are patched, since their parameters are few and matter much; the rest is shared, BatchNorm statistics included. A
training step uses one draw; the prior is part of the loss. EMP and ECMP share `multitudes.methods.layers.patches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from multitudes.method import Method
from multitudes.methods.layers.patches import Patching
from multitudes.settings import explained


@explained
@dataclass(frozen=True, kw_only=True)
class EMP(Patching, Method):
    """One network; a member draws one component for each patched layer: ``[M, B, ...]``."""

    elementwise: ClassVar[bool] = False
