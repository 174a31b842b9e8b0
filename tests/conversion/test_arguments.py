"""Bad input is answered before any work, by an error that says what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import METHODS
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt

VERBS: list[Callable[..., Any]] = [mt.plan, mt.ensemble]
X = torch.zeros(2, 4)


def network() -> nn.Module:
    """A network that counts its calls."""

    class Counting(nn.Sequential):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return super().forward(x)

    return Counting(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


Call = dict[str, Any]

REFUSED: list[tuple[Call, str]] = [
    ({"method": mt.Deep}, r"Deep\(\)"),
    ({"method": "deep"}, r"'deep' is not a method: give an instance, mt.Deep\(\)$"),
    ({"method": "depp"}, "'depp'.*" + ", .*".join(sorted(METHODS))),
    ({"method": None}, "None"),
    ({"method": mt.Method}, r"Method\(\)"),
    *(({"model": model}, "factory") for model in (nn.Linear, "resnet18", None, {"weight": torch.zeros(2)})),
    ({"start": "warm"}, "start='warm'.*'fresh'.*'copies'"),
    *(({"chunk": chunk}, "chunk=") for chunk in (0, -2, True, 1.5)),
    ({"keep": "0"}, r"keep=\['0'\]"),
    ({"keep": ["layer4", "zero"]}, "keep=.*'layer4'.*'zero'"),
    ({"at": {"no.such.*": mt.Deep()}}, "at="),
    *(({"at": {"0": method}}, "Deep.*members=4") for method in (mt.TreeNet(), mt.Deep(members=3))),
    ({"at": {"0": mt.Deep(reduction="mean")}}, "reduction"),
    ({"batch_axis": 2}, "batch_axis=2"),
    ({"batch_axis": [0, 0]}, "batch_axis|2 inputs"),
    ({"example": torch.full((2, 4), float("nan"))}, "NaN"),
    ({"example": torch.tensor([[1.0, 2.0, float("inf"), 0.0]])}, "infinite"),
    ({"example": torch.zeros(0, 4)}, "rows"),
    *(({"example": example}, "tensor") for example in ((), None, "a picture")),
    ({"example": mt.Inputs(torch.zeros(2, 4), torch.zeros(3))}, r"rows.*batch_axis=\[0, None"),
    ({"example": torch.tensor(1.0)}, "batch_axis=0"),
    ({"example": torch.zeros(2, 4, device="meta")}, "no numbers.*meta.*cpu"),
]
"""What is wrong in a call of `plan` or `ensemble`, and what the error names."""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("wrong", "named"), REFUSED)
def test_a_wrong_argument_is_refused_before_the_model_is_called(verb: Callable[..., Any], wrong: Call, named: str) -> None:
    net = network()
    given = {"model": net, "method": mt.Deep(), "example": X, **wrong}
    with pytest.raises(mt.InputError, match=named):
        verb(given.pop("model"), given.pop("method"), given.pop("example"), **given)
    assert net.calls == 0


@pytest.mark.parametrize("task", ["classify", "", None, 3])
def test_task(task: Any) -> None:
    """One of five, all listed."""
    with pytest.raises(mt.InputError, match=r"classes, binary, multilabel, gaussian, regression"):
        mt.ensemble(network(), mt.Deep(), X, task=task)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "example", [torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.long), mt.Inputs(torch.zeros(2, 4), mask=None)]
)
def test_an_example_that_the_model_rejects(verb: Callable[..., Any], example: Any) -> None:
    """The model's own error is passed on, with the example's shapes."""
    with pytest.raises(mt.InputError, match=r"example Inputs\(\[2, ") as caught:
        verb(network(), mt.Deep(), example)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("kind", METHODS.values())
def test_a_model_without_parameters(kind: type[mt.Method]) -> None:
    """Members have nothing to differ in."""
    with pytest.raises(mt.InputError, match="parameters"):
        mt.ensemble(nn.Sequential(nn.ReLU(), nn.Flatten()), kind(), X)


def test_an_output_that_depends_on_no_weight() -> None:
    """MultiHead finds no head, and says how to name one."""

    class Deaf(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    with pytest.raises(mt.InputError, match=r"MultiHead.*head="):
        mt.ensemble(Deaf(4, 4), mt.MultiHead(), X)


def test_one_row_is_enough() -> None:
    """A single-row example is repeated to two, since BatchNorm in training needs more than one value."""
    case = ZOO["cumulative_batchnorm"]
    ens = mt.ensemble(case.model(), mt.Deep(), case.example(1), seed=0)
    assert "vmap" in ens.plan.proven["train"]


def test_nothing_is_half_made() -> None:
    """A refused conversion leaves the model, its hooks and torch's randomness as they were."""
    net = network()
    before, state = torch.get_rng_state(), {name: t.clone() for name, t in net.state_dict().items()}
    with pytest.raises(mt.InputError):
        mt.ensemble(net, mt.TreeNet(branch_at="nowhere"), X, seed=0)
    with pytest.raises(mt.InputError):
        mt.ensemble(net, mt.Deep(), torch.zeros(2, 5), seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    torch.testing.assert_close(dict(net.state_dict()), state, rtol=0, atol=0)
