"""Image files: read on access, resized and cropped as for testing on ImageNet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from multitudes.data.images import image_files, list_images


def gradient(path: Path, width: int = 70, height: int = 35) -> np.ndarray:
    """An image whose red grows to the right and whose green grows downwards."""
    red, green = np.meshgrid(np.arange(width) * 3, np.arange(height) * 7)
    pixels = np.stack([red, green, np.zeros_like(red)], -1).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_the_centre_is_cut_out(tmp_path: Path) -> None:
    pixels = gradient(tmp_path / "a.png")
    found = image_files([tmp_path / "a.png"], 28, 35).take(slice(None))
    assert (found.shape, found.dtype) == ((1, 3, 28, 28), torch.uint8)
    np.testing.assert_array_equal(found[0].permute(1, 2, 0).numpy(), pixels[4:32, 21:49])  # (35 − 28)/2 rounds to 4


def test_the_shorter_side_is_resized_first(tmp_path: Path) -> None:
    gradient(tmp_path / "a.png")
    found = image_files([tmp_path / "a.png"], 14, 16).take(slice(None))[0].float()
    expected = np.asarray(Image.open(tmp_path / "a.png").resize((32, 16), Image.Resampling.BILINEAR))[1:15, 9:23]
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), expected)
    tall = Image.open(tmp_path / "a.png").transpose(Image.Transpose.TRANSPOSE)
    tall.save(tmp_path / "b.png")
    turned = image_files([tmp_path / "b.png"], 14, 16).take(slice(None))[0].float()
    torch.testing.assert_close(turned, found.transpose(1, 2), rtol=0, atol=1)


def test_by_default_seven_eighths_are_kept(tmp_path: Path) -> None:
    gradient(tmp_path / "a.png")
    paths = [tmp_path / "a.png"]
    assert torch.equal(image_files(paths, 28, None).take(slice(None)), image_files(paths, 28, 32).take(slice(None)))


def test_a_border_is_cut_off_before(tmp_path: Path) -> None:
    framed = Image.new("RGB", (24, 24), (255, 0, 0))
    framed.paste(Image.new("RGB", (20, 20), (0, 0, 255)), (2, 2))
    framed.save(tmp_path / "a.png")
    assert image_files([tmp_path / "a.png"], 20, 20, 2).take(slice(None))[0, 0].max() == 0
    assert image_files([tmp_path / "a.png"], 24, 24).take(slice(None))[0, 0].max() == 255


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_any_kind_of_image_has_three_channels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (20, 20), (102, 102, 102)).convert(mode).save(path)
    found = image_files([path], 8, 8).take(slice(None))
    assert found.shape == (1, 3, 8, 8)
    assert bool(((found.int() - 102).abs() <= 2).all())


def test_only_files_that_are_needed_are_read(tmp_path: Path) -> None:
    gradient(tmp_path / "a.png")
    files = image_files([tmp_path / f"{name}.png" for name in "abc"], 8, 8)
    assert files.take(torch.tensor([0])).shape == (1, 3, 8, 8)


def test_folders_are_listed_in_order_whatever_the_endings_case(tmp_path: Path) -> None:
    for name in ("b.JPEG", "a.png", "inner/c.jpg", "notes.txt", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)] == ["a.png", "b.JPEG", "inner/c.jpg"]
