"""Laws of the outputs of an ensemble: members first, each a plain network, none depending on another."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from zoo import BATCH, Case

import multitudes as mt
from laws.compare import (
    MODES,
    assert_exact,
    assert_same,
    buffers,
    call,
    coupled,
    gradients,
    owned,
    per_member,
    plain_weights,
    row_axis,
    rows_of,
    run_by,
    runs_in,
    shared_norms,
    shares,
    slice_of,
    summed,
    without_dropout,
    written,
)
from laws.compare import convert_apart as convert
from multitudes.engine import tree
from multitudes.engine.modules import named_tensors


def law_members_first(method: mt.Method, case: Case) -> None:
    """`ens(x)` has the structure of the base model's output, each tensor `[M, B, ...]`, in every mode."""
    ens, model = convert(method, case), case.model()
    for training in (True, False):
        output, base = call(ens.train(training), case.example()), call(model.train(training), case.example())
        assert type(output) is type(base)
        assert tree.plain(output) == tree.plain(base)
        shapes = [(method.members, *tensor.shape) for tensor in tree.tensors(base)]
        assert [tuple(tensor.shape) for tensor in tree.tensors(output)] == shapes


def law_unit(method: mt.Method, case: Case) -> None:
    """With neutral settings, started from copies, the ensemble is the base model: values, gradients and buffers."""
    neutral = method.neutral()
    for training in (True, False):
        ens = without_dropout(convert(neutral, case, start="copies")).train(training)
        model = without_dropout(case.model()).train(training)
        if training and case.noisy:
            continue
        output, expected = call(ens, case.example()), call(model, case.example())
        for m in range(neutral.members):
            assert_same(tree.take(output, m), expected)
            found, wanted = slice_of(ens, gradients(ens, tree.take(output, m)), m), gradients(model, expected)
            found = {name: found[name] for name in wanted}  # what the method adds has gradients too
            found = {n: g if g.shape == wanted[n].shape else g.sum(0) for n, g in found.items()}  # those of components
            assert_same(found, wanted)
            found, wanted = slice_of(ens, buffers(ens), m), buffers(model)
            assert_same({name: found[name] for name in wanted}, wanted)


def law_member(method: mt.Method, case: Case) -> None:
    """`ens(x)[m]` is what the plain network `ens.member(m)` gives: values, gradients, buffers, for three rows and one."""
    kinds = {name: type(part).__name__ for name, part in case.model().named_modules()}
    for training, batch in ((False, BATCH), (False, 1), (True, BATCH)):
        ens = without_dropout(convert(method, case)).train(training)
        if training and (case.noisy or coupled(ens)):
            continue
        plain = [ens.member(m) for m in range(method.members)]
        output = call(ens, case.example(batch))
        for m, member in enumerate(plain):
            whole = not method.shares_weights or not any(
                "parametrizations" in name for name in kinds
            )  # else weights are formed
            if plain_weights(ens) and not method.draws_by_shape and whole:  # masks of activations are in no weight
                assert {n: type(part).__name__ for n, part in member.named_modules()} == kinds
                assert set(member.state_dict()) == set(case.model().state_dict())
            expected = call(member, case.example(batch))
            assert_same(tree.take(output, m), expected)
            if not training:
                with torch.no_grad():
                    assert_same(call(member, case.example(batch)), expected)
            found, wanted = slice_of(ens, buffers(ens), m), buffers(member)
            assert_same({name: found[name] for name in wanted}, wanted)
            if not method.shares_weights:  # there a member's weights are not the ensemble's own, but made of them
                assert_same(slice_of(ens, gradients(ens, tree.take(output, m)), m), gradients(member, expected))


def law_rows(method: mt.Method, case: Case) -> None:
    """Permuting the rows permutes the output: nothing leaks along the batch in eval mode."""
    ens, x = convert(method, case), case.example(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    expected = tree.apply(lambda tensor: tensor.index_select(1 + row_axis(case), order), call(ens, x))
    assert_same(call(ens, rows_of(case, x, order)), expected)


def law_batching(method: mt.Method, case: Case) -> None:
    """Seven rows at once, in threes and one by one give the same in eval mode."""
    ens, x = convert(method, case), case.example(7)
    whole = call(ens, x)
    for size in (3, 1):
        parts = [call(ens, rows_of(case, x, index)) for index in torch.arange(7).split(size)]
        columns = zip(*(tree.tensors(part) for part in parts), strict=True)
        assert_same(tree.refill(whole, [torch.cat(column, 1 + row_axis(case)) for column in columns]), whole)


def law_by_rows(method: mt.Method, case: Case) -> None:
    """`rows=` gives each row its member, ragged; in training each member's BatchNorm sees its own rows only."""
    ens, x = convert(method, case), case.example(7)
    members, axis = torch.tensor([2, 0, 2, 0, 0, 3, 3]) % method.members, row_axis(case)
    chosen = list(enumerate(members.tolist()))
    expected = tree.apply(lambda t: torch.stack([t[m].select(axis, b) for b, m in chosen], axis), call(ens, x))
    assert_same(call(ens, x, rows=members), expected)
    if case.noisy or shared_norms(ens) or (method.shares_weights and written(ens)):
        return  # what is shared is taken over all rows
    without_dropout(ens).train()
    plain = [ens.member(m) for m in range(method.members)]
    output = call(ens, x, rows=members)
    for m, member in enumerate(plain):
        index = (members == m).nonzero().flatten()
        if len(index):
            mine = call(member, rows_of(case, x, index))
            assert_same(tree.apply(lambda tensor, index=index: tensor.index_select(axis, index), output), mine)
        if owned(ens) and not shares(ens):
            assert_same(slice_of(ens, buffers(ens), m), buffers(member))


def law_per_member(method: mt.Method, case: Case) -> None:
    """With `per_member=True` member m sees the inputs at m, whatever runs it."""
    if summed(convert(method, case)):  # inputs of all members go into each one's output
        return
    calls = [case.example(seed=m) for m in range(method.members)]
    if isinstance(case.batch_axis, tuple):  # an input without rows is the same for all
        fixed = [axis is None for axis in case.batch_axis]
        calls = [
            c.refill([a if keep else b for a, b, keep in zip(calls[0].tensors(), c.tensors(), fixed, strict=True)])
            for c in calls
        ]
    ens = convert(method, case)
    expected = [call(ens.member(m), c) for m, c in enumerate(calls)]
    for executor in ens.plan.proven["eval"]:
        if executor == "fold" and not case.alone:  # all members' rows in one batch, which differ here: never taken in eval mode
            continue
        output = call(run_by(ens, executor), per_member(case, calls), per_member=True)
        for m in range(method.members):
            assert_same(tree.take(output, m), expected[m])


def law_no_leak(method: mt.Method, case: Case) -> None:
    """No member depends on another's own tensors: no gradient, no NaN that spreads, no change when one is perturbed."""
    for mode in MODES:
        ens = without_dropout(convert(method, case)).train(mode == "train")
        if mode == "train" and coupled(ens):
            continue
        for executor in ens.plan.proven[mode]:
            _no_gradient_across(run_by(ens, executor), case)
            for how, j in itertools.product((float("nan"), 0.01), {0, method.members - 1}):
                before, after = _with_and_without(ens, case, j, how)
                others = [m for m in range(method.members) if m != j]
                assert_exact([t[others] for t in after], [t[others] for t in before])


def _no_gradient_across(ens: mt.Ensemble, case: Case) -> None:
    output = call(ens, case.example())
    for m in range(ens.members):
        found = gradients(ens, tree.take(output, m))
        for name in sorted(owned(ens) & found.keys()):
            others = [j for j in range(ens.members) if j != m]
            assert not found[name][others].any(), f"member {m} has a gradient in another's {name}"


@torch.no_grad()
def _with_and_without(ens: mt.Ensemble, case: Case, j: int, shift: float) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs as they are, and with member j's own tensors shifted; the ensemble is left as it was."""
    state = {name: tensor.clone() for name, tensor in named_tensors(ens)}
    found = []
    for by in (0.0, shift):
        for name, tensor in named_tensors(ens):
            tensor.copy_(state[name])
            if name in owned(ens) and tensor.is_floating_point():
                tensor[j] += by
        found.append(tree.tensors(call(ens, case.example())))
    for name, tensor in named_tensors(ens):
        tensor.copy_(state[name])
    return found[0], found[1]


def law_executors(method: mt.Method, case: Case) -> None:
    """Every proven executor gives what the loop gives: values, gradients and buffers."""
    for mode in MODES:
        loop = run_by(without_dropout(convert(method, case)), "loop").train(mode == "train")
        expected = _outcome(loop, case) if runs_in(loop, case, mode) else None
        for executor in runs_in(loop, case, mode):
            ens = run_by(without_dropout(convert(method, case)), executor).train(mode == "train")
            assert ens.executor == executor
            assert_same(_outcome(ens, case), expected)


def law_chunk(method: mt.Method, case: Case) -> None:
    """Running two members at once changes nothing but the memory, under every executor."""
    for mode in MODES:
        whole = run_by(without_dropout(convert(method, case)), "loop").train(mode == "train")
        if mode == "train" and case.noisy:
            continue
        expected = _outcome(whole, case)
        for executor in ["loop", *runs_in(whole, case, mode)]:
            ens = run_by(without_dropout(convert(method, case, chunk=2)), executor).train(mode == "train")
            assert_same(_outcome(ens, case), expected)


def _outcome(ens: mt.Ensemble, case: Case) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    output = call(ens, case.example())
    return output, gradients(ens, output), buffers(ens)
