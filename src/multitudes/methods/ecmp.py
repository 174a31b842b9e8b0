"""ECMP: Ensemble Cross Model Patching: one network; a few layers have K components, and a member mixes them by element.

Chang, Yao, Williams-King, Lipson, "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
https://arxiv.org/abs/1905.09453

Every element of every patched parameter draws its own component (eq. 5); EMP draws one for a whole layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from multitudes.method import Method
from multitudes.methods.layers.patches import Patching
from multitudes.settings import explained


@explained
@dataclass(frozen=True, kw_only=True)
class ECMP(Patching, Method):
    """One network; a member draws one component for each element of patched layers: ``[M, B, ...]``."""

    elementwise: ClassVar[bool] = True
