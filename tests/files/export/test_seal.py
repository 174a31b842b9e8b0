"""The seal: a change of any byte is found, before the digest, in it, and behind it."""

from __future__ import annotations

import onnx
import pytest

from multitudes.files.export.seal import is_intact, leave_room, sealed


def file() -> bytes:
    """A file with bytes on both sides of its digest, as tools leave it that add metadata of their own."""
    model = onnx.ModelProto(producer_name="before")
    leave_room(model)
    entry = model.metadata_props.add()
    entry.key, entry.value = "more", "behind"
    return sealed(model.SerializeToString())


@pytest.mark.parametrize("cut", [b"before", b"behind"])
def test_bytes_on_both_sides_of_the_digest_are_sealed(cut: bytes) -> None:
    data = file()
    assert is_intact(data)
    assert is_intact(data.replace(cut, cut[::-1])) is False
    assert is_intact(data + b"\0") is False


def test_every_byte_is_sealed() -> None:
    """A byte of the mark that changes hides the digest: then there is none, which a description does not allow."""
    data = file()
    changed = [is_intact(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]) for i in range(len(data))]
    assert True not in changed
    assert changed.count(None) == len(b"multitudes.sha256\x12\x40")
