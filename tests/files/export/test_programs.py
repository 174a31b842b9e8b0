"""Ensembles as programs of torch, and compiled ahead of time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from files.export.cases import made

import multitudes as mt


@pytest.mark.slow
def test_a_program_of_torch(tmp_path: Path) -> None:
    ens, inputs = made("unet", mt.Deep(members=2))
    result = mt.export(ens, inputs(2), tmp_path / "a.pt2")
    assert result.format == "pt2"
    extra = {"multitudes.json": ""}
    module = torch.export.load(str(result.path), extra_files=extra).module()
    assert json.loads(extra["multitudes.json"])["outputs"] == list(result.outputs)
    x = inputs(7)
    probs = dict(zip(result.outputs, module(x), strict=True))["probs"]
    torch.testing.assert_close(probs, mt.predict(ens, x, progress=False).probs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_compiled_program(tmp_path: Path) -> None:
    ens, inputs = made("mlp", mt.MultiHead(members=2))
    result = mt.export(ens, inputs(2), tmp_path / "a.pt2", outputs=["probs"], aot=True)
    assert result.format == "aoti"
    compiled: Any = torch._inductor.aoti_load_package(str(result.path))
    assert json.loads(compiled.get_metadata()["multitudes"])["outputs"] == ["probs"]
    x = inputs(7)
    torch.testing.assert_close(compiled(x)[0], mt.predict(ens, x, progress=False).probs, rtol=1e-4, atol=1e-5)
