"""undisturbed: what surrounds the public functions that run networks of the user on trial."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.seeds import checked_seed, kept_randomness
from multitudes.settings import check_call

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def _without_torch_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.")
        warnings.filterwarnings("ignore", r"(?s).*\(Triggered internally at")  # from C++, in the name of whoever called
        yield


@contextlib.contextmanager
def _old_objects_spared() -> Iterator[None]:
    """Keeps Python's garbage collector, in a with-block, from the objects that were there before.

    The copies of networks set it off, and each time it would look through all that torch and other packages hold.
    """
    ours = gc.isenabled() and not gc.get_freeze_count()  # what others have frozen stays so
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def undisturbed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function that runs networks on trial: it neither depends on torch's modes nor moves randomness.

    Inside, gradients are on, and autocast and inference mode are off, and torch's warnings of the user's network are not shown:
    they come when the user makes or calls it. Afterwards the global generators of python, numpy and torch are as before, also
    after an error. The one draw that remains is the documented one of seed=None, if the function returns.
    """
    signature = inspect.signature(function)
    draws_seed = "seed" in signature.parameters

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        check_call(function.__name__, signature, args, kwargs)
        before = torch.get_rng_state()
        try:
            if draws_seed:
                kwargs["seed"] = checked_seed(kwargs.get("seed"))  # type: ignore[arg-type]
            with clean_autograd(), kept_randomness(), _without_torch_warnings(), _old_objects_spared():
                return function(*args, **kwargs)
        except BaseException:
            torch.set_rng_state(before)
            raise

    return run
