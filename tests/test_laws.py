"""Every method obeys every law on every model, or stands in the table of refusals.

With every change each method is run through nearly all laws on one model, and through one in twenty-four on four more; in the
slow run through half of the rest, and on the rest of the zoo through the strongest laws, and through some of the others,
rotated by MULTITUDES_SEED so that each comes round.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import LAWS, METHODS
from laws.compare import assert_same, call, convert, coupled, gradients, row_axis, rows_of, run_by, without_dropout
from nets.hazards import BatchMean
from torch import nn
from zoo import FIVE, HAZARDS, ZOO, refusal

import multitudes as mt
from multitudes.engine import tree

SEED = int(os.environ.get("MULTITUDES_SEED", "0"))

ALWAYS = ("member", "executors")
"""What every pair of method and model is tried on in every slow run."""
GRAPHS = {"compile": ("cnn", "unet"), "compile_sizes": ("cnn",), "export": ("resnet", "vit")}
"""Laws that trace graphs take seconds: with every change half of the methods are tried on the first of these models, one in
four for the one about sizes; on others in the slow run."""
TWICE = ("untouched", "modes")
"""Laws that convert a model again and again: with every change one in four methods is tried."""
ONCE = ("public",)
"""Laws about a method alone."""
BY_ROW = ("rows", "batching", "by_rows")
"""Laws that speak of single rows: a base model whose rows depend on each other does not obey them itself."""
OTHERS = tuple(name for name in LAWS if name not in (*ALWAYS, *ONCE))
SOME = 24
"""One in so many laws is tried on four of five models with every change; half of the rest in a slow run."""
AT_ONCE = 1
"""How many of the other laws a pair of method and model is tried on in one slow run."""


def speaks_of(law: str, case: str) -> bool:
    """Whether the base model itself could obey a law."""
    return ZOO[case].cnn if law.startswith("compile") else ZOO[case].alone or law not in BY_ROW


def tried(law: str, case: str, place: int, seed: int = SEED) -> str | None:
    """Whether a law is tried on a model with every change ("fast"), in the slow run, or not this time."""
    if law in ONCE:
        return "fast" if case == FIVE[0] else None
    if not speaks_of(law, case):
        return None
    if law in GRAPHS and case in GRAPHS[law]:
        first = case == GRAPHS[law][0] and place % (4 if law == "compile_sizes" else 2) == 0
        return "fast" if first else "slow"
    if case in FIVE and law not in GRAPHS:
        turn = list(LAWS).index(law) + place
        if (case == FIVE[0] and (law not in TWICE or turn % 4 == 0)) or turn % SOME == 0:
            return "fast"
        return "slow" if case == FIVE[0] or law in ALWAYS or (turn + seed) % 2 else None
    if law in ALWAYS:
        return "slow"
    turns = [(seed + place + AT_ONCE * turn) % len(OTHERS) for turn in range(AT_ONCE)]
    return "slow" if OTHERS.index(law) in turns else None


def pairs() -> Iterator[Any]:
    """Every law that is tried, as a test."""
    for i, method in enumerate(METHODS):
        for j, case in enumerate(ZOO):
            for law in LAWS:
                when = tried(law, case, i + j)
                if when and not refusal(method, case, law):
                    marks = [pytest.mark.slow] if when == "slow" else []
                    yield pytest.param(law, method, case, marks=marks, id=f"{method}-{case}-{law}")


@pytest.mark.parametrize(("law", "method", "case"), list(pairs()))
def test_law(law: str, method: str, case: str) -> None:
    """This law holds for this method on this model."""
    LAWS[law](METHODS[method](), ZOO[case])


def test_every_law_comes_round() -> None:
    """Some are tried at every seed; over as many seeds as there are others, each of them on every model it speaks of."""
    for case in ZOO:
        for law in (*ALWAYS, *OTHERS):
            when = [tried(law, case, place=3, seed=seed) for seed in range(len(OTHERS))]
            assert (all(when) if law in ALWAYS else any(when)) == speaks_of(law, case)


def test_five_models_meet_every_law_with_every_change() -> None:
    """No law is left to the slow run alone."""
    fast = {law for law in LAWS for case in ZOO for place in range(4) if tried(law, case, place) == "fast"}
    assert fast == set(LAWS)


@pytest.mark.parametrize("case", ZOO)
def test_whose_rows_are_alone(case: str) -> None:
    """What the zoo says of a base model holds of it, so that no law is left out for nothing."""
    net, x, axis = ZOO[case].model(), ZOO[case].example(5), row_axis(ZOO[case])
    whole, alone = tree.tensors(call(net, x)), True
    for row in range(5):
        mine = tree.tensors(call(net, rows_of(ZOO[case], x, torch.tensor([row]))))
        pairs = [(one, tensor.narrow(axis, row, 1)) for one, tensor in zip(mine, whole, strict=True)]
        alone &= all(one.shape == entry.shape and torch.allclose(one, entry) for one, entry in pairs)
    assert alone == ZOO[case].alone


KEPT = {"recurrent_between": ("lstm",), "loose": ()}
"""Parts that members share on purpose, where a model would be refused otherwise."""


def sharing() -> Iterator[Any]:
    """Every method whose members share weights, on every model where that is hazardous."""
    for method in (mt.Masksembles(members=4, fewest=2, feed="all"), mt.BatchEnsemble(members=4)):
        name = type(method).__name__
        for case in HAZARDS:
            if KEPT.get(case) or not refusal(name, case, "member"):
                yield pytest.param(method, case, id=f"{case}-{name}")


@pytest.mark.parametrize(("method", "case"), list(sharing()))
def test_members_that_share_weights_where_that_is_hazardous(method: mt.Method, case: str) -> None:
    """Three rows by each executor against a slow loop over plain members, then in training against each other."""
    one, options = ZOO[case], {"keep": KEPT[case]} if case in KEPT else {}
    ens, x = convert(method, one, **options), one.example(3)
    expected = [call(ens.member(m), x) for m in range(method.members)]
    for executor in ens.plan.proven["eval"]:
        output = call(run_by(ens, executor), x)
        for m, wanted in enumerate(expected):
            assert_same(tree.take(output, m), wanted)
    y, found = one.target(expected[0]), []
    for executor in ens.plan.proven["train"]:
        if executor == "loop" and coupled(ens):
            continue
        ens = run_by(without_dropout(convert(method, one, **options)), executor).train()
        assert ens.executor == executor
        loss = ens.reduce(call(ens, x), ens.batch(x, y), one.criterion)
        found.append((loss.detach(), gradients(ens, loss), dict(ens.named_buffers())))
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.parametrize(("method", "case"), [p for p in sharing() if ZOO[p.values[1]].alone])
def test_rows_given_to_members_where_that_is_hazardous(method: mt.Method, case: str) -> None:
    """Each row by its member alone, with and without gradients, also where another call has another number of entries."""
    one, options = ZOO[case], {"keep": KEPT[case]} if case in KEPT else {}
    ens, axis = convert(method, one, **options), row_axis(one)
    for count in (3, 4):
        x, members = one.example(count), torch.tensor([2, 0, 3, 0])[:count]
        whole = [call(ens.member(m), x) for m in range(method.members)]
        chosen = [tree.apply(lambda t, b=b: t.narrow(axis, b, 1), whole[m]) for b, m in enumerate(members.tolist())]
        columns = zip(*(tree.tensors(part) for part in chosen), strict=True)
        expected = tree.refill(chosen[0], [torch.cat(column, axis) for column in columns])
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert_same(call(ens, x, rows=members), expected)


@pytest.mark.parametrize(
    "method", [mt.Masksembles(members=4, fewest=2), mt.BatchEnsemble(members=4)], ids=lambda m: type(m).__name__
)
def test_rows_of_uneven_length(method: mt.Method) -> None:
    """Entries that are a multiple of the rows need not be equally many for each, though they were in the example."""
    x, net = ZOO["unpadded"].example(4).args[0], ZOO["unpadded"].model()
    even, uneven = (torch.arange(4) >= torch.tensor(kept)[:, None] for kept in ([3, 3, 3, 3], [4, 3, 2, 3]))
    ens, members = mt.ensemble(net, method, mt.Inputs(x, even), seed=0), torch.tensor([2, 0, 3, 1])
    for padding in (even, uneven):
        expected = torch.stack([ens.member(m)(x, padding)[b] for b, m in enumerate(members.tolist())])
        assert_same(ens(x, padding, rows=members), expected)


def test_inputs_apart_where_rows_see_each_other() -> None:
    """A mean over rows is each member's own; a shared BatchNorm layer beside it has the rows of all members at once."""
    net, x = BatchMean(nn.BatchNorm1d(8)), torch.randn(4, 3, 8)
    ens = mt.ensemble(net, mt.MultiHead(members=4), x[0], seed=0).train()
    twin = copy.deepcopy(ens)
    h = twin.get_submodule("second")(torch.tanh(twin.get_submodule("more")(twin.get_submodule("first")(x.flatten(0, 1)))))
    h = torch.tanh(h.unflatten(0, (4, 3)) - h.unflatten(0, (4, 3)).mean(1, keepdim=True))
    head = twin.get_submodule("head")
    wanted = torch.stack([F.linear(part, w, b) for part, w, b in zip(h, head.weight, head.bias, strict=True)])
    assert_same(ens(x, per_member=True), wanted, tight=False)
    assert_same(ens.get_submodule("more.0").running_var, twin.get_submodule("more.0").running_var, tight=False)
