"""One pair: what its outcome is, and that every planted error gets the outcome and the name that it deserves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.report.census import Result
from multitudes.shell.census import pair
from multitudes.shell.census.networks import Network


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


NETWORK = Network("own", "small", "small", small, lambda _: mt.Inputs(torch.randn(3, 6)))
convert = pair.convert


def converted(*args: Any, **options: Any) -> Any:
    return convert(*args, **options, check=False)


def tried(monkeypatch: pytest.MonkeyPatch, conversion: Callable[..., Any], method: str = "Deep") -> Result:
    monkeypatch.setattr(pair, "convert", conversion)
    return pair.try_pair(NETWORK, method)


@pytest.mark.slow
def test_a_right_conversion_is_ok() -> None:
    result = pair.try_pair(NETWORK, "Deep")
    assert (result.outcome, result.reason, result.notes) == ("ok", "", ())
    assert result.conversion is not None
    assert 0 < result.conversion < result.seconds


def moving(what: Callable[[], Any]) -> Callable[..., Any]:
    """A conversion that draws from a global generator."""

    def conversion(*args: Any, **options: Any) -> Any:
        what()
        return converted(*args, **options)

    return conversion


def changing(what: Callable[[Any], Any]) -> Callable[..., Any]:
    """A conversion that changes the given model."""

    def conversion(model: nn.Module, *args: Any, **options: Any) -> Any:
        made = converted(model, *args, **options)
        what(model)
        return made

    return conversion


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda: torch.rand(1), "torch's random state"),
        (lambda: np.random.rand(), "numpy's random state"),
        (lambda: random.random(), "python's random state"),
    ],
)
def test_a_random_state_that_moves_is_caught(monkeypatch: pytest.MonkeyPatch, what: Callable[[], Any], named: str) -> None:
    result = tried(monkeypatch, moving(what))
    assert result.outcome == "wrong"
    assert result.reason == f"untouched: the conversion changed {named}"


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda model: model[0].weight.data.add_(1e-6), "weight of 0"),
        (lambda model: model[0].weight.requires_grad_(False), "weight of 0"),
        (lambda model: setattr(model[0].bias, "grad", torch.zeros(16)), "bias of 0"),
        (lambda model: model[1].train(), "training of 1"),
        (lambda model: model[3].register_forward_hook(lambda *_: None), "the hooks of 3"),
        (lambda model: setattr(model[2], "p", 0.0), "p of 2"),
        (lambda model: setattr(model[3], "cache", {"a": 1}), "cache of 3"),
    ],
)
def test_a_model_that_is_changed_is_caught(monkeypatch: pytest.MonkeyPatch, what: Callable[[Any], Any], named: str) -> None:
    result = tried(monkeypatch, changing(what))
    assert result.outcome == "wrong"
    assert result.reason == f"untouched: the conversion changed {named}"


def test_a_refusal_must_leave_the_model_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(model: Any, *args: Any, **options: Any) -> Any:
        model[0].weight.data.zero_()
        raise mt.ConversionError("no")

    assert tried(monkeypatch, refusing).outcome == "wrong"


def raising(error: Exception) -> Callable[..., Any]:
    def conversion(*args: Any, **options: Any) -> Any:
        raise error

    return conversion


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (mt.ConversionError("0 is unknown"), "refused", "0 is unknown"),
        (mt.InputError("no layers"), "refused", "no layers"),
        (KeyError("weight"), "error", "KeyError: 'weight' (test_pair.py, line"),
        (MemoryError(), "memory", "more memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory", "more memory"),
    ],
)
def test_outcomes_of_errors(monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str, reason: str) -> None:
    result = tried(monkeypatch, raising(error))
    assert result.outcome == outcome
    assert reason in result.reason


@pytest.mark.slow
def test_a_start_at_another_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def conversion(*args: Any, **options: Any) -> Any:
        made = converted(*args, **options)
        made.get_parameter("0.weight").data.mul_(5)
        return made

    result = tried(monkeypatch, conversion)
    assert result.outcome == "wrong"
    assert "start: 0.weight of member 0 starts at" in result.reason


@pytest.mark.slow
def test_a_file_with_other_outputs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong alone where gradients are off."""
    load = pair.load

    def loading(*args: Any) -> Any:
        made = load(*args)
        if not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            made.get_parameter("3.bias").data.add_(1)
        return made

    monkeypatch.setattr(pair, "load", loading)
    networks = [Network("own", "small", name, small, NETWORK.inputs) for name in "abcdefgh"]
    result = pair.try_pair(next(network for network in networks if pair.turn(network, "Deep", 3) == 1), "Deep")
    assert result.outcome == "wrong"
    assert result.reason.startswith("files: loaded under torch.no_grad(): outputs differ")


def test_a_network_that_does_not_run_is_no_methods_fault() -> None:
    def inputs(_: nn.Module) -> mt.Inputs:
        return mt.Inputs(torch.randn(3, 7))

    result = pair.try_pair(Network("own", "a", "a", small, inputs), "Deep")
    assert result.outcome == "not built"
    assert "does not run on its example" in result.reason


def test_impossible_pairs_are_few_and_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(
        reason and method in {kind.__name__ for kind in mt.Method.all()} for (method, _), reason in pair.IMPOSSIBLE.items()
    )
    monkeypatch.setitem(pair.IMPOSSIBLE, ("Deep", "small"), "because")
    assert pair.try_pair(NETWORK, "Deep").outcome == "impossible"


def test_packed_is_tried_at_the_size_of_one_network() -> None:
    assert pair.method_for("Packed") == mt.Packed(members=4, alpha=2)
    assert pair.method_for("Deep") == mt.Deep(members=2)
    assert pair.method_for("Masksembles", "geometric") == mt.Masksembles(members=2, feed="all")
    assert pair.method_for("Single") == mt.Single()


def test_every_network_has_its_turn_at_everything() -> None:
    """Files are loaded in every way, and `mt.check` is run, for each network by some methods."""
    methods = [kind.__name__ for kind in mt.Method.all() if kind.__module__.startswith("multitudes.")]
    for count in (len(pair.WAYS), pair.CHECKED):
        assert {pair.turn(NETWORK, method, count) for method in methods} == set(range(count))
