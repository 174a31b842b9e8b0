"""Checks the arguments of `fit` before any work is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from multitudes.data.dataset import target_std_of
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.prediction.predict import checked_ensemble
from multitudes.training.recipe import Recipe
from multitudes.training.validation import Validator


def check_ensemble(ensemble: Any) -> None:
    """Refuses what is no ensemble, or one that is compiled or wrapped: `fit` does both itself."""
    plain = checked_ensemble(ensemble, "fit")
    if plain is not ensemble:
        compiled = type(ensemble).__name__ == "OptimizedModule"
        instead = "fit(ens, train, mt.Recipe(compile=True))" if compiled else "start with torchrun, and call fit(ens, train)"
        raise InputError(f"fit takes the ensemble itself, not a {type(ensemble).__name__} of it: {instead}")
    if plain.is_compact:
        raise RunError("a compact ensemble cannot be trained: train the original ensemble, and compact it again")


def checked_recipe(recipe: Any, train: Any) -> Recipe:
    """Returns the recipe, or the default one. Refuses targets in its place."""
    if isinstance(train, (Tensor, np.ndarray)) and isinstance(recipe, (Tensor, np.ndarray)):
        raise InputError("fit takes inputs and targets as one dataset: fit(ens, torch.utils.data.TensorDataset(X, y))")
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InputError(f"fit takes a Recipe, not a {type(recipe).__name__}: mt.Recipe(epochs=10)")
    return recipe or Recipe()


def checked_callbacks(callbacks: Any) -> list[Callable[[Any], Any]]:
    """Returns the callbacks as a list."""
    calls = [callbacks] if callable(callbacks) else list(callbacks)
    for call in [call for call in calls if not _takes_one(call)]:
        raise InputError(
            f"callbacks={call!r} must be functions that take the run: callbacks=[lambda run: print(run.metrics[-1])]"
        )
    return calls


def _takes_one(call: Any) -> bool:
    """Checks whether a callback can be called with the run; one without a signature may."""
    try:
        inspect.signature(call).bind(None)
    except TypeError:
        return False
    except ValueError:
        return callable(call)
    return True


def check_held_out(ensemble: Ensemble, recipe: Recipe, validator: Validator | None, calibrate: bool) -> None:
    """Refuses to calibrate or to stop early without held-out data, and to calibrate what has nothing to calibrate."""
    if validator is None and calibrate:
        raise InputError("calibrate=True needs held-out data: pass fit(..., val=..., calibrate=True)")
    if validator is None and recipe.patience is not None:
        raise InputError(f"Recipe(patience={recipe.patience}) needs held-out data to stop by: pass fit(..., val=...)")
    if validator is not None and calibrate:
        validator.check_calibrates(ensemble)


def check_units(ensemble: Ensemble, train: Any) -> None:
    """Refuses standardised targets where an ELBO weighs errors by τ, which is in the targets' own units."""
    weighs = getattr(ensemble.method, "prior", None) == "elbo" and ensemble.task == "regression"
    sets = train if isinstance(train, (list, tuple)) else [train]
    if weighs and any(target_std_of(one) is not None for one in sets):
        raise InputError(
            f"{type(ensemble.method).__name__}(prior='elbo') weighs errors by tau_output in the targets' own units, but these "
            "targets are standardised: train on targets in their own units, such as data.uci(name, standardise='inputs')"
        )
