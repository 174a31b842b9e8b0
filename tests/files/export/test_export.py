"""Exported files compute what the live ensemble does, at any batch size, with standard operations alone."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from files.export.cases import NAMES, NETWORKS, call_of, made, off, opened
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes.files.export import factors, verify, work
from multitudes.files.export.about import reference_of
from multitudes.files.export.members import AllMembers
from multitudes.files.export.norms import name_of
from multitudes.files.export.onnx_file import Session
from multitudes.files.export.outputs import Meaning
from multitudes.files.export.seal import is_intact
from multitudes.methods.layers.one_run import OneRun

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[mt.Ensemble, Any, Path]:
    """One export that several tests look at."""
    ens, inputs = made("mlp", mt.Deep(members=3))
    path = tmp_path_factory.mktemp("export") / "a.onnx"
    pred = mt.predict(ens, inputs(40), progress=False)
    options: Any = {"outputs": NAMES, "threshold": 0.35, "reference": pred, "labels": list("abcd")}
    return ens, mt.export(ens, inputs(2), path, **options), path


def test_a_file_computes_what_the_ensemble_does(exported: tuple[mt.Ensemble, Any, Path]) -> None:
    ens, result, path = exported
    for count in (1, 3, 17):
        x = torch.randn(count, 8)
        session = Session(path.read_bytes())
        found, pred = session(["x"], [x]), mt.predict(ens, x, progress=False)
        assert off(path, ens, x) < 1e-5
        for name in set(NAMES) - {"label", "member_probs", "member_logits", "abstain"}:
            torch.testing.assert_close(found[name].double(), getattr(pred, name).double(), rtol=1e-4, atol=1e-5)
        assert found["label"].dtype == torch.int64
        assert torch.equal(found["label"], pred.labels)
        assert torch.equal(found["abstain"], pred.confidence < 0.35)
        assert found["member_probs"].shape == (count, 3, 4)
    assert result.difference < 1e-5
    assert "one graph" in str(result)


def test_a_file_has_standard_operations_and_says_what_it_is(exported: tuple[mt.Ensemble, Any, Path]) -> None:
    _, result, path = exported
    model, about = opened(path)
    onnx.checker.check_model(model)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert not model.functions
    assert is_intact(path.read_bytes())
    assert not result.normalised
    assert about["format"] == 1
    assert (about["task"], about["method"], about["members"]) == ("classes", "Deep", 3)
    assert about["inputs"] == [{"name": "x", "shape": [None, 8], "dtype": "float32"}]
    assert about["outputs"] == [output.name for output in model.graph.output] == NAMES
    assert about["labels"] == list("abcd")
    assert about["threshold"] == {"score": "confidence", "value": 0.35}
    assert about["reference"]["score"] == "mutual_information"
    assert 0 < about["reference"]["quantiles"]["0.5"] <= about["reference"]["quantiles"]["0.95"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert sum(node.op_type == "MatMul" for node in model.graph.node) <= 3  # members' layers are one product each
    assert result.nodes == len(model.graph.node)


@pytest.mark.slow
def test_a_graph_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ens, inputs = made("mlp", mt.MultiHead(members=2))
    path = tmp_path / "a.pt2"
    path.write_bytes(b"mine")
    plain = verify.live_prediction

    def shifted(*args: Any) -> mt.Prediction:
        pred = plain(*args)
        return mt.Prediction(logits=pred.members["logits"] + torch.tensor([0.01, 0, 0, 0]))

    monkeypatch.setattr(verify, "live_prediction", shifted)
    with pytest.raises(mt.RunError, match=r"differs from the ensemble by .* nothing is written"):
        mt.export(ens, inputs(2), path)
    assert path.read_bytes() == b"mine"
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "a.pb"}, "must end in .onnx"),
        ({"path": "nowhere/a.onnx"}, "does not exist"),
        ({"precision": "int4"}, "precision"),
        ({"path": "a.pt2", "precision": "int8"}, "is for .onnx files"),
        ({"aot": True}, "compiles a torch.export program"),
        ({"outputs": ["prob"]}, "did you mean 'probs'"),
        ({"outputs": ["abstain"]}, "needs a threshold"),
        ({"outputs": "probs"}, "must be a list"),
        ({"outputs": ["probs", "probs"]}, "none twice"),
        ({"outputs": ["variance"]}, "does not have"),
        ({"threshold": float("inf")}, "abstains always or never"),
        ({"threshold": ("std", 1.0)}, "has the score 'std'"),
        ({"labels": ["a"]}, "1 names for 4 classes"),
        ({"calibrator": 1.5}, "takes a calibrator"),
        ({"units": 3}, "takes the Data"),
        ({"label": ["a"]}, "label"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    ens, inputs = ENSEMBLE
    path = tmp_path / options.pop("path", "a.onnx")
    with pytest.raises(mt.InputError, match=message):
        mt.export(ens, inputs(2), path, **options)
    assert list(tmp_path.iterdir()) == []


ENSEMBLE = made("mlp", mt.MultiHead(members=2))


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(mt.InputError, match=r"multitudes\[export\]"):
        mt.export(ENSEMBLE[0], torch.randn(2, 8), tmp_path / "a.onnx")


def test_a_network_that_looks_at_values_is_refused(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return y if y.sum() > 0 else -y

    ens = mt.ensemble(Branches(), mt.Deep(members=2), torch.randn(3, 8), seed=0)
    with pytest.raises(mt.RunError, match=r"Branches cannot be exported: .*remove ifs on values"):
        mt.export(ens, torch.randn(3, 8), tmp_path / "a.onnx")


METHODS = [kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")]
GRID = [
    *(("mlp", kind) for kind in (mt.Single, mt.MultiHead, mt.MIMO, mt.Masksembles, mt.Laplace, mt.SWAG)),
    *(("unet", kind) for kind in (mt.Single, mt.Masksembles, mt.BatchEnsemble, mt.TreeNet, mt.MCDropout, mt.DropConnect)),
    *(("unet", kind) for kind in (mt.EMP, mt.ECMP)),
    ("vit", mt.Packed),
    ("resnet", mt.Deep),
    ("convolutions", mt.Snapshot),
    ("bert", mt.Packed),
]
"""Pairs of which files are written here."""
FIVE = [network for network in NETWORKS if network != "convolutions"]
OTHERS = [(n, kind) for n in FIVE for kind in METHODS if not issubclass(kind, OneRun) and (n, kind) not in GRID]


def named(one: Any) -> str:
    return one if isinstance(one, str) else getattr(one, "__name__", str(one))


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, type[mt.Method]], Any]:
    """Exports a pair, once for all tests that look at its file. Returns the ensemble, its inputs and the result."""

    @functools.cache
    def write(network: str, kind: type[mt.Method]) -> Any:
        ens, inputs = made(network, kind())
        path = tmp_path_factory.mktemp("pair") / "a.onnx"
        return ens, inputs, mt.export(ens, inputs(2), path, outputs=["probs", "mutual_information", "member_logits"])

    return write


def test_no_method_and_no_network_is_left_out() -> None:
    assert {kind for _, kind in GRID} == set(METHODS)
    assert {network for network, _ in GRID} == set(NETWORKS)
    assert len({*GRID, *OTHERS}.intersection((n, kind) for n in FIVE for kind in METHODS)) >= 5 * 12


@pytest.mark.slow
@pytest.mark.parametrize(("network", "kind"), GRID, ids=named)
def test_files_of_pairs(network: str, kind: type[mt.Method], file_of: Callable[..., Any]) -> None:
    ens, inputs, result = file_of(network, kind)
    call = call_of(inputs(3))
    assert ens.members == 1 or float(ens(*call.args, **call.kwargs).detach().std(0).min()) > 1e-3, "members are alike"
    assert {node.domain for node in onnx.load(result.path).graph.node} <= {"", "ai.onnx"}
    assert max(off(result.path, ens, inputs(count)) for count in (1, 3, 17)) < 1e-4
    assert result.bytes <= 1.1 * result.tensor_bytes + 12_000  # operations and names, which small networks notice
    assert result.draws == (ens.members if ens.method.draws else 0)
    assert result.form == "one graph for all members"


@pytest.mark.slow
@pytest.mark.parametrize(("network", "kind"), OTHERS, ids=named)
def test_members_of_all_other_pairs(network: str, kind: type[mt.Method]) -> None:
    """The operations that a file would have: `python benchmarks/export.py` writes the files of all pairs, at usual sizes."""
    ens, inputs = made(network, kind())
    example = call_of(inputs(3))
    members = AllMembers(work.member_graph(ens, example, small=False)[1], example.tensors())
    for count in (1, 3, 17):
        call = call_of(inputs(count))
        with torch.no_grad():
            wanted = ens(*call.args, **call.kwargs)
            torch.testing.assert_close(members(*call.tensors()), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    assert not members.unrolled


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_weights_in_fewer_bits(precision: Any, tmp_path: Path, file_of: Callable[..., Any]) -> None:
    ens, inputs, whole = file_of("unet", mt.TreeNet)
    data = TensorDataset(inputs(6), torch.randint(5, (6, 8, 8)))
    small = mt.export(ens, inputs(2), tmp_path / "b.onnx", outputs=whole.outputs, precision=precision, data=data)
    assert small.bytes < whole.bytes * (0.6 if precision == "float16" else 0.4)
    assert set(small.scores) == {"error", "nll"}
    before, after = small.scores["nll"]
    pred = mt.predict(ens, data, progress=False)
    assert before == pytest.approx(mt.score(pred)["nll"], rel=1e-5)
    assert before != after
    assert after == pytest.approx(before, rel=0.05)
    assert "nll" in str(small)


def _binary() -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(nn.Sequential(nn.Linear(8, 1)), mt.Deep(members=2), torch.randn(2, 8), task="binary", seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multilabel", "gaussian", "regression"])
def test_tasks_and_temperatures(task: str, tmp_path: Path) -> None:
    ens, inputs = made("mlp", mt.Deep(members=2), task=task) if task != "binary" else (_binary(), lambda n: torch.randn(n, 8))
    number = task in ("gaussian", "regression")
    calibrators = {"gaussian": {"variance": 1.7}, "regression": None, "binary": {"mixture": 1.7}}
    from multitudes.prediction.temperature import Calibrator

    settings: Any = calibrators.get(task, {"members": (0.7, 1.4)})
    ens.calibrator = None if settings is None else Calibrator(**settings)
    limit: Any = ("variance", 0.1) if number else 0.6
    result = mt.export(ens, inputs(2), tmp_path / "a.onnx", threshold=limit)
    x = inputs(5)
    session = Session(result.path.read_bytes())
    found, pred = session(session.inputs, [x]), mt.predict(ens, x, progress=False)
    for name in ("mean", "variance", "epistemic") if number else ("probs", "entropy", "mutual_information"):
        torch.testing.assert_close(found[name].double(), getattr(pred, name).double(), rtol=1e-4, atol=1e-5)
    assert found["abstain"].dtype == torch.bool


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gaussian", "regression"])
def test_numbers_in_the_units_of_the_targets(task: Any, tmp_path: Path) -> None:
    outputs = 2 if task == "gaussian" else 1
    x = torch.randn(40, 8)
    train = mt.data.Data(x, x[:, :1], target_mean=[300.0], target_std=[50.0])
    ens = mt.ensemble(nn.Linear(8, outputs), mt.Deep(members=2), x[:3], task=task, seed=0).eval()
    result = mt.export(ens, x[:3], tmp_path / "a.onnx", units=train, data=train)
    session = Session(result.path.read_bytes())
    found = session(session.inputs, [train.batch(range(40))[0]])
    pred = mt.predict(ens, train, progress=False).in_original_units(train)
    assert 200 < float(found["mean"].mean()) < 400
    for name in ("mean", "variance", "epistemic"):
        torch.testing.assert_close(found[name].double(), getattr(pred, name).double(), rtol=1e-4, atol=1e-3)
    rmse = float((pred.mean.flatten().double() - (300 + 50 * x[:, 0].double())).square().mean().sqrt())
    assert result.scores["rmse"] == pytest.approx((rmse, rmse), rel=1e-3)


def operations(path: Path) -> list[str]:
    """The operations that depend on the inputs; a runtime computes the others once."""
    graph = onnx.load(path).graph
    known, found = {one.name for one in graph.input}, []
    for node in graph.node:
        if known & set(node.input):
            known |= set(node.output)
            found.append(node.op_type)
    return found


@pytest.mark.slow
def test_vectors_around_layers_are_folded(tmp_path: Path) -> None:
    """The factors of members, and the norms behind them; `prefer="size"` keeps shared kernels shared."""
    ens, inputs = made("convolutions", mt.BatchEnsemble(members=3))
    for prefer in ("speed", "size"):
        options: Any = {"prefer": prefer, "outputs": ["member_logits"]}
        result = mt.export(ens, inputs(1), tmp_path / f"{prefer}.onnx", **options)
        assert max(off(result.path, ens, inputs(count)) for count in (1, 3, 17)) < 1e-5
        assert "BatchNormalization" not in operations(result.path)
    fast, small = (operations(tmp_path / f"{prefer}.onnx") for prefer in ("speed", "size"))
    assert fast.count("Mul") < small.count("Mul")
    assert fast.count("Mul") == 3  # before the layer with groups, and around the linear one


@pytest.mark.slow
@pytest.mark.parametrize("kind", [mt.Deep, mt.MIMO])
def test_ids_that_no_table_has_are_refused(kind: type[mt.Method], tmp_path: Path) -> None:
    """As by the ensemble: ONNX would count -1 from the end of the table."""
    network = nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Linear(18, 4))
    ens = mt.ensemble(network, kind(), torch.randint(5, (3, 3)), seed=0).eval()
    session = Session(mt.export(ens, torch.randint(5, (3, 3)), tmp_path / "a.onnx").path.read_bytes())
    session(session.inputs, [torch.tensor([[0, 4, 2]])])
    for wrong in (-1, -5, 5):
        ids = torch.tensor([[0, 4, 2], [1, wrong, 3]])
        with pytest.raises(mt.MultitudesError):
            ens(ids)
        with pytest.raises(Exception, match="out of data bounds"):
            session(session.inputs, [ids])


@pytest.mark.slow
def test_the_smallest_kernels_are_formed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for some kernels of members, the others have a product and a sum behind them."""
    ens, inputs = made("convolutions", mt.EMP(members=3))
    example, products = mt.Inputs(inputs(3)), []
    for limit in (0, 3 * 4 * 12 * 3 * 9, 2**28):  # none; the first layer and the two smaller ones; all
        monkeypatch.setattr(factors, "LARGEST", limit)
        graph = work.member_graph(ens, example, small=False)[1]
        known, count = set(graph.inputs), 0
        for node in graph.graph.nodes:
            if known & {before.name for before in node.all_input_nodes}:
                known.add(node.name)
                count += name_of(node) == "mul"
        products.append(count)
        members, x = AllMembers(graph, example.tensors()), inputs(17)
        with torch.no_grad():
            torch.testing.assert_close(members(x), ens(x), rtol=1e-4, atol=1e-5)
    assert products[0] > products[1] > products[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "kind", "more"),
    [("unet", mt.EMP, 3), ("unet", mt.TreeNet, 1), ("unet", mt.MCDropout, 14), ("mlp", mt.Masksembles, 4)],
    ids=named,
)
def test_graphs_are_short(network: str, kind: type[mt.Method], more: int, file_of: Callable[..., Any]) -> None:
    """At most so many operations more than the single network: joins, pooling and shared layers keep the members' form."""
    lengths = [len(operations(file_of(network, method)[2].path)) for method in (kind, mt.Single)]
    assert lengths[0] <= lengths[1] + more


@pytest.mark.slow
def test_masksembles_of_the_smallest_size(tmp_path: Path, file_of: Callable[..., Any]) -> None:
    """Compacted they compute less, and hold more."""
    ens, inputs, fast = file_of("unet", mt.Masksembles)
    small = mt.export(ens, inputs(2), tmp_path / "a.onnx", outputs=["member_logits"], prefer="size")
    assert off(small.path, ens, inputs(3)) < 1e-5
    assert (fast.compacted, small.compacted) == (True, False)
    held = sum(
        tensor.numel() * tensor.element_size()
        for tensor in {**dict(ens.named_parameters()), **dict(ens.named_buffers())}.values()
    )
    assert small.tensor_bytes <= held < fast.tensor_bytes


def test_a_reference_of_pixels_counts_rows() -> None:
    """As the server does, by the mean of a row."""
    logits = torch.zeros(2, 100, 3, 4, 4)
    logits[0, :, 0, 0, 0] = 20  # in every row one pixel of sixteen on which members disagree
    logits[1, :, 1, 0, 0] = 20
    found = reference_of(mt.Prediction(logits=logits), Meaning(task="classes", outputs=("mutual_information",)))
    assert found is not None
    assert found["quantiles"]["0.99"] == pytest.approx(math.log(2) / 16, rel=1e-3)


def test_a_reference_of_another_calibration_is_refused() -> None:
    from multitudes.prediction.temperature import Calibrator

    meaning = Meaning(task="classes", outputs=("entropy",), calibrator=Calibrator(mixture=2.0))
    prediction = mt.Prediction(logits=torch.randn(2, 9, 3))
    with pytest.raises(mt.InputError, match="calibrator of the file"):
        reference_of(prediction, meaning)
    assert reference_of(prediction.calibrated(Calibrator(mixture=2.0)), meaning) is not None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["matrix", "isotonic"])
def test_mappings_of_a_calibrator(how: Any, tmp_path: Path) -> None:
    ens, inputs = made("mlp", mt.MultiHead(members=2))
    ens.calibrator = mt.calibrate(mt.predict(ens, inputs(400), progress=False), torch.randint(4, (400,)), how=how)
    if how == "isotonic":
        with pytest.raises(mt.InputError, match="cannot be exported"):
            mt.export(ens, inputs(3), tmp_path / "a.onnx")
        return
    result = mt.export(ens, inputs(3), tmp_path / "a.onnx")
    x = inputs(9)
    found = Session(result.path.read_bytes())(["x"], [x])
    pred = mt.predict(ens, x, progress=False)
    torch.testing.assert_close(found["probs"].double(), pred.probs.double(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found["probs"].double(), pred.members.probs.mean(0).double(), atol=1e-2)
