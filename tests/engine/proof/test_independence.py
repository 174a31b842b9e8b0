"""Independence: a leak from one member into another is found, by whatever way it goes, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, Own
from torch import Tensor, nn

import multitudes as mt


class Memory(nn.Module):
    """Remembers the activations of the call before, and can put them into its output in many ways."""

    kept_by_the_class: Tensor | None = None

    def __init__(self, how: str, leaks: bool) -> None:
        super().__init__()
        self.how, self.leaks = how, leaks
        self.kept: Tensor | None = None
        self.history: list[Tensor] = []
        self.register_buffer("state", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        before = self.before(h) if self.leaks else None
        self.keep(h)
        return h if before is None else h + before.to(h.dtype)

    def before(self, h: Tensor) -> Tensor | None:
        if self.how == "a list":
            return 0.1 * self.history[-1] if self.history else None
        if self.how == "a class attribute":
            return None if Memory.kept_by_the_class is None else 0.1 * Memory.kept_by_the_class
        if self.how == "a buffer":
            return 0.1 * self.state
        if self.kept is None or self.kept.shape != h.shape:
            return None
        return {
            "activations": lambda kept: 0.1 * kept,
            "detached": lambda kept: 0.1 * kept.detach(),
            "a dead ReLU": lambda kept: torch.relu(-1 - kept.abs()),
            "argmax": lambda kept: 0.1 * kept.argmax(1, keepdim=True),
        }[self.how](self.kept)

    def keep(self, h: Tensor) -> None:
        if self.how == "a list":
            self.history.append(h.detach().mean(0, keepdim=True))
        elif self.how == "a class attribute":
            Memory.kept_by_the_class = h.detach().mean(0, keepdim=True)
        elif self.how == "a buffer":
            self.state.copy_(h.detach().mean())
        else:
            self.kept = h


KINDS = ["activations", "detached", "a dead ReLU", "argmax", "a list", "a class attribute", "a buffer"]


@pytest.fixture(autouse=True)
def forget() -> Any:
    Memory.kept_by_the_class = None
    yield
    Memory.kept_by_the_class = None


def remembering(how: str, leaks: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), Memory(how, leaks), nn.Tanh(), nn.Linear(6, 3))


def remembering_in(training: bool) -> nn.Sequential:
    """Remembers in one mode only."""

    class Half(Memory):
        def forward(self, h: Tensor) -> Tensor:
            return super().forward(h) if self.training == training else h

    return nn.Sequential(nn.Linear(4, 6), Half("detached", True), nn.Linear(6, 3))


@torch.library.custom_op("multitudes_tests::mixing", mutates_args=())
def mixing(x: Tensor, share: float) -> Tensor:
    """A copy of x; under vmap, by its rule, with a share of the members' mean."""
    return x.clone()


@mixing.register_fake
def _(x: Tensor, share: float) -> Tensor:
    return torch.empty_like(x)


mixing.register_autograd(lambda ctx, grad: (grad, None))


@torch.library.register_vmap("multitudes_tests::mixing")
def _(info: Any, dims: tuple[int | None, ...], x: Tensor, share: float) -> tuple[Tensor, int]:
    x = x.movedim(dims[0], 0)
    return x + share * (x.mean(0, keepdim=True) - x), 0


class Mixing(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.multitudes_tests.mixing(x, self.share)


class TestLeaks:
    """What belongs to one member must not reach another, by whatever way."""

    @pytest.mark.parametrize("how", KINDS)
    def test_conversion_refuses_them(self, how: str) -> None:
        keep = {"keep": ["1"]} if how == "a buffer" else {}
        with pytest.raises(mt.MultitudesError, match=r"member|state"):
            mt.ensemble(remembering(how, True), mt.Deep(members=M), torch.randn(B, 4), **keep)

    @pytest.mark.parametrize("how", ["detached", "argmax", "a list"])
    def test_check_finds_them(self, how: str) -> None:
        """Where conversion does not prove its own work, check does; what the trial itself stumbles over is refused before."""
        with pytest.raises(mt.MultitudesError, match="member"):
            mt.check(mt.ensemble(remembering(how, True), mt.Deep(members=M), torch.randn(B, 4), check=False), torch.randn(B, 4))

    @pytest.mark.parametrize("how", ["activations", "a list"])
    def test_what_is_only_kept_is_no_leak(self, how: str) -> None:
        ens = mt.ensemble(remembering(how, False), mt.Deep(members=M), torch.randn(B, 4))
        mt.check(ens, torch.randn(B, 4))

    def test_a_buffer_of_each_members_own_is_no_leak(self) -> None:
        """The same memory, stored for each member: its own past is not another's."""
        mt.check(mt.ensemble(remembering("a buffer", True), mt.Deep(members=M), torch.randn(B, 4)), torch.randn(B, 4))

    @pytest.mark.parametrize("training", [True, False], ids=["in training", "in eval"])
    def test_in_one_mode_only(self, training: bool) -> None:
        with pytest.raises(mt.MultitudesError, match="member"):
            mt.ensemble(remembering_in(training), mt.Deep(members=M), torch.randn(B, 4))

    @pytest.mark.parametrize("noise", [F.dropout, lambda h: h + torch.randn_like(h)], ids=["dropout", "gaussian"])
    def test_beside_noise(self, noise: Any) -> None:
        """In training, where the forward is random as well: the same seed still has to give the same output."""

        class Noisy(Memory):
            def forward(self, h: Tensor) -> Tensor:
                return noise(super().forward(h)) if self.training else h

        net = nn.Sequential(nn.Linear(4, 6), Noisy("detached", True), nn.Linear(6, 3))
        with pytest.raises(mt.MultitudesError, match="member"):
            mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))

    @pytest.mark.parametrize("how", ["detached", "a class attribute"])
    def test_in_a_branch(self, how: str) -> None:
        """With a shared trunk before it."""
        with pytest.raises(mt.MultitudesError, match="member"):
            mt.ensemble(remembering(how, True), mt.TreeNet(members=M, branch_at="0"), torch.randn(B, 4))
        net = nn.Sequential(nn.Linear(4, 4), *remembering(how, True))
        with pytest.raises(mt.MultitudesError, match="member"):
            mt.ensemble(net, mt.TreeNet(members=M, branch_at="1"), torch.randn(B, 4))

    @pytest.mark.parametrize("share", [1.0, 1e-3])
    def test_by_a_vmap_rule_that_mixes_members(self, share: float) -> None:
        """The loop is right, so the model is converted; vmap is not used, and the plan says what differs."""
        net = nn.Sequential(nn.Linear(4, 6), Mixing(share), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        assert all("vmap" not in names for names in ens.engine.proven.values())
        assert "output" in ens.engine.why["vmap"]
        mt.check(ens, torch.randn(B, 4))

    @pytest.mark.parametrize("share", [0.0, 1e-12])
    def test_by_a_vmap_rule_that_mixes_too_little_to_see(self, share: float) -> None:
        """A share of 0 lets only NaN and infinity through, 1e-12 is lost in rounding: found by NaN in one member."""
        net = nn.Sequential(nn.Linear(4, 6), Mixing(share), nn.Linear(6, 3))
        with pytest.raises(mt.MultitudesError, match="member"):
            ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
            if "vmap" not in ens.engine.proven["eval"]:
                raise mt.CheckError("vmap was not taken, so no member is reached")
            mt.check(ens, torch.randn(B, 4))

    CLEAN = {
        "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)),
        "batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
        "argmax": lambda: Own(lambda h: h + h.argmax(1, keepdim=True)),
        "a dead ReLU": lambda: Own(lambda h: h + F.relu(h - 1e3)),
        "control flow": lambda: Own(lambda h: h if h.sum() > 0 else -h),
        "nan_to_num": lambda: Own(lambda h: torch.nan_to_num(h)),
        "rrelu": lambda: nn.Sequential(nn.Linear(4, 6), nn.RReLU(), nn.Linear(6, 3)),
        "multinomial": lambda: Own(lambda h: h + torch.multinomial(h.detach().nan_to_num().abs() + 1, 1), training=True),
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", CLEAN)
    def test_no_false_alarm(self, kind: str) -> None:
        """Networks that use a member's own values in odd ways, or noise whose amount depends on them."""
        ens = mt.ensemble(self.CLEAN[kind](), mt.Deep(members=M), torch.randn(B, 4))
        mt.check(ens, torch.randn(B, 4))

    def test_checking_changes_nothing(self) -> None:
        """Weights, buffers, modes, torch's randomness and gradients stay as they are."""
        ens = mt.ensemble(self.CLEAN["batch norm"](), mt.Deep(members=M), torch.randn(B, 4)).train()
        before = {n: t.clone() for n, t in ens.state_dict().items()}
        torch.manual_seed(5)
        mt.check(ens, torch.randn(B, 4, generator=torch.Generator().manual_seed(6)))
        drawn = torch.rand(3)
        torch.manual_seed(5)
        assert torch.equal(drawn, torch.rand(3))
        assert all(torch.equal(t, before[n]) for n, t in ens.state_dict().items())
        assert ens.training and all(part.training for part in ens.modules())
        assert all(p.grad is None for p in ens.parameters())
