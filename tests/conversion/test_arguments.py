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


@pytest.mark.parametrize("members", [0, -1, True, 2.5, "4", None])
@pytest.mark.parametrize("name", METHODS)
def test_members(name: str, members: Any) -> None:
    """A whole number of at least one, said when the settings are made."""
    with pytest.raises(mt.InputError, match=rf"{name}\(members={members!r}\)"):
        getattr(mt, name)(members=members)


def test_reduction() -> None:
    """The sum or the mean over members."""
    with pytest.raises(mt.InputError, match="reduction='max'"):
        mt.Deep(reduction="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("method", "says"),
    [
        (mt.Deep, r"Deep\(\)"),
        ("deep", "'deep' is not a method; there are .*" + ", .*".join(sorted(METHODS))),
        (None, "None is not a method"),
        (mt.Method, r"Method\(\)"),
    ],
)
def test_method(verb: Callable[..., Any], method: Any, says: str) -> None:
    """A class or a name is no method; the error lists the methods there are."""
    net = network()
    with pytest.raises(mt.InputError, match=says):
        verb(net, method, X)
    assert net.calls == 0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("model", [nn.Linear, "resnet18", None, {"weight": torch.zeros(2)}])
def test_model(verb: Callable[..., Any], model: Any) -> None:
    """A class, a name or a state dict is no model."""
    with pytest.raises(mt.InputError, match=r"nn\.Module or a factory"):
        verb(model, mt.Deep(), X)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "warm"}, "start='warm': say 'fresh' or 'copies'"),
        ({"chunk": 0}, "chunk=0"),
        ({"chunk": -2}, "chunk=-2"),
        ({"chunk": True}, "chunk=True"),
        ({"chunk": 1.5}, "chunk=1.5"),
        ({"keep": "0"}, r"keep=\['0'\]"),
        ({"keep": ["layer4", "zero"]}, r"keep= matches nothing.*'layer4' \(nearest: .*'zero'"),
        ({"at": {"no.such.*": mt.Deep()}}, "at= matches nothing"),
        ({"at": {"0": mt.TreeNet()}}, r"must be a Deep with members=4"),
        ({"at": {"0": mt.Deep(members=3)}}, r"must be a Deep with members=4"),
        ({"at": {"0": mt.Deep(reduction="mean")}}, "reduction cannot differ by layer; no setting may"),
        ({"batch_axis": 2}, "batch_axis=2"),
        ({"batch_axis": [0, 0]}, r"names 2 inputs, but the call has 1"),
    ],
)
def test_options(verb: Callable[..., Any], options: dict[str, Any], says: str) -> None:
    """Settings that mean nothing, or match nothing, are named with what is nearest."""
    net = network()
    with pytest.raises(mt.InputError, match=says):
        verb(net, mt.Deep(), X, **options)
    assert net.calls == 0


@pytest.mark.parametrize("task", ["classify", "", None, 3])
def test_task(task: Any) -> None:
    """One of five, all listed."""
    net = network()
    with pytest.raises(mt.InputError, match=r"classes, binary, multilabel, gaussian, regression"):
        mt.ensemble(net, mt.Deep(), X, task=task)
    assert net.calls == 0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("example", "says"),
    [
        (torch.full((2, 4), float("nan")), r"NaN or infinite values in its \[2, 4\] input"),
        (torch.tensor([[1.0, 2.0, float("inf"), 0.0]]), "NaN or infinite"),
        (torch.zeros(0, 4), "no rows"),
        ((), "no tensor|without a tensor"),
        (None, "no tensor|without a tensor"),
        ("a picture", "no tensor|without a tensor"),
        (mt.Inputs(torch.zeros(2, 4), torch.zeros(3)), r"disagree about the number of rows.*batch_axis=\[0, None"),
        (torch.tensor(1.0), "batch_axis=0, but an input has shape"),
        (torch.zeros(2, 4, device="meta"), "the model is on cpu, the example on meta"),
    ],
)
def test_example(verb: Callable[..., Any], example: Any, says: str) -> None:
    """An example with nothing to run, or with values that would spoil every comparison."""
    net = network()
    with pytest.raises(mt.InputError, match=says):
        verb(net, mt.Deep(), example)
    assert net.calls == 0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "example", [torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.long), mt.Inputs(torch.zeros(2, 4), mask=None)]
)
def test_an_example_that_the_model_rejects(verb: Callable[..., Any], example: Any) -> None:
    """The model's own error is passed on, with the example's shapes."""
    with pytest.raises(mt.InputError, match=r"the model rejects the example Inputs\(\[2, ") as caught:
        verb(network(), mt.Deep(), example)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", METHODS.values())
def test_a_model_without_parameters(verb: Callable[..., Any], kind: type[mt.Method]) -> None:
    """There is nothing that members could differ in."""
    with pytest.raises(mt.InputError, match="Sequential has no parameters"):
        verb(nn.Sequential(nn.ReLU(), nn.Flatten()), kind(), X)


def test_an_output_that_depends_on_no_weight() -> None:
    """MultiHead finds no head, and says how to name one."""

    class Deaf(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    with pytest.raises(mt.InputError, match=r"MultiHead finds no last layer.*head='\.\.\.'"):
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
        mt.ensemble(net, mt.TreeNet(split="nowhere"), X, seed=0)
    with pytest.raises(mt.InputError):
        mt.ensemble(net, mt.Deep(), torch.zeros(2, 5), seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    torch.testing.assert_close(dict(net.state_dict()), state, rtol=0, atol=0)
