"""MultiHead: a shared body and M heads, found by running the example."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same, buffers, convert, owned
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt

pytestmark = pytest.mark.slow


def heads_of(model: nn.Module, x: object, **settings: object) -> set[str]:
    """The tensors that carry members."""
    return set(owned(mt.ensemble(model, mt.MultiHead(**settings), x, seed=0)))


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("head_first", {"classifier.weight", "classifier.bias"}),
        ("resnet", {"fc.weight", "fc.bias"}),
        ("vit", {"head.weight", "head.bias"}),
        pytest.param("hugging_face_bert", {"classifier.weight", "classifier.bias"}, marks=pytest.mark.slow),
        ("unet", {"head.weight", "head.bias"}),
        ("lstm", {"head.weight", "head.bias"}),
        ("one_layer", {"weight", "bias"}),
        (
            "weight_norm",
            {f"last.{n}" for n in ("bias", "parametrizations.weight.original0", "parametrizations.weight.original1")},
        ),
    ],
)
def test_the_head_is_what_runs_last(case: str, head: set[str]) -> None:
    """However it is registered and named."""
    assert heads_of(ZOO[case].model(), ZOO[case].example()) == head


class Rear(nn.Module):
    """A norm and a temperature stand between the last layer and the output; two layers give outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.norm, self.mean, self.spread, self.body = nn.LayerNorm(5), nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.norm(self.mean(h)) / self.temperature, self.spread(h)


def test_all_outputs_have_heads() -> None:
    """Every output's last layer belongs to members, and so does what lies behind it."""
    found = heads_of(Rear().double(), ZOO["mlp"].example())
    assert {"mean.weight", "mean.bias", "spread.weight", "spread.bias"} <= found
    assert not {"body.weight", "body.bias"} & found


class Product(nn.Module):
    """The last layer is a product with a parameter of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.body = nn.Parameter(torch.randn(6, 5)), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x)) @ self.projection


def test_a_loose_matrix_can_be_the_head() -> None:
    """A matrix that no layer holds is a last layer too."""
    assert heads_of(Product().double(), ZOO["mlp"].example()) == {"projection"}


def test_the_head_by_name_and_by_glob() -> None:
    """An explicit head takes precedence over the one that is found."""
    model, x = ZOO["mlp"].model(), ZOO["mlp"].example()
    assert heads_of(model, x, head="2") == {"2.weight", "2.bias"}
    assert heads_of(model, x, head="[24]") == {"2.weight", "2.bias", "4.weight", "4.bias"}


def test_a_head_that_is_not_there() -> None:
    """The error names the nearest module."""
    with pytest.raises(mt.InputError, match=r"head='clasifier'.*nearest: 'classifier'"):
        heads_of(ZOO["head_first"].model(), ZOO["head_first"].example(), head="clasifier")


def test_the_classifier_that_a_timm_model_names() -> None:
    """`pretrained_cfg` says which layer is the classifier, as a dict or as an object."""
    model, x = ZOO["mlp"].model(), ZOO["mlp"].example()
    model.pretrained_cfg = {"classifier": "2"}
    assert heads_of(model, x) == {"2.weight", "2.bias"}
    model.pretrained_cfg = SimpleNamespace(classifier=("2", "4"))
    assert heads_of(model, x) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    model.pretrained_cfg = {"classifier": "no.such"}
    assert heads_of(model, x) == {"4.weight", "4.bias"}


def test_the_plan_names_the_heads() -> None:
    """The plan prints the choice, so that it can be seen before it is made."""
    case = ZOO["head_first"]
    planned = mt.plan(case.model(), mt.MultiHead(), case.example())
    assert "heads: classifier" in str(planned)
    assert [entry.name for entry in planned.converted] == ["classifier"]
    assert [entry.name for entry in planned.shared] == ["body.0", "body.2"]


def test_the_body_is_one_network() -> None:
    """Its gradient is the sum over heads, and its BatchNorm counts a batch once."""
    case = ZOO["resnet"]
    x = case.example()
    ens = convert(mt.MultiHead(), case).train()
    body = ens.member(0)
    y = torch.tensor([0, 1, 2])
    ens.loss(x, y, F.cross_entropy).backward()
    features: list[Tensor] = []
    body.fc.register_forward_pre_hook(lambda _, args: features.append(args[0]))
    body(*x.args)
    heads = zip(ens.get_parameter("fc.weight").detach(), ens.get_parameter("fc.bias").detach(), strict=True)
    sum(F.cross_entropy(F.linear(features[0], w, b), y) for w, b in heads).backward()
    for name, parameter in body.named_parameters():
        if not name.startswith("fc."):
            assert_same(ens.get_parameter(name).grad, parameter.grad)
    assert_same(buffers(ens), buffers(body))
