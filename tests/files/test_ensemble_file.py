"""Files: whole or refused by name, written at once, and nothing in them is code."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from laws.compare import assert_exact, assert_same, convert
from safetensors import safe_open
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes import models, storage
from multitudes.engine.modules import named_tensors
from multitudes.engine.proof.executors import pick
from multitudes.prediction.temperature import Calibrator
from multitudes.storage import digest

CASE = ZOO["resnet"]


@cache
def converted(method: mt.Method) -> mt.Ensemble:
    """An ensemble that no test changes."""
    return convert(method, CASE)


@cache
def written() -> bytes:
    """The file of four networks."""
    with tempfile.TemporaryDirectory() as folder:
        mt.save(converted(mt.Deep()), Path(folder) / "a")
        return (Path(folder) / "a").read_bytes()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """An ensemble in a file."""
    (tmp_path / "a.multitude").write_bytes(written())
    return tmp_path / "a.multitude"


def header(path: Path) -> dict[str, str]:
    """The file's metadata."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], sign: bool = True) -> None:
    """The same file with another description, signed again as an attacker would."""
    about, tensors = json.loads(header(path)["multitudes"]), safetensors.torch.load_file(path)
    change(about)
    text = json.dumps(about, sort_keys=True)
    signature = digest(tensors, text) if sign else header(path)["sha256"]
    safetensors.torch.save_file(tensors, path, {"multitudes": text, "sha256": signature})


def test_any_tool_can_read_the_weights(saved: Path) -> None:
    """The base model's names, each member's slice along the first axis; the method as JSON in the header."""
    tensors = safetensors.torch.load_file(saved)
    ens = converted(mt.Deep())
    assert_same(dict(sorted(tensors.items())), dict(sorted((n, t.detach()) for n, t in named_tensors(ens))))
    about = json.loads(header(saved)["multitudes"])
    assert about["format"] == storage.FORMAT
    assert (about["method"], about["settings"]) == ("Deep", {"members": 4, "reduction": "sum"})
    assert about["multitudes"] == mt.__version__
    assert about["torch"] == torch.__version__


def flipped(where: str) -> bytes:
    """The file with one bit changed."""
    data = bytearray(written())
    length = int.from_bytes(data[:8], "little")
    places = {"first tensor": 8 + length, "last byte": len(data) - 1, "header length": 1, "header": 8 + length // 2}
    places |= {"description": data.index(b'\\"members\\"') + 3, "digest": data.index(b'"sha256":"') + 12}
    data[places[where]] ^= 1
    return bytes(data)


def described_by(text: str) -> bytes:
    """The file with any text as its description."""
    tensors = safetensors.torch.load(written())
    return safetensors.torch.save(tensors, {"multitudes": text, "sha256": digest(tensors, text)})


def truncated(part: float) -> bytes:
    """The beginning of the file: a share of it, or so many bytes."""
    return written()[: int(part * len(written())) if isinstance(part, float) else part]


DAMAGED = [
    *(partial(truncated, part) for part in (0, 4, 8, 9, 100, 0.3, 0.9, -1)),
    *(partial(flipped, where) for where in ("first tensor", "last byte", "header length", "header", "description", "digest")),
    *(partial(described_by, text) for text in ("", "null", "[]", "3", '"text"', "{", "{}", "[" * 5000)),
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda one: f"{one.func.__name__} {str(one.args[0])[:12]}")
def test_a_damaged_file_is_refused(tmp_path: Path, damaged: Callable[[], bytes]) -> None:
    """Truncated anywhere, with a flipped bit in numbers or in words, or with a description that is none."""
    (tmp_path / "a.multitude").write_bytes(damaged())
    with pytest.raises(mt.FileError, match=r"a\.multitude"):
        mt.load(tmp_path / "a.multitude", CASE.model())


class Bomb:
    """Leaves a trace when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("write", [lambda obj, file: pickle.dump(obj, file), lambda obj, file: torch.save(obj, file)])
def test_nothing_is_unpickled(tmp_path: Path, write: Callable[..., None]) -> None:
    """A pickle is refused, and what it carries does not run."""
    with (tmp_path / "a.multitude").open("wb") as file:
        write(Bomb(tmp_path / "ran"), file)
    with pytest.raises(mt.FileError, match="pickled checkpoint"):
        mt.load(tmp_path / "a.multitude", CASE.model())
    assert not (tmp_path / "ran").exists()


DEEP = {"members": 4, "reduction": "sum"}
HOSTILE: list[dict[str, Any]] = [
    *(
        {"method": name}
        for name in ("os.system", "__import__", "Method", "multitudes.methods.deep.Deep", "", None, 3, ["Deep"])
    ),
    *({"settings": DEEP | other} for other in ({"command": "rm"}, {"members": 0}, {"members": "4"}, {"members": 10**12})),
    *({"settings": other} for other in ({**DEEP, "reduction": "product"}, {"reduction": "sum"}, [], "members", None)),
    *({"calibrator": other} for other in ({"mixture": -1, "members": None}, {"mixture": "hot"}, {"command": "rm"})),
    *({"calibrator": other} for other in ([1.0], "1.5", 2, {"members": 3})),
]


@pytest.mark.parametrize("change", HOSTILE, ids=str)
def test_a_description_cannot_name_code(saved: Path, change: dict[str, Any]) -> None:
    """Only methods that exist here, by their plain names, with settings that they have."""
    rewrite(saved, lambda about: about.update(change))
    with pytest.raises(mt.FileError, match=r"a\.multitude"):
        mt.load(saved, CASE.model())


KEYS = ["format", "method", "settings", "owned", "shared_norms", "task", "seed", "plan", "traits", "training", "frozen"]
KEYS += ["batch_axis", "chunk", "proven", "picked", "tuned", "why", "torch", "multitudes", "model"]


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_a_description_of_other_form(saved: Path, key: str) -> None:
    """Whatever stands where something else is expected: refused as a file, or harmless."""
    expected = converted(mt.Deep())(*CASE.example().args)
    for value in ("gone", None, "text", -1, {"a": {"b": []}}):
        saved.write_bytes(written())
        rewrite(saved, lambda about, value=value: about.pop(key) if value == "gone" else about.update({key: value}))
        try:
            back = mt.load(saved, CASE.model())
            output = back.eval()(*CASE.example().args)
        except mt.FileError as error:
            assert "a.multitude" in str(error)
        else:
            assert_same(output, expected)


def test_what_was_measured_is_saved(tmp_path: Path) -> None:
    """Also for a device on which the ensemble is not now: there it is picked again."""
    ens = convert(mt.Deep(members=2), CASE)
    ens.tune(CASE.example(), seconds=0.0)
    assert ens.engine.tuned == {"cpu": ens.engine.picked}
    ens.engine.tuned = {"cpu": {"train": "vmap", "eval": "vmap"}, "meta": {"train": "vmap", "eval": "loop"}}
    mt.save(ens, tmp_path / "a.multitude")
    back = mt.load(tmp_path / "a.multitude", CASE.model())
    assert back.engine.tuned == ens.engine.tuned
    assert back.to("meta").plan.executor == {"train": "vmap", "eval": "loop"}
    back.engine.proven = {"train": ("loop",), "eval": ("loop",)}  # what is not proven is not picked, whatever was measured
    pick(back.engine)
    assert back.plan.executor == {"train": "loop", "eval": "loop"}


def test_another_torch_is_trusted_with_the_loop_alone(saved: Path) -> None:
    """Executors were proven under the torch that saved them."""
    rewrite(saved, lambda about: about.update(torch="1.0"))
    back = mt.load(saved, CASE.model())
    assert back.plan.proven == {"train": ("loop",), "eval": ("loop",)}
    assert_same(back(*CASE.example().args), converted(mt.Deep())(*CASE.example().args))


def test_another_torch_may_have_other_settings(saved: Path) -> None:
    """What one version's layers do not have is not compared, what both have is."""

    def older(about: dict[str, Any], eps: float = 1e-5) -> None:
        about["torch"] = "1.0"
        for part in about["architecture"].values():
            if part["kind"] == "BatchNorm2d":
                part.update(gone=True, eps=eps)
                part.pop("affine", None)

    rewrite(saved, older)
    assert_same(mt.load(saved, CASE.model())(*CASE.example().args), converted(mt.Deep())(*CASE.example().args))
    rewrite(saved, lambda about: older(about, eps=0.1))
    with pytest.raises(mt.FileError, match=r"another architecture.*BatchNorm2d.* eps=0\.1 .* eps=1e-05"):
        mt.load(saved, CASE.model())


def plain(path: Path) -> None:
    safetensors.torch.save_file(CASE.model().state_dict(), path)


def other(*widths: int) -> nn.Module:
    return type(CASE.model())(widths=widths).double()


@pytest.mark.parametrize(
    ("change", "model", "nouns"),
    [
        (None, lambda: ZOO["wideresnet"].model(), "another architecture.*ResNet.*WideResNet"),
        (None, lambda: other(4, 6, 10), r"groups\.2\.0\.conv1\.weight is \[4, 8, 6, 3, 3\].*\[4, 10"),
        (None, lambda: other(4, 6), r"another architecture.*unknown groups\.2"),
        (None, lambda: other(4, 6, 8, 8), r"another architecture.*no groups\.3"),
        (None, lambda: None, r"ResNet.*mt\.load\('a\.multitude', model\)"),
        (plain, CASE.model, r"mt\.save.*from_checkpoints"),
        (lambda path: rewrite(path, lambda about: about.update(task="regression"), sign=False), CASE.model, "altered"),
        (
            lambda path: rewrite(path, lambda about: about.update(format=storage.FORMAT + 1, multitudes="9.9")),
            CASE.model,
            r"multitudes 9\.9.*update multitudes",
        ),
        (Path.unlink, CASE.model, r"no file .*a\.multitude"),
        (lambda path: (path.unlink(), path.mkdir()), CASE.model, "folder"),
    ],
)
def test_files_and_models_that_do_not_fit(saved: Path, change: Any, model: Callable[[], Any], nouns: str) -> None:
    """Each error says what is wrong and what to type."""
    if change is not None:
        change(saved)
    with pytest.raises(mt.FileError, match=nouns):
        mt.load(saved, model())


def test_a_method_that_is_not_imported_is_told_with_its_module(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mt.Method, "all", staticmethod(list))
    with pytest.raises(mt.FileError, match=r"type import multitudes\.methods\.[a-z]+ first"):
        mt.load(saved, CASE.model())


def test_too_little_memory_is_not_said_of_the_file(saved: Path) -> None:
    def large() -> nn.Module:
        return nn.Linear(1 << 40, 1 << 10)

    with pytest.raises(RuntimeError, match="allocate") as caught:
        mt.load(saved, large)
    assert not isinstance(caught.value, mt.FileError)


def test_a_missing_folder(tmp_path: Path) -> None:
    """Nothing is created on the way."""
    with pytest.raises(mt.FileError, match=r"cannot write .*no/a\.multitude: there is no folder .*/no\. Make it: mkdir -p"):
        mt.save(converted(mt.Deep()), tmp_path / "no" / "a.multitude")
    assert not (tmp_path / "no").exists()


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by name."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.os, "open", refuse)
    with pytest.raises(mt.FileError, match=r"cannot write .*a\.multitude: Permission denied"):
        mt.save(converted(mt.Deep()), tmp_path / "a.multitude")


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("stage", "error", "expected"),
    [
        ("fsync", FULL, mt.FileError),
        ("replace", FULL, mt.FileError),
        ("fdopen", FULL, mt.FileError),
        ("fsync", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failing_write_leaves_the_old_file(
    saved: Path, stage: str, error: BaseException, expected: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no temporary file; with Ctrl-C in the middle of a write too."""

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(storage.os, stage, fail)
    with pytest.raises(expected, match=r"a\.multitude.*No space left" if expected is mt.FileError else None):
        mt.save(converted(mt.TreeNet()), saved)
    monkeypatch.undo()
    assert saved.read_bytes() == written()
    assert [path.name for path in saved.parent.iterdir()] == ["a.multitude"]


def test_saving_again_replaces_the_file(saved: Path) -> None:
    """And reading it back while it is open elsewhere is no matter: the old one was whole."""
    mt.save(converted(mt.TreeNet()), saved)
    assert mt.load(saved, CASE.model()).method == mt.TreeNet()


SLOW = pytest.param("hugging_face_bert", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["tied", "table", "reassigning", "weight_norm", "cumulative_batchnorm", SLOW])
def test_odd_tensors_come_back(name: str, tmp_path: Path) -> None:
    """Tied weights stay tied, buffers outside of the state dict and reassigned ones are there."""
    case = ZOO[name]
    ens = convert(mt.Deep(), case)
    with torch.no_grad():
        for _, tensor in named_tensors(ens):
            if tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor))
    mt.save(ens, tmp_path / "a.multitude")
    back = mt.load(tmp_path / "a.multitude", case.model(seed=8))
    assert [n for n, _ in named_tensors(back)] == [n for n, _ in named_tensors(ens)]
    assert_exact([t for _, t in named_tensors(back)], [t for _, t in named_tensors(ens)])
    if name == "tied":
        assert back.get_parameter("embed.weight") is back.get_parameter("head.weight")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_mode_and_requires_grad_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    """As they were when saved, whatever those of the model given now."""
    ens = mt.ensemble(CASE.model(dtype=dtype), mt.TreeNet(), CASE.example(dtype=dtype), seed=0).train()
    ens.get_submodule("bn1").eval()
    ens.get_submodule("conv1").requires_grad_(False)
    mt.save(ens, tmp_path / "a.multitude")
    back = mt.load(tmp_path / "a.multitude", CASE.model(dtype=torch.float32))
    assert back.training
    assert {n: part.training for n, part in back.template.named_modules()} == {
        n: p.training for n, p in ens.template.named_modules()
    }
    assert {n: (p.dtype, p.requires_grad) for n, p in back.named_parameters()} == {
        n: (p.dtype, p.requires_grad) for n, p in ens.named_parameters()
    }


@pytest.mark.slow
def test_what_is_loaded_can_be_trained_saved_and_taken_apart(saved: Path, tmp_path: Path) -> None:
    """A loaded ensemble is an ensemble: subset, member, check, cost and save work."""
    back = mt.load(saved, CASE.model())
    mt.check(back, CASE.example())
    back.loss(CASE.example(), torch.tensor([0, 1, 2]), CASE.criterion).backward()
    few = back.subset([2, 0])
    mt.save(few, tmp_path / "few.multitude")
    again = mt.load(tmp_path / "few.multitude", CASE.model())
    assert_same(again(*CASE.example().args), back(*CASE.example().args)[[2, 0]])
    assert mt.cost(again, CASE.example(), repeats=1).ensemble.parameters == 2 * 2169
    assert str(again.plan) == str(few.plan)


def test_training_draws_start_from_the_saved_seed(saved: Path) -> None:
    """Two loads of one file draw alike, and as the ensemble that was saved."""
    ens, one, two = copy.deepcopy(converted(mt.Deep())), mt.load(saved, CASE.model()), mt.load(saved, CASE.model())
    draws = [torch.rand(3, generator=net.generator) for net in (ens, one, two)]
    assert_exact(draws[1:], [draws[0]] * 2)
    assert not torch.equal(draws[0], torch.rand(3, generator=convert(mt.Deep(), CASE, seed=9).generator))


@pytest.mark.slow
def test_a_subclass_of_our_networks_is_not_loaded_as_its_parent(tmp_path: Path) -> None:
    """Its forward is not known to the file: the model has to be given."""

    class ResNet(models.ResNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    x = torch.randn(2, 3, 8, 8)
    ens = mt.ensemble(ResNet(18, width=0.0625), mt.Packed(), x, seed=0).eval()
    mt.save(ens, tmp_path / "a")
    with pytest.raises(mt.FileError, match=r"mt\.load\(.*model"):
        mt.load(tmp_path / "a")
    torch.testing.assert_close(mt.load(tmp_path / "a", ResNet(18, width=0.0625))(x), ens(x))


def test_an_attribute_called_arguments_is_the_models_own(tmp_path: Path) -> None:
    """Whatever it holds."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net.arguments = object()  # type: ignore[assignment]
    x = torch.randn(2, 4)
    ens = mt.ensemble(net, mt.Deep(), x)
    mt.save(ens, tmp_path / "a")
    torch.testing.assert_close(mt.load(tmp_path / "a", net)(x), ens(x))


def test_what_could_not_be_made_again_is_not_saved(tmp_path: Path) -> None:
    """An example of a kind that a file cannot describe is refused when there is still something to save."""

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Any) -> Tensor:
            return self.last(self.first(x["x"]))

    x = OrderedDict(x=torch.randn(2, 4))
    ens = mt.ensemble(Takes(), mt.Packed(), x)
    with pytest.raises(mt.InputError, match="OrderedDict"):
        mt.save(ens, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("calibrator", [Calibrator(mixture=1.3), Calibrator(members=(0.5, 1.0, 2.0, 4.0))], ids=str)
def test_a_calibrator_comes_back(calibrator: Calibrator, tmp_path: Path) -> None:
    """As it was, also of a subset, and of what was loaded and saved again."""
    ens = copy.deepcopy(converted(mt.Deep()))
    ens.calibrator = calibrator
    mt.save(ens, tmp_path / "a")
    back = mt.load(tmp_path / "a", CASE.model())
    assert back.calibrator == calibrator
    mt.save(back.subset([2, 0]), tmp_path / "b")
    assert mt.load(tmp_path / "b", CASE.model()).calibrator == calibrator.subset([2, 0])


def test_a_file_of_before_there_were_calibrators(saved: Path) -> None:
    """Has none."""
    rewrite(saved, lambda about: about.pop("calibrator"))
    assert mt.load(saved, CASE.model()).calibrator is None


def test_tensors_of_a_kind(tmp_path: Path) -> None:
    """`save_tensors` and `load_tensors`: what was written, dtypes and odd shapes included, and nothing of another kind."""
    tensors = {
        "strided": torch.arange(12.0).reshape(3, 4).T,
        "empty": torch.zeros(2, 0, 3),
        "truths": torch.tensor([True, False]),
        "numbers": torch.tensor([1, 2], dtype=torch.int16),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "one": torch.tensor(7.0, dtype=torch.float64),
    }
    storage.save_tensors(tmp_path / "a", "thing", {"said": [1, "two", None]}, tensors)
    about, back = storage.load_tensors(tmp_path / "a", "thing")
    assert about == {"format": storage.FORMAT, "said": [1, "two", None]}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor)
        assert back[name].dtype == tensor.dtype
    with pytest.raises(mt.FileError, match="prediction"):
        storage.load_tensors(tmp_path / "a", "prediction")


def test_tensors_are_whole_or_refused(tmp_path: Path) -> None:
    """A byte that changed, an end that is missing, words that are no JSON, a format that is newer."""
    path = tmp_path / "a"
    storage.save_tensors(path, "thing", {"said": 1}, {"x": torch.arange(5)})
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:20], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(broken)
        with pytest.raises(mt.FileError, match="/a "):
            storage.load_tensors(path, "thing")
    for text in ("{", "[]", "3", "null", '"text"', "{}", '{"format": "new"}', json.dumps({"format": storage.FORMAT + 1})):
        tensors = {"x": torch.arange(5)}
        safetensors.torch.save_file(tensors, path, {"thing": text, "sha256": digest(tensors, text)})
        with pytest.raises(mt.FileError, match="/a "):
            storage.load_tensors(path, "thing")


def test_a_failing_write_leaves_the_old_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for ensembles: all or nothing, and no temporary file."""
    storage.save_tensors(tmp_path / "a", "thing", {}, {"x": torch.arange(5)})
    before = (tmp_path / "a").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", fail)
    with pytest.raises(mt.FileError, match="No space left"):
        storage.save_tensors(tmp_path / "a", "thing", {}, {"x": torch.arange(6)})
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    def late(*_: object) -> None:
        raise RuntimeError("mt.load waits for a pipe")

    os.mkfifo(tmp_path / "a.multitude")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(3)
    try:
        with pytest.raises(mt.MultitudesError, match=r"a\.multitude"):
            mt.load(tmp_path / "a.multitude", nn.Linear(2, 2))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Bank(nn.Linear):
    """A network with a length, which is none yet: as a truth value it is False."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("make", [lambda: Bank(3, 2), lambda: torch.compile(nn.Linear(3, 2), backend="eager")])
def test_a_network_may_have_a_length(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Also torch.compile's wrapper, which cannot tell it of most networks."""
    x = torch.randn(4, 3)
    ens = mt.ensemble(make(), mt.Deep(members=2), x, seed=0).eval()
    mt.save(ens, tmp_path / "a.multitude")
    assert_exact(mt.load(tmp_path / "a.multitude", make())(x), ens(x))
