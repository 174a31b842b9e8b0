"""Bodies: what a request may send, JSON, raw numbers or images, becomes arrays that the network takes, or is refused."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multitudes.shell.serve.description import Input
from multitudes.shell.serve.graph import Arrays
from multitudes.shell.serve.limits import Limits

NPY = b"\x93NUMPY"
FORMATS = ("PNG", "JPEG")
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
"""Modes of Pillow with 8 bits for each channel, or fewer."""

EXACT = 2**53
"""From here on a float may stand for several whole numbers, such as those beyond 64 bits that JSON may hold."""


class Refused(Exception):
    """A request that is not answered: the status of HTTP, and what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def from_json(body: bytes, inputs: Sequence[Input], limits: Limits) -> Arrays:
    """Reads ``{"rows": [...]}``, or for several inputs ``{"rows": {"ids": [...], "mask": [...]}}``."""
    value = _parsed(body)
    if not isinstance(value, dict) or set(value) != {"rows"}:
        raise Refused(422, 'the body must be an object {"rows": [...]}')
    rows = value["rows"]
    names = [one.name for one in inputs]
    if not isinstance(rows, dict):
        if len(inputs) > 1:
            raise Refused(422, f"rows must be an object with the rows of each input: {', '.join(names)}")
        rows = {names[0]: rows}
    if set(rows) != set(names):
        raise Refused(422, f"rows must have the inputs {', '.join(names)}, and no others")
    return checked({one.name: _from_lists(rows[one.name], one) for one in inputs}, inputs, limits)


def _parsed(body: bytes) -> Any:
    """Parses JSON. NaN and Infinity, which JSON does not have, are read too, so that their row can be named."""
    import orjson

    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as first:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, f"the body is no JSON: {str(first)[:200]}") from None


def _from_lists(rows: Any, own: Input) -> NDArray[Any]:
    """Returns rows of lists as an array of the input's type; refuses other things than numbers, and numbers beyond it."""
    if not isinstance(rows, list):
        raise Refused(422, f"the rows of {own.name} must be an array")
    try:
        array = np.asarray(rows)
    except (ValueError, OverflowError, RecursionError):
        raise Refused(422, _form(own, "rows have different shapes")) from None
    if not rows:
        return np.zeros((0, *(size or 0 for size in own.shape)), own.dtype)
    wanted = np.dtype(own.dtype)
    if array.dtype.kind not in ("b" if wanted.kind == "b" else "iuf") or (wanted.kind != "b" and _has_bool(rows)):
        raise Refused(422, _form(own, "rows must be numbers" if wanted.kind != "b" else "rows must be true or false"))
    return _cast(array, own)


def _has_bool(rows: list[Any]) -> bool:
    """Whether true or false is among the numbers of nested lists: numpy would take it as 1 or 0."""
    kinds = set(map(type, rows))
    return bool in kinds or (list in kinds and any(map(_has_bool, rows)))


def _cast(array: NDArray[Any], own: Input) -> NDArray[Any]:
    """Returns an array in the input's type; refuses numbers that it does not hold."""
    wanted = np.dtype(own.dtype)
    if array.dtype == wanted:
        return array
    if wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        with np.errstate(invalid="ignore"):
            fits = (array >= bounds.min) & (array <= bounds.max) & (array == np.trunc(array))
            if array.dtype.kind == "f":
                fits &= np.abs(array) < EXACT
        if not fits.all():
            raise Refused(422, f"row {_first(~fits)} of {own.name} has a number that is no {wanted}")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(wanted)


def from_bytes(body: bytes, inputs: Sequence[Input], limits: Limits) -> Arrays:
    """Reads a .npy file, or raw little-endian numbers of the input's type, row after row."""
    if len(inputs) > 1:
        raise Refused(415, "raw numbers are for one input: send several as JSON")
    (own,) = inputs
    array = _from_npy(body, own) if body.startswith(NPY) else _from_raw(body, own)
    return checked({own.name: array}, inputs, limits)


def _from_raw(body: bytes, own: Input) -> NDArray[Any]:
    if None in own.shape:
        raise Refused(422, f"a row of {own.name} has no fixed size: send a .npy file, which has its shape")
    wanted = np.dtype(own.dtype).newbyteorder("<")
    size = math.prod(size or 0 for size in own.shape) * wanted.itemsize
    if size == 0 or len(body) % size:
        raise Refused(422, _form(own, f"{len(body)} bytes are no whole number of rows of {size} bytes"))
    return np.frombuffer(body, wanted).reshape(-1, *own.shape).astype(own.dtype, copy=False)


def _from_npy(body: bytes, own: Input) -> NDArray[Any]:
    """Reads a .npy file. The header is compared with the length of the body before memory is taken for it."""
    stream = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream, max_header_size=1000)
    except Exception as error:  # numpy parses the header as Python, with all errors that this may have
        raise Refused(400, f"the .npy file is damaged: {str(error)[:200]}") from None
    if dtype.kind not in "biuf" or (dtype.kind == "b") != (own.dtype == "bool"):
        raise Refused(422, _form(own, f"the .npy file has {dtype}"))
    if len(body) - stream.tell() != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise Refused(400, "the .npy file is not as long as its header says")
    array = np.frombuffer(body, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    return _cast(np.ascontiguousarray(array), own)


def checked(arrays: Arrays, inputs: Sequence[Input], limits: Limits) -> Arrays:
    """Returns arrays whose shapes and numbers fit the inputs; refuses others, and names the row."""
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        raise Refused(422, "inputs have different numbers of rows")
    if counts == {0}:
        raise Refused(422, "there are no rows")
    if max(counts) > limits.rows:
        raise Refused(413, f"{max(counts)} rows are too many: send at most {limits.rows} in a request")
    for one in inputs:
        array = arrays[one.name]
        if len(array.shape) != len(one.shape) + 1 or any(
            size not in (None, given) for size, given in zip(one.shape, array.shape[1:], strict=True)
        ):
            raise Refused(422, _form(one, f"a row has the shape {list(array.shape[1:])}"))
        if 0 in array.shape:
            raise Refused(422, _form(one, "a row is empty"))
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            raise Refused(
                422, f"row {_first(~finite)} of {one.name} is not finite: NaN and numbers beyond {one.dtype} are refused"
            )
    return arrays


def _first(wrong: NDArray[np.bool_]) -> int:
    """Returns the first row, counted from 0, in which something is wrong."""
    return int(wrong.reshape(len(wrong), -1).any(1).argmax())


def _form(own: Input, wrong: str) -> str:
    """Returns what is wrong, and what a row must be."""
    shape = ", ".join("any" if size is None else str(size) for size in own.shape)
    return f"{wrong}: a row of {own.name} must be {own.dtype} numbers of shape [{shape}]"


def from_images(files: Sequence[bytes], inputs: Sequence[Input], limits: Limits) -> tuple[Arrays, list[str]]:
    """Reads PNG or JPEG files as rows. Returns them, and notes on what was changed in them."""
    if len(inputs) > 1 or not inputs[0].is_image:
        raise Refused(415, "the network does not take images of one or three channels: send rows as JSON")
    if len(files) > limits.rows:
        raise Refused(413, f"{len(files)} images are too many: send at most {limits.rows} in a request")
    (own,) = inputs
    left, rows = limits.pixels, []
    notes: list[str] = []
    for index, file in enumerate(files):
        pixels, said, size = _pixels(file, own, index, left)
        left -= size
        rows.append(pixels)
        notes += said
    if len({row.shape for row in rows}) > 1:
        raise Refused(422, "images of different sizes cannot share a request with this network: send them one by one")
    arrays = {own.name: _normalised(np.stack(rows), own)} if rows else {own.name: np.zeros((0, 1, 1, 1), own.dtype)}
    return checked(arrays, inputs, limits), notes


def _pixels(file: bytes, own: Input, index: int, left: int) -> tuple[NDArray[np.uint8], list[str], int]:
    """Returns an image as ``[C, H, W]`` of the input's size, notes on what was changed, and the pixels that it had."""
    from PIL import Image, UnidentifiedImageError

    try:
        image, turned = _turned(_opened(file, index, left), index)
        image, notes = _on_white(image, index)
        plain = image.convert("L" if own.shape[0] == 1 else "RGB")
    except Refused:
        raise
    except Image.DecompressionBombError:
        raise Refused(413, f"image {index} is too large for what is left of the limit, {left} pixels") from None
    except UnidentifiedImageError:  # its text has an address of this process
        raise Refused(422, f"image {index} is no whole PNG or JPEG") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise Refused(422, f"image {index} is no whole PNG or JPEG: {str(error)[:100] or type(error).__name__}") from None
    notes = [*turned, *notes]
    size = plain.size
    wanted = (own.shape[2] or size[0], own.shape[1] or size[1])
    if wanted != size:
        plain = plain.resize(wanted, Image.Resampling.BILINEAR)
        notes.append(f"image {index} was resized from {size[0]} × {size[1]} to {wanted[0]} × {wanted[1]}")
    pixels = np.asarray(plain)
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1), notes, size[0] * size[1]


def _opened(file: bytes, index: int, left: int) -> Any:
    """Returns an image of Pillow; one that is too large is refused before it is decoded."""
    from PIL import Image

    image = Image.open(io.BytesIO(file), formats=FORMATS)
    width, height = image.size
    if width * height > left:
        raise Refused(413, f"image {index} of {width} × {height} pixels is too large for what is left of the limit, {left}")
    if image.mode not in MODES:
        raise Refused(422, f"image {index} has pixels of kind {image.mode}: send one with 8 bits per channel")
    image.load()
    return image


def _turned(image: Any, index: int) -> tuple[Any, list[str]]:
    """Returns an image turned as its EXIF says, and a note if that cannot be read."""
    from PIL import ExifTags, Image

    turn = Image.Transpose
    turns = {
        0: None, 1: None, 2: turn.FLIP_LEFT_RIGHT, 3: turn.ROTATE_180, 4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE, 6: turn.ROTATE_270, 7: turn.TRANSVERSE, 8: turn.ROTATE_90,
    }  # fmt: skip
    try:
        own = turns[image.getexif().get(ExifTags.Base.Orientation, 1)]
    except Exception:  # a parser of TIFF raises whatever damage leads it to
        return image, [f"image {index} has damaged EXIF, which may say how it is turned: it was taken as it lies"]
    return image if own is None else image.transpose(own), []


def _on_white(image: Any, index: int) -> tuple[Any, list[str]]:
    """Returns an image without transparency, as on a white page, and a note if pixels were transparent."""
    from PIL import Image

    if not image.has_transparency_data:
        return image, []
    colours = image.convert("RGBA")
    alpha = colours.getchannel("A")
    if alpha.getextrema()[0] == 255:
        return colours, []
    white = Image.new("RGB", image.size, "white")
    white.paste(colours, mask=alpha)
    return white, [f"image {index} has transparent pixels: it was put on white"]


def _normalised(pixels: NDArray[np.uint8], own: Input) -> NDArray[Any]:
    """Returns images ``[B, C, H, W]`` as the network was trained on them: from 0 to 1, normalised if the file says how."""
    if own.dtype == "uint8":
        return pixels
    values = pixels.astype(np.float32) / 255
    if own.mean is not None and own.std is not None:
        mean, std = (np.asarray(value, np.float32).reshape(-1, 1, 1) for value in (own.mean, own.std))
        values = (values - mean) / std
    return values.astype(own.dtype)
