"""Small ONNX files of the form that `mt.export` writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

from multitudes.files.export.seal import leave_room, sealed

CLASSES, MEMBERS = 3, 4

OUTPUTS = "probs label confidence entropy mutual_information variation_ratio member_probs abstain".split()

GRAPH = """
<ir_version: 8, opset_import: ["": 17]>
members (float[B, SIZES] x) => (
    float[B, K] probs, int64[B] label, float[B] confidence, float[B] entropy, float[B] mutual_information,
    float[B] variation_ratio, float[B, M, K] member_probs, bool[B] abstain
) {
    flat = Flatten <axis = 1> (x)
    product = MatMul (flat, w)
    logits = Reshape (product, form)
    member_probs = Softmax <axis = 2> (logits)
    probs = ReduceMean <axes = [1], keepdims = 0> (member_probs)
    label = ArgMax <axis = 1, keepdims = 0> (probs)
    confidence = ReduceMax <axes = [1], keepdims = 0> (probs)
    safe = Max (probs, tiny)
    log = Log (safe)
    weighed = Mul (probs, log)
    sum = ReduceSum <keepdims = 0> (weighed, last)
    entropy = Mul (sum, minus)
    each_safe = Max (member_probs, tiny)
    each_log = Log (each_safe)
    each_weighed = Mul (member_probs, each_log)
    each = ReduceSum <keepdims = 0> (each_weighed, last)
    expected = ReduceMean <axes = [1], keepdims = 0> (each)
    mutual_information = Add (entropy, expected)
    variation_ratio = Sub (one, confidence)
    abstain = Greater (entropy, threshold)
}
"""


def describe(model: onnx.ModelProto, **changes: Any) -> None:
    """Writes the description into the metadata of a file."""
    shape = [None, *(one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    about = {
        "format": 1, "version": "0", "task": "classes", "method": "Deep(members=4)", "members": MEMBERS,
        "inputs": [{"name": "x", "shape": shape, "dtype": "float32"}], "outputs": OUTPUTS,
        "labels": ["cat", "dog", "<b>eel</b>"],
        "threshold": {"score": "entropy", "value": 1.0}, "temperature": None,
        "reference": {"score": "entropy", "quantiles": {"0.5": 0.2, "0.95": 0.9}},
    }  # fmt: skip
    entry = model.metadata_props.add()
    entry.key, entry.value = "multitudes", json.dumps(about | {"sealed": True} | changes)
    leave_room(model)


def weights(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(math.prod(shape), MEMBERS * CLASSES)).astype(np.float32)


def classifier(shape: tuple[int, ...] = (5,), described: bool = True, **changes: Any) -> onnx.ModelProto:
    """A linear ensemble of classes on rows of a shape."""
    text = GRAPH.replace("SIZES", ", ".join(map(str, shape))).replace("K]", f"{CLASSES}]").replace("M,", f"{MEMBERS},")
    model = onnx.parser.parse_model(text)
    values = {
        "w": weights(shape), "form": np.array([-1, MEMBERS, CLASSES]), "one": np.float32(1), "threshold": np.float32(1),
        "tiny": np.float32(1e-30), "minus": np.float32(-1), "last": np.array([-1]),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())
    if described:
        describe(model, **changes)
    return model


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    """What the classifier must answer, by numpy in double precision."""
    logits = x.reshape(len(x), -1).astype(np.float64) @ weights(x.shape[1:]).astype(np.float64)
    logits = logits.reshape(-1, MEMBERS, CLASSES)
    members = np.exp(logits - logits.max(2, keepdims=True))
    members /= members.sum(2, keepdims=True)
    probs = members.mean(1)
    each = -(members * np.log(np.maximum(members, 1e-30))).sum(2)
    doubt = -(probs * np.log(np.maximum(probs, 1e-30))).sum(1)
    return {
        "probs": probs, "label": probs.argmax(1), "confidence": probs.max(1), "entropy": doubt, "abstain": doubt > 1,
        "mutual_information": doubt - each.mean(1), "variation_ratio": 1 - probs.max(1), "member_probs": members,
    }  # fmt: skip


def saved(folder: Path, model: onnx.ModelProto | None = None, name: str = "a.onnx") -> Path:
    path = folder / name
    path.write_bytes(sealed((model or classifier()).SerializeToString()))
    return path


def parsed(text: str, opset: str = '["": 17]') -> onnx.ModelProto:
    """A graph from its text."""
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: {opset}> g {text}")


LIBRARY = "(float[B, 2] x) => (float[B, 2] z) { z = evil.ops.Run (x) }"
INNER = """(float[B, 2] x, bool flag) => (float[B, 2] z) {
    z = If (flag) <
        then_branch = a () => (float[B, 2] p) { p = evil.Run (x) },
        else_branch = b () => (float[B, 2] q) { q = Identity (x) }
    >
}"""


LOCATIONS = ["/etc/passwd", "../secret.bin", "sub/../../secret.bin", "link.bin", "folder", "", "none.bin", "a\0b"]
"""Where tensors must not lie; link.bin is a link out of the folder."""


def outside(location: str, as_attribute: bool = False) -> onnx.ModelProto:
    """A graph whose weights lie in another file."""
    if as_attribute:
        model = parsed(
            "(float[B, 2] x) => (float[B, 2] z) { w = Constant <value = float[2, 2] {1, 2, 3, 4}> () z = MatMul (x, w) }"
        )
        tensor = model.graph.node[0].attribute[0].t
    else:
        model = parsed("(float[B, 2] x) => (float[B, 2] z) { z = MatMul (x, w) }")
        model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float32), "w"))
        tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return model


def hostile_models(root: str) -> list[onnx.ModelProto]:
    """Graphs that ask for files outside of their folder, or for code."""
    locations = [*LOCATIONS, f"{root}/secret.bin", "file:///etc/passwd", "../" * 40 + "etc/passwd", "a" * 5000]
    models = [outside(location, as_attribute) for location in locations for as_attribute in (False, True)]
    return [*models, parsed(LIBRARY, '["": 17, "evil.ops": 1]'), parsed(INNER, '["": 17, "evil": 1]')]
