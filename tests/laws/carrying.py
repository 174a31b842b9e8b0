"""Laws of conversion, training and storage: what they keep, and what they leave alone."""

from __future__ import annotations

import copy
import inspect
import itertools
import tempfile
from pathlib import Path

import torch
from torch import nn
from zoo import Case

import multitudes as mt
from laws.compare import assert_exact, assert_same, call, convert, fingerprint, owned, slice_of
from multitudes.engine import tree
from multitudes.engine.modules import named_tensors


def law_untouched(method: mt.Method, case: Case) -> None:
    """The model given keeps its types, tensors, modes and hooks through plan, ensemble, check, cost and training."""
    model, x = case.model(train=True), case.example()
    list(model.modules())[-1].eval()
    next(model.parameters()).requires_grad_(False)
    before, values = fingerprint(model), {n: t.detach().clone() for n, t in named_tensors(model)}
    mt.plan(model, method, x, seed=0, batch_axis=case.batch_axis)
    mt.ensemble(model, method.neutral(), x, seed=0, batch_axis=case.batch_axis, start="copies")
    ens = mt.ensemble(model, method, x, seed=0, batch_axis=case.batch_axis)
    mt.check(ens, x)
    mt.cost(ens, x, repeats=1)
    _steps(ens, case, 1)
    assert fingerprint(model) == before
    assert_exact([t.detach() for _, t in named_tensors(model)], values.values())


def law_modes(method: mt.Method, case: Case) -> None:
    """Mode and requires_grad of each part, and the dtype, are those of the model given; members have them too."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model, x = case.model(dtype=dtype, train=True), case.example(dtype=dtype)
        list(model.modules())[-1].eval()
        next(model.parameters()).requires_grad_(False)
        ens = mt.ensemble(model, method, x, seed=0, batch_axis=case.batch_axis)
        for net in (ens.template, ens.member(0), copy.deepcopy(ens).template):
            assert set(_traits(model)) <= set(_traits(net))
        assert ens.training == model.training
        found, expected = tree.tensors(call(ens.eval(), x)), tree.tensors(call(model.eval(), x))
        assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in expected]


def _traits(net: nn.Module) -> list[tuple[object, ...]]:
    modes = [(name, part.training) for name, part in net.named_modules()]
    return modes + [(name, t.dtype, t.requires_grad, type(t)) for name, t in named_tensors(net)]


def law_distinct(method: mt.Method, case: Case) -> None:
    """No two members start with an equal parameter, unless it is constant in the model given."""
    ens, given = convert(method, case), dict(case.model().named_parameters())
    if method.draws:  # draws may be equal by chance
        assert len(set(ens.get_buffer("draw_seeds").tolist())) == method.members
        return
    if method.shares_weights:  # what the method adds tells members apart, not what they have been given
        own = [slice_of(ens, dict(named_tensors(ens.template)), m) for m in range(method.members)]
        for a, b in itertools.combinations(own, 2):
            assert any(not torch.equal(a[name], b[name]) for name in owned(ens))
        return
    for name, parameter in ens.named_parameters():
        if name in owned(ens) and len(given[name].unique()) > 1:
            for a, b in itertools.combinations(parameter.detach(), 2):
                assert not torch.equal(a, b), f"two members start with the same {name}"


def law_state_dict(method: mt.Method, case: Case) -> None:
    """The state dict has the base model's names, and brings an ensemble of other weights to the same outputs."""
    ens = convert(method, case)
    _steps(ens.train(), case, 1)
    state = ens.state_dict()
    assert set(case.model().state_dict()) <= set(state)
    other = convert(method, case, seed=77)
    other.load_state_dict(state)
    assert_same(call(other, case.example()), call(ens.eval(), case.example()))


def law_save_load(method: mt.Method, case: Case) -> None:
    """A saved ensemble comes back with its outputs, buffers, mode, method, task, plan and executors."""
    ens = convert(method, case)
    ens.task = "regression"
    _steps(ens.train(), case, 1)
    with tempfile.TemporaryDirectory() as folder:
        mt.save(ens, Path(folder) / "a.multitude")
        back = mt.load(Path(folder) / "a.multitude", case.model(seed=9))
    assert (back.method, back.task, back.seed, back.plan) == (ens.method, ens.task, ens.seed, ens.plan)
    assert (back.plan.proven, back.plan.executor) == (ens.plan.proven, ens.plan.executor)
    assert _traits(back.template) == _traits(ens.template)
    assert_exact([t for _, t in named_tensors(back)], [t for _, t in named_tensors(ens)])
    for training in (True, False):
        found, expected = call(back.train(training), case.example()), call(ens.train(training), case.example())
        assert_same(found, expected)


def law_deepcopy(method: mt.Method, case: Case) -> None:
    """A deep copy gives the same outputs, and training it leaves the original alone."""
    ens = convert(method, case)
    twin, expected = copy.deepcopy(ens), call(ens, case.example())
    assert_same(call(twin, case.example()), expected)
    _steps(twin.train(), case, 2)
    assert_same(call(ens, case.example()), expected)
    moved = [not torch.equal(p, q) for p, q in zip(twin.parameters(), ens.parameters(), strict=True)]
    assert any(moved), "the copy was not trained"


def law_training(method: mt.Method, case: Case) -> None:
    """`batch` and `reduce` equal `loss`, and a few steps of SGD lower it."""
    ens = convert(method, case).train()
    x = case.example()
    y = case.target(call(case.model(), x))
    twin, start = copy.deepcopy(ens), ens.generator.get_state()
    torch.manual_seed(0)
    batch = twin.batch(x.refill([t.clone() for t in x.tensors()]), y)
    split = twin.reduce(twin(*batch.inputs, **batch.kwargs), batch, case.criterion)
    whole = _loss(ens, case)
    assert_exact([split], [whole])
    assert_exact([ens.generator.get_state()], [twin.generator.get_state()])
    for _ in range(8):
        ens.generator.set_state(start)  # so that rows are split, and tensors drawn, as they were
        _steps(ens, case, 1)
    ens.generator.set_state(start)
    assert _loss(ens, case) < whole


def _loss(ens: mt.Ensemble, case: Case) -> torch.Tensor:
    x = case.example()
    y = case.target(call(case.model(), x))
    torch.manual_seed(0)
    return ens.loss(x.refill([t.clone() for t in x.tensors()]), y, case.criterion)


def _steps(ens: mt.Ensemble, case: Case, count: int) -> None:
    """A few steps of SGD on the example."""
    optimizer = torch.optim.SGD(ens.param_groups(lr=0.05))
    for _ in range(count):
        _loss(ens, case).backward()
        optimizer.step()
        optimizer.zero_grad()


def law_public(method: mt.Method, case: Case) -> None:
    """A method is exported by its name, documented field by field, and says where it comes from."""
    kind = type(method)
    assert getattr(mt, kind.__name__) is kind
    assert kind.__module__ == f"multitudes.methods.{kind.__name__.lower()}"
    text = inspect.getmodule(kind).__doc__ or ""
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("), "no docstring of its own"
    assert "https://" in text, f"{kind.__name__} names no reference"
