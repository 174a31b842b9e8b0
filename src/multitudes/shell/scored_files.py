"""Files that `multitudes score` reads: predictions, those of OOD sets, and the row of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multitudes.errors import InputError

if TYPE_CHECKING:
    from multitudes.prediction.prediction import Prediction
    from multitudes.scores.scores import Scores


def ood_files(texts: Sequence[str], run: Path) -> dict[str, Path]:
    """Returns the files of OOD predictions by the names of their sets, from NAME=FILE or FILE; raises if one is not there."""
    from multitudes.shell.own_names import check_there

    files = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals and not Path(text).exists() and not Path(text).suffix:
            source = run if run.is_dir() else "RUN"
            raise InputError(
                f"--ood {text}: there is no file {text}: type `multitudes predict {source} --data {text} "
                f"--out {text}.safetensors`, and then --ood {text}={text}.safetensors"
            )
        if not equals:
            name, path = Path(text).stem, text
        check_there([Path(path)], f"--ood {text}: type NAME=FILE, with a file of `multitudes predict`")
        files[name] = tensor_file(Path(path))
    return files


def calibrated_scores(run: Path, far: dict[str, Prediction], intervals: int) -> Scores:
    """Scores the predictions of a run, and those of OOD sets `far`, with the run's temperature."""
    from multitudes.report.row import Row
    from multitudes.scores.score import score as compute_scores
    from multitudes.shell.steps import calibrator_of

    calibrator = calibrator_of(run)
    row = Row.load(run)
    assert row.prediction is not None
    ood = {name: one if one.calibrator else one.calibrated(calibrator) for name, one in {**row.ood, **far}.items()}
    return compute_scores(row.prediction.calibrated(calibrator), ood=ood or None, intervals=intervals)


def row_folder(folder: Path) -> Path:
    """Returns the folder of a run; raises if it holds no row, or several runs."""
    from multitudes.shell.told import check_one_run

    if (folder / "row.json").is_file():
        return folder
    check_one_run(folder)
    raise InputError(f"{folder} holds no scores: `multitudes train --resume --out {folder}` finishes and scores a run")


def tensor_file(path: Path) -> Path:
    """Returns the path of a prediction; raises if it is a table, which has no members' outputs."""
    if path.suffix.lower() == ".csv":
        raise InputError(f"{path} is a table, without members' outputs: type `multitudes predict RUN --out x.safetensors`")
    return path
