"""Weights in fewer bits: each is as near to the weight as its bits allow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multitudes.files.export.onnx_file import Session, with_weights

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

PRODUCT = """<ir_version: 8, opset_import: ["": 17]>
g (float[B, 32] x) => (float[B, 16] y) <float[32, 16] w = {0}> { y = MatMul (x, w) }"""


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_weights_are_rounded_to_the_nearest(precision: str) -> None:
    weight = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32) * np.geomspace(1e-3, 1e3, 16, dtype=np.float32)
    model = onnx.parser.parse_model(PRODUCT.replace("{0}", "{" + ", ".join(map(str, range(512))) + "}"))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    small = with_weights(model, precision)  # type: ignore[arg-type]
    assert small.ByteSize() < model.ByteSize() * (0.7 if precision == "float16" else 0.5)
    found = Session(small.SerializeToString())(["x"], [torch.eye(32)])["y"].numpy()
    step = np.abs(weight).max(0) / 127 if precision == "int8" else np.abs(weight) / 1024
    assert (np.abs(found - weight) <= 0.501 * step).all()
    assert (np.abs(found - weight) > 0).any()
