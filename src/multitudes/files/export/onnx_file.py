"""ONNX: the graph as a file of standard operations that any runtime reads, and its run in onnxruntime."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.export import ExportedProgram

from multitudes.errors import InputError, RunError
from multitudes.files.export.seal import leave_room, sealed
from multitudes.files.export.shorten import shorten
from multitudes.files.export.trace import quiet

Precision = Literal["float32", "float16", "int8"]
Prefer = Literal["speed", "size"]
KEY = "multitudes"
"""The key of the JSON in the file's metadata."""
SMALL = 256
"""Tensors with fewer entries stay in single precision."""
FOLDED = 1024
"""Bytes up to which operations on constants are computed now, in any graph; a runtime computes others when it loads a file."""
SHARE = 1000
"""In large graphs the limit is one in so many bytes of tensors. Draws times weights are larger, and would grow the file."""
LARGEST = 2**31 - 2**20
"""Bytes that one ONNX file can hold."""


def check_installed() -> None:
    """Refuses to start without the packages of the extra `export`."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"export to ONNX needs {error.name}: pip install 'multitudes[export]'") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps the exporter's notes on packages that it does not need out of a with-block."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with quiet():
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def to_onnx(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], tensor_bytes: int) -> Any:
    """Converts a traced program to an ONNX model, without notes of the tracer; it is to be about as large as its tensors."""
    import torch
    from onnxscript.optimizer import optimize_ir

    try:
        with _silent():
            made = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                optimize=False,
                input_names=list(inputs),
                output_names=list(outputs),
            )
            assert made is not None
            limit = max(FOLDED, tensor_bytes // SHARE)
            optimize_ir(made.model, input_size_limit=limit, output_size_limit=limit)
    except Exception as error:  # the exporter has errors of its own for each stage
        last = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise RunError(f"the graph cannot be written as ONNX: {last[-1] if last else error}. Export to .pt2 instead") from error
    model = made.model_proto
    _check_standard(model)
    shorten(model)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.value_info[:]
    for value in [*model.graph.input, *model.graph.output, *model.graph.initializer]:
        del value.metadata_props[:]
    _name_batch(model)
    return model


def _check_standard(model: Any) -> None:
    """Refuses a graph with operations that are not part of ONNX."""
    others = sorted({f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")})
    if others or model.functions:
        raise RunError(f"the graph needs operations that ONNX does not have: {', '.join(others)}. Export to .pt2 instead")


def _name_batch(model: Any) -> None:
    """Names the free axis "batch" instead of a symbol of the tracer."""
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param]
    symbols = {dim.dim_param for dim in dims}
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_param = "batch"


def describe_model(model: Any, about: Mapping[str, Any]) -> None:
    """Writes the JSON that describes the ensemble into the model's metadata, in place."""
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps({**about, "sealed": True}, allow_nan=False)
    leave_room(model)
    model.producer_name, model.producer_version = "multitudes", str(about["version"])


def to_bytes(model: Any) -> bytes:
    """Returns the file's contents, sealed by their digest."""
    if model.ByteSize() > LARGEST:
        raise RunError(f"the graph has {model.ByteSize():,} bytes, but an ONNX file holds 2 GiB: export to .pt2 instead")
    return sealed(model.SerializeToString())


def opset_of(model: Any) -> int:
    """Returns the version of ONNX's operations that the model uses."""
    return int(next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")))


def with_weights(model: Any, precision: Precision) -> Any:
    """Returns a copy of the model whose weights are stored in fewer bits. A runtime turns them back when it loads the file.

    float16   half of the bytes
    int8      a quarter of the bytes: whole numbers from -127 to 127 times one scale for each output channel or row of a table

    A weight that the precision cannot hold stays.
    """
    import onnx
    from onnx import helper, numpy_helper

    small = onnx.ModelProto()
    small.CopyFrom(model)
    graph, before = small.graph, list(small.graph.initializer)
    products = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    nodes: list[Any] = []
    del graph.initializer[:]
    for stored in before:
        array = numpy_helper.to_array(stored)
        if array.dtype != np.float32 or array.size < SMALL or array.ndim < 2 or not _fits(array, precision):
            graph.initializer.append(stored)
            continue
        name, small_name = stored.name, f"{stored.name}.{precision}"
        if precision == "float16":
            graph.initializer.append(numpy_helper.from_array(array.astype(np.float16), small_name))
            nodes.append(helper.make_node("Cast", [small_name], [name], to=onnx.TensorProto.FLOAT))
            continue
        numbers, scale = _quantised(array, -2 if name in products else None)
        graph.initializer.append(numpy_helper.from_array(numbers, small_name))
        graph.initializer.append(numpy_helper.from_array(scale, f"{name}.scale"))
        nodes.append(helper.make_node("Cast", [small_name], [f"{name}.number"], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [f"{name}.number", f"{name}.scale"], [name]))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    return small


def _fits(array: Any, precision: Precision) -> bool:
    """Whether a weight may be stored in fewer bits; a mask of infinite numbers may not."""
    largest = np.finfo(np.float16 if precision == "float16" else np.float32).max
    return bool(np.abs(array).max() <= largest)


def _quantised(array: Any, summed: int | None) -> tuple[Any, Any]:
    """Returns whole numbers and their scales: along the first axis of more than one entry, or along all axes but `summed`."""
    first = next((at for at, size in enumerate(array.shape) if size > 1), 0)
    axes = tuple(at for at in range(array.ndim) if at != first) if summed is None else (array.ndim + summed,)
    scale = np.maximum(np.abs(array).max(axis=axes, keepdims=True), np.finfo(np.float32).tiny * 127) / np.float32(127)
    return np.round(array / scale).astype(np.int8), scale.astype(np.float32)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Makes onnxruntime's errors, which have a class each and no common one, errors of ours in a with-block."""
    try:
        yield
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(f"onnxruntime cannot {what} the graph: {first.strip()[:300]}. Export to .pt2 instead") from error


class Session:
    """A run of an ONNX model in onnxruntime, on the CPU."""

    def __init__(self, data: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        with _told("load"):
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one.name for one in self.session.get_outputs()]

    def __call__(self, names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns the outputs by name for these inputs. An input that the graph does not read is left out."""
        import torch

        given = dict(zip(names, tensors, strict=True))
        feed = {name: given[name].detach().cpu().numpy() for name in self.inputs}
        with _told("run"):
            found = self.session.run(None, feed)
        return {name: torch.from_numpy(np.asarray(array)) for name, array in zip(self.outputs, found, strict=True)}
