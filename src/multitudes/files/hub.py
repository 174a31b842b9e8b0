"""hub: ensembles on the Hugging Face Hub, or in a local folder of the same form, through huggingface_hub's mixin.

The folder holds one file of `mt.save`, which is checked by its digest and never unpickled.
"""

from __future__ import annotations

import functools
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from multitudes.engine.modules import Factory
from multitudes.ensemble import Ensemble
from multitudes.errors import FileError, InputError, MultitudesError
from multitudes.files.ensemble_file import load, save
from multitudes.prediction.predict import checked_ensemble

FILE = "ensemble.multitude"
"""The name of the ensemble's file in a repository."""


def push_to_hub(ensemble: Ensemble, repo_id: str, **options: Any) -> str:
    """Uploads an ensemble to the Hub, as `ModelHubMixin.push_to_hub` does, with its options. Returns the address.

    repo_id    the repository, "user/name"; it is made if it does not exist
    """
    ensemble = checked_ensemble(ensemble, "push_to_hub")
    return str(_on_hub()(ensemble).push_to_hub(repo_id, config=_about(ensemble), **options))


def save_pretrained(ensemble: Ensemble, folder: str | PathLike[str], **options: Any) -> Path:
    """Writes the folder that `push_to_hub` would upload. Returns it."""
    ensemble = checked_ensemble(ensemble, "save_pretrained")
    _on_hub()(ensemble).save_pretrained(Path(folder), config=_about(ensemble), **options)
    return Path(folder)


def _about(ensemble: Ensemble) -> dict[str, Any]:
    """Returns what a reader of the repository sees in config.json; the file of the ensemble does not need it."""
    return {"method": type(ensemble.method).__name__, "members": ensemble.members, "task": ensemble.task}


def from_pretrained(source: str | PathLike[str], model: nn.Module | Factory | None = None, **options: Any) -> Ensemble:
    """Loads an ensemble from a repository on the Hub, or from a folder, as `mt.load` loads a file.

    source     a repository, "user/name", or a folder
    model      a network of the architecture that was saved; networks of `multitudes.models` need none
    options    those of `ModelHubMixin.from_pretrained`: revision, token, cache_dir, local_files_only
    """
    if isinstance(source, nn.Module):
        raise InputError("the repository or folder comes first, then the model: from_pretrained(source, model)")
    kind = _on_hub()
    if Path(source).is_dir():
        return load(Path(source) / FILE, model)
    try:
        return kind.from_pretrained(str(source), model=model, **options).ensemble
    except MultitudesError:
        raise
    except (OSError, ValueError) as error:  # huggingface_hub's own errors are such
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise FileError(f"{source} is no folder, and no repository with {FILE} that can be read: {first}") from error


@functools.cache
def _on_hub() -> Any:
    """Returns the class that huggingface_hub saves and loads."""
    try:
        from huggingface_hub import ModelHubMixin, hf_hub_download
    except ImportError as error:
        raise InputError("the Hugging Face Hub needs huggingface_hub: pip install 'multitudes[hub]'") from error

    class OnHub(ModelHubMixin, library_name="multitudes", tags=["ensemble", "uncertainty"]):
        """An ensemble as huggingface_hub holds it."""

        def __init__(self, ensemble: Ensemble) -> None:
            self.ensemble = ensemble

        def _save_pretrained(self, save_directory: Path) -> None:
            save(self.ensemble, save_directory / FILE)

        @classmethod
        def _from_pretrained(  # type: ignore[override]
            cls,
            *,
            model_id: str,
            revision: str | None = None,
            cache_dir: str | Path | None = None,
            force_download: bool = False,
            local_files_only: bool = False,
            token: str | bool | None = None,
            model: nn.Module | Factory | None = None,
        ) -> OnHub:
            kept: Any = {"cache_dir": cache_dir, "force_download": force_download, "local_files_only": local_files_only}
            return cls(load(hf_hub_download(model_id, FILE, revision=revision, token=token, **kept), model))

    return OnHub
