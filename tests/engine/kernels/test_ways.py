"""Which way a convolution runs: rules of thumb, what was measured, and the file of measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from multitudes.engine.kernels import ways
from multitudes.engine.kernels.measure import measured_ways, milliseconds
from multitudes.engine.kernels.ways import Convolution, fastest, forced, met, remember, way_of

HERE = Convolution(
    members=2, rows=2, channels=4, out=4, kernel=(3, 3), image=(6, 6), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1,
    dtype=torch.float32, device="cpu", channels_last=False, trains=True,
)  # fmt: skip
THERE = replace(HERE, device="cuda", dtype=torch.bfloat16, channels_last=True)


@pytest.fixture(autouse=True)
def no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTITUDES_CACHE", str(tmp_path))
    monkeypatch.setattr(ways, "_measured", {})
    monkeypatch.setattr(ways, "_answers", {})
    monkeypatch.setattr(ways, "_read", [])


def test_rules_of_thumb() -> None:
    assert fastest(HERE) == fastest(THERE) == "grouped"
    assert fastest(replace(HERE, rows=4000)) == "each"
    assert fastest(replace(THERE, stride=(2, 2))) == "block"
    assert fastest(replace(THERE, stride=(2, 2), channels=512)) == "grouped"
    assert fastest(replace(THERE, stride=(2, 2), groups=2)) == "grouped"
    assert fastest(replace(THERE, kernel=(1, 1), padding=(0, 0))) == "product"


@pytest.mark.parametrize(
    ("channels", "kernel", "trains", "wanted"),
    [
        (512, 1, False, "block"),
        (513, 1, False, "grouped"),
        (256, 1, True, "block"),
        (257, 1, True, "each"),
        (4, 3, True, "grouped"),
    ],
)
def test_rules_of_single_precision(
    channels: int, kernel: int, trains: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default torch lets a GPU round single precision in convolutions, and not in products, which are slow."""
    one = replace(
        THERE,
        dtype=torch.float32,
        channels=channels,
        out=600,
        kernel=(kernel, kernel),
        padding=(kernel // 2,) * 2,
        trains=trains,
    )
    assert ways.fp32_precisions()[1] != "tf32"
    monkeypatch.setattr(ways, "fp32_precisions", lambda: ("tf32", "ieee"))
    assert fastest(one) == wanted
    assert fastest(replace(one, channels_last=False)) == "grouped"
    monkeypatch.setattr(ways, "fp32_precisions", lambda: ("tf32", "tf32"))
    assert fastest(one) == ("product" if kernel == 1 else "grouped")


def test_what_was_measured_counts(tmp_path: Path) -> None:
    """In this process, and from disk in the next; on a CPU nothing is measured."""
    remember({THERE.key(): "each", HERE.key(): "each"})
    assert fastest(THERE) == "each"
    assert fastest(HERE) == "grouped"
    assert (tmp_path / "convolutions.json").exists()
    ways._measured.clear()
    ways._answers.clear()
    ways._read.clear()
    assert fastest(THERE) == "each"
    assert fastest(replace(THERE, rows=64)) == "grouped"


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 3}', '{"a": {"b": {}}}'])
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "convolutions.json").write_text(text)
    assert fastest(THERE) == "grouped"
    remember({THERE.key(): "each"})
    assert fastest(THERE) == "each"


def test_a_way_that_is_not_possible_is_not_taken() -> None:
    """A file may name one, of another version or by hand."""
    remember({THERE.key(): "product", replace(THERE, groups=2).key(): "unknown"})
    assert fastest(THERE) == fastest(replace(THERE, groups=2)) == "grouped"
    with forced("product"):
        assert fastest(THERE) == "grouped"


def test_measuring() -> None:
    """Every possible way is timed, and what runs in a with-block can be listed."""
    for one in (HERE, replace(HERE, channels_last=True, kernel=(1, 1), padding=(0, 0)), replace(HERE, trains=False, groups=2)):
        times = milliseconds(one, repeats=1)
        assert set(times) == set(one.possible)
        assert measured_ways([one], repeats=1)[one.key()] in one.possible
    with met() as found:
        fastest(HERE)
    assert list(found.values()) == [HERE]


def test_a_symbolic_number_of_rows() -> None:
    """As in a call that is compiled for all batch sizes; torch may ask for its way outside of the compiler."""
    found = []

    def ask(x: Tensor, kernel: Tensor) -> Tensor:
        assert not isinstance(x.shape[0], int)
        found.append(way_of(x, kernel, [1, 1], [1, 1], [1, 1], 1))
        return x

    make_fx(ask, tracing_mode="symbolic")(torch.empty(5, 3, 4, 8, 8), torch.empty(3, 4, 4, 3, 3))
    assert found[0] in ("grouped", "each")
