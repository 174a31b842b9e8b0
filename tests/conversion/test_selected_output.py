"""output=: an ensemble of a network that returns hidden states beside logits returns the logits."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import multitudes as mt

pytestmark = pytest.mark.slow

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


@dataclasses.dataclass
class Output:
    """As libraries return it."""

    logits: Tensor
    hidden: Tensor


class Talkative(nn.Module):
    """Returns its hidden state beside the logits, as a dict, a dataclass or a tuple."""

    def __init__(self, width: int = 16, kind: str = "dict") -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 2)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        hidden = self.second(self.first(x).relu()).relu()
        logits = self.out(hidden)
        return {"logits": logits, "hidden": hidden} if self.kind == "dict" else self.packed(logits, hidden)

    def packed(self, logits: Tensor, hidden: Tensor) -> Any:
        return Output(logits, hidden) if self.kind == "dataclass" else (hidden, logits)


def quiet(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The logits, by hand."""
    first = nn.functional.linear(x, weights["first.weight"], weights["first.bias"]).relu()
    hidden = nn.functional.linear(first, weights["second.weight"], weights["second.bias"]).relu()
    return nn.functional.linear(hidden, weights["out.weight"], weights["out.bias"])


METHODS = [
    mt.Deep(members=2), mt.Packed(members=2, alpha=1), mt.Packed(members=2, alpha=1, pretrained=True), mt.MIMO(members=2),
    mt.MultiHead(members=2), mt.TreeNet(members=2, branch_at="second"), mt.BatchEnsemble(members=2),
    mt.MCDropout(members=2, p=0.5),
]  # fmt: skip


KINDS = [(mt.Packed(members=2, alpha=1), "dataclass"), (mt.MultiHead(members=2), "tuple")]


@pytest.mark.parametrize(("method", "kind"), [*((method, "dict") for method in METHODS), *KINDS], ids=str)
def test_members_return_the_logits(method: mt.Method, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    output: Any = 1 if kind == "tuple" else "logits"
    ens = mt.ensemble(Talkative(kind=kind), method, X, output=output, seed=0).eval()
    outputs = ens(X)
    assert outputs.shape == (2, 6, 2)
    if isinstance(method, (mt.Deep, mt.Packed, mt.MultiHead, mt.TreeNet)):
        for m in range(2):
            torch.testing.assert_close(outputs[m], quiet(ens.member(m).state_dict(), X))
    mt.save(ens, tmp_path / "a.multitude")
    loaded = mt.load(tmp_path / "a.multitude", Talkative(kind=kind))
    assert loaded.selected_output == str(output)
    torch.testing.assert_close(loaded(X), outputs, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(ens)(X), outputs, rtol=0, atol=0)


def test_methods_look_at_this_output_only() -> None:
    """Without output= the hidden state fixes widths, and is a second head."""
    shapes = mt.ensemble(Talkative(), mt.Packed(members=2, alpha=1), X, output="logits", check=False).state_dict()
    assert shapes["second.weight"].shape == (2, 8, 8)
    heads = mt.plan(Talkative(), mt.MultiHead(members=2), X, output="logits")
    assert [entry.name for entry in heads.converted] == ["out"]
    assert "the ensemble returns the output 'logits'; others are left out" in heads.notes
    assert [entry.name for entry in mt.plan(Talkative(), mt.MultiHead(members=2), X).converted] != ["out"]


def test_the_plan_says_that_several_outputs_keep_their_widths() -> None:
    notes = mt.plan(Talkative(), mt.Packed(members=2, alpha=1), X).notes
    assert any("returns logits, hidden: their widths stay" in note and "output='logits'" in note for note in notes)
    assert any("output=0" in note for note in mt.plan(Talkative(kind="tuple"), mt.Deep(members=2), X).notes)
    assert not any("widths stay" in note for note in mt.plan(Talkative(), mt.Deep(members=2), X, output="logits").notes)


def test_resize_and_recommend() -> None:
    assert mt.resize(Talkative(), 0.5, X)(X)["hidden"].shape == (6, 16)
    thin = mt.resize(Talkative(), 0.5, X, output="logits")
    assert thin(X).shape == (6, 2) and thin.second.weight.shape == (8, 8)  # type: ignore[union-attr]
    found = mt.recommend(Talkative(kind="tuple"), X, methods=[mt.Packed(members=2, alpha=1)], output=1, repeats=1)
    assert found.candidates[0].fits and found.candidates[0].code.endswith(", x, output=1)")


@pytest.mark.parametrize("factory", [lambda ratio: Talkative(round(16 * ratio)), lambda: Talkative(16)])
def test_factories(factory: Any, tmp_path: Path) -> None:
    ens = mt.ensemble(factory, mt.Packed(members=2, alpha=1), X, output="logits", check=False).eval()
    torch.testing.assert_close(ens(X)[1], quiet(ens.member(1).state_dict(), X))
    mt.save(ens, tmp_path / "a.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "a.multitude", factory)(X), ens(X), rtol=0, atol=0)


def test_the_given_model_still_returns_all() -> None:
    model = Talkative()
    mt.ensemble(model, mt.Deep(members=2), X, output="logits", check=False)
    assert model(X).keys() == {"logits", "hidden"}


def test_executors_are_those_of_a_network_with_one_output() -> None:
    """The hook that selects reads no values, so it does not exclude an executor."""
    plan = mt.plan(Talkative(), mt.MultiHead(members=2), X, output="logits")
    assert "vmap" in plan.proven["eval"] and "vmap" in plan.proven["train"]


def test_fit_and_predict_need_no_output() -> None:
    ens = mt.ensemble(Talkative(), mt.Deep(members=2), X, output="logits", check=False, seed=0)
    plain = ens.member(0)
    data = TensorDataset(X, torch.arange(6) % 2)
    mt.fit(ens, data, mt.Recipe(epochs=1, batch=6, lr=0.1, momentum=0))
    loss = nn.functional.cross_entropy(quiet(dict(plain.named_parameters()), X), torch.arange(6) % 2)
    gradient = torch.autograd.grad(loss, plain.out.weight)[0]  # type: ignore[union-attr, arg-type]
    torch.testing.assert_close(ens.state_dict()["out.weight"][0], plain.out.weight - 0.1 * gradient)  # type: ignore[union-attr, operator]
    assert mt.predict(ens, data, output="logits").members["logits"].shape == (2, 6, 2)


@pytest.mark.parametrize(
    ("model", "output", "match"),
    [
        (Talkative(), "logit", "output='logit' names no output: the model returns logits, hidden: choose one"),
        (Talkative(kind="tuple"), 2, "returns 0, 1: choose one"),
        (nn.Linear(3, 2), "logits", "Leave output= out"),
        (Talkative(), -1, "from 0 on"),
        (Talkative(), True, "from 0 on"),
    ],
)
def test_outputs_that_are_not_there(model: nn.Module, output: Any, match: str) -> None:
    with pytest.raises(mt.InputError, match=match):
        mt.ensemble(model, mt.Deep(members=2), X, output=output)
