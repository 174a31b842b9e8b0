"""fit where it needs processes, a terminal, or minutes: torchrun, kills, signals, full disks, bars, loggers, compilers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import multitudes as mt
from multitudes import method
from multitudes.training.feed import Feed, seed_of

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

NET = """
import os, signal, sys
from pathlib import Path
import lightning_fabric, torch
from torch import nn
from torch.utils.data import TensorDataset
import multitudes as mt

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
torch.set_num_threads(1)
G = torch.Generator().manual_seed(0)
X = torch.randn(96, 6, generator=G, dtype=torch.float64)
Y = (X @ torch.randn(6, 3, generator=G, dtype=torch.float64)).argmax(1)
DATA = TensorDataset(X, Y)
LACKING = TensorDataset(X, torch.where(torch.arange(96) % 7 < 3, -100, Y))
ONE = TensorDataset(X[:24], torch.where(torch.arange(24) == 5, Y[:24], -100))

def made(method, norm=nn.LayerNorm, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), norm(16), nn.Tanh(), nn.Linear(16, 3)).double()
    return mt.ensemble(net, method, X[:2], seed=seed)

METHODS = {
    "Deep": mt.Deep(members=2), "Packed": mt.Packed(members=2), "BatchEnsemble": mt.BatchEnsemble(members=2),
    "Masksembles": mt.Masksembles(members=2, fewest=2, feed="all"), "EMP": mt.EMP(members=2),
    "ECMP": mt.ECMP(members=2, prior="elbo", examples=96),
    "DropConnect": mt.DropConnect(members=2), "SWAG": mt.SWAG(members=2, begin=0), "Snapshot": mt.Snapshot(members=2),
    "Laplace": mt.Laplace(members=2, hessian="full"),
    "MIMO": mt.MIMO(members=2), "Masksembles by rows": mt.Masksembles(members=2, fewest=2),
}
ADDED = {"optimizer": "adam", "lr": 0.01, "accumulate": 2, "clip": 0.5, "l1": 0.01, "ema": 0.9}
SHARDED = {key: value for key, value in ADDED.items() if key != "clip"}
"""
"""What scripts and tests have in common."""

RANKS = (
    NET
    + """
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
written = set()
opened = lambda event, args: event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR)
sys.addaudithook(lambda event, args: written.add(args[0]) if opened(event, args) and str(folder) in args[0] else None)
results = {}

def train(name, method, recipe, norm=nn.LayerNorm, data=DATA, **options):
    ens = made(method, norm, seed=rank)  # other weights in each process: the first one's are taken
    run = mt.fit(ens, data, recipe, val=DATA, out=folder / name, **options)
    results[name] = {key: value.clone() for key, value in ens.state_dict().items()}
    results[name]["loss"] = torch.tensor([line["loss"] for line in run.metrics])

for name, method in METHODS.items():
    train(name, method, mt.Recipe(epochs=2, batch=24, lr=0.05))
for name in ("Deep", "EMP"):
    train(f"{name} added", METHODS[name], mt.Recipe(epochs=2, batch=24, **ADDED))
train("Deep lacking added", METHODS["Deep"], mt.Recipe(epochs=2, batch=24, **ADDED), data=LACKING)
def mixed(x, y, generator):
    return x, nn.functional.one_hot(y, 3).double() if torch.rand((), generator=generator) < 0.5 else y

train("mixed", METHODS["Deep"], mt.Recipe(epochs=2, batch=24, augment=mixed))  # each process draws its own: none waits in vain
train("Deep one", METHODS["Deep"], mt.Recipe(epochs=2, batch=24, lr=0.05), data=ONE)
train("Deep lacking own", METHODS["Deep"], mt.Recipe(epochs=2, batch=24, lr=0.05, batches="own"), data=LACKING)
train("own", METHODS["Deep"], mt.Recipe(epochs=2, batch=24, lr=0.05, batches="own"))
train("norm", METHODS["Deep"], mt.Recipe(epochs=2, batch=24, lr=0.05), nn.BatchNorm1d)

left = 0
def stopping(x, y, generator):
    global left
    left -= 1
    if left == 0:
        raise KeyboardInterrupt
    return x, y

recipe = mt.Recipe(epochs=4, batch=24, augment=stopping, **{**ADDED, "accumulate": 1})
train("whole", METHODS["EMP"], recipe)
left = 10
try:
    train("parts", METHODS["EMP"], recipe)
except KeyboardInterrupt:
    results["stopped"] = {}
train("parts", METHODS["EMP"], recipe, resume=True)
try:  # a folder that the second process does not see
    here = "parts" if rank == 0 else "nowhere"
    left = 0
    mt.fit(made(METHODS["EMP"]), DATA, recipe, val=DATA, out=folder / here, resume=True)
except mt.RunError as error:
    results[str(error).partition(":")[0]] = {}

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))

def shard(name, method, recipe, out, **options):
    ens = made(method)
    fully_shard(ens, mesh=mesh)
    run = mt.fit(ens, DATA, recipe, val=DATA, out=folder / out, **options)
    assert all(p.shape != p.to_local().shape for p in ens.parameters() if p.shape[0] > 1)
    results[name] = {key: getattr(value, "full_tensor", value.clone)() for key, value in ens.state_dict().items()}
    results[name]["loss"] = torch.tensor([line["loss"] for line in run.metrics])
    run.use_best()
    results[name + " best"] = {key: getattr(value, "full_tensor", value.clone)() for key, value in ens.state_dict().items()}

for name in ("Deep", "BatchEnsemble", "EMP", "DropConnect", "SWAG", "Snapshot", "Laplace"):
    shard(f"{name} sharded", METHODS[name], mt.Recipe(epochs=2, batch=24, lr=0.05), f"{name} sharded")
for name in ("Deep", "BatchEnsemble", "EMP"):
    shard(f"{name} sharded added", METHODS[name], mt.Recipe(epochs=2, batch=24, **SHARDED), f"{name} sharded added")
recipe = mt.Recipe(epochs=4, batch=24, augment=stopping, **SHARDED)
left = 0
shard("sharded whole", METHODS["EMP"], recipe, "sharded whole")
left = 20
try:
    shard("sharded parts", METHODS["EMP"], recipe, "sharded parts")
except KeyboardInterrupt:
    results["sharded stopped"] = {}
shard("sharded parts", METHODS["EMP"], recipe, "sharded parts", resume=True)
ens = made(METHODS["Deep"])
fully_shard(ens.get_submodule("0"), mesh=mesh)
try:
    mt.fit(ens, DATA, mt.Recipe(epochs=1))
except mt.RunError as error:
    results[str(error)] = {}
torch.save((results, sorted(written)), folder / f"rank{rank}")
"""
)


@pytest.fixture(scope="module")
def common() -> dict[str, Any]:
    """What scripts know, here."""
    found: dict[str, Any] = {}
    exec(NET, found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes under torchrun write."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[tuple[dict[str, dict[str, Tensor]], list[str]]]:
    """What each of two processes under torchrun came to, and which files it opened to write."""
    (folder / "script.py").write_text(RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(folder / "script.py"), str(folder)]
    done = subprocess.run(launch, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Initializing distributed" not in done.stderr
    assert done.stdout == ""
    return [torch.load(folder / f"rank{rank}") for rank in range(2)]


def test_processes_end_alike(ranks: Any) -> None:
    """Bit for bit: weights, averages, and running statistics, though they began apart."""
    (first, _), (second, _) = ranks
    assert first.keys() == second.keys()
    for name, state in first.items():
        for key, value in state.items():
            assert torch.equal(value, second[name][key]), (name, key)
    assert first["norm"]["1.running_mean"].abs().sum() > 0


def test_one_process_writes(ranks: Any) -> None:
    """The first one: settings, metrics, checkpoints, the best and the last."""
    first, second = (
        {Path(path).name.lstrip(".").split(".")[0] for path in files if Path(path).name != "script.py"} for _, files in ranks
    )
    assert {"config", "metrics", "log", "best", "last", "000000", "000002"} <= first
    assert not second - {"rank1"}


HOOKED = ["DropConnect", "SWAG", "Snapshot", "Laplace"]
SHARDED = [f"{kind} sharded{added}" for kind in ("Deep", "BatchEnsemble", "EMP") for added in ("", " added")]
SHARDED += [f"{kind} sharded" for kind in HOOKED]
EXACT = [
    *SHARDED,
    *HOOKED,
    "Deep",
    "Packed",
    "BatchEnsemble",
    "Masksembles",
    "EMP",
    "ECMP",
    "Deep added",
    "EMP added",
    "Deep lacking added",
]


@pytest.mark.parametrize("name", EXACT)
def test_two_processes_train_as_one(ranks: Any, common: dict[str, Any], name: str) -> None:
    """With the same batch over all: what is drawn for weights is drawn alike, and gradients are averaged; of entries some of
    which have no label, each counts the same."""
    kind, added = name.split(" ")[0], name.endswith("added")
    ens = common["made"](common["METHODS"][kind])
    settings = {"lr": 0.05} if not added else common["SHARDED" if "sharded" in name else "ADDED"]
    data = common["LACKING" if "lacking" in name else "ONE" if "one" in name else "DATA"]
    settings = {**settings, "batches": "own"} if name.endswith("own") else settings
    run = mt.fit(ens, data, mt.Recipe(epochs=2, batch=24, **settings), val=common["DATA"])
    torch.testing.assert_close(ranks[0][0][name]["loss"], torch.tensor([line["loss"] for line in run.metrics]))
    moved = False
    for key, value in ens.state_dict().items():
        torch.testing.assert_close(ranks[0][0][name][key], value, rtol=1e-9, atol=1e-12, msg=key)
        moved |= not torch.equal(value, common["made"](common["METHODS"][kind]).state_dict()[key])
    assert moved


@pytest.mark.parametrize("name", ["MIMO", "Masksembles by rows"])
def test_two_processes_train_as_one_that_takes_both_parts(
    ranks: Any, common: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each process draws slots, or members of rows, for its own part of a batch."""
    ens = common["made"](common["METHODS"][name]).train()
    feeds = [Feed(common["DATA"], batch=24, seed=0, members=2, own=False, rank=rank, ranks=2) for rank in range(2)]
    optimizer = torch.optim.SGD(ens.param_groups(lr=0.05), momentum=0.9)
    current = [0]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: current[0])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert method.by_rank(torch.Generator()) is not None
    for epoch in (1, 2):
        ens.generator.manual_seed(seed_of(0, epoch))
        for parts in zip(*(feed.epoch(epoch) for feed in feeds), strict=True):
            before = ens.generator.get_state()
            for rank, (inputs, targets) in enumerate(parts):
                current[0] = rank
                ens.generator.set_state(before)
                (ens.loss(inputs, targets, F.cross_entropy) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    for key, value in ens.state_dict().items():
        torch.testing.assert_close(ranks[0][0][name][key], value, rtol=1e-9, atol=1e-12, msg=key)


def test_sharded_processes_go_on_together(ranks: Any) -> None:
    """From whole tensors in a checkpoint; parts that are sharded by themselves are refused by name."""
    results, _ = ranks[0]
    assert "sharded stopped" in results
    for key, value in results["sharded whole"].items():
        assert torch.equal(results["sharded parts"][key], value), key
    assert any("sharded (0)" in name for name in results)


@pytest.mark.parametrize("name", SHARDED)
def test_files_of_a_sharded_run_are_whole(ranks: Any, folder: Path, name: str) -> None:
    """The best and the last, for one process."""
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3)).double()
    for file, key in (("last", name), ("best", f"{name} best")):
        for part, value in mt.load(folder / name / f"{file}.multitude", net).state_dict().items():
            assert torch.equal(value, ranks[0][0][key][part]), part


def test_processes_go_on_together(ranks: Any) -> None:
    """Stopped in the midst of an epoch, they end with the weights of the run that was left alone, bit for bit."""
    results, _ = ranks[0]
    assert "stopped" in results
    assert "processes read checkpoints of different epochs (4, 0)" in results
    for key, value in results["whole"].items():
        assert torch.equal(results["parts"][key], value), key


SCENES = (
    NET
    + """
import fcntl, json, pty, resource, struct, termios, time
folder = Path(sys.argv[1])
ADAM = {"batch": 24, "optimizer": "adam", "lr": 0.01, "ema": 0.9}

def train(name, **settings):
    mt.fit(made(METHODS["Packed"]), DATA, mt.Recipe(epochs=3, **ADAM, **settings), val=DATA, out=folder / name, resume=True)

def slowly(epochs):
    def sleeping(x, y, generator):
        time.sleep(0.02)
        return x, y
    data = TensorDataset(X.float(), Y)
    recipe = mt.Recipe(epochs=epochs, batch=8, lr=0.01, precision="bf16", augment=sleeping)
    mt.fit(made(METHODS["Packed"]).float(), data, recipe, val=data, out=folder / f"slowly{epochs}", resume=True)

def ended(function, *args):  # a child leaves as a script does
    try:
        function(*args)
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(2 if isinstance(error, KeyboardInterrupt) else 1)

def child(function, *args):
    pid = os.fork()
    if not pid:
        ended(function, *args)
    return os.waitpid(pid, 0)[1]

def killed(name, call, at):
    calls, real = 0, getattr(os, call)
    def dying(*args):
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    setattr(os, call, dying)
    train(name)

train("whole")
for call in ("fsync", "replace"):
    for at in range(1, 12):
        assert child(killed, f"killed {call} {at}", call, at) == signal.SIGKILL, (call, at)
        assert child(train, f"killed {call} {at}") == 0, (call, at)

def full(name, limit):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(name)
    except mt.FileError as error:
        read, write = json_pipe
        os.write(write, str(error).encode())
        os._exit(3)

said = {}
size = (folder / "whole" / "checkpoints" / "000003.safetensors").stat().st_size
for name, limit in (("settings", 100), ("checkpoint", 2000), ("middle", size - 2000)):
    json_pipe = os.pipe()
    assert os.waitstatus_to_exitcode(child(full, f"full {name}", limit)) == 3, name
    files = sorted(file.name for file in (folder / f"full {name}").rglob("*") if file.is_file())
    said[name] = os.read(json_pipe[0], 10_000).decode(), files
    assert child(train, f"full {name}") == 0, name
(folder / "full.json").write_text(json.dumps(said))

pid = os.fork()
if not pid:
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    ended(slowly, 200)
begun = time.monotonic()
while not (folder / "slowly200" / "checkpoints" / "000002.safetensors").exists() and time.monotonic() - begun < 60:
    time.sleep(0.05)
os.kill(pid, signal.SIGINT)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2

for columns in (140, 80):
    os.environ["TERM"] = "xterm"
    pid, screen = pty.fork()
    if not pid:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.environ.pop("COLUMNS", None)
        os.environ.pop("LINES", None)
        time.sleep(0.1)
        ended(slowly, 3 if columns == 140 else 2)
    shown = b""
    try:
        while part := os.read(screen, 65536):
            shown += part
    except OSError:  # its end is told so
        pass
    assert os.waitpid(pid, 0)[1] == 0, shown
    (folder / f"shown{columns}.txt").write_bytes(shown)
"""
)
"""Runs in processes that are killed, find no room, are interrupted, or have a terminal: forked, to import torch but once."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all these runs."""
    folder = tmp_path_factory.mktemp("scenes")
    command = [sys.executable, "-c", SCENES, str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == done.stderr == ""
    return folder


def ends_as_the_whole(scenes: Path, kind: str) -> int:
    """How many runs of a kind there are, all of which must have ended with the weights of the one that was left alone."""
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3)).double()
    runs = [folder for folder in scenes.iterdir() if folder.is_dir() and folder.name.startswith(kind)]
    for name in ("last", "best"):
        whole = mt.load(scenes / "whole" / f"{name}.multitude", net).state_dict()
        for run in runs:
            for key, value in mt.load(run / f"{name}.multitude", net).state_dict().items():
                assert torch.equal(value, whole[key]), (run.name, name, key)
    return len(runs)


def test_killed_within_any_write(scenes: Path) -> None:
    """SIGKILL before each file of a run is whole, and before it is in its place: the end is the same, bit for bit."""
    assert ends_as_the_whole(scenes, "killed") == 22
    assert [file for file in scenes.rglob(".*") if file.is_file() and "config.json" not in file.name] == []


def test_a_full_disk(scenes: Path) -> None:
    """At any file: it is named, what was written before is whole, nothing half is left, and with room the run goes on."""
    said = json.loads((scenes / "full.json").read_text())
    text, files = said["settings"]
    assert re.match(r"cannot write .*config\.json: File too large", text)
    assert files == []
    text, files = said["checkpoint"]
    assert re.match(r"cannot write .*000000\.safetensors: File too large", text)
    assert files == ["config.json", "log.txt"]
    text, files = said["middle"]
    assert re.match(r"cannot write .*000001\.safetensors: File too large", text)
    assert files == ["000000.safetensors", "config.json", "log.txt", "metrics.jsonl"]
    assert ends_as_the_whole(scenes, "full") == 3


def test_interrupted_by_hand(scenes: Path) -> None:
    """SIGINT: one line says how far it came and what goes on with it. Nothing is said before that, nor to standard output."""
    assert (scenes / "out.txt").read_text() == ""
    lines = (scenes / "err.txt").read_text().splitlines()
    said = re.fullmatch(r"stopped after (\d+) of 200 epochs; resume with fit\(\.\.\., out='(.*)', resume=True\)", lines[0])
    assert said is not None, lines
    assert said[2] == str(scenes / "slowly200")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "KeyboardInterrupt"
    assert (scenes / "slowly200" / "checkpoints" / f"{int(said[1]):06d}.safetensors").exists()
    assert said[0] in (scenes / "slowly200" / "log.txt").read_text()


def seen(scenes: Path, columns: int) -> list[str]:
    """The lines that a terminal of this width has shown, without colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", (scenes / f"shown{columns}.txt").read_text())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


@pytest.mark.parametrize(("columns", "epochs"), [(140, 3), (80, 2)])
def test_a_bar_on_a_terminal(scenes: Path, columns: int, epochs: int) -> None:
    """How many steps there are and the time left; epoch, loss, speed, and the last validation; nothing else is said."""
    lines = seen(scenes, columns)
    fronts = ("train ", "epoch ", "nll ")
    above, below, curves = ([line for line in lines if line.startswith(front)] for front in fronts)
    assert len(above) + len(below) + len(curves) == len(lines), lines
    assert all(re.fullmatch(rf"train .* \d+/{12 * epochs} steps (\d:\d\d:\d\d|-:--:--) *", line) for line in above), lines
    assert re.search(r"steps \d:\d\d:\d\d", above[-1])
    assert re.fullmatch(rf"epoch {epochs}/{epochs}  loss \(sum of 2 members\) \d\.\d{{4}}  steps/s \d+\.\d *", below[-1]), lines
    drawn = f" [▁-█]{{{epochs - 1}}}"  # a block for each epoch that is validated
    assert re.fullmatch(rf"nll \d\.\d{{4}}{drawn}  accuracy [01]\.\d{{4}}{drawn} *", curves[-1]), lines


def test_tensorboard_has_every_epoch(tmp_path: Path) -> None:
    """Loss, rate and validation, by Fabric's logger."""
    loggers = pytest.importorskip("lightning_fabric.loggers")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    x = torch.randn(60, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    ens = mt.ensemble(nn.Linear(6, 3), mt.Deep(members=2), x[:2], seed=0)
    run = mt.fit(ens, data, mt.Recipe(epochs=3, batch=20), val=data, loggers=loggers.TensorBoardLogger(tmp_path))
    read = events.EventAccumulator(str(next(tmp_path.rglob("events.*")).parent))
    read.Reload()
    for name in ("loss", "lr", "val_accuracy", "val_nll"):
        assert [event.step for event in read.Scalars(name)] == [1, 2, 3]
        assert [event.value for event in read.Scalars(name)] == pytest.approx([line[name] for line in run.metrics])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks, and torch's own
def test_validation_by_workers() -> None:
    """A loader with processes of its own gives the same numbers, epoch after epoch."""
    x = torch.randn(60, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    found = []
    for val in (data, DataLoader(data, 16, num_workers=2)):
        ens = mt.ensemble(nn.Linear(6, 3), mt.Deep(members=2), x[:2], seed=0)
        run = mt.fit(ens, data, mt.Recipe(epochs=2, batch=20), val=val)
        found.append([(line["val_accuracy"], pytest.approx(line["val_nll"])) for line in run.metrics])
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in its compiler
def test_compiled_on_a_cpu(tmp_path: Path) -> None:
    """The same steps up to rounding; a run goes on bit for bit; and the ensemble is not the compiled one."""
    x = torch.randn(80, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))

    def made() -> mt.Ensemble:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        return mt.ensemble(net, mt.BatchEnsemble(members=2), x[:2], seed=0)

    plain, compiled, again = made(), made(), made()
    recipe = mt.Recipe(epochs=3, batch=20, lr=0.05, accumulate=2, clip=1.0)
    mt.fit(plain, data, recipe)
    mt.fit(compiled, data, mt.Recipe(**{**vars(recipe), "compile": True}), val=data, out=tmp_path)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    (tmp_path / "checkpoints" / "000003.safetensors").unlink()
    mt.fit(again, data, mt.Recipe(**{**vars(recipe), "compile": True}), val=data, out=tmp_path, resume=True)
    for name, value in compiled.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    mt.save(compiled, tmp_path / "a.multitude")
