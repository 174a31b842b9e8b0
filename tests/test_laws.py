"""Every method obeys every law on every network, or the table of refusals says why not.

`make test` tries the list FAST, `make test-full` the list FULL: see laws/trials.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import LAWS, METHODS
from laws.compare import assert_same, call, convert, coupled, gradients, row_axis, rows_of, run_by, without_dropout
from laws.trials import FAST, FULL, LIGHT, ONE_RUN
from nets.hazards import BatchMean
from torch import nn
from zoo import FIVE, HAZARDS, ZOO, refusal

import multitudes as mt
from multitudes.engine import tree


@pytest.mark.parametrize(
    ("method", "network", "law"),
    [pytest.param(*t, marks=[] if t in FAST else [pytest.mark.slow], id="-".join(t)) for t in FULL],
)
def test_law(method: str, network: str, law: str) -> None:
    """This law holds for this method on this network."""
    LAWS[law](METHODS[method](), ZOO[network])


def test_every_change_meets_every_method_law_and_network() -> None:
    """In pairs: each method by each light law and, unless all is refused there, on each network; each law on each network.

    Methods of one run are tried by one law each.
    """
    methods = [method for method in METHODS if method not in ONE_RUN]
    networks = [(method, network) for method in methods for network in FIVE if refusal(method, network, "member") is None]
    assert {(method, law) for method, _, law in FAST} >= {(method, law) for method in methods for law in LIGHT}
    assert {(method, network) for method, network, _ in FAST} >= set(networks)
    assert {(network, law) for _, network, law in FAST} >= {(network, law) for network in FIVE for law in LIGHT}
    assert {law for _, _, law in FAST} == set(LAWS)


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if "hugging" in c else []) for c in ZOO])
def test_whose_rows_are_alone(case: str) -> None:
    """The zoo's `alone` is true of the base model, so that no law is left out for nothing."""
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
    """Methods whose members share weights, on the networks where that is hazardous; in `make test` they take turns."""
    for i, method in enumerate((mt.Masksembles(members=4, fewest=2, feed="all"), mt.BatchEnsemble(members=4))):
        name = type(method).__name__
        for j, case in enumerate(HAZARDS):
            if KEPT.get(case) or not refusal(name, case, "member"):
                yield pytest.param(method, case, id=f"{case}-{name}", marks=[pytest.mark.slow] if (i + j) % 2 else [])


@pytest.mark.slow
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


@pytest.mark.slow
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
