"""Plans: every module as converted, shared or refused, how it runs, and what it costs; printed as a table."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from laws import METHODS, taken
from laws.compare import owned, summed
from torch import nn
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.plan import Counts, Plan
from multitudes.terminal import megabytes


def planned(method: mt.Method, case: str = "resnet", **options: object) -> Plan:
    """The plan of a model of the zoo."""
    return mt.plan(ZOO[case].model(), method, ZOO[case].example(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "case"), taken("resnet", "vit", "one_layer"))
def test_every_parameter_stands_in_one_entry(kind: type[mt.Method], case: str) -> None:
    """Entries have qualified names and types, and their counts add up to those of one member."""
    plan = planned(kind(), case, seed=0)
    ens = mt.ensemble(ZOO[case].model(), kind(), ZOO[case].example(), seed=0)
    model = ens.member(0)
    entries = [*plan.converted, *plan.shared, *plan.refused]
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        given = ZOO[case].model() if ens.method.draws_by_shape else model
        assert entry.type == type(given.get_submodule(entry.name)).__name__ or not entry.name
        assert entry.reason
    own = [p[0] if name in owned(ens) | summed(ens) else p for name, p in ens.named_parameters()]
    assert sum(entry.parameters for entry in entries) == sum(p.numel() for p in own)


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_a_plan_is_what_the_ensemble_does(kind: type[mt.Method]) -> None:
    """The dry run and the conversion say the same, executors and costs included."""
    case = ZOO["resnet"]
    ens = mt.ensemble(case.model(), kind(), case.example(), seed=0)
    plan = planned(kind(), seed=0)
    assert plan.counts == ens.plan.counts
    assert dataclasses.replace(plan, memory={}) == dataclasses.replace(ens.plan, memory={})
    assert plan.counts.parameters == sum(p.numel() for p in ens.parameters())
    assert plan.executor == ens.plan.executor


def test_it_prints_as_a_table() -> None:
    """Model, method, executor, cost, memory, a line for each module, and how tensors start."""
    text = str(planned(mt.TreeNet(), "wideresnet"))
    for word in (
        "WideResNet",
        "TreeNet(members=4",
        "executor",
        "proven",
        "cost",
        "memory",
        "branches begin at group3",
        "× single",
    ):
        assert word in text, word
    line = next(line for line in text.splitlines() if "group3.0.conv1" in line and "converted" in line)
    assert "Conv2d" in line
    assert "1,152" in line
    assert any("group1.0.conv1" in line and "shared" in line for line in text.splitlines())
    assert "how member tensors start" in text
    assert "\x1b" not in text


def test_it_names_the_operation_that_forbids_an_executor() -> None:
    """The plan names the operation of an LSTM that vmap cannot run."""
    plan = planned(mt.Deep(), "lstm")
    assert not any("vmap" in proven for proven in plan.proven.values())
    assert "aten::lstm" in plan.why["vmap"]
    assert "aten::lstm" in str(plan)
    assert plan.executor == {"train": "loop", "eval": "loop"}


def test_what_keeps_vmap_from_checkpointing_and_branches() -> None:
    """Each reason speaks of the cause."""
    assert "checkpoint" in planned(mt.Deep(), "checkpoint").why["vmap"]
    assert "decides which operations run" in planned(mt.Deep(), "branching").why["vmap"]


def test_hooks_are_named() -> None:
    """A hook would see all members at once, so vmap is not taken."""
    model = ZOO["mlp"].model()
    model[2].register_forward_hook(lambda *_: None)
    assert mt.plan(model, mt.Deep(), ZOO["mlp"].example()).why["vmap"].startswith("hooks on 2")


def test_hooks_of_transformers_are_no_obstacle() -> None:
    """They hand a block's values to the output of the same call."""

    def capture(module: nn.Module, args: object, output: object) -> None:
        pass

    capture.__module__ = "transformers.utils.output_capturing"
    model = ZOO["mlp"].model()
    model[2].register_forward_hook(capture)
    assert "vmap" not in mt.plan(model, mt.Deep(), ZOO["mlp"].example()).why


def test_counts_are_exact() -> None:
    """Parameters and multiply-adds by hand."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.zeros(5, 4)
    base, head = 4 * 8 + 8 + 8 * 3 + 3, 8 * 3 + 3
    deep = mt.plan(net, mt.Deep(members=6), x).counts
    assert deep == Counts(6 * base, base, 6 * 5 * (32 + 24), 5 * (32 + 24), base, 5 * (32 + 24))
    heads = mt.plan(net, mt.MultiHead(members=6), x).counts
    assert heads == Counts(base + 5 * head, base, 5 * (32 + 6 * 24), 5 * (32 + 24), head, 5 * 24)


def test_counts_for_other_numbers_of_members() -> None:
    """Each member adds what it owns."""
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), torch.zeros(5, 4)
    counts = {m: mt.plan(net, mt.MultiHead(members=m), x).counts for m in (2, 3, 5)}
    assert counts[5].with_fewer(3) == counts[2]
    assert counts[5].with_fewer(2) == counts[3]


@pytest.mark.slow
def test_memory_grows_with_members_and_shrinks_with_chunks() -> None:
    """Estimates: more members cost more, fewer at once cost less in eval; what is shared counts once."""
    two, eight = (planned(mt.Deep(members=m)).memory for m in (2, 8))
    assert 3 < eight["train"] / two["train"] < 5
    assert planned(mt.Deep(members=8), chunk=1).memory["eval"] < eight["eval"]
    assert planned(mt.MultiHead(members=8)).memory["train"] < eight["train"] / 2


def test_refused_parts_end_the_plan() -> None:
    """A plan with refusals has no executor to speak of, and prints all the same."""
    plan = planned(mt.TreeNet(), "tied")
    assert plan.refused
    assert plan.executor == {}
    assert "refused" in str(plan)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3.5 * 2**20, "3.5 MiB"), (2**31, "2.0 GiB"), (2**41, "2.0 TiB")],
)
def test_sizes_for_people(size: float, text: str) -> None:
    """In units of 1024."""
    assert megabytes(size) == text
