"""The split form of a training step, as wrappers need it: `ens.batch`, the wrapped call, `ens.reduce`.

Under DDP with two processes (gloo), the averaged gradients are those of one process on the whole batch, for networks
whose rows do not see each other. Weights are drawn alike in all processes; slots and members of rows are each process's own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import multitudes as mt
from multitudes.method import Batch

pytestmark = pytest.mark.slow

M, B, RANKS = 4, 3, 2
METHODS: dict[str, mt.Method] = {
    "Deep": mt.Deep(members=M),
    "TreeNet": mt.TreeNet(members=M, branch_at="block"),
    "MultiHead": mt.MultiHead(members=M),
}
DRAWN: dict[str, mt.Method] = {
    "EMP": mt.EMP(members=M, components=3),
    "ECMP": mt.ECMP(members=M, components=3, prior="elbo", examples=100),
    "DropConnect": mt.DropConnect(members=M, p=0.3),
}
"""Methods that draw weights for a step."""
OWN_ROWS: dict[str, mt.Method] = {
    "MIMO": mt.MIMO(members=M, rho=0.3, repeat=2),
    "Masksembles": mt.Masksembles(members=M, fewest=2),
}
"""Methods that give members rows of their own."""


class Net(nn.Module):
    """Convolutions with GroupNorm, a residual block, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head((h + self.block(h)).mean((2, 3)))


def converted(method: str, executor: str) -> mt.Ensemble:
    """The same ensemble in every process: the model and its members come from seeds."""
    torch.manual_seed(0)
    settings = {**METHODS, **DRAWN, **OWN_ROWS}[method]
    ens = mt.ensemble(Net().double(), settings, torch.randn(2, 2, 6, 6).double(), seed=1).train()
    ens.engine.picked.update(train=executor, eval=executor)
    return ens


def seen(batch: Batch) -> dict[str, Any]:
    """What a step was called with."""
    return {"inputs": batch.inputs, "kwargs": batch.kwargs, "target": batch.target}


def data(step: int) -> tuple[Tensor, Tensor]:
    """The batch of all processes together."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(RANKS * B, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (RANKS * B,), generator=generator)


def split_step(ens: mt.Ensemble, net: Any, x: Tensor, y: Tensor, calls: list[Any] | None = None) -> Tensor:
    """The loss by the three steps that a wrapper allows; `calls` takes down what they are called with."""
    batch = ens.batch(x, y)
    if calls is not None:
        calls.append(seen(batch))
    return ens.reduce(net(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)


def trained(ens: mt.Ensemble, net: Any, rank: int, steps: int) -> dict[str, Any]:
    """Some steps on the rows of one process: losses, calls, the last gradients, and the weights afterwards."""
    optimiser = torch.optim.SGD(ens.param_groups(lr=0.1), momentum=0.9)
    losses, gradients, calls = [], {}, []
    for step in range(steps):
        optimiser.zero_grad()
        x, y = data(step)
        loss = split_step(ens, net, x[rank::RANKS], y[rank::RANKS], calls)
        loss.backward()
        losses.append(loss.detach())
        gradients = {n: p.grad.clone() for n, p in ens.named_parameters()}
        optimiser.step()
    return {"losses": losses, "calls": calls, "gradients": gradients, "state": ens.state_dict()}


def worker(rank: int, folder: str) -> None:
    """One process: every case in turn, the results into a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    results = {}
    try:
        for method, how in (*CASES, *DRAWN_CASES, *((name, "vmap") for name in OWN_ROWS)):
            ens = converted(method, "loop" if how == "compiled" else how)
            inner = torch.compile(ens, backend="eager") if how == "compiled" else ens
            results[f"{method} {how}"] = trained(ens, DistributedDataParallel(inner), rank, steps=2)
        torch.save(results, f"{folder}/rank{rank}")
    finally:
        dist.destroy_process_group()


CASES = [(method, how) for method in METHODS for how in ("loop", "vmap")] + [("Deep", "compiled")]
DRAWN_CASES = [(method, how) for method in DRAWN for how in ("loop", "vmap")]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes came to."""
    folder = tmp_path_factory.mktemp("distributed")
    mp.spawn(worker, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}") for rank in range(RANKS)]


@pytest.mark.parametrize(("method", "how"), [*CASES, *DRAWN_CASES])
def test_two_processes_take_the_steps_of_one(ranks: list[dict[str, Any]], method: str, how: str) -> None:
    """The mean of the losses of two steps, the gradients of the second, and the weights after it, in each process."""
    ens = converted(method, "loop")
    optimiser = torch.optim.SGD(ens.param_groups(lr=0.1), momentum=0.9)
    gradients = {}
    for step in range(2):
        optimiser.zero_grad()
        loss = ens.loss(*data(step), F.cross_entropy)
        loss.backward()
        both = torch.stack([rank[f"{method} {how}"]["losses"][step] for rank in ranks])
        torch.testing.assert_close(both.mean(), loss.detach())
        assert both[0] != both[1]
        gradients = {n: p.grad.clone() for n, p in ens.named_parameters()}
        optimiser.step()
    for found in (rank[f"{method} {how}"] for rank in ranks):
        assert found["gradients"].keys() == gradients.keys()
        assert list(found["state"]) == list(ens.state_dict())
        for name, gradient in gradients.items():
            torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-9, atol=1e-12, msg=name)
        for name, tensor in ens.state_dict().items():
            torch.testing.assert_close(found["state"][name], tensor, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("method", DRAWN)
def test_processes_draw_the_same_weights(ranks: list[dict[str, Any]], method: str) -> None:
    """Other ones at each step, and as one process does."""
    ens = converted(method, "loop")
    for step in range(2):
        mine, other = (rank[f"{method} loop"]["calls"][step]["kwargs"]["draws"] for rank in ranks)
        expected = ens.batch(*data(step)).kwargs["draws"]
        assert all(torch.equal(mine[name], other[name]) and torch.equal(mine[name], expected[name]) for name in expected)
    first, second = (call["kwargs"]["draws"] for call in ranks[0][f"{method} loop"]["calls"])
    assert not all(torch.equal(first[name], second[name]) for name in first)


def together(calls: list[dict[str, Any]]) -> Batch:
    """One call with the rows of all processes: each slot, or each row with its member."""
    slots = bool(calls[0]["kwargs"].get("per_member"))
    x, y = (torch.cat([part(call) for call in calls], int(slots)) for part in (lambda c: c["inputs"][0], lambda c: c["target"]))
    kwargs = {"per_member": True} if slots else {"rows": torch.cat([call["kwargs"]["rows"] for call in calls])}
    return Batch((x,), kwargs, y, per_member=slots)


@pytest.mark.parametrize("method", OWN_ROWS)
def test_two_processes_are_one_that_is_given_their_rows(ranks: list[dict[str, Any]], method: str) -> None:
    """The lists of rows that each process drew for its own shard, as one batch: losses, gradients and weights."""
    ens = converted(method, "vmap")
    optimiser = torch.optim.SGD(ens.param_groups(lr=0.1), momentum=0.9)
    found = [rank[f"{method} vmap"] for rank in ranks]
    for step in range(2):
        optimiser.zero_grad()
        batch = together([rank["calls"][step] for rank in found])
        loss = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
        loss.backward()
        torch.testing.assert_close(torch.stack([rank["losses"][step] for rank in found]).mean(), loss.detach())
        gradients = {n: p.grad.clone() for n, p in ens.named_parameters()}
        optimiser.step()
    for rank in found:
        for name, gradient in gradients.items():
            torch.testing.assert_close(rank["gradients"][name], gradient, rtol=1e-9, atol=1e-12, msg=name)
        for name, tensor in ens.state_dict().items():
            torch.testing.assert_close(rank["state"][name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_processes_shuffle_their_shards_apart(ranks: list[dict[str, Any]]) -> None:
    """Slots have the rows of the process's own shard, each as often, in an order that is not the other process's."""
    orders = []
    for rank, results in enumerate(ranks):
        for step, call in enumerate(results["MIMO vmap"]["calls"]):
            x, y = data(step)
            mine, target = x[rank::RANKS], y[rank::RANKS]
            order = [[int((mine == row).flatten(1).all(1).nonzero()) for row in slot] for slot in call["inputs"][0]]
            assert [sorted(slot) for slot in order] == [[0, 0, 1, 1, 2, 2]] * M
            assert all(torch.equal(target[slot], labels) for slot, labels in zip(order, call["target"], strict=True))
            orders.append(order)
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("method", METHODS)
def test_the_split_form_is_the_loss(method: str, executor: str) -> None:
    """In one process, without a wrapper: the same number and the same gradients; also for rows of each member's own."""
    ens = converted(method, executor)
    x, y = data(0)
    found = []
    for loss in (lambda: ens.loss(x, y, F.cross_entropy), lambda: split_step(ens, ens, x, y)):
        ens.zero_grad()
        value = loss()
        value.backward()
        found.append([value.detach(), *(p.grad.clone() for p in ens.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    own, targets = torch.stack([x + m for m in range(M)]), torch.stack([(y + m) % 5 for m in range(M)])
    batch = ens.batch(own, targets, per_member=True)
    split = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
    torch.testing.assert_close(split, ens.loss(own, targets, F.cross_entropy, per_member=True))
    torch.testing.assert_close(split, sum(F.cross_entropy(ens.member(m)(own[m]), targets[m]) for m in range(M)))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("method", METHODS)
def test_the_split_form_around_a_compiled_ensemble(method: str, executor: str) -> None:
    """`torch.compile(ens)`: the forward is one graph, and three steps are those of the ensemble that is not compiled."""
    torch._dynamo.reset()
    graphs = []

    def count(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    plain, ens = converted(method, executor), converted(method, executor)
    net = torch.compile(ens, backend=count, fullgraph=True)
    optimisers = [torch.optim.SGD(e.param_groups(lr=0.1), momentum=0.9) for e in (plain, ens)]
    for step in range(3):
        x, y = data(step)
        losses = [plain.loss(x, y, F.cross_entropy), split_step(ens, net, x, y)]
        torch.testing.assert_close(losses[0], losses[1])
        for loss, optimiser in zip(losses, optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert len(graphs) == 1
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(ens.get_parameter(name), parameter, msg=name)
