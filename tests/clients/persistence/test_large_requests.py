"""What a large request takes of the server's memory while it is there, and what is left of it."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.bombs.bomb import given
from drills.bombs.files import OTHERS, attached
from drills.bombs.forms import form, sent
from drills.bombs.sockets import CONTINUATION, FRAMES
from drills.bombs.throw import throw
from drills.harness.memory import Memory
from tests.clients.websocket.raw_socket import TEXT, frame, raw_socket
from tests.support.server_process import Live, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="not Linux"),
]

MIB = 1024 * 1024
TIMES = 2.5  # its bytes: the body and its text, which are there at once, and what others have left


@pytest.fixture
def server() -> Iterator[Live]:
    with serving("--engine", "fake") as live:
        yield live


@pytest.fixture
def storing(tmp_path: Path) -> Iterator[Live]:
    with serving("--engine", "fake", "--store", str(tmp_path / "store.db")) as live:
        yield live


def asked(text: str, **more: Any) -> dict[str, Any]:
    """It does not fit into the model's context, but it may be shortened; what is kept of it is all of it."""
    messages = [{"role": "user", "content": text}, {"role": "user", "content": "hi"}]
    return {"model": "fake", "input": messages, "truncation": "auto", **more}


def items(text: str) -> dict[str, Any]:
    return {"items": [{"type": "message", "role": "user", "content": text}]}


def compacted(text: str) -> dict[str, Any]:
    return {"model": "fake", "input": [*asked(text)["input"], {"role": "assistant", "content": "hello"}]}


# Times the bytes: the text, what is made of it, and half of it in the cache of the store.
ASKED: dict[str, tuple[str, Callable[[str], dict[str, Any]], float]] = {
    "a response that is not stored": ("/v1/responses", lambda text: asked(text, store=False), 3.6),
    "a stored response": ("/v1/responses", asked, 3.8),
    "the tokens of an input": ("/v1/responses/input_tokens", asked, 3.6),
    "a compaction": ("/v1/responses/compact", compacted, 3.6),
    "a conversation": ("/v1/conversations", items, 3.0),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_large_text_takes_a_few_times_its_bytes_whatever_is_asked_with_it(storing: Live, name: str) -> None:
    path, body, times = ASKED[name]
    assert storing.send("POST", path, body("hi"))[0] == 200
    memory = Memory(storing.process.pid)
    assert storing.send("POST", path, body("x" * (16 * MIB)))[0] == 200
    assert memory.grown() < times * 16 * MIB


def test_what_is_added_to_a_conversation_takes_little_more_than_itself_and_the_list_that_it_is_told_in(
    storing: Live,
) -> None:
    talk = json.loads(storing.send("POST", "/v1/conversations", {})[1])["id"]
    assert storing.send("POST", f"/v1/conversations/{talk}/items", items("hi"))[0] == 200
    memory = Memory(storing.process.pid)
    assert storing.send("POST", f"/v1/conversations/{talk}/items", items("x" * (16 * MIB)))[0] == 200
    assert memory.grown() < 4 * 16 * MIB


def test_a_large_turn_of_a_conversation_takes_its_item_and_its_row_beside_the_text(storing: Live) -> None:
    """SQLite writes a row anew that is changed, and has it twice meanwhile."""
    talk = json.loads(storing.send("POST", "/v1/conversations", {})[1])["id"]
    assert storing.post(asked("hi", conversation=talk))[0] == 200
    memory = Memory(storing.process.pid)
    assert storing.post(asked("x" * (16 * MIB), conversation=talk))[0] == 200
    assert memory.grown() < 6.5 * 16 * MIB


async def test_a_large_file_takes_little_more_than_the_body_and_its_text_whatever_came_before(server: Live) -> None:
    broken, code = FRAMES["fragments too large"]
    file = attached(b64encode(OTHERS["15 MiB of noise"]()).decode())
    assert server.post({"model": "fake", "input": "hi"})[0] == 200
    memory = Memory(server.process.pid)
    for _ in range(4):
        async with raw_socket(server) as client:
            await client.send(broken)
            assert await client.closed() == code
    status, body = server.post({"model": "fake", **file})
    assert (status, b"invalid_file" in body) == (400, True)
    assert memory.grown() < TIMES * 20 * MIB


async def test_a_large_message_in_pieces_takes_no_more(server: Live) -> None:
    message = b'{"type":"response.create","model":"fake","temperature":7,"input":"%b"}' % (b"x" * (16 * MIB))
    pieces = [message[at : at + MIB] for at in range(0, len(message), MIB)]
    assert server.post({"model": "fake", "input": "hi"})[0] == 200
    async with raw_socket(server) as client:
        memory = Memory(server.process.pid)
        await client.send(frame(TEXT, pieces[0], fin=False))
        for piece in pieces[1:]:
            await client.send(frame(CONTINUATION, piece, fin=False))
        await client.send(frame(CONTINUATION))
        assert (await client.event())["error"]["param"] == "temperature"
    assert memory.grown() < TIMES * 16 * MIB


async def test_a_large_form_is_let_go_once_it_is_taken_apart(server: Live) -> None:
    audio = given("audio", sent(form(("model", "fake"), file=bytes(16 * MIB))))
    assert server.post({"model": "fake", "input": "hi"})[0] == 200
    memory = Memory(server.process.pid)
    assert (await throw(server.port, audio)).status == 200
    assert memory.grown() < 3.5 * 16 * MIB  # its parts, what the engine is sent, and what that makes of it
