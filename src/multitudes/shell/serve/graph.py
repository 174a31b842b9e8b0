"""Graph: an ONNX file that was checked before it is run. Nothing outside its folder is read, and no other code is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multitudes.errors import FileError, InputError, RunError
from multitudes.files.export.seal import KEY as SEAL
from multitudes.files.export.seal import is_intact
from multitudes.shell.serve.description import KEY, Description, Input, described

Arrays = dict[str, NDArray[Any]]

DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
"""Domains of operators that onnxruntime has built in."""

LARGEST = 2**31 - 1
"""Most bytes of an ONNX file: protobuf has no larger messages."""

DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Types of onnxruntime that have a numpy type."""


@dataclass(frozen=True)
class Graph:
    """An ONNX file that is ready to run."""

    name: str
    """Name of the file, without its folder."""

    session: Any
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    about: Description
    notes: tuple[str, ...] = ()
    """What the file does not say, in words."""

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Runs rows, batch first, and returns the outputs by name."""
        rows = len(next(iter(arrays.values())))
        values = self.session.run(list(self.outputs), dict(arrays))
        for name, value in zip(self.outputs, values, strict=True):
            if value.ndim == 0 or len(value) != rows:
                raise RunError(
                    f"{self.name}: output {name} has shape {list(value.shape)} for {rows} rows: export it batch first"
                )
        return dict(zip(self.outputs, values, strict=True))


def load_graph(path: str | PathLike[str], threads: int = 0) -> Graph:
    """Checks an ONNX file and makes it ready to run.

    threads   threads that compute one batch; 0 for all cores
    """
    file = Path(path)
    data = _read(file)
    intact = is_intact(data)
    if intact is False:
        raise FileError(
            f"{file} is damaged: it is not as mt.export wrote it. Write it again, or, if you changed it on purpose, remove "
            f"{SEAL!r} and {KEY!r} from its metadata"
        )
    external = _check(data, file)
    session = _session(file if external else data, file, threads)
    try:
        return _described(session, file, intact is not None)
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is damaged: a name in it is no text ({error}). Write it again with mt.export") from error


def _described(session: Any, file: Path, intact: bool) -> Graph:
    """Returns the graph with what the file says of it."""
    about = described(session.get_modelmeta().custom_metadata_map.get(KEY), file)
    if about.sealed and not intact:
        raise FileError(f"{file} is damaged: its digest is missing. Write it again with mt.export")
    if not about.alone:
        raise InputError(
            f"{file}: a row's answer depends on the rows beside it, and a server puts the rows of several clients together. "
            "Give the network's BatchNorm layers running statistics, train and export again; or run the file in onnxruntime "
            "yourself"
        )
    inputs = tuple(about.complete(_input(one, file)) for one in session.get_inputs())
    if len(inputs) != 1 and not about.known:
        raise InputError(
            f"{file} has {len(inputs)} inputs and no description of multitudes: serve a file that mt.export wrote, or one with "
            "one input"
        )
    outputs, left_out = _outputs(session, about, file)
    unsealed = ("no digest: damage to the file would not be seen",) if not intact else ()
    notes = (*about.notes(), *unsealed, *(f"{name}: not served, since it is no tensor of numbers" for name in left_out))
    if len(inputs) == 1 and inputs[0].is_image and inputs[0].mean is None:
        notes = (*notes, "no normalisation: pixels of images are numbers from 0 to 1")
    graph = Graph(file.name, session, inputs, outputs, about, notes)
    _try(graph)
    return graph


def _read(file: Path) -> bytes:
    """Returns the bytes of the file."""
    if not file.is_file():
        raise FileError(
            f"{file} is a folder: give a file in it" if file.is_dir() else f"there is no file {file}: check the path"
        )
    if file.stat().st_size > LARGEST:
        raise FileError(f"{file} is larger than 2 GiB, which an ONNX file cannot be: export it with external data")
    try:
        return file.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror or error}") from error


def _check(data: bytes, file: Path) -> bool:
    """Refuses what is no ONNX, data outside the folder and unknown operators; returns whether there is data in other files."""
    import onnx

    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has its own
        raise FileError(f"{file} is no ONNX file, or damaged: write it again with mt.export") from error
    if not model.graph.node or not model.graph.input:
        raise FileError(f"{file} is no ONNX file, or has no inputs and operators: write one with mt.export")
    local = {function.domain for function in model.functions}
    graphs = list(_graphs([model.graph, *model.functions]))
    unknown = {node.domain for graph in graphs for node in graph.node} - DOMAINS - local
    if unknown:
        raise FileError(
            f"{file} needs operators of {', '.join(sorted(unknown))}, which only a library of code would have, and none is "
            "loaded: export it with standard operators"
        )
    external = {location for graph in graphs for location in _locations(graph)}
    for location in sorted(external):
        _check_location(location, file)
    return bool(external)


def _graphs(some: Iterable[Any]) -> Iterator[Any]:
    """Yields graphs and functions, and the graphs inside of their nodes."""
    for graph in some:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                yield from _graphs([*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs])


def _locations(graph: Any) -> Iterator[str]:
    """Yields the names of the files that hold tensors of a graph."""
    tensors = [*getattr(graph, "initializer", [])]
    for sparse in getattr(graph, "sparse_initializer", []):
        tensors += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors, attribute.sparse_tensor.values, attribute.sparse_tensor.indices]
            tensors += [part for one in attribute.sparse_tensors for part in (one.values, one.indices)]
    for tensor in tensors:
        if tensor.data_location == tensor.EXTERNAL or tensor.external_data:
            yield next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _check_location(location: str, file: Path) -> None:
    """Refuses a file that is not inside the folder of the ONNX file, links followed."""
    folder = file.resolve().parent
    try:
        target = (folder / location).resolve()
        inside = bool(location) and not Path(location).is_absolute() and target.is_relative_to(folder) and target.is_file()
    except (OSError, ValueError, RuntimeError):  # a name with NUL or without end, a ring of links
        inside = False
    if not inside:
        raise FileError(
            f"{file} keeps tensors in {location[:200]!r}, which is no file inside its folder: only such files are read. "
            "Export it again, and keep its files together"
        )


def _session(source: Path | bytes, file: Path, threads: int) -> Any:
    """Returns onnxruntime's session. A file without external data is run from the bytes that were checked."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are also the clients'
    given = str(source) if isinstance(source, Path) else source
    try:
        return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # onnxruntime has a class for each of its errors, and no common one
        raise FileError(f"onnxruntime cannot run {file}: {_first_line(error)}. Export it again") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def _input(found: Any, file: Path) -> Input:
    """Returns an input of the session; refuses one whose batch size is fixed."""
    if found.type not in DTYPES:
        raise InputError(f"{file}: input {found.name} is a {found.type}: serve a graph that takes tensors of numbers")
    if not found.shape or isinstance(found.shape[0], int):
        fixed = f"is fixed to {found.shape[0]}" if found.shape else "is missing"
        raise InputError(
            f"{file}: the batch size of input {found.name} {fixed}: export it with a free batch size, as mt.export does"
        )
    shape = tuple(size if isinstance(size, int) else None for size in found.shape[1:])
    return Input(name=found.name, shape=shape, dtype=DTYPES[found.type])


def _outputs(session: Any, about: Description, file: Path) -> tuple[tuple[str, ...], list[str]]:
    """Returns the outputs that are served, and those that are not tensors of numbers."""
    found = {one.name: one.type in DTYPES for one in session.get_outputs()}
    missing = [name for name in about.outputs if name not in found]
    if missing:
        raise FileError(f"{file} describes outputs that it does not have: {', '.join(missing)}. Export it again")
    named = about.outputs or tuple(found)
    served = tuple(name for name in named if found[name])
    if not served:
        raise InputError(f"{file} has no output that is a tensor of numbers: serve a file that mt.export wrote")
    return served, [name for name in named if not found[name]]


def _try(graph: Graph) -> None:
    """Runs one row and three: a file that cannot be served is refused at once. Free sizes beside the batch are not tried."""
    if any(size is None for one in graph.inputs for size in one.shape):
        return
    for rows in (1, 3):
        try:
            graph.run({one.name: np.zeros((rows, *map(int, one.shape)), one.dtype) for one in graph.inputs})  # type: ignore[arg-type]
        except RunError:
            raise
        except Exception as error:  # any of onnxruntime's
            raise FileError(f"{graph.name} fails on {rows} rows of zeros: {_first_line(error)}. Export it again") from error
