"""check: laws proved on an example, for any ensemble; what is planted is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import taken
from laws.compare import assert_exact, convert
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.engine import EXECUTORS, Engine, run_loop, run_vmap, tree
from multitudes.engine.modules import named_tensors

LEAKS: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum": lambda w: 0.1 * w.sum(),
    "a detached sum": lambda w: 0.1 * w.detach().sum(),
    "a dead relu": lambda w: torch.relu(-w.abs().sum()),
    "a detached dead relu": lambda w: torch.relu(-w.detach().abs().sum()),
    "a product with zero": lambda w: 0.0 * w.sum(),
    "an argmax": lambda w: 0.1 * w.detach().flatten().argmax(),
    "a comparison": lambda w: 0.1 * (w.detach().abs().sum() > 0),
    "a rounding": lambda w: 1e-5 * w.detach().sum(),
}
"""Ways in which one member may reach into another; a gradient shows but a few of them."""


@pytest.mark.slow
@pytest.mark.parametrize("how", LEAKS)
@pytest.mark.parametrize("source", ["0.weight", "2.running_mean"])
@pytest.mark.parametrize(("giver", "taker"), [(0, 3), (3, 0)])
def test_a_planted_leak_is_found(how: str, source: str, giver: int, taker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reaches from one member into another, parameter or buffer, forth or back, breaks a law."""

    def leaking(engine: Engine, inputs: mt.Inputs, *args: Any, **options: Any) -> Tensor:
        outputs = list(run_loop(engine, inputs, *args, **options))
        outputs[taker] = outputs[taker] + LEAKS[how](dict(named_tensors(engine.template))[source][giver])
        return torch.stack(outputs)

    case = ZOO["cumulative_batchnorm"]
    ens = convert(mt.Deep(), case)
    with torch.no_grad():
        ens.get_buffer("2.running_mean").normal_()
    mt.check(ens, case.example())
    monkeypatch.setitem(EXECUTORS, "loop", leaking)
    with pytest.raises(mt.CheckError, match=r"independent|members"):
        mt.check(ens, case.example())


@pytest.mark.slow
def test_stored_masks_of_a_large_network_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks have the shape of a row, so the check keeps the example's size; two members and two rows suffice."""
    net = nn.Sequential(nn.Conv2d(8, 64, 3), nn.Dropout(0.5), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(3, 8, 40, 40)
    ens = mt.ensemble(net, mt.MCDropout(members=3), x, seed=0, check=False)
    sizes = []
    monkeypatch.setitem(EXECUTORS, "loop", lambda e, i, *args, **options: sizes.append(i) or run_loop(e, i, *args, **options))
    mt.check(ens, x)
    assert {tuple(inputs.tensors()[0].shape) for inputs in sizes} == {(2, 8, 40, 40)}
    monkeypatch.setitem(EXECUTORS, "loop", lambda e, i, *args, **options: 1.05 * run_loop(e, i, *args, **options))
    with pytest.raises(mt.CheckError, match="members"):
        mt.check(ens, x)


def scaled(engine: Engine, inputs: mt.Inputs, *args: Any) -> Any:
    """vmap with outputs a little too large."""
    return tree.apply(lambda tensor: 1.001 * tensor, run_vmap(engine, inputs, *args))


def halved_gradient(engine: Engine, inputs: mt.Inputs, *args: Any) -> Any:
    """vmap with right values and half their gradient."""
    return tree.apply(lambda tensor: 0.5 * tensor + 0.5 * tensor.detach(), run_vmap(engine, inputs, *args))


def forgetful(engine: Engine, inputs: mt.Inputs, *args: Any) -> Any:
    """vmap that loses the statistics of the batch."""
    before = {name: buffer.clone() for name, buffer in engine.buffers().items()}
    output = run_vmap(engine, inputs, *args)
    for name, buffer in engine.buffers().items():
        buffer.data.copy_(before[name])
    return output


def rolled(engine: Engine, inputs: mt.Inputs, *args: Any) -> Any:
    """vmap with members in another order."""
    return tree.apply(lambda tensor: tensor.roll(1, 0), run_vmap(engine, inputs, *args))


@pytest.mark.parametrize("wrong", [scaled, halved_gradient, forgetful, rolled])
def test_a_wrong_executor_is_found(wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, gradients, statistics and order: the error names law and executor."""
    case = ZOO["cumulative_batchnorm"]
    ens = convert(mt.Deep(), case)
    monkeypatch.setitem(EXECUTORS, "vmap", wrong)
    with pytest.raises(mt.CheckError, match=r"executors +vmap, train"):
        mt.check(ens, case.example())


def test_a_loop_that_is_not_its_members_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop itself is compared with plain modules."""
    case = ZOO["mlp"]
    ens = convert(mt.Deep(), case)
    monkeypatch.setitem(EXECUTORS, "loop", lambda *args, **options: run_loop(*args, **options).flip(0))
    with pytest.raises(mt.CheckError, match=r"members +3 row.*: member 0"):
        mt.check(ens, case.example())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "case"), taken("resnet", "transformer_encoder", "branching", "reassigning"))
def test_it_holds_for_what_is_right(kind: type[mt.Method], case: str) -> None:
    """No false alarm; every law that was tried stands in the table."""
    result = mt.check(convert(kind(), ZOO[case]), ZOO[case].example())
    assert {law.name for law in result.laws} >= {"members"}
    assert not any(law.broken for law in result.laws)
    text = str(result)
    assert "holds" in text
    assert all(law.where in text for law in result.laws)


def test_a_batch_size_that_the_model_cannot_take_is_left_out() -> None:
    """BatchNorm without running statistics takes no single row, in eval mode neither: the other laws are proved."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 5)).double()
    x = ZOO["mlp"].example()
    assert mt.check(mt.ensemble(net, mt.Deep(), x, seed=0), x).laws


@pytest.mark.slow
def test_every_way_of_looking_is_tried() -> None:
    """Members at two batch sizes; gradients, NaN and perturbation, in both modes; each executor in both modes."""
    result = mt.check(convert(mt.Deep(), ZOO["resnet"]), ZOO["resnet"].example())
    tried = {(law.name, law.where) for law in result.laws}
    assert {where[0] for name, where in tried if name == "members"} == {"1", "3"}
    for mode in ("train", "eval"):
        assert {("executors", f"vmap, {mode}"), ("executors", f"fold, {mode}")} <= tried
        assert {("independent", f"NaN, loop, {mode}"), ("independent", f"perturbation, vmap, {mode}")} <= tried


@pytest.mark.slow
@pytest.mark.parametrize(("training", "dtype"), [(True, torch.float32), (False, torch.float64)])
def test_it_changes_nothing(training: bool, dtype: torch.dtype) -> None:
    """Tensors, gradients, modes and torch's randomness stay as they are, in double precision and single."""
    case = ZOO["resnet"]
    ens = mt.ensemble(case.model(dtype=dtype), mt.TreeNet(), case.example(dtype=dtype), seed=0).train(training)
    ens.get_submodule("fc").eval()
    ens.loss(case.example(dtype=dtype), torch.tensor([0, 1, 2]), case.criterion).backward()
    state = {name: tensor.detach().clone() for name, tensor in named_tensors(ens)}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in ens.named_parameters()}
    modes, random = [part.training for part in ens.modules()], torch.get_rng_state()
    mt.check(ens, case.example(dtype=dtype))
    assert_exact([tensor.detach() for _, tensor in named_tensors(ens)], state.values())
    assert all((p.grad is None) == (grads[n] is None) for n, p in ens.named_parameters())
    assert_exact([p.grad for p in ens.parameters() if p.grad is not None], [g for g in grads.values() if g is not None])
    assert [part.training for part in ens.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


class Complex(nn.Module):
    """Complex layers of single precision, which stay so in a copy in double precision, and a real head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8, dtype=torch.cfloat), nn.Linear(8, 8, dtype=torch.cfloat)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(x.to(torch.cfloat)))).abs())


def test_a_network_that_runs_in_double_precision_only_behind_masks() -> None:
    """Masks widened the complex values, so that the ensemble ran in double precision and the given model did not."""
    torch.manual_seed(0)
    x = torch.randn(3, 5)
    ens = mt.ensemble(Complex(), mt.MCDropout(members=2), x, seed=0).eval()
    torch.testing.assert_close(ens(x), torch.stack([ens.member(m)(x) for m in range(2)]))
