"""Places: where the publishers' files are looked for, what is said when they are missing, and their checksums."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from multitudes.errors import FileError, InputError

VARIABLE = "MULTITUDES_DATA"
"""The environment variable that names the folder of all sets."""

Root = str | PathLike[str] | None
"""A folder; None for that of MULTITUDES_DATA."""


@dataclass(frozen=True)
class Source:
    """A published set: where it comes from and what its files are called."""

    name: str
    page: str
    """The publisher's page."""

    get: str
    """What to take from there."""

    folders: tuple[str, ...]
    """What its folder may be called."""

    md5: Mapping[str, str] = field(default_factory=dict)
    """Checksums of files, as published or of the published archive's contents."""

    apart: tuple[Source, ...] = ()
    """Sets whose files are called the same: theirs are known by their checksums, and refused."""

    def folder(self, root: Root, files: Sequence[str]) -> Path:
        """The folder that holds all these files (`a|b` for either name)."""
        top = top_folder(self.name, root, f". Get {self.get} from {self.page}")
        places = list(dict.fromkeys([*(top / name for name in self.folders), top]))
        lacking = {place: [name for name in files if either(place, name) is None] for place in places}
        for place in places:
            if not lacking[place]:
                return place
        some = [place for place in places if len(lacking[place]) < len(files)]
        if some:
            raise FileError(f"{self.name}: {some[0]} lacks {', '.join(lacking[some[0]])}. {self._advice(top)}")
        looked = " and ".join(map(str, places))
        missing = "" if top.is_dir() else f" ({top} is no folder)"
        wanted = ", ".join(name.replace("|", " or ") for name in files)
        raise FileError(f"{self.name} is not there: looked in {looked}{missing} for {wanted}. {self._advice(top)}")

    def _advice(self, top: Path) -> str:
        packed = next((p for f in ("", *self.folders) if (p := top / f / self.get).is_file()), None)
        if packed is not None and packed.name.endswith((".tar.gz", ".tgz", ".tar")):
            return f"It is still packed: tar xf {packed} -C {packed.parent}"
        return f"Get {self.get} from {self.page}, and put it there, unpacked; or name another folder by root= or {VARIABLE}"

    def content(self, path: Path, verify: bool) -> bytes:
        """All of a file, unpacked if it ends in .gz, and checked against its checksum if there is one."""
        try:
            stored = path.read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from error
        try:
            unpacked = gzip.decompress(stored) if path.suffix == ".gz" else stored
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(f"{path} is not a whole gzip file ({error}). {self._again(path)}") from error
        if verify:
            self._verify(path, stored, unpacked)
        self._refuse_others(path, stored, unpacked)
        return unpacked

    def _verify(self, path: Path, stored: bytes, unpacked: bytes) -> None:
        plain = path.name.removesuffix(".gz")
        known = {self.md5[name] for name in {path.name, plain} if name in self.md5}
        found = _md5(stored, unpacked) if known else set()
        if known and not known & found:
            raise FileError(
                f"{path} is not the published file: its md5 is {', '.join(sorted(found))}, not {' or '.join(sorted(known))}. "
                f"{self._again(path)}; if it is meant to differ, verify=False"
            )

    def _refuse_others(self, path: Path, stored: bytes, unpacked: bytes) -> None:
        found = _md5(stored, unpacked) if self.apart else set()
        for other in self.apart:
            for name, known in other.md5.items():
                if known in found:
                    raise FileError(f"{path} is not of {self.name}: it is the {name} of {other.name}. {self._again(path)}")

    def _again(self, path: Path) -> str:
        return f"Get {self.get} again from {self.page}"


def _md5(*contents: bytes) -> set[str]:
    return {hashlib.md5(content, usedforsecurity=False).hexdigest() for content in contents}


def either(folder: Path, name: str) -> Path | None:
    """The file of one of the names in `a|b`."""
    return next((folder / one for one in name.split("|") if (folder / one).is_file()), None)


def top_folder(name: str, root: Root, advice: str = "") -> Path:
    """The folder given, or that of the environment variable."""
    if root is not None and not isinstance(root, (str, PathLike)):
        raise InputError(f"{name}: root is a folder's path, not {root!r}")
    given = root if root is not None else os.environ.get(VARIABLE)
    if not given:
        raise FileError(f"{name}: which folder? Give root=, or set {VARIABLE} to the folder that holds your sets{advice}")
    return Path(given).expanduser()


def chosen(name: str, split: str, known: Sequence[str]) -> str:
    """A split that exists."""
    if split not in known:
        raise InputError(f"{name}: split={split!r}: there are {', '.join(map(repr, known))}")
    return split


def same_count(name: str, images: int, labels: int) -> None:
    """As many images as labels, and some."""
    if not images:
        raise FileError(f"{name} holds no images")
    if images != labels:
        raise FileError(f"{name} has {images} images and {labels} labels")
