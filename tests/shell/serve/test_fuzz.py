"""Bodies at random, by the schema and against it: the server answers each as its schema says, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import onnx.parser
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from shell.serve.graphs import classifier, describe, expected, saved
from starlette.testclient import TestClient

from multitudes.shell.serve.app import make_app
from multitudes.shell.serve.graph import load_graph
from multitudes.shell.serve.limits import Limits

pytestmark = pytest.mark.slow

IDS = """<ir_version: 8, opset_import: ["": 17]>
g (int64[B, T] ids, bool[B, T] mask) => (float[B, T, 1] y) <float[4, 1] w = {1, 2, 3, 4}> { y = Gather (w, ids) }"""
CHECKS = (
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module", params=["rows", "images", "ids"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    model = classifier((3, 4, 4) if request.param == "images" else (5,))
    if request.param == "ids":
        model = onnx.parser.parse_model(IDS)
        describe(model, outputs=["y"], inputs=[{"name": "ids"}, {"name": "mask"}], threshold=None, reference=None, labels=None)
    path: Path = saved(tmp_path_factory.mktemp("fuzz"), model)
    with TestClient(make_app(load_graph(path, 1), Limits(rows=8, body=50_000)), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.filterwarnings("ignore")
def test_requests_by_the_schema_and_against_it(client: TestClient) -> None:
    """Requests of all routes that fit the schema, and such that break it in one place; then the right answer still comes."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    counts = {"requests": 0}
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
        strategy = schema.as_strategy(generation_mode=mode)

        @hypothesis.given(case=strategy)
        @hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
        def send(case: schemathesis.Case) -> None:
            counts["requests"] += 1
            case.call_and_validate(checks=CHECKS)

        send()
    assert counts["requests"] >= 100
    about = client.get("/health").json()
    if about["inputs"][0]["shape"] == [5]:
        x = np.ones((2, 5), np.float32)
        answer = client.post("/predict", json={"rows": x.tolist()}).json()
        np.testing.assert_allclose(answer["probs"], expected(x)["probs"], rtol=1e-4)
    assert about["status"] == "ok"
