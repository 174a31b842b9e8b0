"""Parts of networks of the literature: weights under fixed masks, ghost batch norm, experts on some rows; and what to type."""

from __future__ import annotations

import copy
import itertools
import re
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class MaskedLinear(nn.Linear):
    """A linear layer of MADE: its weight is multiplied by a fixed mask."""

    def __init__(self, inputs: Tensor, outputs: Tensor, strict: bool = False) -> None:
        super().__init__(len(inputs), len(outputs))
        self.register_buffer("mask", (outputs[:, None] > inputs if strict else outputs[:, None] >= inputs).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class MADE(nn.Module):
    """An autoregressive network: output j depends on the inputs before j alone."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        places, hidden = torch.arange(6), torch.arange(width) % 5
        self.first, self.second = MaskedLinear(places, hidden), MaskedLinear(hidden, hidden)
        self.head = MaskedLinear(hidden, places, strict=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


class WritesMask(MaskedLinear):
    """The same, but forward masks the stored weight."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data *= self.mask
        return F.linear(x, self.weight, self.bias)


class Spline(nn.Module):
    """A layer of a KAN: the weight of its bases is a product of two parameters."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-1, 1, 4).expand(inputs, -1).clone())
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 4))
        self.scale = nn.Parameter(torch.rand(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        bases = (1 - (x.unsqueeze(-1) - self.knots).abs()).relu()
        return F.linear(bases.flatten(1), (self.weight * self.scale.unsqueeze(-1)).flatten(1))


class KAN(nn.Module):
    """Two layers of splines."""

    def __init__(self, widths: tuple[int, ...] = (6, 8, 8, 3)) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Spline(a, b) for a, b in itertools.pairwise(widths)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Scales(nn.Module):
    """A network of vectors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class GhostNorm(nn.Module):
    """Batch norm over parts of the batch, as in TabNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        parts = x.chunk(max(1, len(x) // 8)) if self.training else [x]
        return self.head(torch.cat([self.norm(part) for part in parts]).relu())


class Experts(nn.Module):
    """Each row goes to one expert."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.head = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = torch.where(chosen == index)[0]
            out = out.index_add(0, rows, expert(x[rows]))
        return self.head(x + out)


def converted(ens: mt.Ensemble) -> set[str]:
    return {entry.name for entry in ens.plan.converted} - {""}


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=3), mt.DropConnect(members=3), mt.Masksembles(members=3)], ids=str)
def test_a_weight_under_a_fixed_mask_is_converted_and_keeps_its_mask(method: mt.Method) -> None:
    """It is no scale, which members would share; and members stay autoregressive, whatever the masks of the method."""
    torch.manual_seed(0)
    ens = mt.ensemble(MADE().eval(), method, X, seed=0).eval()
    assert {"second", "head"} <= converted(ens)
    outputs = ens(X)
    assert not torch.allclose(outputs[0], outputs[1])
    for m in range(3):
        assert torch.allclose(ens.member(m).eval()(X), outputs[m], atol=1e-6)
    jacobian: Tensor = torch.autograd.functional.jacobian(lambda x: ens(x).sum((0, 1)), X)
    assert not torch.triu(jacobian.abs().amax(1)).any()


def test_a_weight_that_is_a_product_of_parameters_is_no_scale() -> None:
    """It was shared without a word; no rule is known for it, and nothing else is left to convert."""
    with pytest.raises(mt.ConversionError, match=r"it multiplies by layers\.0\.weight(.|\n)*mt\.Deep\(members=4\)"):
        mt.ensemble(KAN(), mt.BatchEnsemble(), X)


def test_members_that_would_all_be_equal_are_refused() -> None:
    with pytest.raises(mt.ConversionError, match=r"all members would be equal.*mt\.Deep"):
        mt.ensemble(Scales(), mt.BatchEnsemble(), X, task="regression")


def test_what_a_refusal_says_to_keep_can_be_kept() -> None:
    """The kept layers stay plain in the comparison with the given model, too."""
    net = nn.Sequential(WritesMask(torch.arange(6), torch.arange(12) % 5), nn.ReLU(), nn.Linear(12, 3)).eval()
    with pytest.raises(mt.ConversionError, match=r"keep=\['0'\]") as refusal:
        mt.ensemble(net, mt.BatchEnsemble(members=3), X)
    assert "Scaled" not in str(refusal.value)
    ens = mt.ensemble(net, mt.BatchEnsemble(members=3), X, keep=["0"])
    assert converted(ens) == {"2"}


class Skips(Experts):
    """The same, but an expert without rows does not run."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            rows = torch.where(chosen == index)[0]
            out = out.index_add(0, rows, self.experts[index](x[rows]))
        return self.head(x + out)


def test_experts_that_the_example_does_not_reach_have_masks_too(tmp_path: Path) -> None:
    """Which ones it reaches is decided by weights, and a file is loaded into other weights."""
    nets = [Skips(), Skips()]
    for expert, net in enumerate(nets):
        net.gate.bias.data[expert] = 100.0
    ens = mt.ensemble(nets[0], mt.Masksembles(members=2, fewest=2), X, seed=0).eval()
    assert {f"experts.{k}" for k in range(3)} < converted(ens)
    mt.save(ens, tmp_path / "experts.multitude")
    torch.testing.assert_close(mt.load(tmp_path / "experts.multitude", nets[1]).eval()(X), ens(X))


def test_fold_refuses_parts_of_a_batch_in_a_shared_norm() -> None:
    """A part of the folded rows holds other rows than a part of the batch; the statistics were silently those of a few rows."""
    ens = mt.ensemble(GhostNorm(), mt.MultiHead(members=4), X)
    batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    if "fold" in ens.plan.proven["train"]:
        with pytest.raises(mt.CheckError, match=r"fold, train: RunError: .*norm has 8 entries .* 64 rows"):
            mt.check(ens, batch)


def test_mcdropout_names_the_places_that_are_left() -> None:
    torch.manual_seed(0)
    with pytest.raises(mt.ConversionError, match=r"cannot drop at experts") as refusal:
        mt.ensemble(Experts().eval(), mt.MCDropout(members=3), X)
    listed = re.search(r"mt\.MCDropout\(position=\[(.*)\]\)", str(refusal.value))
    assert listed is not None and "'gate'" in listed[1] and "'head'" in listed[1]


def test_lines_to_type_name_this_network_s_layers() -> None:
    """A glob, or a method for any network, in place of "name layers by globs"."""
    with pytest.raises(mt.ConversionError, match=r"such as mt\.Deep\(members=4\)"):
        mt.ensemble(Scales(), mt.MCDropout(), X, task="regression")
    sn = nn.utils.parametrizations.spectral_norm
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), sn(nn.Linear(8, 3)))
    with pytest.raises(mt.ConversionError, match=r"remove_parametrizations\(model\.get_submodule\('2'\), 'weight'\)"):
        mt.ensemble(net, mt.EMP(), X)


class Spectral(nn.Module):
    """A convolution in Fourier space: complex weights ``[in, out, modes]`` in an einsum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, 3, dtype=torch.cfloat) / width)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x)
        kept = torch.einsum("bix,iox->box", modes[..., :3], self.weight)
        return torch.fft.irfft(F.pad(kept, (0, modes.shape[-1] - 3)), n=x.shape[-1])


class FNO(nn.Module):
    """A Fourier neural operator in one dimension."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.lift, self.spectral, self.beside = nn.Conv1d(1, width, 1), Spectral(width), nn.Conv1d(width, width, 1)
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        return self.head(F.gelu(self.spectral(x) + self.beside(x)))


class Quaternion(nn.Module):
    """A convolution whose kernel is put together of four parameters, times a constant."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.r, self.i, self.j, self.k = (nn.Parameter(torch.randn(outputs // 4, inputs // 4, 3)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        r, i, j, k = (part * 0.3 for part in (self.r, self.i, self.j, self.k))
        rows = ([r, -i, -j, -k], [i, r, -k, j], [j, k, r, -i], [k, -j, i, r])
        return F.conv1d(x, torch.cat([torch.cat(row, 1) for row in rows], 0), padding=1)


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=3), mt.Masksembles(members=3)], ids=str)
def test_einsum_tells_the_channels_of_a_weight(method: mt.Method) -> None:
    """Factors of a spectral convolution were of the size of its weight, since the last two axes were taken for channels."""
    x = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(0))
    ens = mt.ensemble(FNO(), method, x, seed=0, task="regression").eval()
    assert "spectral" in converted(ens)
    if isinstance(method, mt.BatchEnsemble):
        assert ens.get_parameter("spectral.weight_alpha").shape == (3, 12, 1, 3)
        assert ens.get_parameter("spectral.weight_gamma").shape == (3, 1, 12, 3)
    for m in range(3):
        torch.testing.assert_close(ens.member(m).eval()(x), ens(x)[m])


def test_kernels_that_are_put_together_have_factors() -> None:
    """One for each input and output channel of a parameter, and none for the places of the kernel."""
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(Quaternion(4, 8), nn.ReLU(), Quaternion(8, 8), nn.Flatten(), nn.Linear(64, 3))
    ens = mt.ensemble(net, mt.BatchEnsemble(members=3), x, seed=0).eval()
    assert ens.get_parameter("2.r_alpha").shape == (3, 1, 2, 1) and ens.get_parameter("2.k_gamma").shape == (3, 2, 1, 1)
    torch.testing.assert_close(ens(x), torch.stack([ens.member(m).eval()(x) for m in range(3)]))
    assert not torch.allclose(ens(x)[0], ens(x)[1])


class Features(nn.Module):
    """Takes features by hooks that refer to the network, as feature pyramids do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(32, 3)
        self.features: dict[int, Tensor] = {}
        for number in (1, 3):
            self.body[number].register_forward_hook(self.saving(number))

    def saving(self, number: int) -> Any:
        def save(module: nn.Module, args: Any, output: Tensor) -> None:
            self.features[number] = output

        return save

    def forward(self, x: Tensor) -> Tensor:
        self.body(x)
        return self.head(torch.cat([self.features[1], self.features[3]], 1))


class FeaturesOfADict(Features):
    """Its hooks refer to the dict alone."""

    def saving(self, number: int) -> Any:
        features = self.features
        return lambda module, args, output: features.update({number: output})


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("kind", [Features, FeaturesOfADict])
@pytest.mark.parametrize("label", ["single", "deep", "batchensemble", "mimo", "multihead", "emp", "mcdropout", "packed"])
def test_hooks_of_a_copy_write_into_the_copy(label: str, kind: type[Features], called: bool) -> None:
    """They wrote into the given network, and the copy read what that had stored before: outputs did not depend on inputs."""
    torch.manual_seed(0)
    net = kind().eval()
    if called:
        net(X)
    held = dict(net.features)
    made = {method.__name__.lower(): method for method in mt.Method.all()}[label]
    ens = mt.ensemble(net, made(), X).eval()
    assert dict(net.features).keys() == held.keys() and all(net.features[key] is held[key] for key in held)
    other = torch.randn(*X.shape)
    for network in (ens, copy.deepcopy(ens), ens.member(0).eval()):
        assert not torch.allclose(network(X), network(other))
    for m in range(ens.members):
        torch.testing.assert_close(ens(other)[m], ens.member(m).eval()(other))


def test_hooks_that_refer_to_the_network_by_a_variable_are_refused() -> None:
    net = Features()
    for number in (1, 3):
        net.body[number]._forward_hooks.clear()
        net.body[number].register_forward_hook(Saving(number))
    Saving.network = net
    net(X)
    with pytest.raises(mt.InputError, match="sets features of the given model, and reads its own"):
        mt.ensemble(net, mt.Deep(members=2), X)


class Saving:
    """A hook that refers to a network by a variable."""

    network: Features

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        Saving.network.features[self.number] = output


def replaced(number: int) -> nn.Sequential:
    """Returns a perceptron with a layer whose forward was replaced on the object."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    layer = net[number]
    layer.forward = types.MethodType(lambda self, x: F.linear(x, self.weight, self.bias), layer)
    return net


def test_factors_of_a_layer_with_a_replaced_forward_have_an_effect() -> None:
    """They had none: the forward that was put in place ran, and members were equal."""
    ens = mt.ensemble(replaced(2), mt.BatchEnsemble(members=2), X, keep=["0", "4"]).eval()
    outputs = ens(X)
    assert not torch.allclose(outputs[0], outputs[1])
    outputs.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for name, p in ens.named_parameters() if name.startswith("2."))


@pytest.mark.parametrize(("method", "number"), [(mt.DropConnect(members=2), 2), (mt.MIMO(members=2), 0)])
def test_a_replaced_forward_is_refused_where_it_would_hide_the_converted_one(method: mt.Method, number: int) -> None:
    with pytest.raises(mt.ConversionError, match="forward of a Linear was replaced on the object"):
        mt.ensemble(replaced(number), method, X)


class Sign(torch.autograd.Function):
    """Has no rule for vmap, as most functions that people write."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


class Binary(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Sign.apply(x)


class RandomDepth(nn.Module):
    """Leaves out its block for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and torch.rand(1).item() < 0.3 else x + self.block(x)


@pytest.mark.parametrize("part", [Binary, RandomDepth])
@pytest.mark.parametrize("kind", [mt.SWAG, mt.Snapshot, mt.Laplace, mt.EMP, mt.ECMP, mt.MCDropout, mt.DropConnect])
def test_draws_train_one_at_a_time_with_any_shared_norm(kind: type[mt.Method], part: type[nn.Module]) -> None:
    """They were refused: neither vmap nor fold runs the network, which members need that train together."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), part(), nn.Linear(16, 3))
    ens = mt.ensemble(net, kind(members=2), X).train()
    optimizer = torch.optim.SGD(ens.parameters(), 0.1)
    before = ens.template[1].running_mean.clone()
    losses = []
    for _ in range(20):
        loss = ens.loss(X, X[:, :3], F.mse_loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[10:]) < losses[0]
    assert not torch.equal(ens.template[1].running_mean, before)


def test_members_that_train_together_need_a_norm_that_sees_them_all() -> None:
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), RandomDepth(), nn.Linear(16, 3))
    with pytest.raises(mt.ConversionError, match="must see all their rows at once"):
        mt.ensemble(net, mt.BatchEnsemble(members=2), X)


class Shortcut(nn.Module):
    """Multiplies by a layer's weight itself, instead of calling the layer, where `when` says so."""

    def __init__(self, when: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.when = when

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = F.linear(x, self.body.weight, self.body.bias) if self.when(self) else self.body(x)
        return self.head(x.relu())


@pytest.mark.parametrize("limit", [0, 1_000_000])
@pytest.mark.parametrize("method", [mt.BatchEnsemble(), mt.DropConnect(members=4), mt.Masksembles(feed="all")], ids=str)
@pytest.mark.parametrize(
    ("when", "training"),
    [(lambda net: not torch.is_grad_enabled(), False), (lambda net: net.training, True)],
    ids=["without gradients", "in training mode"],
)
def test_weights_that_one_mode_reads_past_their_layers_are_the_member_s(
    when: Callable[[nn.Module], bool], training: bool, method: mt.Method, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members predicted, or trained, with weights that had no factors or masks: only eval mode with gradients was looked at."""
    monkeypatch.setattr("multitudes.conversion.anatomy.structure.LARGE", limit)
    ens = mt.ensemble(Shortcut(when), method, X, seed=0).train(training)
    with torch.set_grad_enabled(training), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a call in training mode is no training step
        outputs = ens(X)
        for m in range(4):
            torch.testing.assert_close(outputs[m], ens.member(m)(X))


class Hamiltonian(nn.Module):
    """A Hamiltonian network: its output is the gradient of an energy, by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, x: Tensor) -> Tensor:
        slope = torch.func.vmap(torch.func.grad(lambda row: self.energy(row).squeeze(-1)))(x)
        return torch.cat([slope[:, 3:], -slope[:, :3]], 1)


@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.Packed(members=4), mt.BatchEnsemble(), mt.EMP(patch=["energy.4"])])
def test_networks_that_compute_gradients_by_torch_func_are_converted(method: mt.Method) -> None:
    """Counting what a call saves for backward failed with torch's own error: torch.func takes no hooks."""
    ens = mt.ensemble(Hamiltonian(), method, X, task="regression", seed=0).eval()
    for m, output in enumerate(ens(X)):
        torch.testing.assert_close(output, ens.member(m).eval()(X))
    assert ens.plan.memory["train"] > 0


def test_mimo_refuses_layers_inside_torch_func() -> None:
    with pytest.raises(mt.ConversionError, match=r"inside torch\.func.*mt\.MultiHead"):
        mt.ensemble(Hamiltonian(), mt.MIMO(), X, task="regression")
