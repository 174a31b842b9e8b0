"""Draws: made outside forward from the members' seeds, the same until they are drawn again."""

from __future__ import annotations

import copy
import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_exact, assert_same
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import vmap
from multitudes.engine.draws import (
    add_seeds,
    bake_draws,
    draw,
    draw_all,
    draw_distinct,
    drawing_layers,
    drawn_member,
    drawn_names,
    on_device,
)
from multitudes.engine.modules import detached_copy
from multitudes.engine.proof.independence import changed
from multitudes.engine.state import SEEDS
from multitudes.models import MLP

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
METHODS = [
    mt.EMP(components=3, members=4, sigma=0.1),
    mt.ECMP(components=3, members=4, zero_component=True, probabilities=(0.5, 0.3, 0.2), patch="norm+input+output"),
]
ALL = pytest.mark.parametrize("method", METHODS, ids=["EMP", "ECMP"])


def perceptron() -> nn.Module:
    return MLP(5, (8, 6), 3, norm="hidden").double()


def made(method: mt.Method, seed: int = 0) -> mt.Ensemble:
    """An ensemble of the perceptron, whose BatchNorm has statistics, in eval mode."""
    return copy.deepcopy(_converted(method, seed))


@functools.cache
def _converted(method: mt.Method, seed: int) -> mt.Ensemble:
    torch.manual_seed(1)
    net = perceptron()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
    return mt.ensemble(net, method, X, seed=seed).eval()


def stored(ens: mt.Ensemble) -> dict[str, Tensor]:
    """What members have drawn."""
    buffers = dict(ens.named_buffers())
    return {name: buffers[name].clone() for name in drawn_names(ens.template)}


@ALL
def test_resampling_repeats(method: mt.Method) -> None:
    """By the same seed, in another ensemble too; another seed draws others; without one the ensemble's generator goes on."""
    ens, twin = made(method), made(method, seed=7)
    first = stored(ens)
    assert ens.resample(3) is ens
    one = stored(ens)
    ens.resample(4)
    other = stored(ens)
    ens.resample(3)
    assert_same(stored(ens), one)
    twin.resample(3)
    assert_same(stored(twin), one)
    assert all(any(not torch.equal(a[n], b[n]) for n in a) for a, b in ((one, other), (one, first)))
    before = ens(X)
    assert_exact([ens(X)], [before])
    assert not torch.equal(ens.resample(1)(X), before)
    ens.resample()
    before = stored(ens)
    ens.resample()
    assert any(not torch.equal(before[name], value) for name, value in stored(ens).items())


def test_the_state_dict_has_seeds_and_no_draws() -> None:
    """Another ensemble makes the same draws from the seeds."""
    one, other = made(METHODS[0]), made(METHODS[0], seed=9)
    state = one.state_dict()
    assert state[SEEDS].shape == (4,)
    assert state[SEEDS].dtype == torch.int64
    assert not set(state) & drawn_names(one.template)
    assert set(state) == {*perceptron().state_dict(), SEEDS}
    other.load_state_dict(state)
    assert_same(stored(other), stored(one))


def test_a_loaded_ensemble_draws_on(tmp_path: Path) -> None:
    """The file has the seeds and the generator's state, so the next draws are the same."""
    ens = made(METHODS[0]).resample(5)
    ens.batch(X, Y)
    mt.save(ens, tmp_path / "ens")
    same = mt.load(tmp_path / "ens")
    assert_exact([same(X)], [ens(X)])
    assert_same(same.batch(X, Y).kwargs["draws"], ens.batch(X, Y).kwargs["draws"])
    assert_exact([same.resample(6)(X)], [ens.resample(6)(X)])


def test_subsets() -> None:
    """A subset keeps its members' seeds, in the order given."""
    ens = made(METHODS[0])
    some = ens.subset([3, 1])
    assert_same(some(X), ens(X)[[3, 1]])
    assert some.method.members == 2
    some.redraw()
    assert_same(some(X), ens(X)[[3, 1]])
    some.resample(0)
    assert some(X).shape == (2, 6, 3)


@ALL
def test_another_precision(method: mt.Method) -> None:
    """Draws follow the dtype: those made again are the same numbers."""
    ens = made(method)
    low = copy.deepcopy(ens).float()
    before = stored(low)
    low.redraw()
    assert_same(stored(low), before)
    assert torch.allclose(low(X.float()), ens(X).float(), atol=1e-4)


def test_draws_for_a_call() -> None:
    """As many as are given, in place of the stored ones, which stay; with rows, each row its own."""
    ens = made(METHODS[0])
    before = ens(X)
    draws = draw_all(ens.template, range(7))
    output = ens(X, draws=draws)
    assert output.shape == (7, 6, 3)
    for d in range(7):
        assert_same(output[d], drawn_member(network(ens), d)(X))
    assert_exact([ens(X)], [before])
    rows = torch.tensor([6, 0, 3, 3, 5, 0])
    assert_same(ens(X, draws=draws, rows=rows), torch.stack([output[d, b] for b, d in enumerate(rows.tolist())]))
    assert ens.members == 4


def network(ens: mt.Ensemble) -> nn.Module:
    """What one member is made of."""
    return detached_copy(ens.template, ens._slice(lambda tensor: tensor[0]))


def agreeing(ens: mt.Ensemble, name: str) -> mt.Ensemble:
    """The ensemble with draws of which one tensor is the same for all members, and another is not."""
    for seed in range(200):
        buffers = dict(ens.resample(seed).named_buffers())
        alike = {n for n in drawn_names(ens.template) if bool((buffers[n] == buffers[n][:1]).all())}
        if alike == {name}:
            return ens
    raise AssertionError(f"members never agree in {name} alone")


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_other_draws_where_members_agree(training: bool) -> None:
    """What members have drawn has no say in what a call is given."""
    net = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)).double()
    ens = agreeing(mt.ensemble(net, mt.EMP(components=3, members=2), X, seed=2), "1.choice").train(training)
    draws = {name: torch.tensor([[0], [1], [2]]) for name in ("1.choice", "3.choice")}
    alone = [ens(X, draws={name: z[d : d + 1] for name, z in draws.items()})[0] for d in range(3)]
    assert_same(ens(X, draws=draws), torch.stack(alone))


def test_what_is_proven_where_members_agree() -> None:
    """The same executors, whatever the seed."""
    found = [made(mt.EMP(components=2, members=2), seed=seed).engine for seed in range(3)]
    assert {(engine.proven["train"], engine.proven["eval"], engine.traits) for engine in found} == {
        (found[0].proven["train"], ("loop", "vmap", "fold"), found[0].traits)
    }


ROWS = pytest.mark.parametrize("rows", [[0] * 6, [5, 4, 3, 2, 1, 0], [2, 2, 0, 1, 1, 5]], ids=["one", "turned", "mixed"])


@ROWS
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_as_many_draws_as_rows(rows: list[int], training: bool) -> None:
    """A row may take any of them, and several rows the same; in training BatchNorm sees all rows."""
    ens = made(mt.EMP(components=3, members=4)).train(training)
    draws, index = draw_all(ens.template, range(6)), torch.tensor(rows)
    own = {name: value[index] for name, value in draws.items()}
    assert_same(ens(X, draws=draws, rows=index), ens(X, draws=own, rows=torch.arange(6)))


def test_rows_of_members_in_training() -> None:
    """One set of statistics over all rows, whoever has them."""
    ens = made(mt.EMP(components=3, members=4)).train()
    index = torch.tensor([0, 0, 1, 1, 2, 2])
    own = {name: value[index] for name, value in stored(ens).items()}
    assert_same(ens(X, rows=index), ens(X, draws=own, rows=torch.arange(6)))


def test_one_member_is_trained_as_many() -> None:
    """The number of members does not matter to a step with given draws."""
    one, many = (made(mt.EMP(components=3, members=m)).train() for m in (1, 4))
    draws = draw_all(many.template, range(6))
    for rows in ({}, {"rows": torch.arange(6)}):
        assert_same(copy.deepcopy(one)(X, draws=draws, **rows), copy.deepcopy(many)(X, draws=draws, **rows))


WRONG = {
    "list": lambda draws: list(draws.values()),
    "empty": lambda draws: {},
    "missing": lambda draws: {name: value for name, value in draws.items() if name != "layers.1.choice"},
    "short": lambda draws: {**draws, "layers.1.choice": draws["layers.1.choice"][:2]},
    "shape": lambda draws: {**draws, "layers.1.choice": draws["layers.1.choice"].expand(5, 2)},
    "no tensor": lambda draws: {**draws, "layers.1.choice": [0] * 5},
    "none": lambda draws: {name: value[:0] for name, value in draws.items()},
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_draws(kind: str) -> None:
    """Refused by the argument's name; the ensemble still works."""
    ens = made(mt.EMP(components=3, members=4))
    with pytest.raises(mt.InputError, match="draws="):
        ens(X, draws=WRONG[kind](draw_all(ens.template, range(5))))
    assert ens(X).shape == (4, 6, 3)


def test_a_method_without_draws() -> None:
    """Takes no draws= and cannot resample."""
    ens = mt.ensemble(perceptron(), mt.Deep(members=2), X)
    for call in (lambda: ens(X, draws={}), lambda: ens.resample(0)):
        with pytest.raises(mt.InputError, match="Deep"):
            call()


def test_a_call_in_training_warns_once() -> None:
    """Training steps are those of ens.batch; a plain call is of all members, and says so the first time."""
    ens = made(METHODS[0]).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = ens.batch(X, Y)
        ens(*batch.inputs, **batch.kwargs)
        ens.loss(X, Y, F.cross_entropy)
        ens.eval()(X)
    with pytest.warns(UserWarning, match="EMP.*ens.loss"):
        assert ens.train()(X).shape == (4, 6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ens(X)


def test_estimating_norms_warns_of_nothing() -> None:
    """It is no training step."""
    ens = made(mt.EMP(components=3, members=4))
    ens.estimate_norms([X])
    assert_same(ens.get_buffer("layers.1.running_mean"), ens.template.layers[0](X).mean(0).detach())


def test_equal_draws_for_all() -> None:
    """Drawn apart, members differ in every drawn tensor, where they can; what is not owned stays."""
    ens = mt.ensemble(perceptron(), mt.EMP(components=2, members=3), X, seed=0)
    draw_distinct(ens.template, ens.engine.owned, 2)
    for name in drawn_names(ens.template):
        value = ens.template.get_buffer(name)
        assert value.shape[0] == 2
        assert not torch.equal(value[0], value[1])
    before = stored(ens)
    draw_distinct(ens.template, frozenset(), 2)
    assert_same(stored(ens), before)
    alike = mt.ensemble(perceptron(), mt.EMP(components=1, members=3), X, seed=0)
    draw_distinct(alike.template, alike.engine.owned, 2)
    assert not any(value.any() for value in stored(alike).values())


def test_large_shifts_of_trials_are_views_of_few_numbers() -> None:
    """Members and rows differ; a member is changed for a trial and then as before."""
    net = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 2))
    ens = mt.ensemble(net, mt.Snapshot(members=3), torch.randn(2, 300), seed=0)
    draw_distinct(ens.template, ens.engine.owned, 2)
    ens.engine.members = 2
    shift = ens.template.get_buffer("0.shift_weight")
    assert shift.shape == (2, 400, 300)
    assert shift.untyped_storage().nbytes() < shift.numel()
    assert len(shift.flatten(0, 1).unique(dim=0)) == 800
    assert 0.02 < float(shift.std()) < 0.04 and abs(float(shift.mean())) < 0.002
    before = shift.clone()
    with changed(ens.engine, 1, "NaN"):
        shown = ens.engine.buffers()["0.shift_weight"]
        assert shown[1].isnan().all()
        assert torch.equal(shown[0], before[0])
    assert ens.engine.buffers()["0.shift_weight"] is shift
    assert torch.equal(shift, before)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_moving_tensors(device: str) -> None:
    """Names, order, shapes and types stay; on the CPU they are the same tensors."""
    tensors = {
        "a": torch.randn(2, 3),
        "b": torch.arange(4),
        "c": torch.randn(()),
        "d": torch.zeros(2, 0),
        "e": torch.ones(1, 2, 2, dtype=torch.uint8),
    }
    found = on_device(tensors, torch.device(device))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].device.type == device
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
        assert device == "meta" or found[name] is tensor


def test_moving_keeps_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece for each type, and taken apart again."""

    class Elsewhere:
        type = "elsewhere"

    tensors = {"a": torch.randn(2, 3), "b": torch.arange(4), "c": torch.randn(3, 1), "d": torch.randn(())}
    own = Tensor.to
    monkeypatch.setattr(Tensor, "to", lambda self, *args, **kwargs: self.clone() if args[0] is place else own(self, *args))
    place = Elsewhere()
    found = on_device(tensors, place)  # type: ignore[arg-type]
    assert list(found) == list(tensors)
    assert_exact(found.values(), tensors.values())


def test_on_the_meta_device() -> None:
    """A shape has no draws to make again."""
    with torch.device("meta"):
        net, x = MLP(5, (8,), 3, norm="hidden"), torch.zeros(2, 5)
    ens = mt.ensemble(net, mt.EMP(components=3, members=4), x).eval()
    ens.redraw()
    assert ens(x).shape == (4, 2, 3)


def test_one_members_draws() -> None:
    """What a seed draws, by name, in one order: on the CPU, with torch's own randomness untouched."""
    ens = made(METHODS[0])
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, same, other = (draw(ens.template, seed) for seed in (1, 1, 2))
    assert_exact([torch.rand(2)], [expected])
    assert_same(one, same)
    assert set(one) == drawn_names(ens.template)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    whole = draw_all(ens.template, [1, 2])
    for name, value in whole.items():
        assert_same(value[0].double(), one[name].double().to(value.dtype).double())


def test_the_parts() -> None:
    """Layers that draw are found by name, settle in place, and leave plain ones behind."""
    ens = made(METHODS[0])
    assert [name for name, _ in drawing_layers(ens.template)] == [f"layers.{i}" for i in (0, 1, 3, 4, 6)]
    member = drawn_member(network(ens), 5)
    expected = member(X)
    assert member._buffers[SEEDS] is not None
    bake_draws(member)
    assert not list(drawing_layers(member))
    assert SEEDS not in dict(member.named_buffers())
    assert_same(member(X), expected)
    bare = nn.Linear(2, 2)
    add_seeds(bare)
    assert bare.state_dict()[SEEDS].shape == ()


@pytest.mark.slow
def test_graphs_and_new_draws() -> None:
    """An exported program keeps its draws when the ensemble draws again; a compiled ensemble follows the new ones."""
    torch._dynamo.reset()
    ens = made(METHODS[0])
    program, compiled = (
        torch.export.export(ens, (X,), strict=False).module(),
        torch.compile(ens, backend="eager", fullgraph=True),
    )
    before = ens(X)
    assert_same(compiled(X), before)
    ens.resample(8)
    assert not torch.equal(ens(X), before)
    assert_same(program(X), before)
    assert_same(compiled(X), ens(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "draw"),
    [(mt.EMP, "row"), (mt.EMP, "step"), (mt.ECMP, "row")],
)
def test_compile_in_training(kind: Any, draw: str) -> None:
    """Draws are inputs of the graph: several steps with different draws compile once."""
    torch._dynamo.reset()
    ens, twin = (made(kind(components=3, members=4, draw=draw)).train() for _ in range(2))
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(ens, backend=backend, fullgraph=True)
    for _ in range(2):
        batch, other = ens.batch(X, Y), twin.batch(X, Y)
        assert_same(batch.kwargs["draws"], other.kwargs["draws"])
        loss = ens.reduce(compiled(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
        expected = twin.reduce(twin(*other.inputs, **other.kwargs), other, F.cross_entropy)
        assert_same(loss.detach(), expected.detach())
        for net, total in ((ens, loss), (twin, expected)):
            net.zero_grad()
            total.backward()
        assert_same({n: p.grad for n, p in ens.named_parameters()}, {n: p.grad for n, p in twin.named_parameters()})
        assert_same(dict(ens.named_buffers()), dict(twin.named_buffers()))
    assert len(graphs) == 1


def test_drawn_without_gradients_used_with_them() -> None:
    """Draws made in inference mode serve a backward outside of it."""
    net, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.randn(8, 4)
    for method in (mt.EMP(members=2), mt.DropConnect(members=2), mt.MCDropout(members=2)):
        ens = mt.ensemble(net, method, x, seed=0).eval()
        with torch.inference_mode():
            ens.resample(3)
            drawn = ens(x).clone()
        found = ens(x)
        assert_exact(found.detach(), drawn)
        found.sum().backward()
        grads = [p.grad for p in ens.parameters()]
        assert any(grad is not None and bool((grad != 0).any()) for grad in grads)


def test_prediction_keeps_to_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many members at a time as take no more than is allowed; what they give does not depend on it."""
    net, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.randn(8, 4)
    ens = mt.ensemble(net, mt.EMP(members=7), x, seed=0).eval()
    ens.engine.picked["eval"] = "vmap"
    whole, sizes = ens(x), []
    some = vmap._run_chunk
    monkeypatch.setattr(vmap, "_run_chunk", lambda *args: sizes.append(args[-1]) or some(*args))
    ens(x)
    assert sizes == [7]
    monkeypatch.setitem(vmap.MEMORY, "cpu", int(3.1 * x.numel() * ens.engine.input_bytes))
    sizes.clear()
    assert_same(ens(x), whole, tight=False)
    assert sizes == [3, 3, 3]
    sizes.clear()
    ens(torch.cat([x, x, x]))
    assert sizes == [1] * 7


def test_an_optimiser_of_whole_tensors_where_members_own_none() -> None:
    """Draws are no weights: LBFGS sees one network."""
    net, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.randn(8, 4)
    ens = mt.ensemble(net, mt.EMP(members=2), x, seed=0)
    assert ens.param_groups(lr=0.1, optimizer=torch.optim.LBFGS)
