"""Kernels: how vmap runs the layers of all members at once, in their layout and under autocast.

`rules.py` puts the rules below in the place of torch's own, `autocast.py` says which functions run in which precision.
"""

from multitudes.engine.kernels.rules import Together

__all__ = ["Together"]
