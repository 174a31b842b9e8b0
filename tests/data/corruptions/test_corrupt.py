"""All 95: kind and shape stay, pieces equal the whole, severities worsen, bad input is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from pictures import pictures, values
from torch import Tensor

from multitudes.data.corruptions.corrupt import NAMES, corrupt, corruptions
from multitudes.data.corruptions.published import SEVERITIES
from multitudes.errors import InputError

FIXED = {"defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "saturate"}
"""Those without chance."""

WORSE = {
    name: SEVERITIES
    for name in NAMES
    if name not in ("saturate", "spatter", "glass_blur", "frost", "elastic_transform")
} | {"saturate": (3, 4, 5), "spatter": (1, 2, 3), "glass_blur": (3, 5), "frost": (1, 2)}  # fmt: skip
"""Severities at which an image is the farther from the clean one; the others change in kind rather than in degree."""


def far(images: Tensor, name: str, severity: int) -> float:
    return float((corrupt(images, name, severity).float() - images.float()).abs().mean())


def test_there_are_nineteen() -> None:
    assert len(NAMES) == len(set(NAMES)) == 19


@pytest.mark.parametrize("severity", [2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_pieces_equal_the_whole(name: str, severity: int) -> None:
    """Whatever the batch, twice the same, and the images given are not written to."""
    images = pictures(5)
    before = images.clone()
    whole = corrupt(images, name, severity, seed=3)
    assert torch.equal(images, before)
    assert whole.dtype == torch.uint8
    assert not torch.equal(whole, images)
    pieces = [corrupt(images[:1], name, severity, 3), corrupt(images[1:4], name, severity, 3, start=1)]
    assert torch.equal(torch.cat([*pieces, corrupt(images[4:], name, severity, 3, start=4)]), whole)


@pytest.mark.parametrize("name", NAMES)
def test_how_much_is_done_at_once_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = values(pictures(5, height=9, width=12))
    whole = corrupt(images, name, 3)
    monkeypatch.setitem(corrupt.__globals__, "AT_ONCE", 2 * 3 * 9 * 12)
    assert torch.equal(corrupt(images, name, 3), whole)


@pytest.mark.parametrize("name", NAMES)
def test_chance_is_the_seeds(name: str) -> None:
    """Another seed, another index: other noise. What has no chance is always the same."""
    images = pictures(1).expand(2, -1, -1, -1)
    found = corrupt(images, name, 5, seed=1)
    assert torch.equal(found, corrupt(images, name, 5, seed=2)) == (name in FIXED)
    assert torch.equal(found[0], found[1]) == (name in FIXED)
    assert torch.equal(found, corrupt(images, name, 5, seed=1))


@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
def test_severities_have_chance_of_their_own(name: str) -> None:
    """Noise is not the same pattern scaled."""
    images = torch.full((1, 1, 64, 64), 0.5)
    found = torch.stack([corrupt(images, name, severity).flatten() for severity in SEVERITIES])
    assert float((torch.corrcoef(found) - torch.eye(5)).abs().max()) < 0.1


SHAPES = [(2, 1, 28, 28), (2, 3, 33, 20), (1, 1, 5, 7), (2, 3, 1, 1), (1, 3, 2, 9), (2, 3, 20, 70)]


@pytest.mark.parametrize("name", NAMES)
def test_any_size_grey_or_coloured(name: str) -> None:
    """Bytes and floats in turn, at every severity."""
    for shape, severity in itertools.product(SHAPES, SEVERITIES):
        images = pictures(*shape)
        given = images if severity % 2 else values(images)
        found = corrupt(given, name, severity)
        assert found.shape == images.shape
        assert found.dtype == given.dtype
        assert bool(torch.isfinite(found.float()).all()), (shape, severity)
        assert float(found.max()) <= (255 if given is images else 1)
        assert float(found.min()) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_floats_and_bytes_agree(name: str) -> None:
    """Within the rounding of bytes; and other floats are those of single precision, rounded."""
    images = pictures(2)
    found = corrupt(values(images), name, 4)
    torch.testing.assert_close(found, values(corrupt(images, name, 4)), atol=0.5 / 255 + 1e-5, rtol=0)
    assert torch.equal(corrupt(values(images).double(), name, 4), found.double())
    rough = values(images).bfloat16()
    assert torch.equal(corrupt(rough, name, 4), corrupt(rough.float(), name, 4).bfloat16())


@pytest.mark.parametrize("name", WORSE)
def test_severities_worsen(name: str) -> None:
    """Farther from the clean image, on average over images."""
    images = pictures(24)
    distances = [far(images, name, severity) for severity in WORSE[name]]
    assert distances == sorted(distances)
    assert distances[0] > 0.3
    assert distances[-1] > 1.1 * distances[0]


@pytest.mark.parametrize("name", ["gaussian_noise", "defocus_blur", "contrast", "snow"])
def test_wide_images_are_corrupted_as_imagenets(name: str) -> None:
    """At 65 pixels it is markedly worse than at 64."""
    images = pictures(4, height=64, width=65)
    assert far(images, name, 1) > 1.3 * far(images[..., :64], name, 1)


def test_images_may_lie_anyhow_in_memory() -> None:
    """Transposed, with gaps, or needing gradients."""
    images = pictures(4).float() / 255
    expected = corrupt(images, "glass_blur", 3)
    assert torch.equal(corrupt(images.to(memory_format=torch.channels_last), "glass_blur", 3), expected)
    assert torch.equal(corrupt(images.repeat_interleave(2, 3)[..., ::2], "glass_blur", 3), expected)
    found = corrupt(images.clone().requires_grad_(), "glass_blur", 3)
    assert torch.equal(found, expected)
    assert not found.requires_grad


def test_no_images_give_none() -> None:
    assert corrupt(pictures()[:0], "fog", 1).shape == (0, 3, 32, 32)


def test_all_of_them_by_name_and_severity() -> None:
    """Each as `corrupt` gives it, made when asked for."""
    images = pictures(2)
    found = corruptions(images, seed=5, start=7)
    assert list(found) == list(NAMES)
    assert all(list(of_name) == list(SEVERITIES) for of_name in found.values())
    assert torch.equal(found["snow"][2], corrupt(images, "snow", 2, 5, start=7))
    few = corruptions(images, ["fog", "contrast"], [5])
    assert {name: list(of_name) for name, of_name in few.items()} == {"fog": [5], "contrast": [5]}
    assert len(few) == 2
    with pytest.raises(KeyError):
        few["snow"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gausian_noise"}, "'gausian_noise' .*nearest: 'gaussian_noise'"),
        ({"name": None}, "no corruption None"),
        ({"severity": 0}, "severity=0.*from 1 to 5"),
        ({"severity": 6}, "severity=6"),
        ({"severity": 2.0}, "severity=2.0"),
        ({"severity": True}, "severity=True"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"start": -1}, "start=-1.*at least 0"),
        ({"images": [1]}, "not list"),
        ({"images": torch.zeros(3, 32, 32)}, r"\[3, 32, 32\]"),
        ({"images": torch.zeros(2, 4, 32, 32)}, "1 or 3 channels"),
        ({"images": torch.zeros(2, 3, 0, 32)}, r"\[2, 3, 0, 32\]"),
        ({"images": torch.zeros(2, 3, 8, 8, dtype=torch.int64)}, "torch.int64"),
        ({"images": torch.full((1, 3, 8, 8), 1.1)}, "not yet normalised"),
        ({"images": torch.full((1, 3, 8, 8), -0.1)}, "not yet normalised"),
        ({"images": torch.full((1, 3, 8, 8), torch.nan)}, "not yet normalised"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        corrupt(**({"images": pictures(1), "name": "fog", "severity": 1} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": "fog"}, r"names=\['fog'\]"),
        ({"names": ["fogg"]}, "nearest: 'fog'"),
        ({"severities": [7]}, "severity=7"),
        ({"images": torch.zeros(2)}, r"\[2\]"),
    ],
)
def test_bad_choices_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    """And not when an image is asked for."""
    with pytest.raises(InputError, match=message):
        corruptions(**({"images": pictures(1)} | arguments))
