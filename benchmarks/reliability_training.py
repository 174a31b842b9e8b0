"""What training and files survive: kills at any moment, full disks, damaged and hostile files. See reliability.py."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import functools
import json
import os
import pickle
import random
import resource
import signal
import struct
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes.storage import digest

torch.manual_seed(0)
X = torch.randn(240, 6)
DATA = TensorDataset(X, X[:, :3].argmax(1))
RECIPE = mt.Recipe(epochs=4, batch=40, optimizer="adam", lr=0.01, ema=0.9)
LONGER = dataclasses.replace(RECIPE, epochs=8, batch=20)
"""That of runs that are killed: it lasts long enough to be killed several times."""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


@functools.cache
def made() -> mt.Ensemble:
    return mt.ensemble(network(), mt.Deep(members=2), X[:2], seed=0)


def train(folder: Path, recipe: mt.Recipe = RECIPE) -> None:
    """Trains, or goes on with, the run in a folder."""
    mt.fit(copy.deepcopy(made()), DATA, recipe, val=DATA, out=folder, resume=True)


def child(function: Callable[..., None], *args: Any) -> int:
    """Runs a function in a process of its own, forked since importing torch takes longer than the run; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        warnings.simplefilter("ignore")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        function(*args)
        os._exit(0)
    except mt.FileError:
        os._exit(3)
    except BaseException:
        os._exit(1)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def same(a: Path, b: Path) -> bool:
    """Whether two runs ended with the same weights, bit for bit, in their last and their best epoch."""
    pairs = [[mt.load(folder / f"{name}.multitude", network()).state_dict() for folder in (a, b)] for name in ("last", "best")]
    return all(x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x) for x, y in pairs)


def is_clean(folder: Path) -> bool:
    """Whether no file is half written; only that of a config stays: without a config it may be that of another process."""
    return not [file for file in folder.rglob("*.part") if "config.json" not in file.name]


@contextlib.contextmanager
def failing(call: str, at: int, act: Callable[[], None]) -> Iterator[None]:
    """Acts in the n-th call of a function of `os`."""
    calls, real = 0, getattr(os, call)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            act()
        return real(*args, **kwargs)

    setattr(os, call, counted)
    try:
        yield
    finally:
        setattr(os, call, real)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def train_failing(folder: Path, call: str, at: int, act: Callable[[], None], recipe: mt.Recipe = RECIPE) -> None:
    with failing(call, at, act):
        train(folder, recipe)


def train_with_little_room(folder: Path, most: int) -> None:
    """Trains where the system itself refuses to write more than so many bytes to a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    train(folder)


def train_whole(root: Path, recipe: mt.Recipe = RECIPE) -> float:
    """Trains the run that others are compared with; returns its seconds."""
    train(root / "warm", recipe)  # what is imported now need not be imported by each child
    start = time.perf_counter()
    assert ended(child(train, root / "whole", recipe)) == 0
    return time.perf_counter() - start


def kills(scale: float) -> dict[str, Any]:
    """SIGKILL at random moments of a run until it ends, and within every write of a run, which then goes on to its end."""
    moments, found = random.Random(0), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        length = train_whole(root, LONGER)
        for run in range(max(2, round(30 * scale))):
            folder = root / f"random {run}"
            for _ in range(10):
                pid = child(train, folder, LONGER)
                time.sleep(moments.uniform(0, length / 2))
                os.kill(pid, signal.SIGKILL)  # also of a process that has ended, and was not waited for
                if ended(pid) != -signal.SIGKILL:
                    break
                found["kills at random moments"] += 1
            found["runs killed at random moments"] += 1
            found["of these, ended bit for bit alike"] += ended(child(train, folder, LONGER)) == 0 and same(
                root / "whole", folder
            )
        for call in ("fsync", "replace"):
            at = 0
            while True:
                at += 1
                folder = root / f"{call} {at}"
                code = ended(child(train_failing, folder, call, at, kill_self, LONGER))
                if code != -signal.SIGKILL or (scale < 1 and at > 20 * scale + 2):
                    break
                found["runs killed within a write"] += 1
                alike = ended(child(train, folder, LONGER)) == 0 and same(root / "whole", folder) and is_clean(folder)
                found["of these, ended alike"] += alike
    return dict(found)


def disks(scale: float) -> dict[str, Any]:
    """A full disk at every write of a run, and files that the system does not let grow; with room, the run goes on."""
    found = Counter[str]()

    def tried(folder: Path, code: int, whole: Path) -> None:
        found["full disks"] += 1
        found["told as an error of ours, nothing half written"] += code == 3 and is_clean(folder)
        found["of these, ended alike with room"] += ended(child(train, folder)) == 0 and same(whole, folder)

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        train_whole(root)
        at = 0
        while True:
            at += 1
            folder = root / f"full {at}"
            code = ended(child(train_failing, folder, "fsync", at, fill_disk))
            if code == 0 or (scale < 1 and at > 20 * scale + 2):
                break
            tried(folder, code, root / "whole")
        largest = max(file.stat().st_size for file in (root / "whole").rglob("*") if file.is_file())
        for index, most in enumerate(range(50, largest, max(1, largest // max(2, round(20 * scale))))):
            folder = root / f"small {index}"
            code = ended(child(train_with_little_room, folder, most))
            if code:
                tried(folder, code, root / "whole")
    return dict(found)


def changed(data: bytes, rng: random.Random) -> bytes:
    """A file that is cut, or has bits flipped, bytes overwritten, parts repeated or left out."""
    place = rng.randrange(len(data))
    end = min(len(data), place + rng.randrange(1, 200))
    kind = rng.randrange(5)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + rng.randbytes(end - place) + data[end:]
    return data[:end] + data[place:] if kind == 3 else data[:place] + data[end:]


def damaged(scale: float) -> dict[str, Any]:
    """Files damaged at random places: ensembles and checkpoints of training, and ONNX files for the server."""
    from shell.serve.graphs import saved

    from multitudes.shell.serve.graph import load_graph

    rng, found = random.Random(0), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        file = root / "a.multitude"
        mt.save(made(), file)
        whole, expected = file.read_bytes(), made().state_dict()
        for _ in range(round(1000 * scale)):
            file.write_bytes(data := changed(whole, rng))
            if data == whole:
                continue
            found["damaged ensembles"] += 1
            try:
                state = mt.load(file, network()).state_dict()
                found["ensembles that loaded with the same weights"] += all(
                    torch.equal(state[k], expected[k]) for k in expected
                )
            except mt.FileError:
                found["ensembles refused by name"] += 1
        whole = saved(root).read_bytes()
        for _ in range(round(1000 * scale)):
            (root / "a.onnx").write_bytes(data := changed(whole, rng))
            if data == whole:
                continue
            found["damaged ONNX files"] += 1
            try:
                load_graph(root / "a.onnx", 1)
                found["ONNX files that still run"] += 1
            except mt.MultitudesError:
                found["ONNX files refused by name"] += 1
        train_whole(root)
        for run in range(max(1, round(20 * scale))):
            folder = root / f"run {run}"
            ended(child(train_failing, folder, "replace", 8, kill_self))
            newest = max((folder / "checkpoints").glob("*.safetensors"))
            newest.write_bytes(changed(newest.read_bytes(), rng))
            found["damaged checkpoints"] += 1
            found["of these, ended alike from the one before"] += ended(child(train, folder)) == 0 and same(
                root / "whole", folder
            )
    return dict(found)


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def with_header(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(64)


def tensor_header(**entry: Any) -> bytes:
    return with_header(json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **entry}}).encode())


def signed(text: str) -> bytes:
    """An ensemble whose description is this text, signed as an attacker would."""
    tensors = {"w": torch.zeros(4)}
    return safetensors.torch.save(tensors, {"multitudes": text, "sha256": digest(tensors, text)})


def hostile_files(folder: Path) -> dict[str, list[bytes]]:
    """Files that were made to do harm, by kind."""
    deep = ["[" * 10**5, "[" * 10**6, '{"a":' * 10**5, '{"format": ' + "[" * 10**5, "[" * 500 + "]" * 500]
    texts = [
        "9" * 10**5,
        '{"format": 1e999}',
        '{"format": NaN}',
        '"' + "a" * 10**7 + '"',
        "[" + "0," * 10**6 + "0]",
        "\0",
        "\ud7ff",
    ]
    huge = {"format": 1, "method": "Deep", "settings": {"members": 10**12, "reduction": "sum"}}
    texts += [json.dumps(huge), json.dumps({**huge, "method": "os.system"}), json.dumps({**huge, "settings": {"members": -1}})]
    sizes = [with_header(b"{}", length) for length in (2**63, 2**64 - 1, 2**40, 2**31, 10**8 + 1, 0)]
    sizes += [tensor_header(**e) for e in (
        {"shape": [2**40, 2**40]}, {"shape": [2**62]}, {"shape": [-1]}, {"data_offsets": [0, 2**62]}, {"data_offsets": [16, 0]},
        {"data_offsets": [-16, 0]}, {"shape": [5]}, {"dtype": "O"}, {"dtype": "F64"}, {"shape": [2**20] * 60},
    )]  # fmt: skip
    traps = [pickle.dumps(Trap(str(folder / "ran")))]
    torch.save(Trap(str(folder / "ran")), folder / "trap")
    traps.append((folder / "trap").read_bytes())
    return {"JSON bombs": [signed(text) for text in deep + texts], "sizes that are lies": sizes, "pickles": traps}


def hostile_links(folder: Path) -> list[Path]:
    """Paths that lead elsewhere, or nowhere."""
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "random").symlink_to("/dev/urandom")
    (folder / "gone").symlink_to(folder / "nothing")
    (folder / "folder").symlink_to("/")
    os.mkfifo(folder / "pipe")
    return [folder / name for name in ("loop", "passwd", "zero", "random", "gone", "folder", "pipe")]


def hostile(scale: float) -> dict[str, Any]:
    """Files made to do harm, given to `mt.load` and to the server: each is refused by name, soon and in little memory."""
    from shell.serve.graphs import classifier, hostile_models, saved

    from multitudes.shell.serve.graph import load_graph

    found, slowest = Counter[str](), 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def tried(kind: str, load: Callable[[Path], Any], file: Path) -> None:
        nonlocal slowest
        start = time.perf_counter()
        found[kind] += 1
        try:
            load(file)
        except mt.MultitudesError:
            found[f"{kind} refused"] += 1
        slowest = max(slowest, time.perf_counter() - start)

    def load(file: Path) -> Any:
        return mt.load(file, network())

    def load_onnx(file: Path) -> Any:
        return load_graph(file, 1)

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for kind, files in hostile_files(root).items():
            for data in files:
                (root / "a.multitude").write_bytes(data)
                tried(kind, load, root / "a.multitude")
                tried(kind, load_onnx, root / "a.multitude")
        for file in hostile_links(root):
            tried("links and pipes", load, file)
            tried("links and pipes", load_onnx, file)
        (root / "home").mkdir()
        (root / "secret.bin").write_bytes(bytes(16))
        (root / "home" / "link.bin").symlink_to(root / "secret.bin")
        for model in hostile_models(str(root)):
            tried("ONNX files that ask for other files or code", load_onnx, saved(root / "home", model))
        for text in ("[" * 10**6, '{"a":' * 10**5, "9" * 10**5, " " * 10**7, "null"):
            model = classifier(described=False)
            entry = model.metadata_props.add()
            entry.key, entry.value = "multitudes", text
            tried("JSON bombs", load_onnx, saved(root, model))
        unpickled = (root / "ran").exists()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        **found,
        "unpickled": int(unpickled),
        "slowest refusal, seconds": round(slowest, 2),
        "memory grown, MB": round(grown),
    }
