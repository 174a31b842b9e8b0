"""Where files are looked for, errors for missing files, and checksums."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

import multitudes as mt
from multitudes.data.sources import VARIABLE, Source

CONTENT = b"published"
SOURCE = Source(
    "toy", "https://example.org/toy", "toy.tar.gz", ("toy-1", "toy-2"), {"a.bin": hashlib.md5(CONTENT).hexdigest()}
)  # fmt: skip


def test_the_folder_or_one_of_its_names_inside(tmp_path: Path) -> None:
    (tmp_path / "toy-2").mkdir()
    (tmp_path / "toy-2" / "a.bin").write_bytes(CONTENT)
    assert SOURCE.folder(tmp_path, ["a.bin"]) == tmp_path / "toy-2"
    assert SOURCE.folder(tmp_path / "toy-2", ["a.bin.gz|a.bin"]) == tmp_path / "toy-2"


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert SOURCE.folder(None, ["a.bin"]) == tmp_path
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(mt.FileError, match=rf"toy: .*root=.*{VARIABLE}.*toy.tar.gz from {SOURCE.page}"):
        SOURCE.folder(None, ["a.bin"])
    with pytest.raises(mt.InputError, match="root=3"):
        SOURCE.folder(3, ["a.bin"])  # type: ignore[arg-type]


def test_an_incomplete_folder_does_not_hide_a_complete_one(tmp_path: Path) -> None:
    for folder, files in (("toy-1", ["a.bin"]), ("toy-2", ["a.bin", "b.bin"])):
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / name).write_bytes(CONTENT)
    assert SOURCE.folder(tmp_path, ["a.bin", "b.bin"]) == tmp_path / "toy-2"


def test_missing_files_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError) as caught:
        SOURCE.folder(tmp_path, ["a.bin", "b.bin"])
    for part in (tmp_path / "toy-1", tmp_path / "toy-2", "a.bin, b.bin", "toy.tar.gz", SOURCE.page, "root=", VARIABLE):
        assert str(part) in str(caught.value)
    with pytest.raises(mt.FileError, match="nowhere is not a folder"):
        SOURCE.folder(tmp_path / "nowhere", ["a.bin"])
    (tmp_path / "toy-1").mkdir()
    (tmp_path / "toy-1" / "a.bin").write_bytes(CONTENT)
    with pytest.raises(mt.FileError, match=r"toy-1 lacks b\.bin\. Get"):
        SOURCE.folder(tmp_path, ["a.bin", "b.bin"])


def test_an_archive_that_is_still_packed_is_named(tmp_path: Path) -> None:
    (tmp_path / "toy.tar.gz").write_bytes(b"")
    with pytest.raises(mt.FileError, match=f"tar xf {tmp_path}/toy.tar.gz -C {tmp_path}"):
        SOURCE.folder(tmp_path, ["a.bin"])


def test_a_file_is_held_against_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    assert SOURCE.content(path, verify=True) == CONTENT
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(mt.FileError, match=r"a\.bin .*MD5.*verify=False"):
        SOURCE.content(path, verify=True)
    assert SOURCE.content(path, verify=False) == CONTENT + b"!"


def test_a_packed_file_may_match_packed_or_unpacked(tmp_path: Path) -> None:
    packed = tmp_path / "a.bin.gz"
    packed.write_bytes(gzip.compress(CONTENT, 1))
    assert SOURCE.content(packed, verify=True) == CONTENT
    of_packed = Source("toy", "", "", (), {"a.bin.gz": hashlib.md5(packed.read_bytes()).hexdigest()})
    assert of_packed.content(packed, verify=True) == CONTENT
    packed.write_bytes(gzip.compress(CONTENT + b"!"))
    for source in (SOURCE, of_packed):
        with pytest.raises(mt.FileError, match="MD5"):
            source.content(packed, verify=True)


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    packed = tmp_path / "c.gz"
    packed.write_bytes(gzip.compress(CONTENT * 50)[:-9])
    with pytest.raises(mt.FileError, match=r"c\.gz .*gzip.*https://example"):
        SOURCE.content(packed, verify=True)
    packed.write_bytes(b"no gzip")
    with pytest.raises(mt.FileError, match=r"c\.gz .*gzip"):
        SOURCE.content(packed, verify=True)
