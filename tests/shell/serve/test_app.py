"""App: every route, by every form of body; what is refused is said, with the right status and in valid JSON."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from PIL import Image
from shell.serve.graphs import classifier, describe, expected, saved
from starlette.testclient import TestClient

from multitudes.shell.serve.app import make_app
from multitudes.shell.serve.graph import load_graph
from multitudes.shell.serve.limits import Limits

X = np.random.default_rng(2).normal(size=(6, 5)).astype(np.float32)
RAW = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {"rows": saved(folder), "images": saved(folder, classifier((3, 4, 4)), "images.onnx")}


@pytest.fixture(scope="module")
def client(files: dict[str, Path]) -> Iterator[TestClient]:
    with TestClient(make_app(load_graph(files["rows"], 1), Limits(body=100_000, rows=64))) as client:
        yield client


def check(answer: Any, x: np.ndarray) -> None:
    assert answer.status_code == 200, answer.text
    values = answer.json()
    for name, value in expected(x).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-5)


def test_every_form_has_the_same_answer(client: TestClient) -> None:
    check(client.post("/predict", json={"rows": X.tolist()}), X)
    check(client.post("/predict", content=X.tobytes(), headers=RAW), X)
    file = io.BytesIO()
    np.save(file, X)
    check(client.post("/predict", content=file.getvalue(), headers=RAW), X)
    large = np.tile(X, (10, 1))
    check(client.post("/predict", json={"rows": large.tolist()}), large)


def test_some_outputs(client: TestClient) -> None:
    answer = client.post("/predict?outputs=label,entropy", json={"rows": X.tolist()}).json()
    assert list(answer) == ["label", "entropy"]
    assert answer["label"] == expected(X)["label"].tolist()
    wrong = client.post("/predict?outputs=label,gone", json={"rows": X.tolist()})
    assert wrong.status_code == 422
    assert "there is no output 'gone'. Outputs: probs, label" in wrong.json()["detail"]


def test_images(files: dict[str, Path]) -> None:
    rng = np.random.default_rng(0)
    pictures = [io.BytesIO() for _ in range(3)]
    for file in pictures:
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).save(file, "PNG")
    x = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) / 255 for file in pictures]).astype(np.float32)
    with TestClient(make_app(load_graph(files["images"], 1))) as client:
        parts = [("images", (f"{i}.png", file.getvalue(), "image/png")) for i, file in enumerate(pictures)]
        check(client.post("/predict", files=parts), x)
        check(client.post("/predict", content=pictures[0].getvalue(), headers={"Content-Type": "image/png"}), x[:1])
        broken = client.post("/predict", files=[*parts, ("images", ("x.png", b"no", "image/png"))])
        assert (broken.status_code, "image 3 is no whole" in broken.text) == (422, True)
        assert client.post("/predict", data={"images": "text"}).status_code == 415
        assert client.post("/predict", content=b"--x", headers={"Content-Type": "multipart/form-data"}).status_code == 400
        fields = client.post("/predict", files=[("images", (None, "text"))])
        assert fields.status_code in (400, 422)


def test_a_form_that_was_cut_is_refused(files: dict[str, Path]) -> None:
    """Wherever it ends: no image may be lost in silence."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    head = b'--XX\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    whole = 2 * (head + file.getvalue() + b"\r\n") + b"--XX--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=XX"}
    with TestClient(make_app(load_graph(files["images"], 1))) as client:
        assert len(client.post("/predict", content=whole, headers=kind).json()["label"]) == 2
        for cut in (4, 6, 12, 60, len(file.getvalue()) + 20, len(whole) // 2 - 3, len(whole) - 1, len(whole)):
            answer = client.post("/predict", content=whole[:-cut], headers=kind)
            assert answer.status_code == 400, cut
            assert "the form has no end" in answer.json()["detail"]


def test_a_form_with_too_many_images(files: dict[str, Path]) -> None:
    with TestClient(make_app(load_graph(files["images"], 1), Limits(rows=2))) as client:
        answer = client.post("/predict", files=[("images", ("a.png", b"", "image/png"))] * 3)
    assert (answer.status_code, "at most 2" in answer.text) == (413, True)


REFUSED: list[tuple[bytes, str, int, str]] = [
    (b'{"rows": [[1,2,3,4,NaN]]}', "application/json", 422, "row 0 of x is not finite"),
    (b'{"rows": [[1,2]]}', "application/json; charset=utf-8", 422, "shape"),
    (b"{", "application/json", 400, "no JSON"),
    (b"[" * 50_000, "application/json", 400, "no JSON"),
    (b"{}", "text/plain", 415, "application/json"),
    (b"{}", "", 415, "application/json"),
    (b"x", "image/png", 415, "does not take images"),
    (b" " * 200_000, "application/json", 413, "at most 100000 bytes"),
]


@pytest.mark.parametrize(("body", "kind", "status", "says"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_is_refused(client: TestClient, body: bytes, kind: str, status: int, says: str) -> None:
    answer = client.post("/predict", content=body, headers={"Content-Type": kind} if kind else {})
    assert answer.status_code == status
    assert says in answer.json()["detail"]


def test_a_body_without_a_length_is_counted(client: TestClient) -> None:
    parts = (b" " * 10_000 for _ in range(20))
    answer = client.post("/predict", content=parts, headers={"Content-Type": "application/json"})
    assert (answer.status_code, "at most 100000 bytes" in answer.text) == (413, True)


def test_answers_that_are_not_finite_are_refused(client: TestClient) -> None:
    rows = [[0.0] * 5, [3e38, -3e38, 3e38, 3e38, 3e38]]
    for path in ("/predict", "/predict?outputs=label", "/predict?outputs=abstain,label"):
        answer = client.post(path, json={"rows": rows})
        assert answer.status_code == 422
        assert answer.json()["detail"] == "the network's answer to row 1 is not a finite number: see probs"


def test_a_network_that_fails_is_told(tmp_path: Path) -> None:
    """An id beyond a table: whoever sent it is told, and the server goes on."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (int64[B, T] ids) => (float[B, T, 1] y) <float[4, 1] w = {1, 2, 3, 4}>'
    model = onnx.parser.parse_model(text + "{ y = Gather (w, ids) }")
    describe(model, outputs=["y"], inputs=[{"name": "ids"}], threshold=None, reference=None, labels=None, task="regression")
    with TestClient(make_app(load_graph(saved(tmp_path, model), 1))) as client:
        wrong = client.post("/predict", json={"rows": [[1, 99]]})
        assert (wrong.status_code, "the network cannot run these rows" in wrong.text) == (422, True)
        assert client.post("/predict", json={"rows": [[1, 3]]}).json() == {"y": [[[2.0], [4.0]]]}


def test_health(client: TestClient) -> None:
    about = client.get("/health").json()
    assert (about["status"], about["file"], about["task"], about["members"]) == ("ok", "a.onnx", "classes", 4)
    assert about["inputs"][0]["shape"] == [5]
    assert about["reference"]["line"] == 0.9
    assert "/" not in about["file"]


def test_metrics(files: dict[str, Path]) -> None:
    with TestClient(make_app(load_graph(files["rows"], 1))) as client:
        client.post("/predict", json={"rows": X.tolist()})
        client.post("/predict", json={"rows": X[:2].tolist()})
        client.post("/predict", json={"rows": 3})
        lines = client.get("/metrics").text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        number = {key: float(value) for key, value in values.items()}
        every = np.concatenate([X, X[:2]])
        wanted = {
            'multitudes_requests_total{status="200"}': 2, 'multitudes_requests_total{status="422"}': 1,
            "multitudes_request_seconds_count": 3, "multitudes_rows_total": 8, "multitudes_batch_rows_sum": 8,
            "multitudes_batch_rows_count": 2, "multitudes_queue_rows": 0,
            "multitudes_abstained_rows_total": expected(every)["abstain"].sum(),
            "multitudes_abstention_rate": expected(every)["abstain"].mean(),
            "multitudes_ood_rate": (expected(every)["entropy"] > 0.9).mean(), "multitudes_ood_expected_rate": 0.05,
            "multitudes_ood_alarm": 0,
        }  # fmt: skip
        assert {key: number[key] for key in wanted} == pytest.approx(wanted)
        client.post("/predict", json={"rows": np.zeros((60, 5)).tolist()})
        assert "multitudes_ood_alarm 1.0" in client.get("/metrics").text


def test_a_token(files: dict[str, Path]) -> None:
    with TestClient(make_app(load_graph(files["rows"], 1), token="secret")) as client:
        rows = {"rows": X.tolist()}
        for given in (
            "",
            "Bearer",
            "Bearer wrong",
            "Basic secret",
            "secret",
            "Bearer sécret",
            "Bearer secre",
            "Bearer secrett",
        ):
            for answer in (
                client.post("/predict", json=rows, headers={"Authorization": given.encode()}),
                client.get("/metrics", headers={"Authorization": given.encode()}),
                client.get("/openapi.json", headers={"Authorization": given.encode()}),
            ):
                assert answer.status_code == 401
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert client.get("/health", headers={"Authorization": given.encode()}).json() == {"status": "ok"}
        right = {"Authorization": "Bearer secret"}
        check(client.post("/predict", json=rows, headers=right), X)
        assert client.get("/health", headers=right).json()["file"] == "a.onnx"
        assert "bearer" in client.get("/openapi.json", headers=right).json()["components"]["securitySchemes"]
        assert client.get("/").status_code == 200


def test_beyond_the_queue(files: dict[str, Path]) -> None:
    app = make_app(load_graph(files["rows"], 1), Limits(queue=4, rows=4, batch=4))
    with TestClient(app) as client:
        app.state.server.batcher._held = 2
        answer = client.post("/predict", json={"rows": X[:3].tolist()})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        check(client.post("/predict", json={"rows": X[:2].tolist()}), X[:2])
        app.state.server.batcher._held = 0


def test_an_answer_that_takes_too_long(files: dict[str, Path]) -> None:
    app = make_app(load_graph(files["rows"], 1), Limits(timeout=0.2))
    batcher = app.state.server.batcher
    real = batcher._run
    batcher._run = lambda arrays: (time.sleep(0.5), real(arrays))[1]
    with TestClient(app) as client:
        assert client.post("/predict", json={"rows": X.tolist()}).status_code == 504
        batcher._run = real
        time.sleep(0.5)
        check(client.post("/predict", json={"rows": X.tolist()}), X)


PATHS = [
    "/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/static/../page.py",
    "/page.js", "/a.onnx", "/predict/../a.onnx", "/docs", "/redoc", "/.env", "/predict?outputs=../../etc/passwd",
    "/\\..\\..\\etc\\passwd",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_reads_files(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 405)
    assert set(answer.json()) == {"detail"}


def test_the_schema_says_what_is_taken(client: TestClient, files: dict[str, Path]) -> None:
    schema = client.get("/openapi.json").json()
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert list(body) == ["application/json", "application/octet-stream"]
    row = body["application/json"]["schema"]["properties"]["rows"]["items"]
    assert (row["minItems"], row["maxItems"], row["items"]["type"]) == (5, 5, "number")
    with TestClient(make_app(load_graph(files["images"], 1))) as other:
        taken = other.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert {"image/png", "image/jpeg", "multipart/form-data"} <= set(taken)


def test_errors_of_the_server_say_nothing_of_it(files: dict[str, Path]) -> None:
    app = make_app(load_graph(files["rows"], 1))
    app.state.server._wanted = lambda request: 1 / 0
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.post("/predict", json={"rows": X.tolist()})
    assert (answer.status_code, json.loads(answer.text)) == (500, {"detail": "an error of the server: its log has the details"})
    assert "division" not in answer.text


def test_page_and_headers(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http://" not in answer.text.replace("http://www.w3.org", "")
    assert "https://" not in answer.text
    assert sys.modules["multitudes.shell.serve.page"].page() == answer.text
