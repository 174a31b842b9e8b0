"""A seal: the SHA-256 of an ONNX file inside the file itself, so that damage is found before the file is run.

ONNX has no digest of its own, and a graph with a flipped bit in a weight runs and answers wrong. The digest is an entry of the
metadata. It is that of the whole file, in which the digest itself is written as zeros.
"""

from __future__ import annotations

import hashlib
from typing import Any

KEY = "multitudes.sha256"
"""The key of the digest in the file's metadata."""
LENGTH = 64
_MARK = KEY.encode() + b"\x12" + bytes([LENGTH])
"""What stands before the digest in the file: the key, and protobuf's tag and length of a value."""


def leave_room(model: Any) -> None:
    """Adds an empty digest to the metadata of a model, in place."""
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, "0" * LENGTH


def sealed(data: bytes) -> bytes:
    """Returns the bytes of a file with its digest, if room was left for one."""
    found = _split(data)
    return data if found is None else b"".join([found[0], _digest(found).encode(), found[2]])


def is_intact(data: bytes) -> bool | None:
    """Whether the bytes of a file are those that were sealed; None for a file without a digest."""
    found = _split(data)
    return None if found is None else found[1] == _digest(found).encode()


def _split(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Returns what stands before the digest, the digest, and what stands behind it."""
    at = data.rfind(_MARK) + len(_MARK)
    if at < len(_MARK) or at + LENGTH > len(data):
        return None
    return data[:at], data[at : at + LENGTH], data[at + LENGTH :]


def _digest(found: tuple[bytes, bytes, bytes]) -> str:
    total = hashlib.sha256(found[0])
    total.update(b"0" * LENGTH)
    total.update(found[2])
    return total.hexdigest()
