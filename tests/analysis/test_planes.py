"""Landscapes: anchors are the members themselves, other points are networks put together by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.analysis import landscape
from multitudes.analysis.planes import _corners
from multitudes.data.dataset import Data
from multitudes.errors import InputError

pytestmark = pytest.mark.slow

N = 13
DATA = Data(torch.randn(N, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(N) % 3)
X, Y = DATA.inputs, DATA.targets
assert isinstance(X, Tensor)


def net(norm: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 12), *([nn.BatchNorm1d(12)] if norm else []), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)
    ).double()


def made(method: mt.Method, norm: bool = False) -> mt.Ensemble:
    """Makes an ensemble whose norms, if there are any, have statistics of their own."""
    ens = mt.ensemble(net(norm), method, X[:5], seed=3, check=False)
    generator = torch.Generator().manual_seed(1)
    for name, buffer in ens.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand(buffer.shape, generator=generator, dtype=torch.float64) + 0.5)
    return ens


METHODS = [
    mt.Deep(members=3), mt.MultiHead(members=3), mt.TreeNet(members=3), mt.Packed(members=3), mt.BatchEnsemble(members=3),
    mt.Masksembles(members=3), mt.DropConnect(members=3), mt.ECMP(members=3),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_at_the_anchors_are_the_members(method: mt.Method) -> None:
    """Loss and accuracy are those of ens.member(m), to the last bit, in one batch and in three."""
    ens = made(method)
    result = landscape(ens, DATA, (2, 0, 1), steps=2, progress=False)
    outputs = [ens.member(m).eval()(X).detach() for m in (2, 0, 1)]
    assert result.corner_loss.tolist() == [float(F.cross_entropy(output, Y)) for output in outputs]
    assert result.corner_accuracy is not None
    assert result.corner_accuracy.tolist() == [float((output.argmax(1) == Y).double().mean()) for output in outputs]
    parts = landscape(ens, DATA, (2, 0, 1), steps=2, batch_size=5, progress=False)
    np.testing.assert_allclose(parts.corner_loss, result.corner_loss, rtol=1e-12)


def test_points_are_networks_with_mixed_weights() -> None:
    """Every point by hand: weights w = w0 + a u + b v with the orthonormal axes u, v of the plane, by Gram and Schmidt."""
    ens = made(mt.Deep(members=3))
    ens.train()
    result = landscape(ens, DATA, steps=4, margin=0.3, progress=False)
    members = [ens.member(m).eval() for m in range(3)]
    w = [torch.cat([p.detach().flatten() for p in member.parameters()]) for member in members]
    u = (w[1] - w[0]) / (w[1] - w[0]).norm()
    v = w[2] - w[0] - ((w[2] - w[0]) @ u) * u
    v = v / v.norm()
    corners = torch.tensor([[float((end - w[0]) @ axis) for axis in (u, v)] for end in w], dtype=torch.float64)
    np.testing.assert_allclose(result.corners, corners, atol=1e-12)
    extent = corners.max(0).values - corners.min(0).values
    np.testing.assert_allclose([result.x[0], result.y[-1]], [corners[:, 0].min() - 0.3 * extent[0], 1.3 * extent[1]], rtol=1e-9)
    assert result.accuracy is not None
    assert result.disagreement is not None
    probe = members[0]
    anchor = ens.member(1).eval()(X).argmax(1)
    for row, column in ((0, 0), (1, 3), (3, 2)):
        nn.utils.vector_to_parameters(w[0] + result.x[column] * u + result.y[row] * v, probe.parameters())
        output = probe(X).detach()
        assert float(result.loss[row, column]) == pytest.approx(float(F.cross_entropy(output, Y)), rel=1e-9)
        assert float(result.accuracy[row, column]) == pytest.approx(float((output.argmax(1) == Y).double().mean()))
        assert float(result.disagreement[1, row, column]) == pytest.approx(float((output.argmax(1) != anchor).double().mean()))
    assert ens.training


def test_what_members_share_does_not_move() -> None:
    """At the origin of MultiHead the heads are zero and the body is not: all classes are equally likely."""
    ens = made(mt.MultiHead(members=2))
    result = landscape(ens, DATA, (0, 1, "origin"), steps=2, progress=False)
    assert float(result.corner_loss[2]) == pytest.approx(np.log(3))
    head, bias = (dict(ens.named_parameters())[name].detach() for name in ("4.weight", "4.bias"))
    length = float(((head[1] - head[0]) ** 2).sum() + ((bias[1] - bias[0]) ** 2).sum()) ** 0.5
    assert float(result.corners[1, 0]) == pytest.approx(length)
    rest = torch.linalg.solve((result.corners[1:] - result.corners[0]).T, torch.stack([result.x[1], result.y[0]]))
    c = [float(1 - rest.sum()), float(rest[0])]
    body = ens.member(0).eval()[:4](X).detach()  # type: ignore[index]
    output = sum(k * (body @ head[m].T + bias[m]) for m, k in enumerate(c))
    assert float(result.loss[0, 1]) == pytest.approx(float(F.cross_entropy(output, Y)), rel=1e-9)  # type: ignore[arg-type]


def test_statistics_of_norms_are_interpolated() -> None:
    """Means as the weights; variances geometrically, so that they stay positive beyond the anchors. Anchors keep their own."""
    ens = made(mt.Deep(members=3), norm=True)
    result = landscape(ens, DATA, steps=3, margin=2.0, progress=False)
    members = [ens.member(m).eval() for m in range(3)]
    assert result.corner_loss.tolist() == [float(F.cross_entropy(member(X).detach(), Y)) for member in members]
    place = torch.stack([result.x[0], result.y[2]])
    rest = torch.linalg.solve((result.corners[1:] - result.corners[0]).T, place)
    c = torch.cat([1 - rest.sum()[None], rest])
    assert bool((c < -0.5).any())
    states = [member.state_dict() for member in members]
    state = {name: sum(float(k) * s[name] for k, s in zip(c, states, strict=True)) for name in states[0]}
    name = "1.running_var"
    state[name] = torch.exp(sum(float(k) * s[name].log() for k, s in zip(c, states, strict=True)))  # type: ignore[arg-type]
    members[0].load_state_dict(state)
    assert float(result.loss[2, 0]) == pytest.approx(float(F.cross_entropy(members[0](X).detach(), Y)), rel=1e-8)


def test_statistics_of_norms_can_be_estimated_at_each_point() -> None:
    """One batch: the running statistics are then its mean and its unbiased variance."""
    ens = made(mt.Deep(members=3), norm=True)
    result = landscape(ens, DATA, steps=2, norms="estimate", progress=False)
    plain = landscape(ens, DATA, steps=2, progress=False)
    assert result.corner_loss.tolist() == plain.corner_loss.tolist()
    probe = ens.member(0).eval()
    rest = torch.linalg.solve((result.corners[1:] - result.corners[0]).T, torch.stack([result.x[1], result.y[0]]))
    c = torch.cat([1 - rest.sum()[None], rest])
    states = [ens.member(m).state_dict() for m in range(3)]
    probe.load_state_dict({name: sum(float(k) * s[name] for k, s in zip(c, states, strict=True)) for name in states[0]})
    before = probe[0](X).detach()  # type: ignore[index]
    probe[1].running_mean.copy_(before.mean(0))  # type: ignore[index]
    probe[1].running_var.copy_(before.var(0))  # type: ignore[index]
    assert float(result.loss[0, 1]) == pytest.approx(float(F.cross_entropy(probe(X).detach(), Y)), rel=1e-8)


def test_subnetworks_of_mimo_at_the_anchors() -> None:
    """With the same example in all slots they are the members; with others, the network with these inputs side by side."""
    ens = made(mt.MIMO(members=3)).eval()
    same = landscape(ens, DATA, steps=2, others="same", progress=False)
    np.testing.assert_allclose(same.corner_loss, [float(F.cross_entropy(ens(X)[m].detach(), Y)) for m in range(3)], rtol=1e-12)
    other = landscape(ens, DATA, steps=2, seed=5, progress=False)
    generator = torch.Generator().manual_seed(5)
    slots = [torch.randperm(N, generator=generator) for _ in range(3)]
    for m in range(3):
        rows = [torch.arange(N) if slot == m else slots[slot] for slot in range(3)]
        output = ens(torch.stack([X[index] for index in rows]), per_member=True)[m].detach()
        assert float(other.corner_loss[m]) == pytest.approx(float(F.cross_entropy(output, Y)), rel=1e-12)


def test_between_subnetworks_of_mimo() -> None:
    """First layer and head by hand: the moved slot has Σ c W, slot m has (1 − c_m) W_m, and the head is Σ c h."""
    ens = made(mt.MIMO(members=3)).eval()
    result = landscape(ens, DATA, (0, 2, "origin"), steps=2, seed=5, progress=False)
    rest = torch.linalg.solve((result.corners[1:] - result.corners[0]).T, torch.stack([result.x[0], result.y[1]]))
    c = {0: float(1 - rest.sum()), 2: float(rest[0])}
    p = {name: parameter.detach() for name, parameter in ens.named_parameters()}
    generator = torch.Generator().manual_seed(5)
    slots = [X[torch.randperm(N, generator=generator)] for _ in range(3)]
    hidden = p["0.bias"] + X @ sum(k * p["0.weight"][m] for m, k in c.items()).T  # type: ignore[union-attr]
    hidden = hidden + sum((1 - c.get(m, 0.0)) * slots[m] @ p["0.weight"][m].T for m in range(3))
    hidden = F.linear(hidden.relu(), p["2.weight"], p["2.bias"]).relu()
    head = {key: sum(k * p[f"4.{key}"][m] for m, k in c.items()) for key in ("weight", "bias")}
    output = F.linear(hidden, head["weight"], head["bias"])  # type: ignore[arg-type]
    assert float(result.loss[1, 0]) == pytest.approx(float(F.cross_entropy(output, Y)), rel=1e-10)
    assert float(result.corner_loss[2]) == pytest.approx(np.log(3))


def test_a_regression_has_a_loss_only() -> None:
    ens = mt.ensemble(nn.Linear(4, 1).double(), mt.Deep(members=3), X[:5], task="regression", seed=0, check=False)
    data = Data(X, X[:, :1] * 2)
    result = landscape(ens, data, steps=3, progress=False)
    errors = [ens.member(m)(X).detach() - data.targets for m in range(3)]
    expected = [float((error**2).mean()) for error in errors]
    assert result.corner_loss.tolist() == pytest.approx(expected)
    assert (result.accuracy, result.disagreement) == (None, None)
    with pytest.raises(InputError, match="regression has no accuracy"):
        result.figure("accuracy")
    custom = landscape(ens, data, steps=2, criterion=nn.L1Loss(), progress=False)
    assert float(custom.corner_loss[0]) == pytest.approx(float(errors[0].abs().mean()))


def test_ignored_labels_do_not_count() -> None:
    ens = made(mt.Deep(members=3))
    result = landscape(ens, Data(X, Y, ignore=2), steps=2, batch_size=4, progress=False)
    some, output = Y != 2, ens.member(1).eval()(X).detach()
    assert float(result.corner_loss[1]) == pytest.approx(float(F.cross_entropy(output[some], Y[some])))
    assert result.corner_accuracy is not None
    assert float(result.corner_accuracy[1]) == pytest.approx(float((output.argmax(1) == Y)[some].double().mean()))


def test_figures_show_the_values() -> None:
    result = landscape(made(mt.Deep(members=3)), DATA, (0, 1, "origin"), steps=5, progress=False)
    assert len(result.figure("disagreement").axes) == 4
    for show in ("loss", "accuracy"):
        panel = result.figure(show, theme="dark").axes[0]  # type: ignore[arg-type]
        assert [text.get_text() for text in panel.texts] == ["member 0", "member 1", "origin"]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (mt.Deep(members=3), {"members": (0, 1, 3)}, "members 0 to 2"),
        (mt.Deep(members=3), {"members": (0, 1, 1)}, "three different anchors"),
        (mt.Deep(members=3), {"members": (0, 1)}, "three different anchors"),
        (mt.Deep(members=3), {"steps": 1}, "steps must be"),
        (mt.Deep(members=3), {"others": "none"}, "others must be 'other' or 'same'"),
        (mt.Deep(members=3), {"norms": "none"}, "norms must be"),
        (mt.MCDropout(members=3), {}, "no weight, so no network lies between"),
    ],
)
def test_bad_input_is_refused(method: mt.Method, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        landscape(made(method), DATA, progress=False, **options)


def test_a_criterion_that_sums_is_refused() -> None:
    """By its values, as in `fit`: losses of batches of different sizes are averaged."""
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=3), x)
    with pytest.raises(mt.InputError, match="sums over rows"):
        landscape(ens, Data(x, y), criterion=lambda o, t: F.cross_entropy(o, t, reduction="sum"), progress=False)


def test_data_without_labels_is_refused() -> None:
    ens = made(mt.Deep(members=3))
    with pytest.raises(InputError, match="needs targets"):
        landscape(ens, X)
    with pytest.raises(InputError, match="targets of classes are labels"):
        landscape(ens, Data(X, torch.ones(N, 3) / 3))


def test_anchors_on_a_line_are_refused() -> None:
    with pytest.raises(InputError, match="span no plane"):
        _corners(torch.tensor([[4.0, 2.0], [2.0, 1.0]]))
    ens = mt.ensemble(net(), mt.Deep(members=3), X[:5], start="copies", check=False)
    with pytest.raises(InputError, match="span no plane"):
        landscape(ens, DATA)
