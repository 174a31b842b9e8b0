"""Finds the files of published datasets and checks their MD5. Errors say which files are missing and where to get them."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from torch import Tensor

from multitudes.errors import FileError, InputError

VARIABLE = "MULTITUDES_DATA"
"""Environment variable that names the folder of all datasets."""

Root = str | PathLike[str] | None
"""A folder; None for the one that MULTITUDES_DATA names."""


@dataclass(frozen=True)
class Source:
    """Where a published dataset comes from, and the names and checksums of its files."""

    name: str
    page: str
    """The publisher's web page."""

    get: str
    """What to download from there."""

    folders: tuple[str, ...]
    """Names that its folder may have."""

    md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 by file name: of the published file, or of its unpacked content."""

    confusable: tuple[Source, ...] = ()
    """Datasets with the same file names: their files are recognised by MD5 and refused."""

    def folder(self, root: Root, files: Sequence[str]) -> Path:
        """Finds the folder with all these files; `a|b` stands for either name."""
        top = top_folder(self.name, root, f". Get {self.get} from {self.page}")
        places = list(dict.fromkeys([*(top / name for name in self.folders), top]))
        missing = {place: [name for name in files if find_file(place, name) is None] for place in places}
        best = min(places, key=lambda place: len(missing[place]))
        if not missing[best]:
            return best
        if len(missing[best]) < len(files):
            raise FileError(f"{self.name}: {best} lacks {', '.join(missing[best])}. {self._advice(top)}")
        looked = " and ".join(map(str, places)) + ("" if top.is_dir() else f" ({top} is not a folder)")
        wanted = ", ".join(name.replace("|", " or ") for name in files)
        raise FileError(f"{self.name} was not found: looked in {looked} for {wanted}. {self._advice(top)}")

    def _advice(self, top: Path) -> str:
        archive = next((path for name in ("", *self.folders) if (path := top / name / self.get).is_file()), None)
        if archive is not None and archive.name.endswith((".tar.gz", ".tgz", ".tar")):
            return f"The archive is not unpacked yet: tar xf {archive} -C {archive.parent}"
        return f"Get {self.get} from {self.page} and unpack it there, or give its folder by root= or {VARIABLE}"

    def content(self, path: Path, verify: bool) -> bytes:
        """Reads a file, unpacks it if it ends in .gz, and with `verify` compares it with its published MD5."""
        stored = path.read_bytes()
        try:
            unpacked = gzip.decompress(stored) if path.suffix == ".gz" else stored
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(f"{path} is not a complete gzip file ({error}). {self._again()}") from error
        names = {path.name, path.name.removesuffix(".gz")}
        expected = {self.md5[name] for name in names if name in self.md5} if verify else set()
        digests = _md5(stored, unpacked) if expected or self.confusable else set()
        if expected and not expected & digests:
            raise FileError(
                f"{path} is not the published file: its MD5 is {', '.join(sorted(digests))}, "
                f"not {' or '.join(sorted(expected))}. {self._again()}, or read it all the same with verify=False"
            )
        for other in self.confusable:
            for name, digest in other.md5.items():
                if digest in digests:
                    raise FileError(f"{path} is not from {self.name}: it is {name} from {other.name}. {self._again()}")
        return unpacked

    def _again(self) -> str:
        return f"Get {self.get} again from {self.page}"


def _md5(*contents: bytes) -> set[str]:
    return {hashlib.md5(content, usedforsecurity=False).hexdigest() for content in contents}


def find_file(folder: Path, name: str) -> Path | None:
    """Returns the first existing file in a folder; `a|b` stands for either name."""
    return next((folder / part for part in name.split("|") if (folder / part).is_file()), None)


def top_folder(name: str, root: Root, advice: str = "") -> Path:
    """Returns the folder of all datasets: `root`, or the one that MULTITUDES_DATA names."""
    if root is not None and not isinstance(root, (str, PathLike)):
        raise InputError(f"{name}: root={root!r} is a {type(root).__name__}: give the path of a folder")
    folder = root if root is not None else os.environ.get(VARIABLE)
    if not folder:
        raise FileError(f"{name}: give root=, or set {VARIABLE} to the folder that holds your datasets{advice}")
    return Path(folder).expanduser()


def check_split(name: str, split: str, splits: Sequence[str]) -> str:
    """Checks that a dataset has this split."""
    if split not in splits:
        raise InputError(f"{name}: split={split!r}: choose from {', '.join(map(repr, splits))}")
    return split


def check_labels(path: Path, images: int, labels: Tensor, first: int, last: int) -> None:
    """Checks that a file has as many labels as images, at least one, and that labels lie between `first` and `last`."""
    if not images:
        raise FileError(f"{path} has no images: download the file again")
    if images != len(labels):
        raise FileError(
            f"{path} has {images} images but {len(labels)} labels. The file is damaged or incomplete: download it again"
        )
    wrong = labels[(labels < first) | (labels > last)]
    if len(wrong):
        raise FileError(
            f"{path} has the label {int(wrong[0])}, but labels are {first} to {last}. The file is damaged: download it again"
        )
