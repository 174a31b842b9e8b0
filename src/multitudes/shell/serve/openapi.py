"""The schema of the server's requests and answers, as OpenAPI describes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from multitudes.shell.serve.description import Input
from multitudes.shell.serve.graph import DTYPES, Graph
from multitudes.shell.serve.limits import Limits

Schema = dict[str, Any]

DETAIL: Schema = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}

ERRORS = {
    400: "the body cannot be read",
    401: "the token is missing or wrong",
    408: "the body did not arrive in time",
    413: "the body has too many bytes, rows or pixels",
    415: "the content type is not known, or not for this network",
    422: "rows do not fit the network, or have numbers that are not finite",
    503: "the queue is full",
    504: "the answer took too long",
}
"""Statuses of refusals, with their meaning."""


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def errors(*statuses: int) -> dict[int | str, Schema]:
    """Returns the schemas of refusals."""
    return {status: {"description": ERRORS[status], "content": _json(DETAIL)} for status in statuses}


HEALTH: dict[int | str, Schema] = {
    status: {
        "description": text,
        "content": _json({"type": "object", "properties": {"status": {"enum": ["ok", "stopping"]}}, "required": ["status"]}),
    }
    for status, text in {200: "rows are answered", 503: "the server stops"}.items()
}
METRICS: dict[int | str, Schema] = {
    200: {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}, **errors(401),
}  # fmt: skip


def predict_schema(graph: Graph, limits: Limits, has_token: bool) -> Schema:
    """Returns what FastAPI should say of `/predict`: its body by content type, its query, its answers."""
    (own, *others) = graph.inputs
    if others:
        each = {one.name: _rows(one, limits) for one in graph.inputs}
        rows: Schema = {"type": "object", "properties": each, "required": list(each), "additionalProperties": False}
    else:
        rows = _rows(own, limits)
    form = {"type": "object", "properties": {"rows": rows}, "required": ["rows"], "additionalProperties": False}
    content = _json(form)
    binary = {"schema": {"type": "string", "format": "binary"}}
    if not others:
        content["application/octet-stream"] = binary
    if not others and own.is_image:
        files = {"type": "array", "items": binary["schema"], "minItems": 1, "maxItems": limits.rows}
        many = {"type": "object", "properties": {"images": files}, "required": ["images"]}
        content |= {"image/png": binary, "image/jpeg": binary, "multipart/form-data": {"schema": many}}
    names = {"type": "array", "items": {"enum": list(graph.outputs)}, "minItems": 1}
    query = {"name": "outputs", "in": "query", "required": False, "style": "form", "explode": False, "schema": names}
    extra: Schema = {"requestBody": {"required": True, "content": content}, "parameters": [query]}
    if has_token:
        extra["security"] = [{"bearer": []}]
    done = {"description": "one array per output, a row of each for every row", "content": _json(_answer(graph))}
    return {"openapi_extra": extra, "responses": {200: done, **errors(*ERRORS)}}


def _rows(own: Input, limits: Limits) -> Schema:
    """Returns the schema of an input's rows: nested arrays of numbers."""
    dtype = np.dtype(own.dtype)
    schema: Schema = {"type": {"b": "boolean", "f": "number"}.get(dtype.kind, "integer")}
    if dtype.kind != "b":
        bounds: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        kind = float if dtype.kind == "f" else int
        schema |= {"minimum": kind(bounds.min), "maximum": kind(bounds.max)}
    for size in reversed(own.shape):
        sizes = {"minItems": 1} if size is None else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **sizes}
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": limits.rows}


def _answer(graph: Graph) -> Schema:
    """Returns the schema of an answer."""
    properties: Schema = {"notes": {"type": "array", "items": {"type": "string"}}}
    for one in graph.session.get_outputs():
        if one.name in graph.outputs:
            kind = np.dtype(DTYPES[one.type]).kind
            schema: Schema = {"type": {"b": "boolean", "f": "number"}.get(kind, "integer")}
            for _ in one.shape:
                schema = {"type": "array", "items": schema}
            properties[one.name] = schema
    return {"type": "object", "properties": properties, "additionalProperties": False}
