"""A checkpoint of the base model goes into every member, or into what they share."""

from __future__ import annotations

import copy

import pytest
import torch
from laws import METHODS
from laws.compare import assert_same, call, convert
from zoo import ZOO

import multitudes as mt


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_load_base(kind: type[mt.Method]) -> None:
    """A checkpoint of the base model loads by its own names, into every member or into what is shared."""
    case = ZOO["cnn"]
    trained = case.model(seed=7).train()
    trained(*case.example().args)
    trained.eval()
    ens = convert(kind(), case)
    if kind is mt.Packed:
        with pytest.raises(mt.InputError, match="Packed"):
            ens.load_base(trained.state_dict())
        return
    before, state = copy.deepcopy(ens.state_dict()), trained.state_dict()
    ens.load_base(state)
    for name, tensor in ens.state_dict().items():  # what a method adds stays as it is
        wanted = state[name].expand_as(tensor) if name in state else before[name]
        assert_same(tensor, wanted / kind().members if name in ens.engine.summed else wanted)
    if not kind().shares_weights:
        assert_same(call(ens, case.example()), call(trained, case.example()).expand(kind().members, -1, -1))
    other = convert(kind(), case)
    other.load_base(state, start="fresh")
    for name, tensor in other.state_dict().items():
        own = name in ens.engine.owned or name not in state or tensor.shape != state[name].shape
        assert_same(tensor, before[name] if own else state[name])


def test_load_base_with_tied_weights() -> None:
    """Both names of a tied tensor are in a checkpoint, and go to one place."""
    case = ZOO["tied"]
    ens, trained = convert(mt.Deep(), case), case.model(seed=7)
    ens.load_base(trained.state_dict())
    assert_same(call(ens, case.example())[2], call(trained, case.example()))


def test_load_base_refuses_what_is_no_checkpoint() -> None:
    """Missing, unknown and misshapen tensors are named together, and nothing is loaded."""
    ens = convert(mt.Deep(), ZOO["mlp"])
    before, state = copy.deepcopy(ens.state_dict()), dict(ZOO["mlp"].model(seed=3).state_dict())
    del state["0.bias"]
    state["extra"], state["2.weight"] = torch.zeros(1), torch.zeros(2, 2)
    with pytest.raises(mt.InputError, match=r"2\.weight is \[2, 2\] instead of \[6, 8\]; missing 0\.bias; unknown extra"):
        ens.load_base(state)
    assert_same(dict(ens.state_dict()), dict(before))
    with pytest.raises(mt.InputError, match="start='warm'"):
        ens.load_base(ZOO["mlp"].model().state_dict(), start="warm")
