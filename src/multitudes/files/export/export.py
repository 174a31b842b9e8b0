"""export: writes an ensemble as one graph that needs no library but a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator
from multitudes.settings import takes_names

if TYPE_CHECKING:
    from multitudes.files.export.result import Exported

Precision = Literal["float32", "float16", "int8"]
Prefer = Literal["speed", "size"]


@takes_names()
def export(
    ensemble: Ensemble,
    example: Any,
    path: str | PathLike[str],
    *,
    outputs: Sequence[str] | None = None,
    calibrator: Calibrator | None = None,
    threshold: float | tuple[str, float] | None = None,
    precision: Precision = "float32",
    prefer: Prefer = "speed",
    data: Any = None,
    reference: Prediction | None = None,
    labels: Sequence[str] | None = None,
    units: Data | None = None,
    aot: bool = False,
) -> Exported:
    """Writes the ensemble as one graph, with probabilities and uncertainties as its outputs, for any batch size.

    The graph is compared with the ensemble on several batch sizes before the file is written; an old file stays until then.
    Members that are random draws are frozen as they are now.

    example     inputs like those of `mt.ensemble`
    path        a file that ends in .onnx, or in .pt2 for a program of torch.export
    outputs     names such as "probs", "label", "entropy", "mutual_information", "member_probs"; by default the usual ones
    calibrator  temperatures or a factor of variances; by default `ensemble.calibrator`
    threshold   a confidence below which the output "abstain" is true, from `mt.threshold`; or a score and its limit, such as
                ("mutual_information", 0.3), above which it is
    precision   the numbers in which an .onnx file stores weights: "float32", "float16" or "int8"
    prefer      "speed": Masksembles are compacted and members' vectors become weights of members when the file is loaded;
                "size": neither, for the smallest file and the least memory
    data        held-out data with targets: scores of the ensemble and of the file are compared on it
    reference   a prediction of held-out data, calibrated as the file is and in its units: quantiles of its uncertainty go into
                the file, to recognise unlike inputs
    labels      names of the classes, for the file
    units       the training data: numbers are returned in the units of its targets, if these were standardised, and the file
                says how its inputs were normalised
    aot         compile a .pt2 file for this machine (AOTInductor), which takes a while
    """
    from multitudes.files.export.work import write_export  # torch's tracer is imported with it

    return write_export(
        ensemble,
        example,
        path,
        outputs=outputs,
        calibrator=calibrator,
        threshold=threshold,
        precision=precision,
        prefer=prefer,
        data=data,
        reference=reference,
        labels=labels,
        units=units,
        aot=aot,
    )
