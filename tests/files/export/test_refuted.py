"""What a reader with fresh eyes found in exports: masks of infinite numbers, answers that are no numbers, several inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes import data
from multitudes.files.export import verify
from multitudes.files.export.onnx_file import Session

pytest.importorskip("onnxruntime")


class Causal(nn.Module):
    """Attention without weights, under a mask that is stored as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)
        self.register_buffer("mask", torch.full((16, 16), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x @ x.transpose(1, 2) + self.mask).softmax(-1).mean(1))


@pytest.mark.slow
def test_a_mask_of_infinite_numbers_is_not_quantised(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    x = torch.randn(3, 16, 4)
    ens = mt.ensemble(Causal(), mt.Deep(members=2), x, seed=0).eval()
    written = mt.export(ens, x, tmp_path / "small.onnx", precision="int8", outputs=["probs"])
    assert 0 < written.difference < 0.05


def test_answers_that_are_no_numbers_are_refused() -> None:
    """Also where a difference is allowed, as in reduced precision."""
    torch.set_default_dtype(torch.float32)
    x = torch.randn(3, 5)
    ens = mt.ensemble(nn.Linear(5, 3), mt.Deep(members=2), x, seed=0).eval()
    meaning = verify.Meaning(
        task="classes", outputs=("probs",), calibrator=None, class_axis=1, noise=None, threshold=None, units=None
    )

    def answer(tensors: list[Tensor]) -> dict[str, Tensor]:
        return {"probs": torch.full((len(tensors[0]), 3), float("nan"))}

    with pytest.raises(mt.RunError, match="answers NaN in probs"):
        verify.compare(ens, answer, mt.Inputs(x), meaning, None, strict=False)


class Two(nn.Module):
    """An image and a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.row, self.out = nn.Conv2d(3, 4, 3), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        return self.out(self.conv(image).mean((2, 3)) + self.row(row))


@pytest.mark.slow
def test_only_images_have_the_normalisation_of_images(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    x = mt.Inputs(torch.randn(3, 3, 6, 6), torch.randn(3, 5))
    ens = mt.ensemble(Two(), mt.Deep(members=2), x, seed=0).eval()
    train = data.Data(torch.rand(8, 3, 6, 6), torch.randint(3, (8,)), mean=[0.5] * 3, std=[0.2] * 3)
    mt.export(ens, x, tmp_path / "two.onnx", units=train)
    pytest.importorskip("fastapi")
    from multitudes.shell.serve.graph import load_graph

    image, row = load_graph(tmp_path / "two.onnx").inputs
    assert image.mean == (0.5, 0.5, 0.5)
    assert row.mean is None or row.mean == ()


class OverTheBatch(nn.Module):
    """A norm without running statistics, so that rows depend on each other in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.mark.slow
def test_rows_that_depend_on_each_other(tmp_path: Path) -> None:
    """The export says so, and a server, which puts the rows of strangers together, does not take the file."""
    torch.set_default_dtype(torch.float32)
    x = torch.randn(3, 3, 6, 6)
    ens = mt.ensemble(OverTheBatch(), mt.Deep(members=2), x, seed=0).eval()
    written = mt.export(ens, x, tmp_path / "batch.onnx")
    assert not written.alone
    assert "depend on each other" in str(written)
    pytest.importorskip("fastapi")
    from multitudes.shell.serve.graph import load_graph

    with pytest.raises(mt.InputError, match="rows beside it"):
        load_graph(tmp_path / "batch.onnx")


def test_numbers_without_operations_are_refused(tmp_path: Path) -> None:
    x = torch.randn(3, 5).bfloat16()
    ens = mt.ensemble(nn.Linear(5, 3).bfloat16(), mt.Deep(members=2), x, seed=0).eval()
    with pytest.raises(mt.InputError, match=r"weight is bfloat16.*export ens\.float\(\)"):
        mt.export(ens, x, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_half_precision_rounds_more(tmp_path: Path) -> None:
    """Onnxruntime and PyTorch round at other places: such a network was refused as a graph that differs."""
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.ReLU())]
    x = torch.randn(3, 64).half()
    ens = mt.ensemble(nn.Sequential(*layers, nn.LayerNorm(64)).half(), mt.Deep(members=2), x, seed=0).eval()
    written = mt.export(ens, x, tmp_path / "a.onnx", outputs=["member_logits"])
    assert verify.NEAR < written.difference < 0.01


def test_errors_of_onnxruntime_are_told() -> None:
    with pytest.raises(mt.RunError, match=r"onnxruntime cannot load the graph: .*Export to \.pt2"):
        Session(b"no graph")
