"""Operations that only move entries are joined, and the graph computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multitudes.files.export.onnx_file import Session
from multitudes.files.export.shorten import shorten

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def model_of(nodes: list[Any], outputs: dict[str, int], **tensors: list[int]) -> Any:
    """A graph on x ``[B, 6, 2]``. outputs: names and numbers of axes"""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    stored = [onnx.numpy_helper.from_array(torch.tensor(values).numpy(), name) for name, values in tensors.items()]
    ends = [helper.make_tensor_value_info(name, floats, [None] * rank) for name, rank in outputs.items()]
    x = helper.make_tensor_value_info("x", floats, ["batch", 6, 2])
    graph = helper.make_graph(nodes, "g", [x], ends, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def node(kind: str, inputs: str, output: str, **settings: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), [output], **settings)


def check(model: Any, left: list[str]) -> None:
    """Shortens, and compares the operations that are left and what they compute."""
    x = torch.randn(3, 6, 2)
    before = Session(model.SerializeToString())(["x"], [x])
    shorten(model)
    assert [one.op_type for one in model.graph.node] == left
    onnx.checker.check_model(model)
    after = Session(model.SerializeToString())(["x"], [x])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_transposes_are_joined() -> None:
    turns = [node("Transpose", "x", "a", perm=[1, 2, 0]), node("Transpose", "a", "y", perm=[0, 2, 1])]
    check(model_of(turns, {"y": 3}), ["Transpose"])
    check(model_of(turns, {"y": 3, "a": 3}), ["Transpose", "Transpose"])


def test_a_transpose_back_is_none() -> None:
    there = [node("Relu", "x", "r"), node("Transpose", "r", "a", perm=[1, 0, 2]), node("Transpose", "a", "b", perm=[1, 0, 2])]
    check(model_of([*there, node("Neg", "b", "y")], {"y": 3}), ["Relu", "Neg"])
    check(model_of([*there, node("Neg", "b", "y")], {"y": 3, "b": 3}), ["Relu", "Neg"])
    check(model_of([*there, node("Neg", "r", "y")], {"y": 3, "b": 3}), ["Relu", "Neg"])


def test_an_output_that_is_an_input_stays() -> None:
    there = [node("Transpose", "x", "a", perm=[1, 0, 2]), node("Transpose", "a", "y", perm=[1, 0, 2])]
    check(model_of(there, {"y": 3}), ["Transpose"])
    twice = [node("Relu", "x", "r"), node("Transpose", "r", "a", perm=[1, 0, 2]), node("Transpose", "a", "y", perm=[1, 0, 2])]
    check(model_of(twice, {"y": 3, "r": 3}), ["Relu", "Transpose"])


def test_reshapes_are_joined_unless_one_reads_a_size() -> None:
    twice = [node("Reshape", "x s", "a"), node("Reshape", "a t", "y")]
    check(model_of(twice, {"y": 2}, s=[-1, 3, 4], t=[-1, 6]), ["Reshape"])
    check(model_of(twice, {"y": 2}, s=[-1, 3, 4], t=[0, 12]), ["Reshape", "Reshape"])


def test_an_expansion_to_ones_is_none() -> None:
    parts = [node("Expand", "x s", "a"), node("Tile", "a t", "y")]
    check(model_of(parts, {"y": 3}, s=[1, 1, 1], t=[1, 2, 1]), ["Tile"])
    check(model_of(parts, {"y": 4}, s=[1, 1, 1, 1], t=[2, 1, 1, 1]), ["Expand", "Tile"])
