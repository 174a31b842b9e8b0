"""The work of export: the graph, its file, and their check."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from multitudes.data.dataset import Data
from multitudes.engine.inputs import Inputs, axes, checked_example
from multitudes.engine.modules import named_tensors
from multitudes.engine.undisturbed import undisturbed
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.files.export import factors, onnx_file, program_file
from multitudes.files.export.about import described, reference_of
from multitudes.files.export.compaction import compacted, pays
from multitudes.files.export.factors import fold_factors
from multitudes.files.export.mapped import mapped
from multitudes.files.export.members import AllMembers
from multitudes.files.export.norms import fold_norms
from multitudes.files.export.onnx_file import Precision, Prefer
from multitudes.files.export.outputs import Meaning, Outputs, Threshold, chosen_outputs
from multitudes.files.export.quality import compare_scores
from multitudes.files.export.result import Exported
from multitudes.files.export.trace import MemberGraph, trace_member, traced
from multitudes.files.export.verify import Runner, compare, live_prediction, rows_are_alone
from multitudes.prediction.predict import checked_ensemble, noise_of
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator, checked_calibrator
from multitudes.settings import check_value
from multitudes.storage import write
from multitudes.terminal import step, steps

ROWS = 3
"""Rows of the example with which graphs are traced: a size that no other axis fixes."""


@undisturbed
def write_export(
    ensemble: Ensemble,
    example: Any,
    path: str | PathLike[str],
    *,
    outputs: Sequence[str] | None,
    calibrator: Calibrator | None,
    threshold: float | tuple[str, float] | None,
    precision: Precision,
    prefer: Prefer,
    data: Any,
    reference: Prediction | None,
    labels: Sequence[str] | None,
    units: Data | None,
    aot: bool,
) -> Exported:
    """Builds the graph, checks it and writes the file. `export` explains the arguments."""
    start = time.perf_counter()
    ensemble = _on_cpu(checked_ensemble(ensemble, "export"))
    target = _checked_path(path, precision, aot)
    _check_numbers(ensemble, target)
    check_value("prefer", prefer, Prefer)
    with steps(f"exporting {type(ensemble.method).__name__}"):
        inputs = checked_example(ensemble.template, ensemble.call_form.inputs(example), ensemble.engine.batch_axis, ROWS)
        inputs = inputs.refill([tensor.detach().cpu() for tensor in inputs.tensors()])
        meaning = _meaning(ensemble, inputs, outputs, calibrator, threshold, units)
        names = _input_names(ensemble, inputs)
        alone = rows_are_alone(ensemble, inputs, meaning)
        about = {**described(ensemble, inputs, names, meaning, labels, reference_of(reference, meaning)), "alone": alone}
        graph = build(ensemble, inputs, meaning, small=prefer == "size")
        step("the file")
        made = _written(graph, about, precision, aot, target.suffix)
        step("the check")
        off = compare(ensemble, made.run, inputs, meaning, None, strict=True)
        contents, run = made.contents, made.run
        if precision != "float32":
            contents, run = made.smaller(precision)
            off = compare(ensemble, run, inputs, meaning, None, strict=False)
        scores = compare_scores(ensemble, data, run, meaning) if data is not None else {}
    write(target, contents)
    return Exported(
        path=target,
        format=made.format,
        outputs=meaning.outputs,
        members=ensemble.members,
        draws=ensemble.members if ensemble.method.draws else 0,
        form=graph.form,
        precision=precision,
        difference=off,
        bytes=len(contents),
        tensor_bytes=graph.tensor_bytes,
        seconds=time.perf_counter() - start,
        nodes=made.nodes,
        opset=made.opset,
        compacted=graph.compacted,
        images=len(about["inputs"]) == 1 and len(about["inputs"][0]["shape"]) == 4,
        normalised=any("mean" in one for one in about["inputs"]),
        alone=alone,
        scores=scores,
    )


def _on_cpu(ensemble: Ensemble) -> Ensemble:
    """Returns the ensemble, or a copy on the CPU if it is elsewhere."""
    devices = {tensor.device.type for _, tensor in named_tensors(ensemble.template)}
    return ensemble if devices <= {"cpu"} else copy.deepcopy(ensemble).to("cpu")


def _checked_path(path: str | PathLike[str], precision: Precision, aot: bool) -> Path:
    target = Path(path)
    if target.suffix not in (".onnx", ".pt2"):
        raise InputError(f"path={str(path)!r} must end in .onnx, or in .pt2 for a torch.export program: {target.stem}.onnx")
    check_value("precision", precision, Precision)
    if target.suffix == ".pt2" and precision != "float32":
        raise InputError(
            f"precision={precision!r} is for .onnx files: leave it out, or export to {target.with_suffix('.onnx')}"
        )
    if aot and target.suffix != ".pt2":
        raise InputError(f"aot=True compiles a torch.export program: export to {target.with_suffix('.pt2')}")
    if target.is_dir() or not target.parent.exists():
        why = "is a folder" if target.is_dir() else f"lies in {target.parent}, which does not exist: make it first"
        raise InputError(f"path={str(path)!r} {why}")
    if target.suffix == ".onnx":
        onnx_file.check_installed()
    return target


def _check_numbers(ensemble: Ensemble, target: Path) -> None:
    """Refuses numbers for which onnxruntime has no operations."""
    names = [name for name, tensor in named_tensors(ensemble.template) if tensor.dtype == torch.bfloat16]
    if names and target.suffix == ".onnx":
        raise InputError(
            f"{names[0]} is bfloat16, for which onnxruntime has no operations: export ens.float() with an example of float32, "
            f"and precision='float16' for a small file; or export to {target.with_suffix('.pt2')}"
        )


def _meaning(
    ensemble: Ensemble,
    inputs: Inputs,
    outputs: Sequence[str] | None,
    calibrator: Calibrator | None,
    threshold: float | tuple[str, float] | None,
    units: Data | None,
) -> Meaning:
    """Returns what the graph is to compute; refuses what the task does not have."""
    task = ensemble.task
    if units is not None and not isinstance(units, Data):
        raise InputError(
            f"units= takes the Data of the training, not a {type(units).__name__}: leave it out for other datasets"
        )
    noise = noise_of(ensemble, units, task, None) if task == "regression" else None
    limit = _threshold(threshold)
    used = ensemble.calibrator if calibrator is None else checked_calibrator(calibrator, "calibrator=")
    mapped(used)  # refuses a mapping that has no graph
    names = chosen_outputs(task, outputs, limit, task == "gaussian" or noise is not None)
    axis = ensemble.class_axis or 1
    meaning = Meaning(task=task, outputs=names, calibrator=used, class_axis=axis, noise=noise, threshold=limit, units=units)
    live_prediction(ensemble, inputs, meaning, None)  # makes the draws for these shapes, and refuses outputs unlike the task's
    return meaning


def _threshold(threshold: float | tuple[str, float] | None) -> Threshold | None:
    if threshold is None:
        return None
    score, value = threshold if isinstance(threshold, (tuple, list)) else ("confidence", threshold)
    if not isinstance(score, str) or isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"threshold={threshold!r} must be a confidence, or a score and its limit: ('entropy', 0.5)")
    if not torch.isfinite(torch.tensor(float(value))):
        raise InputError(f"threshold={value} abstains always or never: mt.threshold found no such confidence. Leave it out")
    return Threshold(score=score, value=float(value))


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A traced graph, and how its members run."""

    program: ExportedProgram
    inputs: list[str]
    outputs: tuple[str, ...]
    form: str
    compacted: bool
    tensor_bytes: int


def build(ensemble: Ensemble, inputs: Inputs, meaning: Meaning, small: bool = False) -> Graph:
    """Traces a member, and makes one graph of all members and their uncertainty; if `small`, with as few bytes as can be."""
    step("the graph of one member")
    used, graph = member_graph(ensemble, inputs, small)
    step("the graph of all members")
    tensors, axis = inputs.tensors(), ensemble.engine.batch_axis
    all_members = AllMembers(graph, tensors)
    what, form = f"the {type(ensemble.base).__name__}", "one graph for all members"
    try:
        program = traced(Outputs(all_members, meaning), inputs, axis, what)
    except RunError as error:
        if used.members == 1:
            raise
        all_members = AllMembers(member_graph(ensemble, inputs, small)[1], tensors, in_turn=True)
        program = traced(Outputs(all_members, meaning), inputs, axis, what)
        form = f"one member after another, since {_first_line(error)}"
    if all_members.unrolled:
        form += f"; member by member: {', '.join(sorted(all_members.unrolled))}"
    return Graph(
        program=program,
        inputs=_input_names(ensemble, inputs),
        outputs=meaning.outputs,
        form=form,
        compacted=used is not ensemble,
        tensor_bytes=sum(buffer.numel() * buffer.element_size() for buffer in all_members.buffers()),
    )


def member_graph(ensemble: Ensemble, inputs: Inputs, small: bool) -> tuple[Ensemble, MemberGraph]:
    """Traces a member, of the compacted ensemble where that pays, and folds norms and members' vectors into its layers.

    Returns the ensemble whose member it is too.
    """
    smaller = compacted(ensemble, small)
    graph = None if smaller is None else trace_member(smaller, inputs, None)
    if smaller is None or graph is None or not (small or pays(graph)):
        smaller, graph = ensemble, trace_member(ensemble, inputs, None)
    fold_norms(graph)
    fold_factors(graph, 0 if small else factors.LARGEST)
    return smaller, graph


def _first_line(error: Exception) -> str:
    return str(error).split("An exported graph")[0].strip().rstrip(".")


def _input_names(ensemble: Ensemble, inputs: Inputs) -> list[str]:
    """Names the tensors of a call by forward's arguments."""
    parts: list[Any] = [*inputs.args, *inputs.kwargs.values()]
    names = [name if name.isidentifier() else f"input_{name}" for name in ensemble.call_form.names]
    if len(names) == len(parts) and all(isinstance(part, Tensor) for part in parts):
        return names
    return [f"input_{place}" for place in range(len(axes(inputs, ensemble.engine.batch_axis)))]


@dataclass(frozen=True, kw_only=True)
class _Made:
    """The contents of a file, and a run of them."""

    format: str
    contents: bytes
    run: Runner
    nodes: int
    opset: int | None = None
    model: Any = None
    names: tuple[str, ...] = ()

    def smaller(self, precision: Precision) -> tuple[bytes, Runner]:
        """Returns the same with weights of fewer bits."""
        contents = onnx_file.to_bytes(onnx_file.with_weights(self.model, precision))
        session = onnx_file.Session(contents)
        return contents, lambda tensors: session(self.names, tensors)


def _written(graph: Graph, about: dict[str, Any], precision: Precision, aot: bool, suffix: str) -> _Made:
    """Returns the contents of the file, not yet on the disk."""
    count = sum(node.op == "call_function" for node in graph.program.graph.nodes)
    if suffix == ".pt2":
        contents, module = program_file.to_bytes(graph.program, about, aot)
        return _Made(
            format="aoti" if aot else "pt2",
            contents=contents,
            run=lambda tensors: dict(zip(graph.outputs, _called(module, tensors), strict=True)),
            nodes=count,
        )
    model = onnx_file.to_onnx(graph.program, graph.inputs, graph.outputs, graph.tensor_bytes)
    onnx_file.describe_model(model, {**about, "precision": precision})
    contents = onnx_file.to_bytes(model)
    session = onnx_file.Session(contents)
    return _Made(
        format="onnx",
        contents=contents,
        run=lambda tensors: session(graph.inputs, tensors),
        nodes=len(model.graph.node),
        opset=onnx_file.opset_of(model),
        model=model,
        names=tuple(graph.inputs),
    )


def _called(module: nn.Module, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    with torch.no_grad():
        return module(*tensors)
