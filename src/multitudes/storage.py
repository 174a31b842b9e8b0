"""Storage: tensors and JSON in one file, written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from multitudes.errors import FileError

UNFINISHED = ".part"
"""Suffix of a file that is still being written."""

FORMAT = 1
"""Format version of the JSON in our files. Loading a newer version is an error."""


def save_tensors(path: str | PathLike[str], kind: str, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors and JSON about them to a safetensors file. `kind` names the content, and `load_tensors` checks it."""
    plain = _plain(tensors)
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    write_tensors(Path(path), plain, {kind: text, "sha256": digest(plain, text)})


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns contiguous tensors on the CPU; copies of those that have part of a memory, or one that another tensor has."""
    plain, taken = {}, set()
    for name, tensor in tensors.items():
        found = tensor.detach().cpu().contiguous()
        memory = found.untyped_storage()
        if memory.data_ptr() in taken or memory.nbytes() != found.nbytes:
            found = found.clone()
        taken.add(found.untyped_storage().data_ptr())
        plain[name] = found
    return plain


def load_tensors(path: str | PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the JSON and the tensors of a file that `save_tensors` wrote."""
    header, tensors = _safetensors(Path(path))
    if kind not in header or "sha256" not in header:
        raise FileError(f"{path} holds no {kind} of multitudes: give the path of a file that does")
    if digest(tensors, header[kind]) != header["sha256"]:
        raise FileError(f"{path} is damaged or was altered: its contents do not match its digest. Get or save it again")
    return described(header[kind], path, kind, FORMAT), tensors


def described(text: str | bytes, path: str | PathLike[str], kind: str, known: int) -> dict[str, Any]:
    """Parses the JSON of a file. Raises an error if its format is newer than `known`."""
    try:
        about: dict[str, Any] = json.loads(text)
        newer = about["format"] > known
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileError(
            f"{path} is damaged or does not describe a {kind} (get or save it again): {type(error).__name__}: {error}"
        ) from error
    if newer:
        raise FileError(f"{path} has a newer format: update multitudes")
    return about


def write(target: Path, data: bytes) -> None:
    """Writes a file whole or not at all. An old file stays until the new one is complete."""
    with _whole(target) as (file, _):
        file.write(data)


def write_tensors(target: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes a safetensors file whole or not at all. Tensors are contiguous, on the CPU, and share no memory; none copied."""
    from safetensors.torch import save_file

    with _whole(target) as (_, name):
        save_file(tensors, name, metadata)


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Gives a new file beside `target`, open and by name, which takes its place at the end of a with-block without errors."""
    from safetensors import SafetensorError

    name = target.parent / f".{target.name}.{secrets.token_hex(4)}{UNFINISHED}"
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # permissions of any new file
        with os.fdopen(handle, "wb") as file:
            yield file, name
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except (OSError, SafetensorError) as error:
        is_there = target.parent.exists()
        why = _reason(error) if is_there else f"there is no folder {target.parent}"
        check = (
            "Check the folder, its permissions and the free disk space" if is_there else f"Make it: mkdir -p {target.parent}"
        )
        raise FileError(f"cannot write {target}: {why}. {check}") from error
    finally:
        with contextlib.suppress(OSError):
            name.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    """Returns what the system said; safetensors puts words of its own around that."""
    found = re.search(r"I/O error: (.+?) \(os error \d+\)", str(error))
    return getattr(error, "strerror", None) or (found[1] if found else str(error))


def _safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(
            f"{path} is a folder: give a file in it" if path.is_dir() else f"there is no file {path}: check the path"
        )
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(
            f"{path} is not a whole safetensors file ({error}). For a pickled checkpoint, convert it first: "
            "safetensors.torch.save_file(model.state_dict(), ...)"
        ) from error


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Returns the SHA-256 of a text and of contiguous CPU tensors: their names, shapes, dtypes and numbers."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return total.hexdigest()
