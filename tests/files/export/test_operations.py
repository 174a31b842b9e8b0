"""Operations of members that have no rule in export: they run once for all members, or one member after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from files.export.cases import made, off
from torch import Tensor, nn

import multitudes as mt
from multitudes.files.export import work
from multitudes.files.export.members import AllMembers

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Odd(nn.Module):
    """Operations that few networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, groups=2)
        self.pool, self.mix, self.c = nn.AdaptiveMaxPool2d(2), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.pixel_shuffle(nn.functional.gelu(self.b(self.norm(self.a(x)))), 2)
        rows = self.mix(nn.functional.normalize(self.pool(y).flatten(2), dim=1))  # [B, 4, 4]
        return self.c(torch.einsum("bij,bjk->bik", rows, rows).amax(1))


class Padded(nn.Module):
    """Activations, padding and norms that torch leaves as single operations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 8, 1)
        self.norm, self.out = nn.RMSNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.hardswish(self.a(nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")))
        y = nn.functional.pad(self.b(nn.functional.pad(y, (2, 0, 0, 2), mode="replicate")), (1, 0, 0, 1))
        y = nn.functional.logsigmoid(self.c(nn.functional.pad(y, (1, 1, 1, 1), mode="circular")))
        return self.out(self.norm(y.amax((2, 3))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [mt.Deep, mt.BatchEnsemble])
def test_operations_without_tags_run_once_for_all_members(kind: Any) -> None:
    torch.manual_seed(0)
    ens = mt.ensemble(Padded(), kind(members=3), torch.randn(3, 3, 6, 6), seed=0).eval()
    for name, parameter in ens.named_parameters():
        if name == "norm.weight":
            parameter.data.uniform_(0.5, 2.0)
    example = mt.Inputs(torch.randn(3, 3, 6, 6))
    members = AllMembers(work.member_graph(ens, example, small=False)[1], example.tensors())
    assert not members.unrolled
    for count in (1, 3, 17):
        x = torch.randn(count, 3, 6, 6)
        with torch.no_grad():
            torch.testing.assert_close(members(x), ens(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_odd_operations_run_once_for_all_members(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ens = mt.ensemble(Odd(), mt.BatchEnsemble(members=3), torch.randn(3, 3, 8, 8), seed=0).eval()
    result = mt.export(ens, torch.randn(3, 3, 8, 8), tmp_path / "a.onnx", outputs=["member_logits"])
    assert result.form == "one graph for all members"
    assert max(off(result.path, ens, torch.randn(count, 3, 8, 8)) for count in (1, 3, 17)) < 1e-5
    assert "give units=train" in " ".join(str(result).split())


@pytest.mark.slow
def test_one_member_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done for a network whose operations cannot run for all members at once with a free batch size."""
    ens, inputs = made("mlp", mt.EMP(members=3))
    plain = work.traced

    def fixes(module: nn.Module, *args: Any) -> Any:
        if isinstance(module, work.Outputs) and not getattr(module.members, "in_turn"):  # noqa: B009
            raise mt.RunError("the batch size is fixed. An exported graph has one path")
        return plain(module, *args)

    monkeypatch.setattr(work, "traced", fixes)
    result = mt.export(ens, inputs(3), tmp_path / "a.onnx", outputs=["member_logits"])
    assert result.form == "one member after another, since the batch size is fixed"
    assert max(off(result.path, ens, inputs(count)) for count in (1, 3, 17)) < 1e-5
