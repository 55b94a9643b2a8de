"""A disconnecting client frees a real vLLM: its gauge of running requests is back at zero within 250 ms.

The printed times start when the client's socket is closed.
"""

import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.real.vllm_metrics import count_active_requests
from tests.support.server_process import ServerProcess, run_server
from tools.engine_install import MODEL_NAME

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(400)]

TIMES = 25
MAX_MILLIS = 250
MAX_SLOWDOWN = 1.5  # relative to vLLM alone, if vLLM itself exceeds MAX_MILLIS


@pytest.fixture(scope="module")
def embedded_server(vllm: str, level: str) -> Iterator[ServerProcess]:
    with run_server("--engine", vllm, "--engine-level", level) as server:
        yield server


@pytest.fixture(autouse=True)
def idle_vllm(vllm: str) -> None:
    """The gauge is meaningless while other clients use this vLLM."""
    for _ in range(100):
        if not count_active_requests(vllm):
            return
        time.sleep(0.1)
    pytest.skip("real engine: other clients use this vLLM now")


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])
@pytest.mark.shows("C.28")
def test_a_disconnected_client_frees_the_engine(
    embedded_server: ServerProcess,
    vllm: str,
    payload: bytes,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """The same request without Antiphon runs in alternation: on a busy machine vLLM itself is slow."""
    vllm_port, server_port = int(vllm.rpartition(":")[2]), embedded_server.port
    direct, proxied = zip(
        *[
            (_measure_release(vllm_port, vllm, _DIRECT_PAYLOAD), _measure_release(server_port, vllm, payload))
            for _ in range(TIMES)
        ],
        strict=True,
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{request.node.name}: {_summarise(proxied)}; vLLM alone {_summarise(direct)}\n")
    assert max(proxied) <= max(MAX_MILLIS, MAX_SLOWDOWN * max(direct))


@pytest.fixture(params=["responses", "chat/completions"])
def payload(request: pytest.FixtureRequest, model: str, streamed: bool) -> bytes:
    """A request for a long answer."""
    fields: dict[str, Any] = {"model": model, "stream": streamed, "ignore_eos": True}
    if request.param == "responses":
        fields |= {"input": "Tell a long story.", "max_output_tokens": 2000, "store": False}
    else:
        fields |= _STORY
    return _build_request(f"/v1/{request.param}", fields)


def _build_request(path: str, fields: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(fields)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


_STORY = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 2000, "ignore_eos": True}
_DIRECT_PAYLOAD = _build_request("/v1/chat/completions", {"model": MODEL_NAME, "stream": True, **_STORY})


def _measure_release(port: int, vllm: str, payload: bytes) -> float:
    """Return the milliseconds until the engine is idle after its client has disconnected."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(payload)
        deadline = time.monotonic() + 30
        while not count_active_requests(vllm):
            assert time.monotonic() < deadline, "the request never started"
    gone = time.monotonic()
    while count_active_requests(vllm):
        assert time.monotonic() < gone + 20, "the request continues without a client"
    return (time.monotonic() - gone) * 1000


def _summarise(millis: Sequence[float]) -> str:
    return f"{len(millis)} times, p50 {statistics.median(millis):.0f} ms, max {max(millis):.0f} ms"
