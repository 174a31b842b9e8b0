"""Linear layers of transformers and torch-geometric, as members that share weights see them: each member by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForSequenceClassification
from transformers.pytorch_utils import Conv1D

import multitudes as mt

with warnings.catch_warnings():  # of torch.jit, which torch-geometric uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import Linear as GraphLinear

MEMBERS = 3
METHODS = {
    "BatchEnsemble": mt.BatchEnsemble(members=MEMBERS),
    "Masksembles": mt.Masksembles(members=MEMBERS, fewest=4),
    "DropConnect": mt.DropConnect(members=MEMBERS, p=0.4),
}
X = torch.randn(4, 6, dtype=torch.float64)
LAYERS: dict[str, Callable[[], nn.Module]] = {"Conv1D": lambda: Conv1D(7, 8), "GraphLinear": lambda: GraphLinear(8, 7)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_linear_layer_is_taught(kind: str, method: str) -> None:
    """GPT-2's weight is ``[in, out]``, torch-geometric's ``[out, in]``; members, their plain networks, and neutral settings."""
    net = nn.Sequential(nn.Linear(6, 8), LAYERS[kind](), nn.Tanh(), nn.Linear(7, 3)).double()
    ens = mt.ensemble(net, METHODS[method], X, seed=0).eval()
    own = dict(ens.template.named_parameters()) | dict(ens.template.named_buffers())
    weight = own["1.weight"].T if kind == "GraphLinear" else own["1.weight"]  # [in, out]
    for m in range(MEMBERS):
        member: Any = ens.member(m)
        hidden, formed, bias = member[0](X), weight, own["1.bias"]
        if method == "BatchEnsemble":
            formed, bias = weight * own["1.alpha"][m][:, None] * own["1.gamma"][m], bias[m]
        elif method == "Masksembles":
            formed = weight * own["1.mask"][m][:, None]
        else:
            mask: Tensor = own["1.weight_mask"][m]
            formed = weight * (mask.T if kind == "GraphLinear" else mask) / 0.6
        torch.testing.assert_close(ens(X)[m], member[3](torch.tanh(hidden @ formed + bias)))
        torch.testing.assert_close(ens(X)[m], member(X))
        assert type(member[1]) is type(net[1])
    neutral = mt.ensemble(net, METHODS[method].neutral(), X, start="copies")
    torch.testing.assert_close(neutral(X)[0], net(X))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_gpt2(method: str) -> None:
    """A whole network of such layers: every one is converted but the first, and members are plain networks."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 20}
    net = GPT2ForSequenceClassification(GPT2Config(**sizes, num_labels=3, pad_token_id=0, use_cache=False)).double().eval()
    ids = mt.Inputs(torch.randint(1, 20, (3, 6)))
    ens = mt.ensemble(net, METHODS[method], ids, seed=0).eval()
    layers = {name for name, part in net.named_modules() if isinstance(part, Conv1D)}
    assert layers <= {entry.name for entry in ens.plan.converted}
    logits = [ens.member(m)(*ids.args).logits for m in range(MEMBERS)]
    torch.testing.assert_close(ens(*ids.args).logits, torch.stack(logits))
