"""Bodies: every form gives the same arrays; what does not fit is refused, and the row is named."""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from multitudes.shell.serve.bodies import Refused, from_bytes, from_images, from_json
from multitudes.shell.serve.description import Input
from multitudes.shell.serve.limits import Limits

ROW = (Input("x", (3,), "float32"),)
LIMITS = Limits(rows=4, pixels=2000)
X = np.array([[1, 2, 3], [4.5, -5, 1e-3]], np.float32)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "read",
    [
        lambda: from_json(json.dumps({"rows": X.tolist()}).encode(), ROW, LIMITS),
        lambda: from_json(json.dumps({"rows": {"x": X.tolist()}}).encode(), ROW, LIMITS),
        lambda: from_bytes(X.astype("<f4").tobytes(), ROW, LIMITS),
        lambda: from_bytes(npy(X), ROW, LIMITS),
        lambda: from_bytes(npy(X.astype(np.float64)), ROW, LIMITS),
        lambda: from_bytes(npy(np.asfortranarray(X)), ROW, LIMITS),
        lambda: from_bytes(npy(X.astype(">f4")), ROW, LIMITS),
    ],
)
def test_every_form_is_the_same(read: Any) -> None:
    (array,) = read().values()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, X)


DEEP = b"[" * 100_000
REFUSED = [
    *((body, 400, "no JSON") for body in (b"", b"{", b"\xff", DEEP, b'{"rows":' + DEEP)),
    *((body, 422, "object") for body in (b"[1]", b"3", b'{"rows": [], "more": 1}')),
    (b'{"rows": 3}', 422, "an array"),
    (b'{"rows": []}', 422, "no rows"),
    (b'{"rows": [[]]}', 422, r"shape \[0\]"),
    (b'{"rows":' + b"[" * 500 + b"]" * 500 + b"}", 422, "shape"),
    (b'{"rows": {"y": []}}', 422, "inputs x"),
    (b'{"rows": [[1,2]]}', 422, r"shape \[2\].*must be float32 numbers of shape \[3\]"),
    (b'{"rows": [[1,2,3],[1,2]]}', 422, "different shapes"),
    *(
        (b'{"rows": [[%s]]}' % row, 422, "must be numbers")
        for row in (b'"a","b","c"', b"1,2,null", b"true,false,true", b"true,2.5,1", b"1,2,false", b"1,2,{}")
    ),
    (b'{"rows": [[1,2,3],[1,2,NaN]]}', 422, "row 1 of x is not finite"),
    *((b'{"rows": [[1,2,%s]]}' % number, 422, "row 0 of x is not finite") for number in (b"Infinity", b"1e300", b"1e999")),
    (b'{"rows": [[1,2,' + b"9" * 5000 + b"]]}", 400, "no JSON"),
    (json.dumps({"rows": [[1, 2, 3]] * 5}).encode(), 413, "at most 4"),
]


@pytest.mark.parametrize(("body", "status", "says"), REFUSED, ids=lambda value: str(value)[:30])
def test_json_that_is_refused(body: bytes, status: int, says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        from_json(body, ROW, LIMITS)
    assert refused.value.status == status


IDS = (Input("ids", (None,), "int32"), Input("mask", (None,), "bool"))


def test_several_inputs() -> None:
    arrays = from_json(b'{"rows": {"mask": [[true, false]], "ids": [[7, 8.0]]}}', IDS, LIMITS)
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "ids": ("int32", [[7, 8]]),
        "mask": ("bool", [[True, False]]),
    }


@pytest.mark.parametrize(
    ("ids", "mask", "says"),
    [
        ("[[1.5]]", "[[true]]", "row 0 of ids has a number that is no int32"),
        ("[[1], [3000000000]]", "[[true], [true]]", "row 1 of ids"),
        ("[[1]]", "[[1]]", "true or false"),
        ("[[1]]", "[[true], [true]]", "different numbers of rows"),
        ("[[NaN]]", "[[true]]", "row 0 of ids"),
        ("[[9223372036854775808.0]]", "[[true]]", "row 0 of ids"),
    ],
)
def test_several_inputs_that_are_refused(ids: str, mask: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        from_json(f'{{"rows": {{"ids": {ids}, "mask": {mask}}}}}'.encode(), IDS, LIMITS)
    with pytest.raises(Refused, match="object with the rows of each input"):
        from_json(b'{"rows": [[1]]}', IDS, LIMITS)
    with pytest.raises(Refused, match="several as JSON"):
        from_bytes(b"1234", IDS, LIMITS)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "uint64"])
def test_the_largest_whole_number_and_the_next(kind: str) -> None:
    """Also as floats, which have no 2**63 - 1, and as which JSON beyond 64 bits is read."""
    own, bounds = [Input("x", (1,), kind)], np.iinfo(kind)
    for value in (bounds.min, bounds.max):
        assert from_json(f'{{"rows": [[{value}]]}}'.encode(), own, LIMITS)["x"].tolist() == [[value]]
    for value in (bounds.max + 1, float(bounds.max + 1), bounds.min - 1, 2.0 * bounds.min - 1):
        with pytest.raises(Refused, match=f"no {kind}|must be numbers"):
            from_json(f'{{"rows": [[{value}]]}}'.encode(), own, LIMITS)


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "whole number of rows|no rows"),
        (b"12345", "no whole number of rows of 12 bytes"),
        (b"\x93NUMPY", "damaged"),
        (npy(X)[:-1], "not as long"),
        (npy(X)[:40], "damaged"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3), }\n"), "not as long"),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1, 3), }\n") + bytes(24), "has object"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3), }\n"), "not as long|damaged"),
        (header("__import__('os').abort()\n"), "damaged"),
        (header("(" * 5000 + "\n"), "damaged"),
        (npy(np.zeros((2, 3), "U5")), "has <U5"),
        (npy(np.zeros((2, 3), bool)), "has bool"),
        (npy(np.zeros((2, 4), "f4")), r"shape \[4\]"),
        (npy(np.float32(3)), "shape|not as long"),
        (npy(np.full((2, 3), np.nan, "f4")), "row 0 of x is not finite"),
        (np.array([1, 2, np.inf], "<f4").tobytes(), "row 0 of x is not finite"),
        (npy(np.full((2, 3), 1e300)), "row 0 of x is not finite"),
        (npy(np.zeros((9, 3), "f4")), "at most 4"),
    ],
)
def test_raw_numbers_that_are_refused(body: bytes, says: str) -> None:
    with pytest.raises(Refused, match=says):
        from_bytes(body, ROW, LIMITS)


def picture(mode: str = "RGB", size: tuple[int, int] = (4, 3), form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], bands), np.uint8)
    Image.fromarray(values[..., 0] if bands == 1 else values, mode if mode in ("RGBA", "CMYK") else None).save(
        file, form, **options
    )
    return file.getvalue()


GREY, COLOUR = (Input("x", (1, 3, 4), "float32"),), (Input("x", (3, 3, 4), "float32", (0.1, 0.2, 0.3), (0.5, 0.5, 0.25)),)


def test_images_are_normalised_as_the_file_says() -> None:
    pixels = np.asarray(Image.open(io.BytesIO(picture()))).transpose(2, 0, 1) / 255
    arrays, notes = from_images([picture(), picture()], COLOUR, LIMITS)
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.5, 0.25])
    np.testing.assert_allclose(arrays["x"][1], (pixels - mean[:, None, None]) / std[:, None, None], rtol=1e-5, atol=1e-6)
    assert (arrays["x"].shape, arrays["x"].dtype, notes) == ((2, 3, 3, 4), np.float32, [])
    arrays, _ = from_images([picture("L")], GREY, LIMITS)
    np.testing.assert_allclose(arrays["x"][0, 0], np.asarray(Image.open(io.BytesIO(picture("L")))) / 255, rtol=1e-6)


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "CMYK"])
def test_any_kind_of_picture(mode: str) -> None:
    form = "JPEG" if mode == "CMYK" else "PNG"
    file = io.BytesIO()
    Image.open(io.BytesIO(picture("RGB"))).convert(mode).save(file, form)
    for inputs in (GREY, COLOUR):
        arrays, _ = from_images([file.getvalue()], inputs, LIMITS)
        assert arrays["x"].shape == (1, *inputs[0].shape)


def test_resizing_is_said() -> None:
    arrays, notes = from_images([picture(size=(8, 6))], COLOUR, LIMITS)
    assert arrays["x"].shape == (1, 3, 3, 4)
    assert notes == ["image 0 was resized from 8 × 6 to 4 × 3"]
    free = (Input("x", (3, None, None), "float32"),)
    assert from_images([picture(size=(8, 6))], free, LIMITS)[0]["x"].shape == (1, 3, 6, 8)
    with pytest.raises(Refused, match="different sizes"):
        from_images([picture(size=(8, 6)), picture()], free, LIMITS)


def png(width: int, height: int, colours: int = 2, **chunks: bytes) -> bytes:
    """A PNG of chunks: a small one may say that it is large, or have none of the colours that its pixels name."""
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    named = [(key.encode(), value) for key, value in chunks.items()]
    whole = [(b"IHDR", header), *named, (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    parts = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in whole)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "no rows"),
        ([b""], "image 0 is no whole PNG or JPEG$"),
        ([picture(), b"GIF89a"], "image 1 is no whole PNG or JPEG$"),  # no address of the process
        ([picture()[:60]], "image 0 is no whole"),
        ([picture(form="JPEG")[:-100]], "image 0 is no whole"),
        ([png(60, 60)], "too large"),
        ([png(10000, 10000)], "too large|is no whole"),
        ([png(2**31 - 1, 2**31 - 1)], "is no whole|too large"),
        ([picture(size=(40, 40)), picture(size=(40, 40))], "image 1 of 40 × 40 pixels is too large"),
        ([picture()] * 5, "at most 4"),
        ([png(4, 3, 3, PLTE=b"123", tRNS=bytes(300))], "image 0 is no whole"),
    ],
)
def test_images_that_are_refused(files: list[bytes], says: str) -> None:
    with pytest.raises(Refused, match=says):
        from_images(files, COLOUR, LIMITS)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [60, 10_000, 30_000])
def test_images_beyond_the_limit_are_too_large(size: int) -> None:
    """Whether Pillow opens them or not."""
    with pytest.raises(Refused, match=r"image 0 .*too large") as refused:
        from_images([png(size, size)], COLOUR, LIMITS)
    assert refused.value.status == 413


def written(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("inputs", [GREY, (Input("x", (3, 3, 4), "float32"),)], ids=["grey", "colour"])
def test_transparent_pixels_are_white(inputs: Any) -> None:
    """In every way in which a PNG says that they are transparent; that is said too."""
    black, alpha = Image.new("L", (4, 3)), Image.new("L", (4, 3))
    alpha.putpixel((1, 2), 255)
    alpha.putpixel((2, 2), 51)
    wanted = np.ones((3, 4))
    wanted[2, 1:3] = 0, 0.8
    said = ["image 0 has transparent pixels: it was put on white"]
    for kinds in ((black, alpha), (black, black, black, alpha)):
        arrays, notes = from_images([written(Image.merge("LA" if len(kinds) == 2 else "RGBA", kinds))], inputs, LIMITS)
        np.testing.assert_allclose(arrays["x"], np.broadcast_to(wanted, arrays["x"].shape), atol=1e-6)
        assert notes == said
    for image in (black, black.convert("P"), black.convert("RGB")):
        arrays, notes = from_images([written(image, transparency=(0, 0, 0) if image.mode == "RGB" else 0)], inputs, LIMITS)
        assert (arrays["x"].min(), notes) == (1, said)
    assert from_images([picture("RGB")], inputs, LIMITS)[1] == []
    opaque = Image.merge("LA", (black, Image.new("L", (4, 3), 255)))
    assert from_images([written(opaque)], inputs, LIMITS)[1] == []


@pytest.mark.parametrize("way", range(9))
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_images_are_turned_as_they_say(form: str, way: int) -> None:
    """A picture taken with the camera on its side: the network sees it as the page shows it."""
    exif = Image.Exif()
    exif[0x0112] = way
    image = Image.new("L", (16, 16))
    image.paste(200, (0, 0, 8, 8))
    image.paste(90, (8, 0, 16, 8))
    file = written(image, form, exif=exif)
    with Image.open(io.BytesIO(file)) as opened:
        wanted = np.asarray(ImageOps.exif_transpose(opened))
    arrays, notes = from_images([file], [Input("x", (1, None, None), "uint8")], LIMITS)
    np.testing.assert_array_equal(arrays["x"][0, 0], wanted)
    assert notes == []


def tags(*entries: tuple[int, int, bytes]) -> bytes:
    """EXIF by hand: the tag, the type and the four bytes of each entry."""
    head = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries))
    return head + b"".join(struct.pack("<HHI", tag, kind, 1) + value for tag, kind, value in entries) + bytes(4)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_damaged_exif_loses_at_most_the_turn(form: str) -> None:
    """Pixels are whole, so that they are answered; a turn that cannot be read is told."""
    image = Image.new("L", (3, 4), 255)
    turn = (0x0112, 3, struct.pack("<HH", 6, 0))
    wide = [Input("x", (1, None, None), "uint8")]
    for exif, shape, said in (
        (tags((0x0100, 2, b"a\0\0\0"), turn), (3, 4), 0),  # a width that is text, which Pillow cannot write again
        (tags((0x0112, 2, b"6\0\0\0")), (4, 3), 1),
        (tags((0x0112, 3, b"\x63\0\0\0")), (4, 3), 1),
    ):
        arrays, notes = from_images([written(image, form, exif=exif)], wide, LIMITS)
        assert arrays["x"].shape[2:] == shape
        assert len(notes) == said
        assert all("taken as it lies" in note for note in notes)
    assert "damaged EXIF" in from_images([png(4, 3, eXIf=b"no EXIF")], wide, LIMITS)[1][0]


def test_pixels_of_sixteen_bits_are_refused() -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((3, 4), np.uint16)).save(file, "PNG")
    with pytest.raises(Refused, match="8 bits per channel"):
        from_images([file.getvalue()], GREY, LIMITS)


def test_images_are_for_networks_of_images() -> None:
    with pytest.raises(Refused, match="rows as JSON"):
        from_images([picture()], ROW, LIMITS)
