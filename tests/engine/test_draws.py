"""Draws: made outside forward from the members' seeds, the same until they are drawn again."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_exact, assert_same
from torch import Tensor, nn
from torch.export import Dim

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
from multitudes.engine.state import SEEDS
from multitudes.models import MLP

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
METHODS = [
    mt.EMP(components=3, members=4, sigma=0.1),
    mt.ECMP(components=3, members=4, probabilities=(0.5, 0.3, 0.2), patch=("layers.1", "layers.6")),
    mt.ECMP(components=2, members=4, zero_component=True, patch="norm+input+output"),
]
ALL = pytest.mark.parametrize("method", METHODS, ids=["EMP", "ECMP", "zero"])


def perceptron() -> nn.Module:
    return MLP(5, (8, 6), 3, norm="hidden").double()


def made(method: mt.Method, seed: int = 0, **options: Any) -> mt.Ensemble:
    """An ensemble of the perceptron, whose BatchNorm has seen something, in eval mode."""
    torch.manual_seed(1)
    net = perceptron()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
    return mt.ensemble(net, method, X, seed=seed, **options).eval()


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
    ens.resample()
    before = stored(ens)
    ens.resample()
    assert any(not torch.equal(before[name], value) for name, value in stored(ens).items())


@ALL
def test_predictions_change_with_draws_alone(method: mt.Method) -> None:
    """Two calls agree, also with training in between; other draws predict otherwise."""
    ens = made(method)
    before = ens(X)
    assert_exact([ens(X)], [before])
    ens.resample(1)
    assert not torch.equal(ens(X), before)


@ALL
@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_do_not_matter(method: mt.Method, size: int) -> None:
    """The same members whether rows come one by one, in sevens or sixty-four at once."""
    ens, x = made(method), torch.randn(70, 5, dtype=torch.float64)
    assert_same(torch.cat([ens(part) for part in x.split(size)], 1), ens(x))


@ALL
def test_the_state_dict_has_seeds(method: mt.Method) -> None:
    """And no draws: another ensemble makes them again, and has the same outputs."""
    one, other = made(method), made(method, seed=9)
    state = one.state_dict()
    assert state[SEEDS].shape == (4,)
    assert state[SEEDS].dtype == torch.int64
    assert not set(state) & drawn_names(one.template)
    assert set(state) == {*perceptron().state_dict(), SEEDS}
    assert not torch.equal(one(X), other(X))
    other.load_state_dict(state)
    assert_exact([other(X)], [one(X)])
    assert_same(stored(other), stored(one))


@ALL
@pytest.mark.parametrize("given", [perceptron, lambda: None], ids=["model", "no model"])
def test_files(method: mt.Method, tmp_path: Path, given: Any) -> None:
    """What was saved comes back: settings, seeds, draws, outputs; drawn again by a seed it draws the same."""
    ens = made(method)
    ens.resample(5)
    mt.save(ens, tmp_path / "ens")
    same = mt.load(tmp_path / "ens", given())
    assert same.method == ens.method
    assert_exact([same(X)], [ens(X)])
    assert_exact([same.resample(6)(X)], [ens.resample(6)(X)])
    for twin in (same, ens):
        twin.generator.manual_seed(0)
    assert_same(same.batch(X, Y).kwargs["draws"], ens.batch(X, Y).kwargs["draws"])


@ALL
def test_subsets(method: mt.Method) -> None:
    """Some members as they were, in the order given, with their seeds."""
    ens = made(method)
    some = ens.subset([3, 1])
    assert_exact([some(X)], [ens(X)[[3, 1]]])
    assert some.method.members == 2
    some.redraw()
    assert_exact([some(X)], [ens(X)[[3, 1]]])
    some.resample(0)
    assert some(X).shape == (2, 6, 3)


@ALL
def test_copies(method: mt.Method) -> None:
    """A deep copy predicts and draws the same, and shares nothing."""
    ens = made(method)
    twin = copy.deepcopy(ens)
    assert_exact([twin(X)], [ens(X)])
    assert_same(twin.batch(X, Y).kwargs["draws"], ens.batch(X, Y).kwargs["draws"])
    before = ens(X)
    twin.resample(1)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert_exact([ens(X)], [before])


@ALL
def test_members_are_plain(method: mt.Method) -> None:
    """With what was drawn worked in, and no seeds."""
    ens, net = made(method), perceptron()
    for m in range(4):
        member = ens.member(m)
        assert {n: type(part) for n, part in member.named_modules()} == {n: type(part) for n, part in net.named_modules()}
        assert member.state_dict().keys() == net.state_dict().keys()
        assert_same(member(X), ens(X)[m])


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
    found = [made(mt.EMP(components=2, members=2), seed=seed).engine for seed in range(8)]
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


@pytest.mark.parametrize("draw", ["step", "row"])
def test_one_member_is_trained_as_many(draw: Any) -> None:
    """How many draws predict does not matter to a step with several of them."""
    one, many = (made(mt.EMP(components=3, members=m, draw=draw)).train() for m in (1, 4))
    draws = draw_all(many.template, range(6))
    rows = {"rows": torch.arange(6)} if draw == "row" else {}
    assert_same(one(X, draws=draws, **rows), many(X, draws=draws, **rows))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda draws: list(draws.values()),
        lambda draws: 3,
        lambda draws: {},
        lambda draws: {name: value for name, value in draws.items() if name != "layers.1.choice"},
        lambda draws: {**draws, "layers.1.choice": draws["layers.1.choice"][:2]},
        lambda draws: {**draws, "layers.1.choice": draws["layers.1.choice"].expand(5, 2)},
        lambda draws: {**draws, "layers.1.choice": [0] * 5},
        lambda draws: {name: value[:0] for name, value in draws.items()},
    ],
    ids=["list", "number", "empty", "missing", "short", "shape", "no tensor", "none"],
)
def test_wrong_draws(wrong: Any) -> None:
    """Said by name: a tensor for each buffer."""
    ens = made(mt.EMP(components=3, members=4))
    with pytest.raises(mt.InputError, match=r"draws= has to be what ens\.batch gives"):
        ens(X, draws=wrong(draw_all(ens.template, range(5))))
    assert ens(X).shape == (4, 6, 3)


def test_draws_of_what_draws_nothing() -> None:
    """Neither taken nor made again."""
    ens = mt.ensemble(perceptron(), mt.Deep(members=2), X)
    with pytest.raises(mt.InputError, match="Deep draws nothing, so draws= has nothing to give it"):
        ens(X, draws={})
    with pytest.raises(mt.InputError, match="Deep draws nothing that could be drawn again"):
        ens.resample(0)


@ALL
def test_a_call_in_training_warns_once(method: mt.Method) -> None:
    """Training steps are those of ens.batch; a plain call is of all members, and says so the first time."""
    ens = made(method).train()
    name = type(method).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = ens.batch(X, Y)
        ens(*batch.inputs, **batch.kwargs)
        ens.loss(X, Y, F.cross_entropy)
        ens.eval()(X)
    with pytest.warns(UserWarning, match=f"{name} trains by parts: call ens.loss"):
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
    assert [name for name, _ in drawing_layers(ens.template)] == ["layers.1", "layers.4", "layers.6"]
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


@ALL
def test_export(method: mt.Method) -> None:
    """Draws are frozen into the program, which takes any batch, and stays when the ensemble draws again."""
    ens = made(method)
    program = torch.export.export(ens, (X,), dynamic_shapes={"inputs": ({0: Dim("batch", min=2, max=64)},)}).module()
    many = torch.randn(9, 5, dtype=torch.float64)
    assert_same(program(X), ens(X))
    before = ens(many)
    assert_same(program(many), before)
    ens.resample(8)
    assert not torch.equal(ens(many), before)
    assert_same(program(many), before)


@ALL
def test_compile_in_eval_mode(method: mt.Method) -> None:
    """Without a break; drawn again, the compiled ensemble predicts by the new draws."""
    torch._dynamo.reset()
    ens = made(method)
    compiled = torch.compile(ens, backend="eager", fullgraph=True)
    assert_same(compiled(X), ens(X))
    ens.resample(8)
    assert_same(compiled(X), ens(X))


@pytest.mark.parametrize("draw", ["step", "row"])
@pytest.mark.parametrize("kind", [mt.EMP, mt.ECMP])
def test_compile_in_training(kind: Any, draw: str) -> None:
    """Draws are inputs of the graph: several steps, each with its own, as without compiling."""
    torch._dynamo.reset()
    ens, twin = (made(kind(components=3, members=4, draw=draw)).train() for _ in range(2))
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(ens, backend=backend, fullgraph=True)
    for _ in range(3):
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


def test_a_step_after_loading_is_the_next_one(tmp_path: Path) -> None:
    """The generator's state is in the file."""
    net, x, y = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.randn(8, 4), torch.arange(8) % 3
    ens = mt.ensemble(net, mt.MIMO(members=2), x, seed=0)
    ens.batch(x, y)
    mt.save(ens, tmp_path / "a")
    again = mt.load(tmp_path / "a", net)
    assert torch.equal(again.batch(x, y).target, ens.batch(x, y).target)


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
    some = vmap._run_some
    monkeypatch.setattr(vmap, "_run_some", lambda *args: sizes.append(args[-1]) or some(*args))
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
