"""Autocast and channels last: dtypes, values and memory formats are those of plain networks."""

from __future__ import annotations

import copy

import pytest
import torch
from engine.separate import B, M, assert_same_gradients, assert_separate, images, members, small_cnn
from torch import Tensor, nn

import multitudes as mt


class Mixed(nn.Module):
    """Convolution, norms and attention, which autocast treats each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.layer = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        conv = self.conv(x)
        tokens = self.layer(self.norm(conv).flatten(2).transpose(1, 2))
        seen = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return {
            "conv": conv,
            "tokens": tokens,
            "seen": seen,
            "logits": self.head(seen.mean(1)),
            "p": self.head(seen.mean(1)).softmax(1),
        }


class TestAutocast:
    @pytest.mark.parametrize(
        "method",
        [mt.Deep(members=M), mt.TreeNet(members=M, branch_at="attention")],
        ids=["Deep", "TreeNet"],
    )
    def test_dtypes_and_values_are_the_plain_networks(self, method: mt.Method) -> None:
        """bfloat16 on the CPU: every output has the dtype of each member alone, and its values up to the last bit."""
        torch.set_default_dtype(torch.float32)
        ens, x = mt.ensemble(Mixed(), method, images()), images()
        for training, picked in ((True, "vmap"), (False, "vmap"), (False, "loop")):
            twin = copy.deepcopy(ens).train(training)
            if picked in ens.engine.proven["train" if training else "eval"]:
                twin.engine.picked.update(train=picked, eval=picked)
            nets = members(twin)
            with torch.autocast("cpu", torch.bfloat16):
                output, plain = twin(x), [net(x) for net in nets]
            for name in output:
                expected = torch.stack([one[name] for one in plain])
                assert output[name].dtype == expected.dtype, name
                torch.testing.assert_close(output[name], expected, rtol=2**-5, atol=2**-8)
            assert {output[n].dtype for n in ("conv", "logits")} == {torch.bfloat16}

    @pytest.mark.parametrize("way", ["loop", "vmap"])
    def test_gradients(self, way: str) -> None:
        """They are float32, as the parameters are, and those of the plain networks."""
        torch.set_default_dtype(torch.float32)
        ens = mt.ensemble(small_cnn(), mt.Deep(members=M), images()).train()
        ens.engine.picked.update(train=way)
        nets, x = members(ens), images()
        with torch.autocast("cpu", torch.bfloat16):
            assert ens.executor == way
            found, wanted = ens(x), [net(x) for net in nets]
        found.float().square().sum().backward()
        for output in wanted:
            output.float().square().sum().backward()
        assert all(parameter.grad.dtype == torch.float32 for parameter in ens.parameters())
        assert_same_gradients(ens, nets, 1e-5 if way == "loop" else 2e-2)

    def test_conversion_under_autocast(self) -> None:
        """What conversion proves it proves outside of it."""
        torch.set_default_dtype(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            ens = mt.ensemble(small_cnn(), mt.Deep(members=M), images())
        assert "vmap" in ens.engine.proven["train"]
        assert all(p.dtype == torch.float32 for p in ens.parameters())


class TestChannelsLast:
    @pytest.mark.parametrize("method", [mt.Deep(members=M), mt.MultiHead(members=M)], ids=["Deep", "MultiHead"])
    def test_each_slice_is_in_the_format(self, method: mt.Method) -> None:
        """`.to(memory_format=)` on the ensemble: every member's convolution is channels last, and outputs are right."""
        ens = mt.ensemble(small_cnn(), method, images()).to(memory_format=torch.channels_last)
        weight = ens.get_submodule("0").weight
        slices = weight if "0.weight" in ens.engine.owned else weight[None]
        for piece in slices:
            assert piece.is_contiguous(memory_format=torch.channels_last)
            assert not piece.is_contiguous()
        x = images().to(memory_format=torch.channels_last)
        for way in ("loop", "vmap", "call"):
            assert_separate(copy.deepcopy(ens), x, way, training=True)

    def test_the_parameters_stay_the_same_objects(self) -> None:
        """An optimiser that was made before still holds them."""
        ens = mt.ensemble(small_cnn(), mt.Deep(members=M), images())
        before = dict(ens.named_parameters())
        ens.to(memory_format=torch.channels_last)
        assert all(before[name] is p for name, p in ens.named_parameters())

    def test_with_a_dtype_at_once(self) -> None:
        ens = mt.ensemble(small_cnn(), mt.Deep(members=M), images()).to(torch.float32, memory_format=torch.channels_last)
        weight = ens.get_submodule("0").weight
        assert weight.dtype == torch.float32
        assert weight[0].is_contiguous(memory_format=torch.channels_last)

    def test_a_model_in_the_format_stays_in_it(self) -> None:
        """Conversion of a channels-last model, and its members taken out."""
        net = small_cnn().to(memory_format=torch.channels_last)
        ens = mt.ensemble(net, mt.Deep(members=M), images())
        assert all(w.is_contiguous(memory_format=torch.channels_last) for w in ens.get_submodule("0").weight)
        assert ens.member(1)[0].weight.is_contiguous(memory_format=torch.channels_last)
        assert_separate(ens, images().to(memory_format=torch.channels_last), training=True)

    def test_three_dimensional(self) -> None:
        net = nn.Sequential(nn.Conv3d(2, 4, 2), nn.Flatten(), nn.Linear(32, 3))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 2, 3, 3, 3)).to(memory_format=torch.channels_last_3d)
        assert all(w.is_contiguous(memory_format=torch.channels_last_3d) for w in ens.get_submodule("0").weight)
        assert_separate(ens, torch.randn(B, 2, 3, 3, 3), training=True)
