"""Outputs: members are stacked in the structure that forward returns, or refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from engine.separate import B, M, answer, assert_separate, leaves
from torch import Tensor, nn

import multitudes as mt


class Pair(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None
    name: str = "result"
    count: int = 3


class Distribution:
    """Holds tensors in a way of its own."""

    def __init__(self, mean: Tensor) -> None:
        self.mean = mean


class KeyCache(Distribution):
    """Holds tensors too, but is no result."""


def outputs_of(kind: str, h: Tensor, y: Tensor) -> Any:
    return {
        "list": [y, [h, None]],
        "dict": {"logits": y, "aux": {"h": h}, "epoch": 3, "name": "net"},
        "named tuple": Pair(y, h),
        "dataclass": Result(y, (h, h * 2)),
        "none": (y, None, 7, "text", 2.5, True),
        "nothing of a member's": (y, torch.ones(2)),
        "integers": (y, y.argmax(1), y > 0),
    }[kind]


OUTPUTS = ["list", "dict", "named tuple", "dataclass", "none", "nothing of a member's", "integers"]


class Returning(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(4, 6), nn.Linear(6, 3), kind

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        return outputs_of(self.kind, h, self.b(h.tanh()))


class TestOutputs:
    @pytest.mark.parametrize("kind", OUTPUTS)
    def test_keep_their_structure(self, kind: str) -> None:
        """Every tensor gains the member axis, every constant stays, the type is the model's own."""
        ens = mt.ensemble(Returning(kind), mt.Deep(members=M), torch.randn(B, 4))
        assert "vmap" in ens.engine.proven["eval"], ens.engine.why
        for way in ("loop", "vmap"):
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=True)
            output, plain = answer(ens, way, torch.randn(B, 4)), ens.member(0)(torch.randn(B, 4))
            assert type(output) is type(plain)
            assert all(a.shape == (M, *b.shape) for a, b in zip(leaves(output), leaves(plain), strict=True))
        if kind == "none":
            assert output[1:] == plain[1:]
        if kind == "dict":
            assert (output["epoch"], output["name"]) == (3, "net")

    REFUSED = {
        "an object with tensors": (lambda h, y: {"logits": y, "prior": Distribution(h)}, "prior.*Distribution"),
        "nothing but a cache": (lambda h, y: KeyCache(h), "output"),
        "constants that differ": (lambda h, y: (y, y.detach().sum().item()), "different"),
        "no tensor": (lambda h, y: None, "output"),
    }

    @pytest.mark.parametrize("kind", REFUSED)
    def test_that_cannot_be_stacked_are_refused(self, kind: str) -> None:
        make, noun = self.REFUSED[kind]

        class Net(Returning):
            def forward(self, x: Tensor) -> Any:
                h = self.a(x)
                return make(h, self.b(h))

        with pytest.raises(mt.MultitudesError, match=noun):
            mt.ensemble(Net(""), mt.MultiHead(members=M), torch.randn(B, 4))

    def test_leave_out_caches_and_say_so(self) -> None:
        """In every executor; the results beside them are those of separate networks."""

        class Net(Returning):
            def forward(self, x: Tensor) -> Any:
                h = self.a(x)
                return {"past_key_values": KeyCache(h), "logits": self.b(h), "states": (h, None), "device": h.layout}

        model, x = Net(""), torch.randn(B, 4)
        ens = mt.ensemble(model, mt.MultiHead(members=M), x)
        assert "the output past_key_values (KeyCache) is left out: it is no tensor" in ens.plan.notes
        assert "the output device (layout) is left out: it is no tensor" in ens.plan.notes
        assert ens.plan.proven["eval"] == ("loop", "vmap", "fold"), ens.plan.why
        for way in ens.plan.proven["eval"]:
            output = answer(ens.eval(), way, x)
            assert output["past_key_values"] is None and output["device"] is None and output["states"][1] is None
            for m in range(M):
                plain = ens.member(m)(x)
                torch.testing.assert_close(output["logits"][m], plain["logits"])
                assert isinstance(plain["past_key_values"], KeyCache)
