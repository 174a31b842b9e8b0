"""Analyses of ensembles: what the papers measure besides scores. `recommend` compares methods on your network.

Each function returns a result that holds tensors, and draws itself with `.figure(theme="light")`. docs/analysis.md has an
example of each.

kl_bound              how far a layer's outputs move if weights are left out: supplement of Packed-Ensembles, Fig. 5
bias_variance         bias, variance and error over training sets: MIMO, Fig. 2
landscape             loss and accuracy over a plane through members: MIMO, Fig. 3
Trajectories          the members' predictions during training, in two dimensions: MIMO, Fig. 4
conditional_variance  how much each unit of a MIMO network depends on each input: MIMO, Fig. 4
weight_share          the share of weights above a threshold: MIMO, Fig. 9
function_prior        functions that a method draws: Ensemble Model Patching, Fig. 3
mask_statistics       overlap and size of masks; mask_sweep over scales, mask_iou, mask_size: Masksembles, Fig. 3
counts                parameters of variational methods: Ensemble Model Patching, Table 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from multitudes.lazy_names import homes_of, importer

if TYPE_CHECKING:
    from multitudes.analysis.dropped_weights import kl_bound as kl_bound
    from multitudes.analysis.functions import function_prior as function_prior
    from multitudes.analysis.mask_sets import mask_iou as mask_iou
    from multitudes.analysis.mask_sets import mask_size as mask_size
    from multitudes.analysis.mask_sets import mask_statistics as mask_statistics
    from multitudes.analysis.mask_sets import mask_sweep as mask_sweep
    from multitudes.analysis.parameter_counts import counts as counts
    from multitudes.analysis.planes import landscape as landscape
    from multitudes.analysis.recorder import Trajectories as Trajectories
    from multitudes.analysis.slots import conditional_variance as conditional_variance
    from multitudes.analysis.training_sets import bias_variance as bias_variance
    from multitudes.analysis.weights import weight_share as weight_share

_HOMES = {
    "dropped_weights": "kl_bound",
    "functions": "function_prior",
    "mask_sets": "mask_iou mask_size mask_statistics mask_sweep",
    "parameter_counts": "counts",
    "planes": "landscape",
    "recorder": "Trajectories",
    "slots": "conditional_variance",
    "training_sets": "bias_variance",
    "weights": "weight_share",
}
_HOME_OF = homes_of(_HOMES)

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a type checker that saw it would take every name for a public one
    __getattr__ = importer("multitudes.analysis", _HOME_OF)  # no module has the name of a function, which it would hide


def __dir__() -> list[str]:
    return __all__
