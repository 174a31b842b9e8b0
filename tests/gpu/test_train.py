"""fit on a GPU: precisions, compiled graphs, sets that lie on the device, and runs that go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes.data import Augment, fashion
from multitudes.training.feed import Feed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

TRAIN = fashion("train").subset(range(1024))
VAL = fashion("validation").subset(range(256))


def made(method: mt.Method) -> mt.Ensemble:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return mt.ensemble(net, method, TRAIN.batch([0, 1])[0], seed=0).to("cuda")


RECIPE = mt.Recipe(epochs=6, batch=64, lr=0.05, schedule="cosine", augment=Augment(crop=2, flip=False))


@pytest.mark.parametrize("kind", mt.Method.all(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "settings",
    [{}, {"precision": "bf16", "channels_last": True}, {"precision": "fp16", "clip": 1.0}],
    ids=["32", "bf16", "fp16"],
)
def test_every_method_learns(kind: type[mt.Method], settings: dict[str, object]) -> None:
    ens = made(kind())
    run = mt.fit(ens, TRAIN, replace(RECIPE, **settings), val=VAL)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert run.metrics[-1]["val_accuracy"] > 0.25
    assert all(p.dtype == torch.float32 for p in ens.parameters())


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning", "ignore:The CUDA Graph is empty:UserWarning"
)  # torch's own, in its compiler
@pytest.mark.parametrize("method", [mt.Packed(), mt.BatchEnsemble(feed="all"), mt.EMP(members=4), mt.MIMO()], ids=str)
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_compiled_learns_as_it_does_without(method: mt.Method, precision: str) -> None:
    """The same steps, in one graph: equal up to rounding, which grows with steps, so of a few."""
    found = []
    for compile in (False, True):
        ens = made(method)
        how = replace(RECIPE, epochs=1, lr=0.01, compile=compile, precision=precision, momentum=0.0)
        mt.fit(ens, TRAIN.subset(range(256)), how)
        found.append(ens.state_dict())
    for name, value in found[0].items():
        if value.is_floating_point():
            torch.testing.assert_close(found[1][name], value, rtol=0.02, atol=5e-3 if precision == "32" else 3e-2)


def test_a_set_in_memory_lies_on_the_device() -> None:
    feed = Feed(TRAIN, batch=64, seed=0, members=1, own=False, device=torch.device("cuda"), augment=Augment())
    assert feed.sets[0].device.type == "cuda"
    x, y = next(feed.epoch(1))
    assert x.tensors()[0].device.type == y.device.type == "cuda"


@pytest.mark.parametrize("precision", ["32", "fp16"])
def test_a_run_goes_on(tmp_path: Path, precision: str) -> None:
    """With deterministic algorithms, bit for bit; a scaler's state is kept."""
    how = replace(RECIPE, epochs=4, deterministic=True, precision=precision)
    whole, part = made(mt.Packed()), made(mt.Packed())
    mt.fit(whole, TRAIN, how, out=tmp_path / "whole")
    steps = []

    def stopping(x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        steps.append(1)
        if len(steps) == 40:
            raise KeyboardInterrupt
        return how.augment(x, y, generator)

    stopping.__qualname__ = "stopping"
    same = replace(how, augment=stopping)
    with pytest.raises(KeyboardInterrupt):
        mt.fit(part, TRAIN, same, out=tmp_path / "part")
    again = made(mt.Packed())
    mt.fit(again, TRAIN, same, out=tmp_path / "part", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "adamw", "precision": "bf16"}, {"ema": 0.9}, {"precision": "fp16"}], ids=str
)
def test_a_step_that_is_not_finite_is_skipped(settings: dict[str, object]) -> None:
    """By a flag on the device, or where there is none by a look at each step: the error names the example that did it."""
    inputs, targets = TRAIN.batch(slice(0, 400))
    inputs = inputs.clone()
    inputs[17] = torch.nan
    ens = made(mt.Deep(members=2))
    how = replace(RECIPE, batch=4, augment=None, **settings)
    with pytest.raises(mt.InputError, match=r"a NaN in the inputs of example 17, so the loss is nan in step \d+ of epoch 1"):
        mt.fit(ens, TensorDataset(inputs, targets), how)
    assert all(bool(value.isfinite().all()) for value in ens.state_dict().values())
    assert not torch.equal(ens.get_parameter("0.weight"), made(mt.Deep(members=2)).get_parameter("0.weight"))
