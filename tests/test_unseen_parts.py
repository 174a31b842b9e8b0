"""Parts of a network that an example in eval mode does not show: layers for training only, and values kept between calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.proof import smaller

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Auxiliary(nn.Module):
    """Has a second head in training."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, width), nn.Linear(width, width)
        self.aux, self.head = nn.Linear(width, 3), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = self.first(x).relu()
        output = self.head(self.second(h).relu())
        return (output, self.aux(h)) if self.training else output


@pytest.mark.parametrize("method", [mt.MIMO(members=3), mt.MultiHead(members=3), mt.Masksembles(members=3)], ids=str)
def test_a_layer_for_training_only_is_not_shared_in_silence(method: mt.Method) -> None:
    with pytest.raises(mt.ConversionError, match=r"(?s)aux .*training mode only"):
        mt.ensemble(Auxiliary(), method, X, seed=0)


def test_members_that_own_everything_have_it_too() -> None:
    _, aux = mt.ensemble(Auxiliary(), mt.Deep(members=3), X, seed=0).train()(X)
    assert not torch.equal(aux[0], aux[1])


class MaskToken(nn.Module):
    """Reads a parameter in training only; its width is hidden from the search for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.token = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(F.relu(self.middle(h + self.token if self.training else h)))


def test_a_thin_network_must_train_too() -> None:
    try:
        ens = mt.ensemble(MaskToken(), mt.Packed(members=4, alpha=2), X, seed=0)
    except mt.ConversionError as error:
        assert "training mode" in str(error)
    else:
        ens.train()(X).sum().backward()


class Remembering(nn.Module):
    """Adds up its activations over calls, from zeros on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 12), nn.Linear(12, 3)
        self.memory: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).tanh()
        if self.memory is None:
            self.memory = torch.zeros_like(h)
        self.memory = h + 0.5 * self.memory.detach()
        return self.head(self.memory)


@pytest.mark.parametrize("large", [False, True], ids=["thorough", "quick"])
@pytest.mark.parametrize("method", [mt.Deep(members=3), mt.BatchEnsemble(members=3)], ids=str)
def test_values_that_pass_from_member_to_member_are_refused(
    method: mt.Method, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smaller, "LARGE", 0 if large else 1e9)
    with pytest.raises(mt.ConversionError, match=r"must not store values.*: it changes self\.memory in every call"):
        mt.ensemble(Remembering(), method, X, seed=0)


def test_frozen_layers_keep_their_weights() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    net[0].requires_grad_(False)
    ens = mt.ensemble(net, mt.Deep(members=3), X, seed=0)
    assert all(torch.equal(weight, net[0].weight) for weight in ens.get_parameter("0.weight"))
    assert not torch.equal(ens.get_parameter("2.weight")[0], net[2].weight)


def test_tables_keep_their_values() -> None:
    """Poles of a state space model: real parts constant, imaginary parts in order."""

    class Poles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.poles = nn.Parameter(-0.5 + 1j * torch.pi * torch.arange(8))
            self.rates = nn.Parameter(torch.arange(1.0, 9.0).log())
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mean(1, keepdim=True) * self.poles.exp().real * self.rates)

    net = Poles()
    ens = mt.ensemble(net, mt.Deep(members=2), X, seed=0)
    for m in range(2):
        assert torch.equal(ens.get_parameter("poles")[m], net.poles)
        assert torch.equal(ens.get_parameter("rates")[m], net.rates)


def test_a_prior_on_complex_parameters_is_real() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.filter = nn.Parameter(torch.randn(5, dtype=torch.cfloat))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.fft.irfft(torch.fft.rfft(self.embed(x)) * self.filter, n=8))

    loss = mt.ensemble(Spectral(), mt.EMP(members=3), X, seed=0).train().loss(X, torch.tensor([0, 1, 2, 0]), F.cross_entropy)
    loss.backward()
    assert not loss.is_complex()


def test_rows_by_member_with_a_shared_norm_of_weights() -> None:
    """Spectral norm writes a shared buffer; members without rows write none."""
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    ens = mt.ensemble(net, mt.MultiHead(members=3), X, seed=0).train()
    out = ens(X, rows=torch.tensor([1, 2, 2, 1]))
    assert out.shape == (4, 3)


class ActNorm(nn.Module):
    """Starts by the statistics of the first batch in training; `how` it writes and remembers that."""

    def __init__(self, width: int, how: str) -> None:
        super().__init__()
        self.shift, self.how, self.started = nn.Parameter(torch.zeros(width)), how, False
        self.register_buffer("done", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not (self.done if self.how == "copy_" else self.started):
            if self.how == "copy_":
                with torch.no_grad():
                    self.shift.copy_(-x.mean(0))
            else:
                self.shift.data = -x.mean(0).detach()
            self.done, self.started = torch.tensor(1), True
        return x + self.shift


def flow(how: str = "copy_") -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), ActNorm(16, how), nn.ReLU(), nn.Linear(16, 3))


OF_ALL_KINDS = [mt.Deep(members=3), mt.BatchEnsemble(members=3), mt.EMP(members=3), mt.Masksembles(members=3)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copy_", "data"])
@pytest.mark.parametrize("method", OF_ALL_KINDS, ids=lambda method: type(method).__name__)
def test_a_start_by_the_first_batch_is_refused_with_the_way_out(method: mt.Method, how: str) -> None:
    """After one call of the model, members convert and train."""
    net = flow(how)
    with pytest.raises(
        mt.ConversionError, match=r"(?s)1 .*ActNorm.*shift by the first batch.*model\.train\(\)\(x\)"
    ) as refusal:
        mt.ensemble(net, method, X, seed=0)
    assert "keep=" not in str(refusal.value)  # a shared layer could not start so either
    net.train()(X)
    ens = mt.ensemble(net, method, X, seed=0).train()
    for _ in range(2):
        ens(X).sum().backward()


class Slow(nn.Module):
    """A slow copy of a layer follows it in every training call."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.online, self.slow, self.head = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 3)
        self.slow.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for fast, slow in zip(self.online.parameters(), self.slow.parameters(), strict=True):
                    slow.mul_(0.5).add_(0.5 * fast)
        return self.head(self.online(x) * self.slow(x).detach())


@pytest.mark.parametrize(
    ("method", "frozen", "why"),
    [
        (mt.Deep(members=3), False, r"(?s)slow .*writes into its .* in training mode"),
        (mt.BatchEnsemble(members=3), True, r"could not be trained.*zip\(\) argument 2 is shorter"),  # `online` has factors
    ],
    ids=["Deep", "BatchEnsemble"],
)
def test_a_member_s_parameter_that_forward_writes_is_refused_if_it_trains(method: mt.Method, frozen: bool, why: str) -> None:
    """It would fail at the first training step."""
    with pytest.raises(mt.ConversionError, match=why):
        mt.ensemble(Slow(frozen), method, X, seed=0)


def test_a_frozen_copy_follows_in_every_member() -> None:
    """As in plain networks, step by step."""
    ens = mt.ensemble(Slow(frozen=True), mt.Deep(members=3), X, seed=0).train()
    plain = [ens.member(m).train() for m in range(3)]
    for _ in range(2):
        torch.testing.assert_close(ens(X), torch.stack([member(X) for member in plain]))
    for m in range(3):
        torch.testing.assert_close(ens.member(m).slow.weight, plain[m].slow.weight)


class Bounded(nn.Linear):
    """Projects its weight onto a ball before it is used."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        return super().forward(x)


@pytest.mark.parametrize("method", [mt.Deep(members=3), mt.BatchEnsemble(members=3)], ids=lambda method: type(method).__name__)
def test_weights_that_forward_projects_are_refused(method: mt.Method) -> None:
    """Members would start each step from weights that are not projected."""
    with pytest.raises(mt.ConversionError, match=r"writes into its weight in training mode.*parametrize"):
        mt.ensemble(nn.Sequential(Bounded(6, 16), nn.ReLU(), nn.Linear(16, 3)), method, X, seed=0)


def test_an_embedding_with_max_norm_is_refused_and_runs_without() -> None:
    net, ids = nn.Sequential(nn.Embedding(10, 8, max_norm=1.0), nn.Flatten(), nn.Linear(24, 3)), torch.randint(10, (4, 3))
    with pytest.raises(mt.ConversionError, match="set its max_norm to None"):
        mt.ensemble(net, mt.Deep(members=2), ids, seed=0)
    net[0].max_norm = None
    mt.ensemble(net, mt.Deep(members=2), ids, seed=0).train()(ids).sum().backward()


class Codebook(nn.Module):
    """A codebook of moving averages, as in VQ-VAE: by another parameter at each step, or by writing into a frozen one."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.read, self.head, self.codes = nn.Linear(6, 16), nn.Linear(16, 3), nn.Parameter(torch.randn(5, 16))
        self.replaces = replaces
        self.codes.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        chosen = F.one_hot(torch.cdist(h, self.codes).argmin(-1), 5).to(h)
        if self.training:
            moved = (0.9 * self.codes + 0.1 * chosen.T @ h).detach()
            if self.replaces:
                self.codes = nn.Parameter(moved, requires_grad=False)
            else:
                self.codes.copy_(moved)
        return self.head(h + (chosen @ self.codes - h).detach())


def test_what_forward_puts_in_place_of_a_parameter_is_not_lost_in_silence() -> None:
    """The refusal says how to write it, and then every member has a codebook of its own."""
    for method in (mt.Deep(members=3), mt.BatchEnsemble(members=3)):
        with pytest.raises(mt.ConversionError, match=r"in place of its codes .*with torch\.no_grad\(\): self\.codes\.copy_"):
            mt.ensemble(Codebook(replaces=True), method, X, seed=0)
    ens = mt.ensemble(Codebook(replaces=False), mt.Deep(members=3), X, seed=0).train()
    members, before = [ens.member(m).train() for m in range(3)], ens.get_parameter("codes").clone()
    ens(X)
    for m, member in enumerate(members):
        member(X)
        torch.testing.assert_close(ens.get_parameter("codes")[m], member.get_parameter("codes"))
    assert not torch.equal(ens.get_parameter("codes"), before)


class SlowCopy(nn.Module):
    """Its second half is a frozen copy of the first, as in BYOL."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(6, 5), nn.Linear(6, 5).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.online(x), self.target(x)


def test_members_that_own_frozen_parameters_alone_are_refused() -> None:
    """All were equal: a frozen parameter starts as it is given."""
    with pytest.raises(mt.ConversionError, match=r"all members of TreeNet would be equal.* of target"):
        mt.ensemble(SlowCopy(), mt.TreeNet(branch_at="target"), X)
    ens = mt.ensemble(SlowCopy(), mt.Deep(members=2), X, seed=0)
    assert not torch.equal(ens(X)[0][0], ens(X)[0][1])
