"""Memory of a real server process while it handles one large request, as a multiple of the request's bytes.

Covers `transport/process/server.py`.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.bombs.bomb import raw_bomb
from drills.bombs.files import OTHER_FILES, file_fields
from drills.bombs.forms import form, post
from drills.bombs.sockets import CONTINUATION, FRAMES
from drills.bombs.throw import throw
from drills.harness.memory import MemoryMeter
from tests.clients.websocket.raw_socket import TEXT, encode_frame, open_raw_socket
from tests.support.server_process import ServerProcess, run_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.quiet_cores,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="platform: not Linux"),
]

MIB = 1024 * 1024
# of the request's bytes: the body and its text are held together, plus up to half of it from earlier requests
MAX_FACTOR = 3.0


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake") as live:
        yield live


@pytest.fixture
def storing_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        yield live


def build_request(text: str, **fields: Any) -> dict[str, Any]:
    """Build a request above the context size. Truncation shortens it for the model; all of it is stored."""
    messages = [{"role": "user", "content": text}, {"role": "user", "content": "hi"}]
    return {"model": "fake", "input": messages, "truncation": "auto", **fields}


def build_items(text: str) -> dict[str, Any]:
    return {"items": [{"type": "message", "role": "user", "content": text}]}


def build_compact_request(text: str) -> dict[str, Any]:
    return {"model": "fake", "input": [*build_request(text)["input"], {"role": "assistant", "content": "hello"}]}


# Path, body and factor of the request's bytes: the text, the objects built from it, and half of it in the cache of the
# store.
REQUESTS: dict[str, tuple[str, Callable[[str], dict[str, Any]], float]] = {
    "a response that is not stored": ("/v1/responses", lambda text: build_request(text, store=False), 3.6),
    "a stored response": ("/v1/responses", build_request, 3.8),
    "a stored response that is streamed": ("/v1/responses", lambda text: build_request(text, stream=True), 3.8),
    "the tokens of an input": ("/v1/responses/input_tokens", build_request, 3.6),
    "a compaction": ("/v1/responses/compact", build_compact_request, 3.6),
    "a conversation": ("/v1/conversations", build_items, 3.0),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_memory_for_a_large_text_is_bounded_on_every_endpoint(storing_server: ServerProcess, name: str) -> None:
    path, body, factor = REQUESTS[name]
    assert storing_server.send("POST", path, body("hi"))[0] == 200
    memory = MemoryMeter(storing_server.process.pid)
    assert storing_server.send("POST", path, body("x" * (16 * MIB)))[0] == 200
    assert memory.measure_peak_growth() < factor * 16 * MIB


def test_a_response_is_read_without_its_large_request(storing_server: ServerProcess) -> None:
    small, large = [json.loads(storing_server.post(build_request(text))[1])["id"] for text in ("hi", "x" * (16 * MIB))]
    assert storing_server.send("GET", f"/v1/responses/{small}")[0] == 200
    memory = MemoryMeter(storing_server.process.pid)
    assert storing_server.send("GET", f"/v1/responses/{large}")[0] == 200
    assert memory.measure_peak_growth() < 8 * MIB


LARGE_READS: dict[str, str] = {
    "the items of a response": "/v1/responses/{response}/input_items?include[]=message.input_image.image_url",
    "the items of a conversation": "/v1/conversations/{conversation}/items",
}


@pytest.mark.parametrize("name", LARGE_READS)
def test_memory_for_reading_large_items_is_bounded(storing_server: ServerProcess, name: str) -> None:
    paths = []
    for text in ("hi", "x" * (16 * MIB)):
        response = json.loads(storing_server.post(build_request(text))[1])["id"]
        conversation = json.loads(storing_server.send("POST", "/v1/conversations", build_items(text))[1])["id"]
        paths.append(LARGE_READS[name].format(response=response, conversation=conversation))
    assert storing_server.send("GET", paths[0])[0] == 200
    memory = MemoryMeter(storing_server.process.pid)
    status, body = storing_server.send("GET", paths[1])
    assert (status, len(body) > 16 * MIB) == (200, True)
    assert memory.measure_peak_growth() < 2.5 * 16 * MIB  # as they are stored, and as they are sent


def test_memory_for_a_large_conversation_item_is_bounded(
    storing_server: ServerProcess,
) -> None:
    conversation = json.loads(storing_server.send("POST", "/v1/conversations", {})[1])["id"]
    assert storing_server.send("POST", f"/v1/conversations/{conversation}/items", build_items("hi"))[0] == 200
    memory = MemoryMeter(storing_server.process.pid)
    assert (
        storing_server.send("POST", f"/v1/conversations/{conversation}/items", build_items("x" * (16 * MIB)))[0] == 200
    )
    assert memory.measure_peak_growth() < 3 * 16 * MIB


def test_memory_for_a_large_conversation_turn_is_bounded(storing_server: ServerProcess) -> None:
    conversation = json.loads(storing_server.send("POST", "/v1/conversations", {})[1])["id"]
    assert storing_server.post(build_request("hi", conversation=conversation))[0] == 200
    memory = MemoryMeter(storing_server.process.pid)
    assert storing_server.post(build_request("x" * (16 * MIB), conversation=conversation))[0] == 200
    assert memory.measure_peak_growth() < 3.8 * 16 * MIB


async def test_memory_for_a_large_file_is_bounded_after_broken_frames(server: ServerProcess) -> None:
    broken, code = FRAMES["fragments too large"]
    file = file_fields(b64encode(OTHER_FILES["15 MiB of noise"]()).decode())
    assert server.post({"model": "fake", "input": "hi"})[0] == 200
    memory = MemoryMeter(server.process.pid)
    for _ in range(4):
        async with open_raw_socket(server) as client:
            await client.send(broken)
            assert await client.wait_closed() == code
    status, body = server.post({"model": "fake", **file})
    assert (status, b"invalid_file" in body) == (400, True)
    assert memory.measure_peak_growth() < MAX_FACTOR * 20 * MIB


async def test_memory_for_a_large_fragmented_message_is_bounded(server: ServerProcess) -> None:
    message = b'{"type":"response.create","model":"fake","temperature":7,"input":"%b"}' % (b"x" * (16 * MIB))
    pieces = [message[at : at + MIB] for at in range(0, len(message), MIB)]
    assert server.post({"model": "fake", "input": "hi"})[0] == 200
    async with open_raw_socket(server) as client:
        memory = MemoryMeter(server.process.pid)
        await client.send(encode_frame(TEXT, pieces[0], fin=False))
        for piece in pieces[1:]:
            await client.send(encode_frame(CONTINUATION, piece, fin=False))
        await client.send(encode_frame(CONTINUATION))
        assert (await client.receive_event())["error"]["param"] == "temperature"
    assert memory.measure_peak_growth() < 3.5 * 16 * MIB  # mostly two copies, three on a busy machine


async def test_a_large_form_is_freed_once_it_is_parsed(server: ServerProcess) -> None:
    audio = raw_bomb("audio", post(form(("model", "fake"), file=bytes(16 * MIB))))
    assert server.post({"model": "fake", "input": "hi"})[0] == 200
    memory = MemoryMeter(server.process.pid)
    assert (await throw(server.port, audio)).status == 200
    assert (
        memory.measure_peak_growth() < 3.5 * 16 * MIB
    )  # the parts of the form, the request to the engine, and the engine's copy
