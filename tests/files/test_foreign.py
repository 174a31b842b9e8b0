"""Checkpoints of other libraries have the outputs here that they have there. foreign/make.py makes the files again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import multitudes as mt
from multitudes.files.foreign import load_foreign
from multitudes.models import ResNet

FOLDER = Path(__file__).parent / "foreign"


def files(name: str) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """A state dict, inputs and outputs of the peer."""
    found = load_file(FOLDER / f"{name}.safetensors")
    state = {key.removeprefix("state."): value for key, value in found.items() if key.startswith("state.")}
    return state, found["x"], found["outputs"]


def resnet() -> nn.Module:
    """The plain network of the three ResNets."""
    torch.manual_seed(5)
    return ResNet(18, classes=4, width=1 / 32)


def masked() -> nn.Module:
    """The plain network with masked layers."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 10, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(10, 4),
    )  # fmt: skip


CASES: dict[str, tuple[Any, mt.Method]] = {
    "packed": (resnet, mt.Packed(members=2, alpha=2)),
    "batched": (resnet, mt.BatchEnsemble(members=2)),
    "mimo": (resnet, mt.MIMO(members=2)),
    "masked": (masked, mt.Masksembles(members=2)),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n != "masked" else []) for n in CASES])
def test_outputs_are_the_peers(name: str) -> None:
    """All members, and each as a plain network."""
    state, x, expected = files(name)
    build, method = CASES[name]
    ens = mt.ensemble(build(), method, x, seed=0).eval()
    assert not torch.allclose(ens(x), expected, atol=1e-3)
    load_foreign(ens, state)
    torch.testing.assert_close(ens(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ens.member(1).eval()(x), expected[1], rtol=1e-4, atol=1e-5)


def test_files_and_prefixes(tmp_path: Path) -> None:
    """A safetensors file, a LightningModule's checkpoint of torch.save, and one that only code could open."""
    state, x, expected = files("masked")
    lightning = {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}, "epoch": 3}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(lightning, tmp_path / "a.ckpt")
    torch.save(masked(), tmp_path / "code.pt")
    for name in ("a.safetensors", "a.ckpt"):
        ens = mt.ensemble(masked(), mt.Masksembles(members=2), x, seed=0).eval()
        torch.testing.assert_close(load_foreign(ens, tmp_path / name)(x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(mt.FileError, match=r"code\.pt cannot be read without running code.*save_file"):
        load_foreign(ens, tmp_path / "code.pt")


@pytest.mark.parametrize(
    ("method", "change", "text"),
    [
        (mt.Masksembles(members=3), {}, r"3\.mask is \[2, 12\] instead of \[3, 12\]"),
        (mt.Masksembles(members=2), {"3.conv.weight": None}, r"3\.weight is missing"),
        (mt.Masksembles(members=2), {"other.weight": torch.zeros(2)}, r"unknown other\.weight"),
        (mt.Masksembles(members=2, fewest=11), {}, r"unknown 7\.mask"),
    ],
)
def test_what_does_not_fit_is_named(method: mt.Method, change: dict[str, Any], text: str) -> None:
    """And nothing is loaded."""
    state, x, _ = files("masked")
    changed = {name: tensor for name, tensor in {**state, **change}.items() if tensor is not None}
    ens = mt.ensemble(masked(), method, x, seed=0).eval()
    before = ens(x)
    with pytest.raises(mt.FileError, match=text):
        load_foreign(ens, changed)
    assert torch.equal(ens(x), before)


@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.BatchEnsemble(members=2)], ids=["deep", "batchensemble"])
def test_a_checkpoint_of_one_network_makes_no_members(method: mt.Method) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    with pytest.raises(mt.FileError, match="2 members would be equal"):
        load_foreign(mt.ensemble(net, method, torch.randn(2, 6), seed=0), net.state_dict())


def test_files_that_are_none(tmp_path: Path) -> None:
    ens = mt.ensemble(torch.nn.Linear(6, 3), mt.Deep(members=2), torch.randn(2, 6), seed=0)
    with pytest.raises(mt.FileError, match="there is no file"):
        load_foreign(ens, tmp_path / "none.ckpt")
    torch.save(torch.ones(2), tmp_path / "one.pt")
    with pytest.raises(mt.FileError, match="holds no state dict, but a Tensor"):
        load_foreign(ens, tmp_path / "one.pt")


def test_a_packed_mlp_whose_first_layer_is_one_group() -> None:
    """PackedLinear(first=True) holds ``[1, (M D), C]``. The outputs are those of its formula."""
    torch.manual_seed(0)
    x, first, last = torch.randn(5, 8), torch.randn(1, 32, 8), torch.randn(2, 3, 16)
    state = {"0.weight": first, "0.bias": torch.randn(32), "2.weight": last, "2.bias": torch.randn(6)}
    hidden = (x @ first[0].T + state["0.bias"]).relu().unflatten(1, (2, 16)).movedim(1, 0)
    expected = hidden @ last.mT + state["2.bias"].reshape(2, 1, 3)
    mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    ens = load_foreign(mt.ensemble(mlp, mt.Packed(members=2, alpha=2), x, seed=0), state).eval()
    torch.testing.assert_close(ens(x), expected, rtol=1e-4, atol=1e-5)


def test_a_packed_layer_norm_is_warned_of() -> None:
    """Theirs has one mean for all members, and its tensors do not say so."""
    net, x = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16)), torch.randn(5, 8)
    state = {
        "0.weight": torch.randn(1, 32, 8),
        "0.bias": torch.randn(32),
        "1.weight": torch.randn(32),
        "1.bias": torch.randn(32),
    }
    with pytest.warns(UserWarning, match="normalises all members together.*: 1$"):
        load_foreign(mt.ensemble(net, mt.Deep(members=2), x, seed=0), state)
