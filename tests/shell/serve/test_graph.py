"""Graph: what is served is checked first; nothing outside the folder is read, and no other code is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell.serve.graphs import (
    INNER,
    LIBRARY,
    LOCATIONS,
    OUTPUTS,
    classifier,
    describe,
    expected,
    outside,
    parsed,
    saved,
    weights,
)

import multitudes as mt
from multitudes.shell.serve.graph import load_graph


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_the_numbers_are_those_of_the_graph(tmp_path: Path, rows: int) -> None:
    graph = load_graph(saved(tmp_path), 1)
    x = np.random.default_rng(1).normal(size=(rows, 5)).astype(np.float32)
    outputs = graph.run({"x": x})
    assert list(outputs) == OUTPUTS
    for name, value in expected(x).items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)
    assert (graph.about.task, graph.about.members, graph.notes) == ("classes", 4, ())


def test_a_file_without_a_description_is_served_and_says_so(tmp_path: Path) -> None:
    graph = load_graph(saved(tmp_path, classifier(described=False)))
    assert graph.outputs == tuple(OUTPUTS)
    assert "no description" in graph.notes[0]
    assert graph.notes[1].startswith("no digest")
    assert load_graph(saved(tmp_path, classifier((3, 4, 4)))).notes == (
        "no normalisation: pixels of images are numbers from 0 to 1",
    )
    lacking = load_graph(saved(tmp_path, classifier(labels=None, threshold=None, reference=None)))
    assert [note.partition(":")[0] for note in lacking.notes] == ["no names of classes", "no threshold", "no reference"]


TWO = "(float[B, 2] x, float[B, 2] y) => (float[B, 2] z) { z = Add (x, y) }"
FIXED = "(float[1, 2] x) => (float[1, 2] z) { z = Relu (x) }"
SCALAR = "(float[B, 2] x) => (float z) { z = ReduceMean <keepdims = 0> (x) }"
TURNED = "(float[B, 2] x) => (float[2, B] z) { z = Transpose <perm = [1, 0]> (x) }"
TEXTS = "(string[B, 2] x) => (string[B, 2] z) { z = Identity (x) }"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TWO, "2 inputs and no description"),
        (FIXED, r"batch size of input x is fixed to 1.*free batch size"),
        (SCALAR, "output z has shape .* batch first"),
        (TURNED, "output z has shape .* batch first"),
        (TEXTS, "tensors of numbers"),
    ],
)
def test_graphs_that_cannot_be_served(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(mt.MultitudesError, match=says):
        load_graph(saved(tmp_path, parsed(text)))


def test_several_inputs_need_a_description(tmp_path: Path) -> None:
    model = parsed(TWO)
    describe(model, outputs=["z"], inputs=[{"name": "x"}, {"name": "y"}])
    graph = load_graph(saved(tmp_path, model))
    assert [one.name for one in graph.inputs] == ["x", "y"]
    np.testing.assert_array_equal(graph.run({n: np.ones((3, 2), np.float32) for n in "xy"})["z"], np.full((3, 2), 2))


@pytest.mark.parametrize("data", [b"", b"\x00", b"PK\x03\x04", b"\x80\x04\x95", b"{}", b"\xff" * 1000, b"\x0a" * 100000])
def test_what_is_no_onnx(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(data)
    with pytest.raises(mt.FileError, match=r"a\.onnx is no ONNX file"):
        load_graph(tmp_path / "a.onnx")


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match="there is no file"):
        load_graph(tmp_path / "b.onnx")
    with pytest.raises(mt.FileError, match="is a folder"):
        load_graph(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Cut anywhere, or with a byte changed: an error of ours."""
    whole = saved(tmp_path).read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 60):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        for data in (whole[:place], bytes(changed)):
            (tmp_path / "a.onnx").write_bytes(data)
            with pytest.raises(mt.FileError, match="damaged"):
                load_graph(tmp_path / "a.onnx", 1)


def test_a_flipped_bit_in_a_weight_is_seen(tmp_path: Path) -> None:
    whole = bytearray(saved(tmp_path).read_bytes())
    whole[whole.index(weights((5,)).tobytes()) + 2] ^= 1  # a lower bit of a weight's fraction: the graph still runs
    (tmp_path / "a.onnx").write_bytes(whole)
    with pytest.raises(mt.FileError, match=r"not as mt\.export wrote it"):
        load_graph(tmp_path / "a.onnx", 1)


def test_a_digest_that_is_gone_is_missed(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    (tmp_path / "a.onnx").write_bytes(whole.replace(b"multitudes.sha256", b"multitudes.sha255"))
    with pytest.raises(mt.FileError, match="digest is missing"):
        load_graph(tmp_path / "a.onnx", 1)


def test_operators_of_a_library_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match=r"operators of evil\.ops"):
        load_graph(saved(tmp_path, parsed(LIBRARY, '["": 17, "evil.ops": 1]')))


def test_operators_inside_of_branches_are_seen(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match="operators of evil"):
        load_graph(saved(tmp_path, parsed(INNER, '["": 17, "evil": 1]')))


def test_tensors_beside_the_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.full((2, 2), 3, np.float32).tobytes())
    graph = load_graph(saved(tmp_path, outside("w.bin")))
    np.testing.assert_array_equal(graph.run({"x": np.ones((1, 2), np.float32)})["z"], [[6, 6]])


@pytest.mark.parametrize("as_attribute", [False, True])
@pytest.mark.parametrize("location", LOCATIONS)
def test_tensors_elsewhere_are_refused(tmp_path: Path, location: str, as_attribute: bool) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    os.symlink(tmp_path / "secret.bin", home / "link.bin")
    with pytest.raises(mt.FileError, match="no file inside its folder"):
        load_graph(saved(home, outside(location, as_attribute)))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "1"}, {"task": 3}, {"members": "many"}, {"inputs": 3}, {"labels": 3}, {"threshold": {"score": "entropy"}},
        {"threshold": {"score": "entropy", "value": float("nan")}}, {"reference": {"score": "entropy", "quantiles": {}}},
        {"reference": {"score": "entropy", "quantiles": {"2": 1.0}}}, {"reference": 3}, {"outputs": ["gone"]},
        {"inputs": [{"name": "x", "shape": [None, 5], "mean": [0.1], "std": [0.2]}]},
        {"inputs": [{"name": "x", "shape": [None, 1], "mean": [0.1], "std": [0]}]},
    ],
    ids=str,
)  # fmt: skip
def test_descriptions_of_other_form(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(mt.FileError, match=r"a\.onnx"):
        load_graph(saved(tmp_path, classifier(**changes)))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "[" * 100000, '{"a":' * 100000, "9" * 5000, " " * 2**21])
def test_descriptions_that_are_none(tmp_path: Path, text: str) -> None:
    model = classifier(described=False)
    entry = model.metadata_props.add()
    entry.key, entry.value = "multitudes", text
    with pytest.raises(mt.FileError, match="description of the ensemble is damaged"):
        load_graph(saved(tmp_path, model))


def test_a_newer_format(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match="update multitudes"):
        load_graph(saved(tmp_path, classifier(format=2)))
