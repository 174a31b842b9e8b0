"""Which functions autocast runs in lower precision, and which in single precision.

Under vmap, torch's own autocast casts only some operands. So inside vmap it is switched off, and `Together` casts the
arguments of the functions below, as torch's autocast does outside of vmap.
"""

from __future__ import annotations

LOWER = (
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "addr",
    "einsum", "chain_matmul", "scaled_dot_product_attention",
)  # fmt: skip
"""Functions that run in autocast's precision on every device."""

LOWER_ON_CUDA = ("prelu",)

SINGLE_ON_CUDA = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "group_norm", "rms_norm", "norm", "cosine_similarity", "dist",
    "cdist", "pdist", "renorm", "logsumexp", "prod", "softmax", "log_softmax", "softmin", "cumprod", "cumsum", "sum",
    "vector_norm", "normalize", "local_response_norm",
)  # fmt: skip
"""Functions that run in single precision on CUDA."""

SINGLE_ON_CPU = ("avg_pool3d", "grid_sample", "prod", "cdist", "local_response_norm", "adaptive_avg_pool3d", "cumsum")
"""Functions that run in single precision on a CPU."""


KEPT_ON_CPU = ("layer_norm", "group_norm", "instance_norm", "rms_norm")
"""Functions that on a CPU take mixed precisions and return that of their first argument, which vmap's rules do not."""


LOWERED, RAISED, KEPT = "lowered", "raised", "kept"

ON_CPU = {**dict.fromkeys(LOWER, LOWERED), **dict.fromkeys(SINGLE_ON_CPU, RAISED), **dict.fromkeys(KEPT_ON_CPU, KEPT)}
"""What autocast on a CPU does with a function's arguments, by the function's name."""

ON_CUDA = {
    **dict.fromkeys((*LOWER, *LOWER_ON_CUDA), LOWERED),
    **dict.fromkeys(SINGLE_ON_CUDA, RAISED),
    "instance_norm": KEPT,
}
"""The same on CUDA and other devices."""
