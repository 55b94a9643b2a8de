"""What a client's going away does to a real vLLM: its running-request gauge is back at nothing within 250 ms.

The times that are printed begin when the client's socket is closed.
"""

import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.real.vllm_metrics import working
from tests.support.server_process import Live, serving
from tools.engine_install import NAME

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(400)]

TIMES = 25
MOST_MILLIS = 250
SLOWER = 1.5  # than vLLM alone, if that takes longer by itself


@pytest.fixture(scope="module")
def embedded(vllm: str, level: str) -> Iterator[Live]:
    with serving("--engine", vllm, "--engine-level", level) as live:
        yield live


@pytest.fixture(autouse=True)
def quiet(vllm: str) -> None:
    """The gauge says nothing if others use it too."""
    for _ in range(100):
        if not working(vllm):
            return
        time.sleep(0.1)
    pytest.skip("somebody else uses this vLLM now")


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])
@pytest.mark.shows("C.28")
def test_a_client_that_goes_away_frees_the_engine(
    embedded: Live, vllm: str, asked: bytes, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Beside it, in turns, the same without Antiphon: on a busy machine vLLM itself takes its time."""
    own, through = int(vllm.rpartition(":")[2]), embedded.port
    bare, whole = zip(*[(_freed(own, vllm, _BARE), _freed(through, vllm, asked)) for _ in range(TIMES)], strict=True)
    with capsys.disabled():
        sys.stdout.write(f"\n{request.node.name}: {_summary(whole)}; vLLM alone {_summary(bare)}\n")
    assert max(whole) <= max(MOST_MILLIS, SLOWER * max(bare))


@pytest.fixture(params=["responses", "chat/completions"])
def asked(request: pytest.FixtureRequest, model: str, streamed: bool) -> bytes:
    """A request for a long answer."""
    wants: dict[str, Any] = {"model": model, "stream": streamed, "ignore_eos": True}
    if request.param == "responses":
        wants |= {"input": "Tell a long story.", "max_output_tokens": 2000, "store": False}
    else:
        wants |= _STORY
    return _request(f"/v1/{request.param}", wants)


def _request(path: str, wants: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(wants)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


_STORY = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 2000, "ignore_eos": True}
_BARE = _request("/v1/chat/completions", {"model": NAME, "stream": True, **_STORY})


def _freed(port: int, vllm: str, request: bytes) -> float:
    """Milliseconds until the engine works on nothing, once the client that made it work is gone."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(request)
        deadline = time.monotonic() + 30
        while not working(vllm):
            assert time.monotonic() < deadline, "it never began"
    gone = time.monotonic()
    while working(vllm):
        assert time.monotonic() < gone + 20, "it goes on for nobody"
    return (time.monotonic() - gone) * 1000


def _summary(millis: Sequence[float]) -> str:
    return f"{len(millis)} times, p50 {statistics.median(millis):.0f} ms, max {max(millis):.0f} ms"
