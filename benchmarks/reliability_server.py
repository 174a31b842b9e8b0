"""What the server holds: load, more load than it can, broken requests, kills, and 100,000 requests. See reliability.py."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from reliability_training import changed
from shell.serve.graphs import classifier, expected, outside, saved
from shell.serve.processes import asked, free_port, running, started

RAW = "application/octet-stream"
TICKS = os.sysconf("SC_CLK_TCK")


def resnet18(path: Path, members: int) -> Path:
    """Exports a ResNet-18 for CIFAR-10: the single network, or a Packed-Ensemble of about its size."""
    import torch

    import multitudes as mt
    from multitudes import models

    x = torch.randn(2, 3, 32, 32)
    method = mt.Single() if members == 1 else mt.Packed(members=members, alpha=2)
    mt.export(mt.ensemble(models.resnet18(classes=10), method, x, seed=0), x, path)
    return path


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Runs what is started in a with-block on one core, where there are several."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(every)[core % len(every)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def cpu_seconds(pid: int) -> float:
    """The time that a process has computed, on whatever core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> float:
    """The memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def request(body: bytes, kind: str = RAW, path: str = "/predict") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Reads one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head[9:12]), await reader.readexactly(length)


async def client(
    port: int, sent: list[bytes], found: list[tuple[int, int, bytes]], numbers: Iterator[int], pause: float = 0
) -> None:
    """Sends requests on one connection, by the next number each, and notes number, status and answer; -1 if it breaks."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        found.append((-1, -1, b""))
        return
    with contextlib.closing(writer):
        for number in numbers:
            try:
                writer.write(sent[number % len(sent)])
                found.append((number, *await answer(reader)))
            except (OSError, asyncio.IncompleteReadError):
                found.append((number, -1, b""))
                return
            if pause and found[-1][1] == 503:
                await asyncio.sleep(pause)


async def clients(port: int, connections: int, sent: list[bytes], count: int, pause: float = 0) -> list[tuple[int, int, bytes]]:
    """Sends so many requests on several connections at once."""
    found: list[tuple[int, int, bytes]] = []
    numbers = iter(range(count))
    await asyncio.gather(*(client(port, sent, found, numbers, pause) for _ in range(connections)))
    return found


ALONE = """
import os, sys, time, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
x = np.random.default_rng(0).normal(size=(int(sys.argv[2]), 3, 32, 32)).astype(np.float32)
session.run(None, {"x": x})  # all outputs, as the server computes them
print("ready", flush=True)
for line in sys.stdin:
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(line)):
        session.run(None, {"x": x})
    print(time.perf_counter() - start, time.process_time() - cpu, flush=True)
"""
"""onnxruntime by itself, in a process that waits for its turns."""


def load(scale: float) -> dict[str, Any]:
    """Throughput of the server beside that of onnxruntime alone, of the single network and of an ensemble."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for title, members in (("single network", 1), ("Packed, 4 members", 4)):
            file = resnet18(Path(name) / f"{members}.onnx", members)
            figures |= {f"{title}: {key}": value for key, value in throughput(file, max(2, round(8 * scale))).items()}
    return figures


def throughput(file: Path, rounds: int) -> dict[str, Any]:
    """The server and onnxruntime alone in turns, on the same core, at the same batch."""
    batch, batches = 16, 3
    with on_core(0):
        command = [sys.executable, "-c", ALONE, str(file), str(batch)]
        alone = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = free_port()
        server = started(file, port, "--batch", str(batch), "--wait", "100", "--queue", "256")
    assert alone.stdin is not None
    assert alone.stdout is not None
    alone.stdout.readline()
    rows = np.random.default_rng(0).normal(size=(64, 3, 32, 32)).astype("<f4")
    sent = [request(row.tobytes()) for row in rows]
    with on_core(1):
        asyncio.run(clients(port, 4 * batch, sent, 4 * batch))
        wall, cpu, statuses = [], [], Counter[int]()
        for _ in range(rounds):
            alone.stdin.write(f"{batches}\n")
            alone.stdin.flush()
            own = [float(value) / (batches * batch) for value in alone.stdout.readline().split()]
            start, before = time.perf_counter(), cpu_seconds(server.pid)
            found = asyncio.run(clients(port, 4 * batch, sent, 2 * batches * batch))
            took = [time.perf_counter() - start, cpu_seconds(server.pid) - before]
            statuses.update(status for _, status, _ in found)
            wall.append((own[0], took[0] / len(found)))
            cpu.append((own[1], took[1] / len(found)))
    lines = asked(port, "GET", "/metrics")[1].decode().splitlines()
    sums = {key: float(next(line for line in lines if line.startswith(key)).split()[1]) for key in
            ("multitudes_batch_rows_sum", "multitudes_batch_rows_count")}  # fmt: skip
    mean = round(sums["multitudes_batch_rows_sum"] / sums["multitudes_batch_rows_count"], 1)
    for process in (alone, server):
        process.terminate()
        process.communicate()
    return {
        "rounds": rounds, "batch": batch, "mean batch of the server": mean,
        "requests": sum(statuses.values()), "answered": statuses[200],
        "onnxruntime, rows per second of computing": round(1 / statistics.median(one for one, _ in cpu), 1),
        "server, rows per second of computing": round(1 / statistics.median(two for _, two in cpu), 1),
        "throughput of the server by computing time": round(statistics.median(one / two for one, two in cpu), 3),
        "throughput of the server by the clock": round(statistics.median(one / two for one, two in wall), 3),
    }  # fmt: skip


def right(number: int, body: bytes, x: np.ndarray) -> bool:
    """Whether an answer is that to its own row."""
    return bool(np.allclose(json.loads(body)["probs"][0], expected(x[number % len(x)][None])["probs"][0], atol=1e-4))


def overload(scale: float) -> dict[str, Any]:
    """Ten times as many rows at once as the queue holds: each request is answered, rightly or with 503."""
    x = np.random.default_rng(0).normal(size=(64, 5)).astype("<f4")
    found: list[tuple[int, int, bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        options = ("--queue", "20", "--rows", "1", "--batch", "8", "--wait", "20")
        with running(saved(Path(name)), *options) as (port, _):
            found = asyncio.run(clients(port, 200, [request(row.tobytes()) for row in x], round(20_000 * scale)))
            after = asked(port, "POST", "/predict", x[:1].tobytes(), Content_Type=RAW)[0]
    statuses = Counter(status for _, status, _ in found)
    wrong = sum(status == 200 and not right(number, body, x) for number, status, body in found)
    told = sum(b"the queue is full" in body for _, status, body in found if status == 503)
    lost = round(20_000 * scale) - statuses[200] - told
    return {"requests": len(found), "answered": statuses[200], "refused with 503": told, "lost": lost, "wrong": wrong,
            "answers after it": int(after == 200)}  # fmt: skip


def picture(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(file, form)
    return file.getvalue()


def hostile_json(rng: random.Random) -> bytes:
    """JSON that is wrong somewhere: numbers, nesting, kinds, sizes."""
    number = rng.choice(
        ["NaN", "Infinity", "-Infinity", "1e400", "-1e308", "9" * 400, "1e-400", "null", "true", '"1"', "[]", "{}", "0x1"]
    )
    row = ["0"] * rng.choice([48, 48, 48, 1, 0, 47, 49])
    if row:
        row[rng.randrange(len(row))] = number
    nested = "[" * rng.choice([1, 2, 4, 64, 65, 1000, 10**5])
    kinds = [f'{{"rows": [[{",".join(row)}]]}}', f'{{"rows": {nested}0{"]" * len(nested)}}}', f'{{"rows": {nested}']
    kinds += [f'{{"{number}": 1}}', '{"rows": {"x": [' + number + "]}}", number, '{"rows":' + " " * rng.randrange(10**5) + "}"]
    return rng.choice(kinds).encode("utf-8", "surrogatepass")


def fuzz(scale: float) -> dict[str, Any]:
    """Bodies broken at random, sent to a server of its own, and requests that schemathesis makes from the schema."""
    import hypothesis
    import schemathesis

    rng, found, statuses = random.Random(0), Counter[str](), Counter[int]()
    array = io.BytesIO()
    np.save(array, np.zeros((2, 3, 4, 4), np.float32))
    boundary = "multipart/form-data; boundary=x"
    form = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    makers: dict[str, Callable[[], tuple[bytes, str]]] = {
        "broken PNG and JPEG": lambda: (changed(picture(rng.choice(["PNG", "JPEG"])), rng), "image/png"),
        "wrong JSON": lambda: (hostile_json(rng), "application/json"),
        "broken .npy": lambda: (changed(array.getvalue(), rng), RAW),
        "random bytes": lambda: (rng.randbytes(rng.randrange(2000)), rng.choice([RAW, "application/json", boundary, "x/y"])),
        "broken forms": lambda: (changed(form + picture("PNG") + b"\r\n--x--\r\n", rng), boundary),
    }
    with (
        tempfile.TemporaryDirectory() as name,
        running(saved(Path(name), classifier((3, 4, 4))), "--timeout", "20") as (port, server),
    ):
        for kind, make in makers.items():
            sent = [request(*make()) for _ in range(round(2000 * scale))]
            answers = asyncio.run(clients(port, 1, sent, len(sent)))
            found[kind] += len(sent)
            statuses.update(status for _, status, _ in answers)
            assert len(answers) == len(sent), kind
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @hypothesis.given(case=schema.as_strategy(generation_mode=mode))
            @hypothesis.settings(max_examples=max(5, round(500 * scale)), deadline=None, database=None, derandomize=True,
                                 suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
            def send(case: schemathesis.Case) -> None:
                found["by schemathesis"] += 1
                statuses[case.call().status_code] += 1

            send()
        alive = int(server.poll() is None and asked(port, "GET", "/health")[0] == 200)
    return {
        **found, "requests": sum(statuses.values()), "connections lost": statuses[-1],
        "errors of the server (5xx)": sum(n for status, n in statuses.items() if status >= 500),
        "statuses": {str(key): statuses[key] for key in sorted(statuses)}, "still alive": alive,
    }  # fmt: skip


def restarts(scale: float) -> dict[str, Any]:
    """SIGKILL under load, and a start on the same port."""
    rng, times, found = random.Random(0), [], Counter[str]()
    x = np.random.default_rng(0).normal(size=(64, 5)).astype("<f4")
    sent = [request(row.tobytes()) for row in x]

    async def until_killed(port: int, process: Any) -> list[tuple[int, int, bytes]]:
        answers = asyncio.create_task(clients(port, 8, sent, 10**6))
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        process.send_signal(signal.SIGKILL)
        return await answers

    with tempfile.TemporaryDirectory() as name:
        file, port = saved(Path(name)), free_port()
        for _ in range(max(2, round(20 * scale))):
            start = time.perf_counter()
            process = started(file, port)
            times.append(time.perf_counter() - start)
            answers = asyncio.run(until_killed(port, process))
            process.communicate()
            found["kills"] += 1
            found["answered"] += sum(status == 200 for _, status, _ in answers)
            found["wrong"] += sum(status == 200 and not right(number, body, x) for number, status, body in answers)
            found["connections broken by the kill"] += sum(status == -1 for _, status, _ in answers)
            found["other answers"] += sum(status not in (200, -1) for _, status, _ in answers)
    return {**found, "seconds to a first answer, median": round(statistics.median(times), 2)}


def memory(scale: float) -> dict[str, Any]:
    """100,000 requests of several kinds: memory after the first tenth, and at the end."""
    count = round(100_000 * scale)
    x = np.random.default_rng(0).normal(size=(64, 3, 4, 4)).astype("<f4")
    sent = [request(row.tobytes()) for row in x]
    sent[::8] = [request(json.dumps({"rows": row[None].tolist()}).encode(), "application/json") for row in x[::8]]
    sent[1::8] = [request(picture("PNG"), "image/png")] * 8
    sent[2::8] = [request(json.dumps({"rows": [with_nan(row)]}).encode(), "application/json") for row in x[2::8]]
    sizes, found = [], Counter[str]()
    with tempfile.TemporaryDirectory() as name, running(saved(Path(name), classifier((3, 4, 4)))) as (port, server):
        for _ in range(10):
            answers = asyncio.run(clients(port, 32, sent, count // 10))
            found.update(outcome(status, body) for _, status, body in answers)
            sizes.append(round(resident(server.pid), 1))
    return {"requests": found.total(), "answered": found["answered"], "refused (NaN)": found["refused (NaN)"],
            "lost": found["lost"], "memory after a tenth, MB": sizes[0],
            "memory at the end, MB": sizes[-1], "memory by tenths, MB": sizes}  # fmt: skip


def with_nan(row: np.ndarray) -> Any:
    """A row as lists, of the right shape, with one number that is NaN."""
    wrong = row.copy()
    wrong.flat[7] = np.nan
    return wrong.tolist()


def outcome(status: int, body: bytes) -> str:
    """What became of a request; one that is refused for another reason than NaN is lost."""
    refused = status == 422 and b"row 0 of x is not finite" in body
    return "answered" if status == 200 else "refused (NaN)" if refused else "lost"


SECRET = "a-secret-that-no-answer-may-have"
PLACES = """secret.txt a.onnx ../secret.txt ../../etc/passwd etc/passwd proc/self/environ page.js page.html app.py .env docs
redoc static/a""".split()
FRONTS = """/ // /./ /../ /%2e%2e/ /..%2f /%2f /..%252f /..\\ /%5c..%5c /predict/ /predict/../ /health/../ /metrics;/ file:///
http://127.0.0.1/""".split()
HEADERS = """X-Original-URL X-Rewrite-URL X-Forwarded-Path X-Sendfile X-Accel-Redirect Range If-Range Referer Cookie Host Accept
X-Forwarded-For Content-Disposition Content-Location Destination SOAPAction""".split()
METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"PROPFIND")


def reading(scale: float) -> dict[str, Any]:
    """Paths, methods and headers that might lead a server to read a file: no answer has a word of one."""
    found = Counter[str]()

    async def ask(port: int, lines: list[bytes]) -> list[bytes]:
        answers = []
        for line in lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                writer.write(line)
                with contextlib.suppress(asyncio.TimeoutError, OSError):
                    answers.append(await asyncio.wait_for(reader.read(), 10))
        return answers

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "secret.txt").write_text(SECRET)
        weights = np.frombuffer((SECRET * 2)[:16].encode(), np.uint8)
        (Path(name) / "w.bin").write_bytes(weights.tobytes())
        model = outside("w.bin")
        with running(saved(Path(name), model), SECRET=SECRET) as (port, _):
            end = b"Host: x\r\nConnection: close\r\n"
            paths = [f"{front}{place}".encode() for front in FRONTS for place in PLACES]
            lines = [b"%s %s HTTP/1.1\r\n%s\r\n" % (method, path, end) for path in paths for method in METHODS]
            files = ("/etc/passwd", f"{name}/secret.txt", "file:///etc/passwd", "bytes=0-", "../secret.txt")
            lines += [
                b"GET %s HTTP/1.1\r\n%s: %s\r\n%s\r\n" % (path, header.encode(), file.encode(), end)
                for path in (b"/", b"/health", b"/nothing")
                for header in HEADERS
                for file in files
            ]
            lines = lines[: max(100, round(len(lines) * scale))]
            answers = asyncio.run(ask(port, lines))
            alive = asked(port, "GET", "/health")[0] == 200
    found["requests by paths, methods and headers"] = len(lines)
    words = (SECRET.encode(), b"root:x:", b"import annotations", name.encode(), b"PATH=")
    found["answers with a word of a file"] = sum(any(word in one for word in words) for one in answers)
    found["answers that were 200 beside / and /health"] = sum(
        one.startswith(b"HTTP/1.1 200") and b"<!doctype html>" not in one and b'"status"' not in one for one in answers
    )
    return {**found, "still alive": int(alive)}
