"""Faults that attempts to break the library have found, each with the model that showed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import owned
from torch import Tensor, nn

import multitudes as mt

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Built(nn.Module):
    """Two layers, a norm, and a forward given from outside."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.c, self.l, self.bn = nn.Linear(6, 8), nn.Linear(8, 4), nn.BatchNorm1d(4)
        self.w = nn.Parameter(torch.randn(4, 8))
        self.run = forward
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def test_a_norm_behind_the_head_belongs_to_members_whole() -> None:
    """Statistics are stored for each member where the affine part is, and count a batch once."""
    net = Built(lambda s, x: s.bn(s.l(s.c(x).relu())))
    ens = mt.ensemble(net, mt.MultiHead(members=3), X).train()
    ens(X)
    assert ens.state_dict()["bn.running_mean"].shape == (3, 4)
    assert ens.state_dict()["bn.num_batches_tracked"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("method", [mt.Single(), mt.Deep(members=2), mt.MultiHead(members=2)], ids=str)
def test_the_models_own_train_is_what_sets_modes(method: mt.Method) -> None:
    """A root that freezes its BatchNorm in train() still does."""

    class Frozen(Built):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.bn.eval()
            return self

    ens = mt.ensemble(Frozen(lambda s, x: s.bn(s.l(s.c(x)))), method, X).train()
    assert ens.training and ens.template.training and not ens.template.bn.training
    torch.testing.assert_close(ens(X)[0], ens.member(0).train()(X))


def test_models_with_other_settings_are_not_stacked() -> None:
    nets = [nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(slope)).double() for slope in (0.1, 0.5)]
    with pytest.raises(mt.InputError, match="LeakyReLU"):
        mt.Deep.from_models(nets, X)


def test_a_file_of_other_settings_is_refused(tmp_path: Path) -> None:
    """The same shapes with other heads, or another slope, are another architecture."""
    nets = [nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(slope)).double() for slope in (0.1, 0.5)]
    mt.save(mt.ensemble(nets[0], mt.Deep(members=2), X), tmp_path / "a.multitude")
    with pytest.raises(mt.FileError, match=r"another architecture.*LeakyReLU"):
        mt.load(tmp_path / "a.multitude", nets[1])
    assert mt.load(tmp_path / "a.multitude", nets[0])(X).shape == (2, 5, 4)


def test_state_that_is_no_tensor_is_not_dropped(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"scale": 2}

        def set_extra_state(self, state: Any) -> None:
            pass

    ens = mt.ensemble(nn.Sequential(nn.Linear(6, 4), Extra(4, 3)).double(), mt.Deep(members=2), X)
    with pytest.raises(mt.FileError, match="get_extra_state"):
        mt.save(ens, tmp_path / "a.multitude")
    assert not list(tmp_path.iterdir())


def test_keep_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(mt.InputError, match="leaves nothing"):
        mt.ensemble(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).double(), mt.MultiHead(members=3), X, keep=["1"])


def test_weights_that_nobody_registers_are_refused() -> None:
    """In a Python list, or held by a function of the model's: members would share them without a word."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.layers = nn.Linear(6, 3).double(), [nn.Linear(6, 6).double()]

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.layers[0](x))

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.out = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
            self.f = lambda h: self.a(h).relu()

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.f(x))

    for net, text in ((Listed(), "does not register"), (Held(), "calls a of the given model")):
        with pytest.raises(mt.InputError, match=text):
            mt.ensemble(net, mt.Deep(members=2), X)


def test_parameters_in_one_memory_are_refused() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double()
    net[1].weight.data = net[0].weight.data
    with pytest.raises(mt.ConversionError, match=r"1\.weight and 0\.weight"):
        mt.ensemble(net, mt.Deep(members=2), X)


@pytest.mark.parametrize("name", ["rows", "per_member", "draws"])
def test_an_argument_that_the_ensemble_takes_for_itself(name: str) -> None:
    spaces: dict[str, Any] = {"nn": nn}
    exec(f"class Net(nn.Linear):\n    def forward(self, x, {name}=None):\n        return super().forward(x)", spaces)
    with pytest.raises(mt.InputError, match=name):
        mt.ensemble(spaces["Net"](6, 3).double(), mt.Deep(members=2), X)


HEADS = {
    "product": lambda s, h: h @ s.w.t(),
    "einsum": lambda s, h: torch.einsum("bc,kc->bk", h, s.w),
    "cosine": lambda s, h: F.linear(F.normalize(h), F.normalize(s.w)),
    "scaled": lambda s, h: h @ (s.w * 2).mT,
    "distance": lambda s, h: -torch.cdist(h, s.w),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_loose_head_is_found_however_it_is_multiplied(kind: str) -> None:
    ens = mt.ensemble(Built(lambda s, x: HEADS[kind](s, s.c(x).relu())), mt.MultiHead(members=3), X)
    assert owned(ens) == {"w"}


def test_inputs_for_each_member_in_training_over_a_shared_norm() -> None:
    """The trunk's BatchNorm takes the rows of all members, as one batch does."""
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    ens = mt.ensemble(net, mt.MultiHead(members=3), X).train()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    trunk = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()).double()
    trunk.load_state_dict({k: v for k, v in ens.state_dict().items() if not k.startswith("3.")})
    h = trunk(x.flatten(0, 1)).unflatten(0, (3, 5))
    wanted = torch.stack([F.linear(h[m], ens.template[3].weight[m], ens.template[3].bias[m]) for m in range(3)])
    torch.testing.assert_close(ens(x, per_member=True), wanted)
    torch.testing.assert_close(ens.state_dict()["1.running_var"], trunk[1].running_var)


def test_mixed_precisions() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.p = nn.Linear(6, 8), nn.Linear(8, 8).bfloat16(), nn.Parameter(torch.rand(8).double())

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).bfloat16()).float() * self.p

    assert mt.ensemble(Mixed(), mt.Deep(members=2), X.float())(X.float()).shape == (2, 5, 8)


def test_hooks_added_afterwards_run_for_each_member() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    ens = mt.ensemble(net, mt.MultiHead(members=3), X)
    seen: list[torch.Size] = []
    ens.template[2].register_full_backward_hook(lambda module, into, out: seen.append(out[0].shape))
    ens(X).sum().backward()
    assert seen == [torch.Size([5, 3])] * 3


def test_noise_in_eval_is_no_leak() -> None:
    ens = mt.ensemble(Built(lambda s, x: s.l(F.dropout(s.c(x), 0.5))), mt.Deep(members=2), X).eval()
    assert "random" in str(mt.check(ens, X))


@pytest.mark.parametrize(("options", "says"), [({"seed": "a"}, "seed"), ({"keep": [3]}, "keep"), ({"at": "zz"}, "at")])
def test_options_of_the_wrong_kind(options: dict[str, Any], says: str) -> None:
    with pytest.raises(mt.InputError, match=says):
        mt.ensemble(nn.Linear(6, 3).double(), mt.Deep(members=2), X, **options)


def test_the_plan_warns_of_members_that_start_equal() -> None:
    """A head that its author starts at zero stays at zero in every member: the plan says what comes of it."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    assert not any("start equal" in note for note in mt.plan(net, mt.MultiHead(members=2), X).notes)
    for parameter in net[2].parameters():
        nn.init.zeros_(parameter)
    assert "start equal" in str(mt.plan(net, mt.MultiHead(members=2), X))
