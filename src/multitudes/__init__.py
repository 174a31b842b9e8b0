"""Turn any PyTorch network into an efficient ensemble whose uncertainty you can trust.

Convert     plan, ensemble, resize    show what a method would do to a model; do it; make a model thinner or wider
            check, cost, recommend    prove an ensemble right; measure it; find the methods that fit a budget
Train       fit, Recipe               train an ensemble; how to train it
            find_lr                   try learning rates on a copy, and suggest one
            GaussianNLL               the loss of a network that predicts means and variances
Predict     predict, Prediction       run an ensemble over a dataset; the members' outputs and their uncertainty
            calibrate                 fit a temperature, or a factor of variances, on held-out data
            conformal                 fit sets of classes, or intervals, that contain the truth with a chosen probability
            select, threshold         choose members, or a confidence below which to abstain, on held-out data
Score       score                     accuracy, NLL, calibration, out-of-distribution detection, diversity
Report      report                    one HTML page that compares methods
Keep        save, load                one file per ensemble: safetensors and JSON, never pickle
            export                    one graph for a runtime, with the uncertainty inside: ONNX or torch.export

Methods     Single Deep Packed Masksembles MIMO EMP ECMP BatchEnsemble MCDropout DropConnect MultiHead TreeNet
            SWAG Snapshot Laplace     members made of one training run
            Method                    the base class of your own method
            masks                     draw masks of a chosen overlap, as Masksembles does
Values      Ensemble                  the result of `ensemble`: an nn.Module whose outputs are [members, batch, ...]
            Inputs                    the arguments of a model that takes several
Errors      MultitudesError           the base of InputError ConversionError CheckError RunError FileError

The folders of the package are the stages of this work, in the same order:

conversion/  a model, a method and an example become an Ensemble      methods/  one file for each method
training/    fit, recipes, losses, the folder of a run                engine/   how members run
prediction/  Prediction: the members' outputs and uncertainty         models/   the papers' networks
scores/      one function for each score                              data/     datasets, corruptions, augmentation
figures/     one function for each figure                             analysis/ what papers measure of members; recommend
report/      the HTML page                                            shell/    the `multitudes` command, jobs and sweeps
files/       saving and loading ensembles                             integrations/  Lightning, transformers, scikit-learn, timm

Nothing is imported until a name is used, so `import multitudes` costs no time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from multitudes.lazy_names import homes_of, importer
from multitudes.version import __version__ as __version__

if TYPE_CHECKING:
    from multitudes.analysis.recommend import recommend as recommend
    from multitudes.conversion.check import check as check
    from multitudes.conversion.convert import ensemble as ensemble
    from multitudes.conversion.convert import plan as plan
    from multitudes.conversion.cost import cost as cost
    from multitudes.conversion.resize.resize import resize as resize
    from multitudes.engine.inputs import Inputs as Inputs
    from multitudes.ensemble import Ensemble as Ensemble
    from multitudes.errors import CheckError as CheckError
    from multitudes.errors import ConversionError as ConversionError
    from multitudes.errors import FileError as FileError
    from multitudes.errors import InputError as InputError
    from multitudes.errors import MultitudesError as MultitudesError
    from multitudes.errors import RunError as RunError
    from multitudes.files.ensemble_file import load as load
    from multitudes.files.ensemble_file import save as save
    from multitudes.files.export.export import export as export
    from multitudes.method import Method as Method
    from multitudes.methods import ECMP as ECMP
    from multitudes.methods import EMP as EMP
    from multitudes.methods import MIMO as MIMO
    from multitudes.methods import SWAG as SWAG
    from multitudes.methods import BatchEnsemble as BatchEnsemble
    from multitudes.methods import Deep as Deep
    from multitudes.methods import DropConnect as DropConnect
    from multitudes.methods import Laplace as Laplace
    from multitudes.methods import Masksembles as Masksembles
    from multitudes.methods import MCDropout as MCDropout
    from multitudes.methods import MultiHead as MultiHead
    from multitudes.methods import Packed as Packed
    from multitudes.methods import Single as Single
    from multitudes.methods import Snapshot as Snapshot
    from multitudes.methods import TreeNet as TreeNet
    from multitudes.methods.layers.masks import masks as masks
    from multitudes.prediction.predict import predict as predict
    from multitudes.prediction.prediction import Prediction as Prediction
    from multitudes.prediction.temperature import calibrate as calibrate
    from multitudes.report import report as report
    from multitudes.scores.conformal import conformal as conformal
    from multitudes.scores.held_out import select as select
    from multitudes.scores.held_out import threshold as threshold
    from multitudes.scores.score import score as score
    from multitudes.training.find_lr import find_lr as find_lr
    from multitudes.training.fit import fit as fit
    from multitudes.training.losses import GaussianNLL as GaussianNLL
    from multitudes.training.recipe import Recipe as Recipe

_HOMES = {
    "analysis.recommend": "recommend",
    "conversion.check": "check",
    "conversion.convert": "ensemble plan",
    "conversion.cost": "cost",
    "conversion.resize.resize": "resize",
    "engine.inputs": "Inputs",
    "ensemble": "Ensemble",
    "errors": "CheckError ConversionError FileError InputError MultitudesError RunError",
    "files.ensemble_file": "load save",
    "files.export.export": "export",
    "method": "Method",
    "methods": """BatchEnsemble Deep DropConnect ECMP EMP Laplace MCDropout MIMO Masksembles MultiHead Packed SWAG Single
        Snapshot TreeNet""",
    "methods.layers.masks": "masks",
    "prediction.predict": "predict",
    "prediction.prediction": "Prediction",
    "prediction.temperature": "calibrate",
    "report": "report",
    "scores.conformal": "conformal",
    "scores.held_out": "select threshold",
    "scores.score": "score",
    "training.find_lr": "find_lr",
    "training.fit": "fit",
    "training.losses": "GaussianNLL",
    "training.recipe": "Recipe",
}
_HOME_OF = homes_of(_HOMES)
_ROOMS = """analysis conversion data engine errors figures files integrations method methods models prediction scores settings
    shell storage training""".split()
_INNER = {"Job": "shell.jobs", "Data": "data", "Calibrator": "prediction.temperature"}
"""Names that are not exported here, and their modules, for the error that says so."""

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


_public = importer("multitudes", _HOME_OF)


def _imported(name: str) -> Any:
    """Imports a public name, or a folder of the package, when it is first used."""
    if name in _INNER:
        raise AttributeError(f"module 'multitudes' has no attribute {name!r}: from multitudes.{_INNER[name]} import {name}")
    return import_module(f"multitudes.{name}") if name in _ROOMS else _public(name)


if not TYPE_CHECKING:  # a type checker that saw it would take every name for a public one
    __getattr__ = _imported


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Keeps the functions `mt.ensemble` and `mt.report`: importing the modules of the same names would replace them."""

    def __setattr__(self, name: str, value: Any) -> None:
        hides = name in _HOME_OF and isinstance(value, ModuleType) and value.__name__ == f"multitudes.{name}"
        if not hides:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
