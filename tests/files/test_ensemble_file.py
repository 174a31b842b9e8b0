"""Files: whole or refused by name, written at once, and nothing in them is code."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable
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
from multitudes.prediction.temperature import Calibrator
from multitudes.storage import digest

CASE = ZOO["resnet"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """An ensemble in a file."""
    mt.save(convert(mt.Deep(), CASE), tmp_path / "a.multitude")
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
    ens = convert(mt.Deep(), CASE)
    assert_same(dict(sorted(tensors.items())), dict(sorted((n, t.detach()) for n, t in named_tensors(ens))))
    about = json.loads(header(saved)["multitudes"])
    assert about["format"] == storage.FORMAT
    assert (about["method"], about["settings"]) == ("Deep", {"members": 4, "reduction": "sum"})
    assert about["multitudes"] == mt.__version__
    assert about["torch"] == torch.__version__


@pytest.mark.parametrize("part", [0, 4, 8, 9, 100, 0.3, 0.5, 0.9, -1])
def test_a_truncated_file_is_refused(saved: Path, part: float) -> None:
    """Wherever it ends."""
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * part) if isinstance(part, float) else part])
    with pytest.raises(mt.FileError, match=r"a\.multitude"):
        mt.load(saved, CASE.model())


@pytest.mark.parametrize("where", ["first tensor", "last byte", "header length", "header", "description", "digest"])
def test_a_flipped_bit_is_refused(saved: Path, where: str) -> None:
    """In numbers or in words."""
    data = bytearray(saved.read_bytes())
    length = int.from_bytes(data[:8], "little")
    places = {"first tensor": 8 + length, "last byte": len(data) - 1, "header length": 1, "header": 8 + length // 2}
    places |= {"description": data.index(b'\\"members\\"') + 3, "digest": data.index(b'"sha256":"') + 12}
    data[places[where]] ^= 1
    saved.write_bytes(bytes(data))
    with pytest.raises(mt.FileError, match=r"a\.multitude"):
        mt.load(saved, CASE.model())


def test_what_was_altered_is_told_from_what_is_whole(saved: Path) -> None:
    """A description changed without its digest is found."""
    rewrite(saved, lambda about: about.update(task="regression"), sign=False)
    with pytest.raises(mt.FileError, match="damaged or was altered"):
        mt.load(saved, CASE.model())


def test_a_foreign_safetensors_file(tmp_path: Path) -> None:
    """A plain checkpoint is not an ensemble; the error says what reads it."""
    safetensors.torch.save_file(CASE.model().state_dict(), tmp_path / "net.safetensors")
    with pytest.raises(mt.FileError, match=r"net\.safetensors was not written by mt\.save.*from_checkpoints"):
        mt.load(tmp_path / "net.safetensors", CASE.model())


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
    with pytest.raises(mt.FileError, match="Pickled checkpoints are not read"):
        mt.load(tmp_path / "a.multitude", CASE.model())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["os.system", "__import__", "Method", "multitudes.methods.deep.Deep", "deep", "", None, 3, ["Deep"]]
)
def test_a_description_cannot_name_code(saved: Path, name: Any) -> None:
    """Only methods that exist here, by their plain names."""
    rewrite(saved, lambda about: about.update(method=name))
    with pytest.raises(mt.FileError):
        mt.load(saved, CASE.model())


@pytest.mark.parametrize(
    "settings",
    [
        {"members": 4, "reduction": "sum", "command": "rm"},
        {"members": 0, "reduction": "sum"},
        {"members": "4", "reduction": "sum"},
        {"members": 10**12, "reduction": "sum"},
        {"members": 4, "reduction": "product"},
        {"reduction": "sum"},
        {},
        [],
        "members",
        None,
    ],
)
def test_hostile_settings(saved: Path, settings: Any) -> None:
    """Settings that the method does not have, or cannot have, are refused before anything is made."""
    rewrite(saved, lambda about: about.update(settings=settings))
    with pytest.raises(mt.FileError):
        mt.load(saved, CASE.model())


KEYS = ["format", "method", "settings", "owned", "shared_norms", "task", "seed", "plan", "traits", "training", "frozen"]
KEYS += ["batch_axis", "chunk", "proven", "picked", "why", "torch", "multitudes", "model"]


@pytest.mark.parametrize("key", KEYS)
def test_a_description_of_other_form(saved: Path, key: str) -> None:
    """Whatever stands where something else is expected: refused as a file, or harmless."""
    whole = saved.read_bytes()
    for value in ("gone", None, "text", 7, -1, [["deep"]], {"a": {"b": []}}):
        saved.write_bytes(whole)
        rewrite(saved, lambda about, value=value: about.pop(key) if value == "gone" else about.update({key: value}))
        try:
            back = mt.load(saved, CASE.model())
            output = back.eval()(*CASE.example().args)
        except mt.FileError as error:
            assert "a.multitude" in str(error)
        else:
            assert_same(output, convert(mt.Deep(), CASE)(*CASE.example().args))


@pytest.mark.parametrize("text", ["", "null", "[]", "3", '"text"', "{", "{}", "[" * 5000])
def test_a_description_that_is_none(saved: Path, text: str) -> None:
    """No JSON, or JSON that is no description."""
    tensors = safetensors.torch.load_file(saved)
    safetensors.torch.save_file(tensors, saved, {"multitudes": text, "sha256": digest(tensors, text)})
    with pytest.raises(mt.FileError, match=r"a\.multitude"):
        mt.load(saved, CASE.model())


def test_a_newer_format(saved: Path) -> None:
    """The error says to update, and which version wrote it."""
    rewrite(saved, lambda about: about.update(format=storage.FORMAT + 1, multitudes="9.9"))
    with pytest.raises(mt.FileError, match=r"multitudes 9\.9.*update multitudes"):
        mt.load(saved, CASE.model())


def test_another_torch_is_trusted_with_the_loop_alone(saved: Path) -> None:
    """Executors were proven under the torch that saved them."""
    rewrite(saved, lambda about: about.update(torch="1.0"))
    back = mt.load(saved, CASE.model())
    assert back.engine.proven == {"train": ("loop",), "eval": ("loop",)}
    assert_same(back(*CASE.example().args), convert(mt.Deep(), CASE)(*CASE.example().args))


def test_another_torch_may_have_other_settings(saved: Path) -> None:
    """What one version's layers do not have is not compared, what both have is."""

    def older(about: dict[str, Any], eps: float = 1e-5) -> None:
        about["torch"] = "1.0"
        for part in about["architecture"].values():
            if part["kind"] == "BatchNorm2d":
                part.update(gone=True, eps=eps)
                part.pop("affine", None)

    rewrite(saved, older)
    assert_same(mt.load(saved, CASE.model())(*CASE.example().args), convert(mt.Deep(), CASE)(*CASE.example().args))
    rewrite(saved, lambda about: older(about, eps=0.1))
    with pytest.raises(mt.FileError, match=r"another architecture.*BatchNorm2d, has eps=0\.1 there and eps=1e-05 here"):
        mt.load(saved, CASE.model())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: ZOO["wideresnet"].model(), "holds a ResNet, and the model given is a WideResNet"),
        (
            lambda: type(CASE.model())(widths=(4, 6, 10)).double(),
            r"groups\.2\.0\.conv1\.weight is \[4, 8, 6, 3, 3\] there and \[4, 10",
        ),
        (lambda: type(CASE.model())(widths=(4, 6)).double(), r"unknown groups\.2"),
        (lambda: type(CASE.model())(widths=(4, 6, 8, 8)).double(), r"no groups\.3"),
    ],
)
def test_another_architecture(saved: Path, model: Callable[[], nn.Module], says: str) -> None:
    """Type, shapes and names are compared, and named."""
    with pytest.raises(mt.FileError, match=rf"another architecture.*{says}"):
        mt.load(saved, model())


def test_without_a_model(saved: Path) -> None:
    """The error says what the file holds and what to type."""
    with pytest.raises(mt.FileError, match=r"holds a ResNet.*mt\.load\('a\.multitude', model\)"):
        mt.load(saved)


def test_a_missing_file(tmp_path: Path) -> None:
    """Named, as a folder is."""
    with pytest.raises(mt.FileError, match=r"no file .*b\.multitude"):
        mt.load(tmp_path / "b.multitude", CASE.model())
    with pytest.raises(mt.FileError):
        mt.load(tmp_path, CASE.model())


def test_a_missing_folder(tmp_path: Path) -> None:
    """Nothing is created on the way."""
    with pytest.raises(mt.FileError, match=r"cannot write .*no/a\.multitude"):
        mt.save(convert(mt.Deep(), CASE), tmp_path / "no" / "a.multitude")
    assert not (tmp_path / "no").exists()


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by name."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.os, "open", refuse)
    with pytest.raises(mt.FileError, match=r"cannot write .*a\.multitude: Permission denied"):
        mt.save(convert(mt.Deep(), CASE), tmp_path / "a.multitude")


@pytest.mark.parametrize("stage", ["fsync", "replace", "fdopen"])
def test_a_failing_write_leaves_the_old_file(saved: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no temporary file."""
    before = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, stage, fail)
    with pytest.raises(mt.FileError, match=r"a\.multitude.*No space left"):
        mt.save(convert(mt.TreeNet(), CASE), saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["a.multitude"]
    mt.load(saved, CASE.model())


def test_an_interrupted_write_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a write included."""
    before = hashlib.sha256(saved.read_bytes()).hexdigest()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mt.save(convert(mt.TreeNet(), CASE), saved)
    assert hashlib.sha256(saved.read_bytes()).hexdigest() == before
    assert [path.name for path in saved.parent.iterdir()] == ["a.multitude"]


def test_saving_again_replaces_the_file(saved: Path) -> None:
    """And reading it back while it is open elsewhere is no matter: the old one was whole."""
    mt.save(convert(mt.TreeNet(), CASE), saved)
    assert mt.load(saved, CASE.model()).method == mt.TreeNet()


@pytest.mark.parametrize("name", ["tied", "table", "reassigning", "weight_norm", "cumulative_batchnorm", "hugging_face_bert"])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
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
    ens, one, two = convert(mt.Deep(), CASE), mt.load(saved, CASE.model()), mt.load(saved, CASE.model())
    draws = [torch.rand(3, generator=net.generator) for net in (ens, one, two)]
    assert_exact(draws[1:], [draws[0]] * 2)
    assert not torch.equal(draws[0], torch.rand(3, generator=convert(mt.Deep(), CASE, seed=9).generator))


def test_a_subclass_of_our_networks_is_not_loaded_as_its_parent(tmp_path: Path) -> None:
    """Its forward is not known to the file: the model has to be given."""

    class ResNet(models.ResNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    x = torch.randn(2, 3, 8, 8)
    ens = mt.ensemble(ResNet(18, width=0.0625), mt.Packed(), x, seed=0).eval()
    mt.save(ens, tmp_path / "a")
    with pytest.raises(mt.FileError, match="give the architecture"):
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
    with pytest.raises(mt.InputError, match="the example has a OrderedDict"):
        mt.save(ens, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("calibrator", [Calibrator(mixture=1.3), Calibrator(members=(0.5, 1.0, 2.0, 4.0))], ids=str)
def test_a_calibrator_comes_back(calibrator: Calibrator, tmp_path: Path) -> None:
    """As it was, also of a subset, and of what was loaded and saved again."""
    ens = convert(mt.Deep(), CASE)
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


@pytest.mark.parametrize(
    "calibrator", [{"mixture": -1, "members": None}, {"mixture": "hot"}, {"command": "rm"}, [1.0], "1.5", 2, {"members": 3}]
)
def test_a_hostile_calibrator(saved: Path, calibrator: Any) -> None:
    """What is none is refused as a file."""
    rewrite(saved, lambda about: about.update(calibrator=calibrator))
    with pytest.raises(mt.FileError, match=r"a\.multitude"):
        mt.load(saved, CASE.model())


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
    with pytest.raises(mt.FileError, match="a holds no prediction"):
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
