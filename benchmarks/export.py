"""Exports five networks of usual sizes by every method, and compares operations, size and outputs of the files.

python benchmarks/export.py                                      all pairs, into results/export.json
python benchmarks/export.py --resume                             the pairs that a run that was stopped has left
python benchmarks/export.py --networks resnet,vit --methods Deep,Packed
python benchmarks/export.py --limits                             time by the bytes of kernels that are formed on loading
python benchmarks/export.py --write                              both results as the tables of docs/deploy.md

Each pair is written to results/export.json as it is printed. A run of all pairs begins with an empty file. Runs of several
networks with --resume may go side by side.
Tensors held are those of the ensemble, or of the compacted one, draws included, as the engine stores them; a file should
have at most 1.1 times their bytes. Operations are those that depend on the inputs, compared with those of the single network;
a runtime computes the others once, when it loads the file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import multitudes as mt
from multitudes import models
from multitudes.engine.modules import named_tensors

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "export.json", ROOT / "docs" / "deploy.md"
LIMITS = ROOT / "results" / "export_limits.json"
NETWORKS = "mlp,unet,vit,bert,resnet"
METHODS = "Single,Deep,Packed,BatchEnsemble,MIMO,Masksembles,MultiHead,TreeNet,MCDropout,DropConnect,EMP,ECMP"
SIZES = (1, 3, 17)
OUTPUTS = ["probs", "entropy", "mutual_information", "member_logits"]

sys.path.insert(0, str(ROOT / "tests" / "files" / "export"))


def bert() -> nn.Module:
    """BERT-small: 4 layers of 512."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    return BertForSequenceClassification(BertConfig(**sizes, vocab_size=8000, max_position_embeddings=128, num_labels=4))


def words(count: int) -> mt.Inputs:
    """Sentences of 12 words, some masked."""
    mask = (torch.rand(count, 12) > 0.3).long()
    mask[:, 0] = 1
    return mt.Inputs(torch.randint(8000, (count, 12)), attention_mask=mask)


def networks() -> dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]]:
    """Returns each network with a maker of its inputs. Images are small: sizes of files do not depend on them."""
    from test_export import MLP, UNet  # type: ignore[import-not-found]

    return {
        "mlp": (lambda: MLP(512), lambda count: torch.randn(count, 8)),
        "resnet": (models.resnet18, lambda count: torch.randn(count, 3, 16, 16)),
        "vit": (lambda: models.ViT(image=16, size=192, depth=6), lambda count: torch.randn(count, 3, 16, 16)),
        "unet": (lambda: UNet(32), lambda count: torch.randn(count, 3, 16, 16)),
        "bert": (bert, words),
    }


def held_bytes(ens: mt.Ensemble) -> int:
    """Returns the bytes of the ensemble's tensors, draws included; BatchNorm's counters are not of the network's outputs."""
    found = {id(tensor): tensor for name, tensor in named_tensors(ens.template) if not name.endswith("num_batches_tracked")}
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


def count_operations(path: Path) -> int:
    """Counts the operations of a file whose results depend on its inputs."""
    import onnx

    graph = onnx.load(path).graph
    known, count = {one.name for one in graph.input}, 0
    for node in graph.node:
        if known & set(node.input):
            known |= set(node.output)
            count += 1
    return count


def measure(network: str, kind: type[mt.Method], folder: Path) -> dict[str, Any]:
    """Exports one pair, and runs the file beside the ensemble."""
    from test_export import off

    make, inputs = networks()[network]
    torch.manual_seed(0)
    ens = mt.ensemble(make(), kind(), inputs(3), seed=0, output="logits" if network == "bert" else None).eval()
    result = mt.export(ens, inputs(3), folder / "a.onnx", outputs=OUTPUTS)
    return {
        "operations": count_operations(result.path),
        "constant operations": result.nodes - count_operations(result.path),
        "bytes": result.bytes,
        "graph": result.tensor_bytes,
        "held": held_bytes(ens.compact() if result.compacted else ens),
        "uncompacted": held_bytes(ens),
        "difference": max(off(result.path, ens, inputs(size)) for size in SIZES),
        "form": result.form,
        "compacted": result.compacted,
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    """Returns a table in Markdown: for each method and network, operations and bytes in shares."""
    names = list(dict.fromkeys(key.split("/")[0] for key in found))
    methods = list(dict.fromkeys(key.split("/")[1] for key in found))
    lines = ["| method | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for method in methods:
        cells = [_cell(found, name, method) for name in names]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: dict[str, dict[str, Any]], network: str, method: str) -> str:
    one, single = found.get(f"{network}/{method}"), found.get(f"{network}/Single")
    if one is None or single is None or "refused" in one:
        return "refused" if one is not None and "refused" in one else "not measured"
    grown = f" ({one['bytes'] / one['uncompacted']:.2f})" if one["held"] > one["uncompacted"] else ""
    return f"{one['operations'] / single['operations']:.2f} / {one['bytes'] / one['held']:.3f}{grown}"


def in_order(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the pairs in the order of a whole run: two runs may have measured parts of them side by side."""
    return {key: found[key] for key in (f"{a}/{b}" for a in NETWORKS.split(",") for b in METHODS.split(",")) if key in found}


def run(pairs: list[tuple[str, str]], found: dict[str, dict[str, Any]]) -> None:
    """Measures each pair that is not among those found, prints it and writes all to the file."""
    for network, name in [pair for pair in pairs if "/".join(pair) not in found]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                one = measure(network, getattr(mt, name), Path(folder))
            except mt.MultitudesError as error:
                one = {"refused": str(error)}
        found |= {**(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}), f"{network}/{name}": one}
        print(f"{network:8} {name:14} {_cell(found, network, name)}  {json.dumps(one)}", flush=True)
        RESULTS.write_text(json.dumps(in_order(found), indent=1) + "\n")


def measure_limits() -> None:
    """Exports ResNet-18 by EMP with limits of formed kernels, and times each file in onnxruntime on one core."""
    import onnxruntime

    from multitudes.files.export import factors

    inputs = torch.randn(16, 3, 32, 32)
    ens = mt.ensemble(models.resnet18(), mt.EMP(), inputs[:3], seed=0).eval()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    rows = []
    for limit in (0, 2**26, factors.LARGEST, 2**29, 2**30):
        factors.LARGEST, before = limit, factors.LARGEST
        with tempfile.TemporaryDirectory() as folder:
            path = mt.export(ens, inputs[:3], Path(folder) / "a.onnx", outputs=OUTPUTS).path
            start = time.process_time()
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            row = {"MiB": limit // 2**20, "operations": count_operations(path), "load s": round(time.process_time() - start, 1)}
        factors.LARGEST = before
        for count in (1, 16):
            call = {session.get_inputs()[0].name: inputs[:count].numpy()}
            row[f"ms, batch {count}"] = round(min(_seconds(session, call) for _ in range(6)) * 1000)
        print(json.dumps(row), flush=True)
        rows.append(row)
    LIMITS.write_text(json.dumps(rows, indent=1) + "\n")


def _seconds(session: Any, call: dict[str, Any]) -> float:
    """Returns the computing time of one call."""
    start = time.process_time()
    session.run(None, call)
    return time.process_time() - start


def write_page() -> None:
    """Writes the results as the tables of docs/deploy.md."""
    rows = json.loads(LIMITS.read_text())
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    page = PAGE.read_text()
    for name, whole in (("files", table(json.loads(RESULTS.read_text()))), ("limits", "\n".join(lines))):
        page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, w=whole: f"{m[1]}\n{w}\n\n{m[2]}", page, flags=re.S)
    PAGE.write_text(page)


def main() -> int:
    """Measures, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--limits", action="store_true")
    given = parser.parse_args()
    if given.write:
        write_page()
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.limits:
        measure_limits()
        return 0
    pairs = [(network, name) for network in given.networks.split(",") for name in given.methods.split(",")]
    kept = RESULTS.exists() and (given.resume or (given.networks, given.methods) != (NETWORKS, METHODS))
    before = json.loads(RESULTS.read_text()) if kept else {}
    found = {key: one for key, one in before.items() if given.resume or tuple(key.split("/")) not in pairs}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    run(pairs, found)
    large = [key for key, one in found.items() if "refused" in one or one["bytes"] > 1.1 * one["held"]]
    print(f"refused, or larger than 1.1 × the tensors held: {', '.join(large) or 'none'}")
    return int(bool(large))


if __name__ == "__main__":
    sys.exit(main())
