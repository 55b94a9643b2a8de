"""What a large request takes of the server's memory while it is there, and what is left of it."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.bombs.bomb import given
from drills.bombs.files import OTHERS, attached
from drills.bombs.forms import form, sent
from drills.bombs.sockets import CONTINUATION, FRAMES
from drills.bombs.thrown import throw
from drills.memory import Memory
from tests.clients.raw_socket import TEXT, frame, raw_socket
from tests.live import Live, serving

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
